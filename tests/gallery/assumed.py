"""Truths of what a step has computed, which come out the same nearly always, or do not."""

import lightning as L
import torch
from torch import nn
from torch.utils.data import DataLoader

import positions
from gallery.case import Small, add, carried, case
from gallery.state import even
from parity import loader

DECIDES = "a value of a tensor decides"


class Guarded(Small):
    """Trains on another loss where `is_other` says so."""

    def training_step(self, batch, batch_idx):
        loss = self.loss(batch)
        self.log("loss", loss)
        if self.is_other(loss, batch):
            self.log("other", loss)
            return 0.1 * loss
        return loss

    def is_other(self, loss, batch):
        return torch.isnan(loss)


add("guard against what is no number", Guarded, data=even, inductor=True)
add("guard against what is no number, in windows", Guarded, data=even, options={"accumulate_grad_batches": 2})


class Seldom(Guarded):
    """By what the network gives, and not by the batch alone."""

    def is_other(self, loss, batch):
        return (self(batch[0]).abs().amax() * 0 + batch[0].amax()) > 2.6


def many():
    return loader(batches=40, last=8)


add("seldom another way", Seldom, data=many, size=10, inductor=True)
add("seldom another way, in windows", Seldom, data=many, size=12, options={"accumulate_grad_batches": 3})
add("seldom another way, clipped", Seldom, data=many, size=10, options={"gradient_clip_val": 0.05})
add("seldom another way, in sinks of one", Seldom, data=many, size=1)


class Often(Guarded):
    """As often one way as the other."""

    def is_other(self, loss, batch):
        return (self(batch[0]).mean() * 0 + batch[0].mean()) > 0


add("often another way", Often, data=many, size=10, options={"max_epochs": 4}, eager=DECIDES, line="if self.is_other")


class FromSomeStepOn(Guarded):
    """Is another way than that of the first steps, and stays so: there is another program."""

    def is_other(self, loss, batch):
        return loss < 1.05


add("another way from some step on", FromSomeStepOn, data=many, size=10, options={"max_epochs": 4})


class WithAll(Seldom):
    """All that a step may leave behind: draws, statistics, a schedule, lists, numbers, Adam's state."""

    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(6, 8, bias=False), nn.BatchNorm1d(8), nn.Tanh(), nn.Dropout(0.2), nn.Linear(8, 3), nn.Dropout(0.1)
        )
        self.register_buffer("mean", torch.zeros(()))
        self.losses = []

    def training_step(self, batch, batch_idx):
        loss = super().training_step(batch, batch_idx)
        self.mean.lerp_(loss.detach(), 0.1)
        self.losses.append(loss.detach())
        return loss * (1 + 0.1 * batch_idx) if batch_idx % 7 else loss

    def on_train_epoch_end(self):
        self.log("sum", torch.stack(self.losses).sum())
        self.losses.clear()

    def configure_optimizers(self):
        optimizer = torch.optim.Adam(self.parameters(), lr=0.01)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + 0.1 * step))
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


add("seldom another way, with all that a step may leave", WithAll, data=many, size=10, inductor=True)
add(
    "seldom another way, with all of it in windows", WithAll, data=many, size=12, options={"accumulate_grad_batches": 2}
)


@case(data=many, size=10, raises="too large")
class AssertsWhatItComputes(Seldom):
    def is_other(self, loss, batch):
        assert not super().is_other(loss, batch), "too large"
        return False


@case(data=many, size=10)
class SkipsABatch(Seldom):
    """Gives no loss for it."""

    def training_step(self, batch, batch_idx):
        loss = self.loss(batch)
        return None if self.is_other(loss, batch) else loss


@case(data=many, size=10)
class CountsThem(Seldom):
    others = 0

    def is_other(self, loss, batch):
        self.others += (found := bool(super().is_other(loss, batch)))
        return found


@case(data=many, size=10)
class ByHand(Seldom):
    """Makes no step of the optimizer where the gradient is large."""

    def __init__(self):
        super().__init__()
        self.automatic_optimization = False

    def training_step(self, batch, batch_idx):
        optimizer = self.optimizers()
        optimizer.zero_grad()
        self.manual_backward(self.loss(batch))
        norm = nn.utils.clip_grad_norm_(self.parameters(), 1.0)
        if not self.is_other(norm, batch):
            optimizer.step()


@case(data=many, size=10)
class WritesToTheTruth(Seldom):
    """Behind the question."""

    def is_other(self, loss, batch):
        found = super().is_other(loss, batch)
        answer = bool(found)
        found.logical_not_()
        return answer


@case(data=many, size=10)
class TwoQuestions(Seldom):
    def is_other(self, loss, batch):
        return loss > 1.2 and not torch.isnan(loss) and bool(super().is_other(loss, batch))


if positions.KNOWN:

    @case(data=many, size=10)
    class KeepsNumbersToo(Seldom):
        average = 0.0

        def training_step(self, batch, batch_idx):
            loss = super().training_step(batch, batch_idx)
            self.average = 0.9 * self.average + 0.1 * loss.item()
            return loss * (1 + 0.1 * self.average)


class Sees(L.Callback):
    """Is shown each step."""

    def on_before_zero_grad(self, trainer, module, optimizer):
        self.count = getattr(self, "count", 0) + 1

    def on_train_end(self, trainer, module):
        assert self.count == trainer.global_step


add(
    "seldom another way, with a callback in the step",
    Seldom,
    data=many,
    size=10,
    options={"callbacks": lambda: [Sees()]},
    **carried(),
)


class Probable(Guarded):
    """A loss that refuses what is no probability, on one of two ways; statistics are written before that is asked."""

    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(6)

    def training_step(self, batch, batch_idx):
        x = self.norm(batch[0])
        wide = torch.where(batch[0].amax() > 2.6, 2.0, 0.9)
        chances = torch.sigmoid(self(x)) * wide.detach()
        target = nn.functional.one_hot(batch[1], 3).float()
        if (chances.detach().amax() * 0 + wide) > 1:
            return chances.square().mean()
        return nn.functional.binary_cross_entropy(chances, target)


add("another way where this one would be refused", Probable, data=many, size=10, inductor=True)


class Embeds(Guarded):
    """Looks up what there is; on the other way there would be none of it."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(3, 6)

    def training_step(self, batch, batch_idx):
        far = (batch[0].amax() > 2.6).long() * 100
        if (self.net[0].weight.sum() * 0 + far) > 50:
            return self.loss(batch)
        return self.loss((batch[0] + self.table(batch[1] + far), batch[1]))


add("another way where this one has no place", Embeds, data=many, size=10, inductor=True)


@case(data=many, size=10, raises="between 0 and 1")
class RefusesOnItsWay(Probable):
    def training_step(self, batch, batch_idx):
        x = self.norm(batch[0])
        chances = torch.sigmoid(self(x)) * torch.where(batch[0].amax() > 2.6, 5.0, 0.9)
        if torch.isnan(chances).any():
            return chances.square().mean()
        return nn.functional.binary_cross_entropy(chances, nn.functional.one_hot(batch[1], 3).float())


def with_no_numbers():
    data = many().dataset
    data.tensors[0][17 * 8 + 3, 2] = float("nan")
    data.tensors[0][31 * 8] = float("nan")
    return DataLoader(data, batch_size=8)


@case(data=with_no_numbers, size=10, inductor=True)
class LeavesOutWhatIsNoNumber(Guarded):
    left_out = 0

    def training_step(self, batch, batch_idx):
        loss = self.loss(batch)
        if torch.isnan(loss):
            self.left_out += 1
            return None
        return loss

    def on_train_end(self):
        assert self.left_out == 4
