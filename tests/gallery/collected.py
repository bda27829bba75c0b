"""What steps collect in lists, for the end of an epoch."""

import lightning as L
import torch
from torch import nn

from gallery.case import Small, case
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


@case(inductor=True, size=8)
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


@case(eager="the step changes Python state: `outs`, and not only by appending", line="len(self.outs)")
class HowLongTheListIsDecides(Collecting):
    def training_step(self, batch, batch_idx):
        loss = self.loss(batch)
        self.outs.append(loss.detach())
        return loss * 2 if len(self.outs) > 9 else loss


@case(eager="the step changes Python state: `outs`, and not only by appending", line="self.outs[-1]")
class TheLastOneOfTheListIsUsed(Collecting):
    def training_step(self, batch, batch_idx):
        loss = self.loss(batch)
        before = self.outs[-1] if self.outs else 0.0
        self.outs.append(loss.detach())
        return loss + 0.1 * before


@case(eager="the step changes Python state: `outs`, and not only by appending", line="self.outs.pop(0)")
class OnlyTheLastOnesAreKept(Collecting):
    def training_step(self, batch, batch_idx):
        loss = self.loss(batch)
        self.outs.append(loss.detach())
        if batch_idx > 3:
            self.outs.pop(0)
        return loss


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


@case(eager="the step keeps `global_step`")
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


@case(eager="the step changes Python state")
class TheListIsPutElsewhere(Collecting):
    """What the step puts there is the list itself."""

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
