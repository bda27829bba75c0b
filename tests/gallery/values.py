"""Functions that look at values: to take them out, or to refuse wrong ones."""

import numpy as np
import torch
from torch import nn

from gallery.case import Kept, Small, case, numbers

DECIDES = "a value of a tensor decides"


class Logs(Small):
    def training_step(self, batch, batch_idx):
        loss = self.loss(batch)
        self.log("loss", loss.item())
        return loss


@case(inductor=True, **numbers())
class LogsTheItemOfItsLoss(Small):
    def training_step(self, batch, batch_idx):
        loss = self.loss(batch)
        self.log("loss", loss.item(), on_step=True, on_epoch=True)
        return loss


@case(options={"precision": "bf16-mixed"}, tolerance=0.05, **numbers())
class LogsNumbersInEveryWay(Small):
    def training_step(self, batch, batch_idx):
        out = self(batch[0])
        loss = nn.functional.cross_entropy(out, batch[1])
        parts = {"half": loss / 2, "third": loss / 3}
        right = (out.argmax(1) == batch[1]).sum()
        self.log("by name", value=loss.item(), on_epoch=True, reduce_fx="max")
        self.log_dict({"one": 1.0, "loss": loss.detach().cpu().item(), "tensor": loss}, on_step=True, on_epoch=True)
        self.log_dict(
            {name: -part.item() for name, part in parts.items()},
            batch_size=len(batch[1]),
        )
        for name, part in parts.items():
            self.log(f"{name} again", part.item() * 100.0 / (batch_idx + 1))
        accuracy = 100 * right.item() / len(batch[1]) if len(batch[1]) else 0.0
        self.log("accuracy", accuracy)
        numbers = {"right": right.item(), "accuracy by two": accuracy / 2}
        self.log_dict(numbers, on_epoch=True, on_step=False)
        loss.detach().mul_(2)  # what was logged before stays what it was
        return loss / 2


@case(**numbers())
class LogsWhatAHelperReturns(Small):
    def parts(self, out, target):
        loss = nn.functional.cross_entropy(out, target)
        found = {"largest": out.max().item()}
        for name in ("one", "other"):
            found[name] = loss.item() / (1 + len(name))
        return loss, found

    def shared_step(self, batch, stage):
        loss, found = self.parts(self(batch[0]), batch[1])
        return loss, {f"{stage}/{name}": number for name, number in found.items()}

    def training_step(self, batch, batch_idx):
        loss, found = self.shared_step(batch, stage="train")
        for name, number in found.items():
            self.log(name, number, on_step=True, on_epoch=True)
        self.log("again", found["train/one"] * 2)
        return loss


@case(eager=DECIDES, line='return {"loss": loss.item()}')
class LooksAtWhatAHelperReturns(Small):
    def parts(self, loss):
        return {"loss": loss.item()}

    def training_step(self, batch, batch_idx):
        loss = self.loss(batch)
        for name, number in self.parts(loss).items():
            self.log(name, number if number < 1 else 1.0)
        return loss


@case(eager=DECIDES, line='self.log("loss", loss.item())')
class AnOverriddenLogGetsTheNumber(Logs):
    def log(self, name, value, *args, **options):
        super().log(name, value, *args, **options)
        super().log(f"{name} in words", float(len(f"{value:.3f}".rstrip("0"))))


@case(eager=DECIDES, line='self.log("loss", loss.item())')
class ALogOfTheInstancesOwn(Logs):
    def on_fit_start(self):
        log = self.log
        self.log = lambda name, value: log(name, value if value < 1.1 else 1.1)


@case(eager=DECIDES, line='self.log_dict({"loss": loss.item()})')
class AnOverriddenLogOfADictionary(Small):
    def training_step(self, batch, batch_idx):
        loss = self.loss(batch)
        self.log_dict({"loss": loss.item()})
        return loss

    def log_dict(self, values):
        super().log_dict({name: value for name, value in values.items() if value < 1.1})


@case(eager=DECIDES, line="helper(self, loss.item())")
class AFunctionOnTheWayGetsTheNumber(Small):
    def training_step(self, batch, batch_idx):
        loss = self.loss(batch)
        helper(self, loss.item())
        return loss


def helper(module, value):
    if value < 1.1:
        module.log("small", value)


@case(**numbers())
class TheNumberIsUsedBesides(Small):
    def training_step(self, batch, batch_idx):
        loss = self.loss(batch)
        self.log("loss", (number := loss.item()))
        return loss * (2 if number < 1.1 else 1)


@case(**numbers())
class TheNumberDecidesBehindTheLog(Small):
    def training_step(self, batch, batch_idx):
        loss = self.loss(batch)
        number = loss.item()
        self.log("loss", number)
        return loss * (2 if number < 1.1 else 1)


@case(**numbers())
class TheLargerOfTwoNumbersIsLogged(Small):
    def training_step(self, batch, batch_idx):
        loss = self.loss(batch)
        self.log("loss", max(loss.item(), 1.1))
        return loss


@case(**numbers())
class OnlySmallNumbersAreLogged(Small):
    def training_step(self, batch, batch_idx):
        parts = {"loss": self.loss(batch)}
        self.log_dict({name: part.item() for name, part in parts.items() if part.item() < 1.1})
        return parts["loss"]


@case(**numbers())
class DividedByTheNumber(Small):
    """Which is an error where it is 0."""

    def training_step(self, batch, batch_idx):
        loss = self.loss(batch)
        self.log("loss", 1 / loss.item())
        return loss


@case(eager=DECIDES, line="numbers = dict(loss=loss.item())")
class TheNumberInADictionaryThatIsReadToo(Small):
    def training_step(self, batch, batch_idx):
        loss = self.loss(batch)
        numbers = dict(loss=loss.item())
        self.log_dict(numbers)
        return loss * (2 if numbers["loss"] < 1.1 else 1)


@case(raises="division by zero")
class DividedByACounter(Small):
    def training_step(self, batch, batch_idx):
        loss = self.loss(batch)
        self.log("loss", loss.item() / (batch_idx - 8))
        return loss


@case()
class AccuracyByTheIndex(Small):
    """Whole numbers divided by one another are none."""

    def training_step(self, batch, batch_idx):
        right = (self(batch[0]).argmax(1) == batch[1]).sum()
        self.log("of all", right / (1 + batch_idx) / 8)
        return self.loss(batch) * (1 + right / (8 + 8 * batch_idx))


@case()
class CountsFromTheFirstIndexThatItSaw(Small):
    """It keeps the index where nothing can put the number in its place."""

    def __init__(self):
        super().__init__()
        self.first = ()

    def training_step(self, batch, batch_idx):
        if not self.first:
            self.first = (batch_idx + 3,)
        return self.loss(batch) * (1 + (batch_idx + 3) / self.first[0])


@case(**numbers())
class KeepsItsIndexInATuple(Small):
    def __init__(self):
        super().__init__()
        self.seen = []

    def training_step(self, batch, batch_idx):
        loss = self.loss(batch)
        self.seen.append((batch_idx, loss.item()))
        return loss

    def on_train_end(self):
        assert {type(index) for index, _ in self.seen} == {int}


@case()
class CutsToTheLargestLabel(Small):
    """Python needs the number itself, and there are few."""

    def training_step(self, batch, batch_idx):
        classes = 1 + batch[1].max().item()
        return self.loss(batch) + self(batch[0])[:, :classes].square().mean()


@case()
class OneHotTargets(Small):
    def training_step(self, batch, batch_idx):
        wanted = nn.functional.one_hot(batch[1], num_classes=3)
        return nn.functional.mse_loss(self(batch[0]), wanted.to(self.dtype))


@case(inductor=True)
class AsManyClassesAsThereAre(Small):
    """The largest label of a batch is a number of Python's."""

    def training_step(self, batch, batch_idx):
        wanted = nn.functional.one_hot(batch[1]).float()
        return self.loss(batch) + self(batch[0])[:, : wanted.shape[1]].sub(wanted).square().mean()


@case()
class PaddingThatIsLookedFor(Small):
    """As models of Hugging Face's do: another way through the step where a batch has none."""

    def training_step(self, batch, batch_idx):
        x, y = batch
        mask = (y > 0).bool()
        self.log("padded", 1.0 - mask.float().mean())
        if mask.all():
            return self.loss(batch)
        return self.loss(batch) + (self(x) * mask[:, None]).square().mean()


@case()
class RefusesWhatIsNotFinite(Small):
    """A guard of the batch's, with an error that no batch raises."""

    def training_step(self, batch, batch_idx):
        if not torch.isfinite(batch[0]).all():
            raise ValueError("not finite")
        assert batch[1].min() >= 0
        return self.loss(batch)


@case(eager="a value of a tensor decides", data=lambda: Kept())
class LooksAtABatchThatItWritesTo(Small):
    """What it finds there is what the pass before has left."""

    def training_step(self, batch, batch_idx):
        factor = 2.0 if batch[0][0, 0] > 0 else 1.0
        loss = self.loss((batch[0].clone(), batch[1])) * factor
        batch[0].mul_(-1)
        return loss


@case()
class LooksAtWhatItHasWrittenTo(Small):
    def training_step(self, batch, batch_idx):
        mask = torch.ones(len(batch[1]))
        mask[:2] = batch[1][:2] > 0
        return self.loss(batch) * (2.0 if mask.all() else 1.0)


@case(**numbers())
class MeasuresTheBatch(Small):
    def training_step(self, batch, batch_idx):
        return self.loss(batch) * float(batch[0].abs().mean())


@case()
class LooksAtTheBatchAndAWeight(Small):
    def training_step(self, batch, batch_idx):
        return self.loss(batch) * (2.0 if batch[0].sum() > self.net[0].bias.detach().sum() else 1.0)


@case()
class LooksAtADrawBesideTheBatch(Small):
    def training_step(self, batch, batch_idx):
        return self.loss(batch) * (2.0 if (batch[0] + torch.randn_like(batch[0])).sum() > 0 else 1.0)


@case()
class LooksAtTheBatchAndABufferThatChanges(Small):
    """Between epochs, by what a callback could do."""

    def __init__(self):
        super().__init__()
        self.register_buffer("limit", torch.tensor(0.0))

    def on_train_epoch_start(self):
        self.limit.fill_(-100.0 + 100.0 * self.current_epoch)

    def training_step(self, batch, batch_idx):
        return self.loss(batch) * (2.0 if batch[0].sum() > self.limit else 1.0)


@case()
class LooksAtABufferThatAHookFillsForEachBatch(Small):
    def __init__(self):
        super().__init__()
        self.register_buffer("limit", torch.tensor(0.0))

    def on_after_batch_transfer(self, batch, dataloader_idx):
        self.limit.fill_(float(batch[0][0, 0]) * 0.1)
        return batch

    def training_step(self, batch, batch_idx):
        return self.loss(batch) * (2.0 if batch[0].mean() > self.limit else 1.0)


@case()
class LooksAtTheBatchInInferenceMode(Small):
    """As a teacher does; there, operations are seen as a whole that are made of others."""

    def training_step(self, batch, batch_idx):
        with torch.inference_mode():
            factor = 2.0 if batch[0][0, 0] > 0 else 1.0
            classes = nn.functional.one_hot(batch[1]).shape[1]
        return self.loss(batch) * factor / classes


@case()
class LooksAtAWeightInInferenceMode(Small):
    def training_step(self, batch, batch_idx):
        with torch.inference_mode():
            factor = 2.0 if self(batch[0]).mean() > 0 else 1.0
        return self.loss(batch) * factor


@case()
class LooksAtItsIndexAndAtTheBatch(Small):
    """What the one decides, the other is asked or not."""

    def training_step(self, batch, batch_idx):
        if batch_idx % 2 and (batch[1] == 2).any():
            return 2 * self.loss(batch)
        return self.loss(batch)


@case(inductor=True)
class NumbersInATensorThatIsWrittenTo(Small):
    """Made anew in each step: what a program writes there must not be found by the next one."""

    def training_step(self, batch, batch_idx):
        weights = torch.tensor([1.0, 2.0, 3.0])
        weights[0] = weights[2] * 2
        weights.mul_(0.1)
        return (self(batch[0]).square().mean(0) * weights).sum()


@case(eager="a tensor that is made anew in each step of numpy's values is written to")
class ANumpyArrayThatIsWrittenTo(Small):
    def training_step(self, batch, batch_idx):
        weights = torch.from_numpy(np.ones(3, dtype=np.float32))
        weights.mul_(0.5)
        return (self(batch[0]).square().mean(0) * weights).sum()
