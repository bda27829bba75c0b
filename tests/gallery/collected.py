"""What steps collect in lists, for the end of an epoch."""

import lightning as L
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import positions
from gallery.case import Small, carried, case, late_before_3_11, numbers
from parity import loader


class Collecting(Small):
    def __init__(self):
        super().__init__()
        self.outs = []


@case(size=8)
class OutputsInAList(Collecting):
    """As the guide to Lightning 2 has it."""

    def training_step(self, batch, batch_idx):
        loss = self.loss(batch)
        self.outs.append(loss)
        return loss

    def on_train_epoch_end(self):
        self.log("epoch", torch.stack(self.outs).mean())
        self.outs.clear()


@case()
class OutputsInAListThatStays(Collecting):
    def training_step(self, batch, batch_idx):
        loss = self.loss(batch)
        self.outs.append(loss.detach())
        return loss


@case()
class OutputsInAListByANameOfOtherLibraries(Small):
    """What takes the place of a method meanwhile, as `unittest.mock` would, is no code of the step's."""

    def __init__(self):
        super().__init__()
        self.target, self.attribute, self.new, self.items, self.values = [], [], [], [], []

    def training_step(self, batch, batch_idx):
        loss = self.loss(batch)
        for kept in (self.target, self.attribute, self.new, self.items, self.values):
            kept.append(loss.detach())
        return loss


@case(size=8)
class PredictionsAndTargetsInListsThatAreMadeAnew(Small):
    """The last batch of an epoch has fewer rows."""

    def on_train_epoch_start(self):
        self.rows, self.targets = [], []

    def training_step(self, batch, batch_idx):
        x, y = batch
        out = self(x)
        loss = nn.functional.cross_entropy(out, y)
        self.rows.append({"guess": out.detach().argmax(-1), "loss": loss.detach(), "of": ("training", 1)})
        self.targets.append(y)
        return {"loss": loss, "out": out}

    def on_train_epoch_end(self):
        guesses = torch.cat([row["guess"] for row in self.rows])
        self.log("accuracy", (guesses == torch.cat(self.targets)).float().mean())


@case()
class ListExtendedInTheHook(Collecting):
    def training_step(self, batch, batch_idx):
        loss = self.loss(batch)
        return {"loss": loss, "both": [loss.detach(), loss.detach() * 2]}

    def on_train_batch_end(self, outputs, batch, batch_idx):
        self.outs.extend(outputs["both"])
        self.outs += [batch[0].mean()]


@case()
class ListOfAnotherModule(Small):
    def __init__(self):
        super().__init__()
        self.net[1].seen = []
        self.net[1].register_forward_hook(lambda module, args, out: module.seen.append(out.detach().mean((0,))))


@case()
class ListUnderTwoNames(Collecting):
    def __init__(self):
        super().__init__()
        self.all = self.outs

    def training_step(self, batch, batch_idx):
        loss = self.loss(batch)
        self.outs.append(loss.detach())
        self.all.append(loss.detach() * 2)
        return loss


@case()
class ListThatGrowsEveryThirdStep(Collecting):
    def training_step(self, batch, batch_idx):
        loss = self.loss(batch)
        if batch_idx % 3 == 0:
            self.outs.append(loss.detach())
        return loss


@case()
class ListOfNumbersOnly(Collecting):
    def training_step(self, batch, batch_idx):
        self.outs.append(1)
        return self.loss(batch)


class Empties(L.Callback):
    """Meets every sink's last batch, and may look at what was collected until then."""

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        if (batch_idx + 1) % 4 == 0:
            module.outs = []


@case(options={"callbacks": lambda: [Empties()], "accumulate_grad_batches": 2})
class ListEmptiedByACallback(OutputsInAListThatStays):
    pass


@case(**numbers())
class LossesAsNumbers(Collecting):
    def training_step(self, batch, batch_idx):
        loss = self.loss(batch)
        self.outs.append(loss.item())
        return loss

    def on_train_epoch_end(self):
        assert {type(loss) for loss in self.outs} == {float}
        self.log("epoch", sum(self.outs) / len(self.outs))


@case(size=8, options={"precision": "64-true"}, **numbers())
class NumbersAmongTensorsInAList(Collecting):
    """The last batch of an epoch has fewer rows."""

    def training_step(self, batch, batch_idx):
        loss = self.loss(batch)
        self.outs.append({"loss": loss.item(), "of": ("training", batch[0].mean().item(), batch_idx), "y": batch[1]})
        self.outs.extend([loss.item() for _ in range(2)])
        return loss

    def on_train_batch_end(self, outputs, batch, batch_idx):
        self.outs += [outputs["loss"].item()]

    def on_train_epoch_end(self):
        of = self.outs[-4]["of"]
        assert [type(value) for value in of] == [str, float, int]
        assert of[2] == self.trainer.num_training_batches - 1


class Summing(Small):
    def __init__(self):
        super().__init__()
        self.total, self.right, self.steps, self.rows = 0, 0, 0, 0


@case(inductor=True, size=8, **numbers())
class SumsOfAnEpoch(Summing):
    """As loops that are written by hand have them."""

    def on_train_epoch_start(self):
        self.total, self.right, self.steps, self.rows = 0, 0, 0, 0

    def training_step(self, batch, batch_idx):
        out = self(batch[0])
        loss = nn.functional.cross_entropy(out, batch[1])
        self.total += loss.item() * len(batch[1])
        self.right += (out.argmax(1) == batch[1]).sum().item()
        self.steps += 1
        self.rows += batch[1].size(0)
        return loss

    def on_train_epoch_end(self):
        assert type(self.total) is float
        assert [type(number) for number in (self.right, self.steps, self.rows)] == [int] * 3
        self.log("loss", self.total / self.rows)
        self.log("accuracy", 100.0 * self.right / self.rows)
        self.log("steps", float(self.steps))


@case(options={"accumulate_grad_batches": 2}, **numbers())
class SumsOfTheWholeTraining(Summing):
    def training_step(self, batch, batch_idx):
        loss = self.loss(batch)
        number = loss.item()
        self.total += number
        self.log("loss", number)
        self.rows += batch_idx
        return loss

    def on_before_zero_grad(self, optimizer):
        self.steps += 1

    def on_train_batch_end(self, outputs, batch, batch_idx):
        self.right += outputs["loss"].item() / 2


@case(size=9, **numbers())
class SumsBesideAScheduleByTheUsersOwnCode(Summing):
    """It runs between steps, and may change whatever programs take for granted."""

    def training_step(self, batch, batch_idx):
        loss = self.loss(batch)
        self.steps = self.steps + 1
        self.total += loss.item()
        return loss

    def configure_optimizers(self):
        optimizer = super().configure_optimizers()
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step))
        return [optimizer], [{"scheduler": schedule, "interval": "step"}]


class Warms(Summing):
    """Has a helper that the first steps do not call."""

    def training_step(self, batch, batch_idx):
        self.steps += 1
        return self.loss(batch)

    def factor(self):
        return 1 / (1 + 0.1 * self.steps)


@case(**carried())
class TheSumSetsTheRateAheadOfTheStep(Warms):
    def on_train_batch_start(self, batch, batch_idx):
        factor = self.factor() if self.current_epoch > 0 else 1.0
        for group in self.optimizers().param_groups:
            group["lr"] = 0.05 * factor


@case(**late_before_3_11())
class TheSumSetsTheRateBehindTheStep(Warms):
    def on_train_batch_end(self, outputs, batch, batch_idx):
        if self.current_epoch > 0:
            for group in self.optimizers().param_groups:
                group["lr"] = 0.05 / self.steps


@case(**carried())
class TheSumIsReadNowAndThen(Warms):
    """A step that reads it is no program, and the others are."""

    def __init__(self):
        super().__init__()
        self.seen = ()

    def training_step(self, batch, batch_idx):
        before = self.read() if batch_idx == 6 else 0
        loss = super().training_step(batch, batch_idx)
        self.log("before", float(before))
        return loss * (1 + before / 100)

    def read(self):
        return self.steps


class Resets(L.Callback):
    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        if batch_idx % 4 == 3:
            module.seen = [*module.seen, module.total, module.steps]
            module.total = 0.5


@case(options={"callbacks": lambda: [Resets()]}, **numbers())
class SumsThatACallbackReadsAndSets(Summing):
    def __init__(self):
        super().__init__()
        self.seen = []

    def training_step(self, batch, batch_idx):
        loss = self.loss(batch)
        self.total += loss.item()
        self.steps += 1
        return loss


@case()
class SumsInAnotherModule(Small):
    def __init__(self):
        super().__init__()
        self.net[1].calls = 0
        self.net[1].register_forward_hook(count)


def count(module, args, out):
    module.calls += 1


@case(**carried())
class TheSumDecides(Summing):
    def training_step(self, batch, batch_idx):
        self.steps += 1
        return self.loss(batch) * (2 if self.steps > 9 else 1)


@case(**carried())
class TheSumDecidesByAnotherName(Summing):
    def training_step(self, batch, batch_idx):
        self.steps += 1
        return self.loss(batch) * (2 if getattr(self, NAME) > 9 else 1)


NAME = "steps"


@case(**carried())
class TheSumIsLogged(Summing):
    def training_step(self, batch, batch_idx):
        self.steps += 1
        self.log("steps", self.steps)
        return self.loss(batch)


@case(**carried())
class TheSumFallsAgain(Summing):
    def training_step(self, batch, batch_idx):
        self.total += 1
        self.total -= 2
        return self.loss(batch)


@case(few=not positions.KNOWN)
class TheSumBeginsAnew(Summing):
    def training_step(self, batch, batch_idx):
        self.steps += 1
        if batch_idx == 5:
            self.steps = 0
        return self.loss(batch)


@case(eager="the step changes Python state: `outs`, which it reads, too", line="len(self.outs)")
class HowLongTheListIsDecides(Collecting):
    def training_step(self, batch, batch_idx):
        loss = self.loss(batch)
        self.outs.append(loss.detach())
        return loss * 2 if len(self.outs) > 9 else loss


@case(eager="the step changes Python state: `outs`, which it reads, too", line="self.outs[-1]")
class TheLastOneOfTheListIsUsed(Collecting):
    def training_step(self, batch, batch_idx):
        loss = self.loss(batch)
        before = self.outs[-1] if self.outs else 0.0
        self.outs.append(loss.detach())
        return loss + 0.1 * before


@case(eager="the step changes Python state: `outs`, which it reads, too", line="self.outs.pop(0)")
class OnlyTheLastOnesAreKept(Collecting):
    def training_step(self, batch, batch_idx):
        loss = self.loss(batch)
        self.outs.append(loss.detach())
        if batch_idx > 3:
            self.outs.pop(0)
        return loss


def with_names():
    x, y = loader().dataset.tensors
    return DataLoader(TensorDataset(x, y, torch.arange(len(x))), batch_size=8)


@case(data=with_names)
class AppendsWhatItDoesNothingElseWith(Small):
    def __init__(self):
        super().__init__()
        self.kept = []

    def training_step(self, batch, batch_idx):
        self.kept.append(batch[2])
        return self.loss(batch[:2])


@case(eager="the step reads `outs`, to which steps append", line="torch.stack")
class TheListAsAWholeIsUsed(Collecting):
    """C code takes the list apart: no method of it is called."""

    def training_step(self, batch, batch_idx):
        loss = self.loss(batch)
        self.outs.append(loss.detach())
        return loss + 0.1 * torch.stack(self.outs).mean()


@case(eager="shares its memory with a tensor of the training's")
class WeightsInAList(Collecting):
    def training_step(self, batch, batch_idx):
        self.outs.append(self.net[0].bias.detach())
        return self.loss(batch)


@case(eager="shares its memory with a tensor of the training's")
class GradientsInAList(Collecting):
    def on_after_backward(self):
        self.outs.append(self.net[0].bias.grad)


@case()
class CountersInAList(Collecting):
    def training_step(self, batch, batch_idx):
        self.outs.append(self.global_step)
        return self.loss(batch)


@case(eager="the step appends a `Row` to `outs`")
class OtherObjectsInAList(Collecting):
    def training_step(self, batch, batch_idx):
        loss = self.loss(batch)
        self.outs.append(Row(loss.detach()))
        return loss


class Row:
    def __init__(self, loss):
        self.loss = loss


@case()
class TheListIsPutElsewhere(Collecting):
    """What the step puts there is the list itself: it is in a dictionary, as before."""

    def training_step(self, batch, batch_idx):
        loss = self.loss(batch)
        self.outs.append(loss.detach())
        self.held = {"outs": self.outs}
        return loss

    def on_train_epoch_end(self):
        assert self.held["outs"] is self.outs
        assert type(self.outs) is list


@case(eager="`outs`, in the place of which it puts another one")
class TheListIsReplacedNowAndThen(Collecting):
    def training_step(self, batch, batch_idx):
        loss = self.loss(batch)
        self.outs.append(loss.detach())
        if batch_idx % 3 == 2:
            self.outs = []
        return loss


@case()
class TheListIsReplacedInTheLastBatch(Collecting):
    def on_train_batch_end(self, outputs, batch, batch_idx):
        self.outs.append(outputs["loss"])
        if self.trainer.is_last_batch:
            self.outs = []


class Takes:
    def __init__(self, items):
        self.items = items

    def __call__(self, item):
        self.items.append(item)


@case(eager="the step changes Python state")
class AHelperHoldsTheList(Collecting):
    def __init__(self):
        super().__init__()
        self.takes = Takes(self.outs)

    def training_step(self, batch, batch_idx):
        loss = self.loss(batch)
        self.takes(loss.detach())
        return loss


@case(eager="the step changes Python state")
class ADictionaryHoldsTheList(Collecting):
    def __init__(self):
        super().__init__()
        self.held = {"outs": self.outs}

    def training_step(self, batch, batch_idx):
        loss = self.loss(batch)
        self.outs.append(loss.detach())
        return loss * (1 + 0.1 * len(self.held["outs"]))


@case(eager="the step changes Python state")
class TheListsOwnMethodIsHeld(Collecting):
    def __init__(self):
        super().__init__()
        self.add = self.outs.append

    def training_step(self, batch, batch_idx):
        loss = self.loss(batch)
        self.add(loss.detach())
        return loss


@case(eager="appends lists or dictionaries that are held elsewhere")
class WhatIsAppendedIsHeldElsewhere(Collecting):
    def __init__(self):
        super().__init__()
        self.options = {"scale": 1}

    def training_step(self, batch, batch_idx):
        loss = self.loss(batch)
        self.outs.append((loss.detach(), self.options))
        return loss

    def on_train_epoch_end(self):
        self.options["scale"] = 2


class Measures(L.Callback):
    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        if batch_idx % 3 == 2:
            module.lengths = [*module.lengths, len(module.outs)]


@case(size=3, options={"callbacks": lambda: [Measures()]})
class AppendsBehindTheCallbacks(Collecting):
    """Callbacks see a list as it is before `on_train_batch_end` of the module."""

    def __init__(self):
        super().__init__()
        self.lengths = []

    def training_step(self, batch, batch_idx):
        loss = self.loss(batch)
        self.outs.append(loss.detach())
        return loss

    def on_train_batch_end(self, outputs, batch, batch_idx):
        self.outs.append(2 * outputs["loss"])


class Lists(L.Callback):
    def __init__(self):
        self.seen = []

    def on_after_backward(self, trainer, module):
        self.seen.append(module.net[0].bias.grad.mean())


@case(options={"callbacks": lambda: [Lists(), Lists()]})
class ListsOfCallbacks(Small):
    """Two of one class."""


class Forgets(L.Callback):
    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        if batch_idx % 4 == 3:
            module.outs.clear()


@case(options={"callbacks": lambda: [Forgets()]})
class OneListOfTwoIsEmptiedBeforeStepsAreCompared(Collecting):
    def __init__(self):
        super().__init__()
        self.others = []

    def training_step(self, batch, batch_idx):
        loss = self.loss(batch)
        self.outs.append(loss.detach())
        self.others.append(3 * loss.detach())
        return loss


@case(eager="the step changes Python state")
class TheTypeOfTheListIsAskedFor(Collecting):
    def training_step(self, batch, batch_idx):
        loss = self.loss(batch)
        self.outs.append(loss.detach())
        return loss if type(self.outs) is list else 2 * loss


def strict(batch_idx):
    assert type(batch_idx) is int


@case(eager="recording it failed", line="assert type", data=loader)
class ARecordingThatFailsBehindTheAppend(Collecting):
    """The step is run again; what it had appended is taken away first."""

    def training_step(self, batch, batch_idx):
        loss = self.loss(batch)
        self.outs.append(loss.detach())
        if batch_idx > 4:
            strict(batch_idx)
        return loss
