"""Steps that return more than a loss: numbers of Python's that they computed, for hooks and callbacks."""

import functools
from math import isclose

import lightning as L
import torch

from gallery.case import Small, case, numbers
from lightning_sink import StepCallback


class SeesNumbers(L.Callback):
    """Numbers, and those of the batch that is shown."""

    def __init__(self):
        self.seen = 0

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        log = outputs["log"]
        assert [type(log[name]) for name in ("loss", "right", "batch")] == [float, int, int]
        assert isclose(log["loss"], outputs["loss"].item() * trainer.accumulate_grad_batches, rel_tol=1e-6)
        assert log["right"] == outputs["right"].item()
        assert log["batch"] == batch_idx
        self.seen += 1

    def on_train_end(self, trainer, module):
        assert self.seen


class ReturnsNumbers(Small):
    def training_step(self, batch, batch_idx):
        loss, right = self.loss(batch), (self(batch[0]).argmax(1) == batch[1]).sum()
        log = {"loss": loss.item(), "right": right.item(), "batch": batch_idx}
        return {"loss": loss, "right": right, "log": log}


@case(inductor=True, options={"callbacks": lambda: [SeesNumbers()]}, **numbers())
class NumbersForCallbacks(ReturnsNumbers):
    pass


@case(size=9, options={"callbacks": lambda: [SeesNumbers()], "accumulate_grad_batches": 2}, **numbers())
class NumbersForCallbacksInWindows(ReturnsNumbers):
    pass


@case(**numbers())
class NumbersByWayOfAParentsStep(ReturnsNumbers):
    def training_step(self, batch, batch_idx):
        out = super().training_step(batch, batch_idx)
        return {**out, "rows": len(batch[1])}


@case(**numbers())
class AHookThatLooksAtNoOutput(ReturnsNumbers):
    def __init__(self):
        super().__init__()
        self.register_buffer("steps", torch.zeros(()))

    def on_train_batch_end(self, outputs, batch, batch_idx):
        self.steps += 1


@case(eager="a value of a tensor decides")
class AHookLooksAtANumber(ReturnsNumbers):
    """It may do anything with it that no stand-in is seen in."""

    def __init__(self):
        super().__init__()
        self.losses = []

    def on_train_batch_end(self, outputs, batch, batch_idx):
        if type(outputs["log"]["loss"]) is float:
            self.losses.append(outputs["log"]["loss"])

    def on_train_epoch_end(self):
        assert len(self.losses) == self.trainer.num_training_batches
        self.log("epoch", sum(self.losses))
        self.losses.clear()


class ChangesOutputs(L.Callback):
    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        outputs["more"] = outputs.pop("right")


@case(options={"callbacks": lambda: [ChangesOutputs()]}, **numbers())
class ACallbackChangesOutputsWithNumbers(ReturnsNumbers):
    pass


@case(options={"callbacks": lambda: [ChangesOutputs()]})
class ACallbackChangesOutputs(Small):
    def training_step(self, batch, batch_idx):
        loss = self.loss(batch)
        return {"loss": loss, "right": loss.detach(), "other": 1}


def shared(function):
    @functools.wraps(function)
    def wrapper(*args):
        return function(*args)

    return wrapper


@case(eager="a value of a tensor decides")
class ADecoratorThatOthersShare(Small):
    """What the wrapper returns goes to the step, too, which asks for its type."""

    @shared
    def measured(self, batch):
        loss = self.loss(batch)
        return loss, loss.item()

    @shared
    def training_step(self, batch, batch_idx):
        loss, number = self.measured(batch)
        return loss * 2 if type(number) is float else loss


@case(eager="a value of a tensor decides")
class AnOutputThatIsKept(Small):
    """Every batch finds another one there, and the step looks at none."""

    def training_step(self, batch, batch_idx):
        loss = self.loss(batch)
        out = {"loss": loss, "number": loss.item()}
        self.last = [out]
        return out

    def on_train_epoch_end(self):
        assert type(self.last[0]["number"]) is float
        self.log("last", self.last[0]["number"])


class Sums(StepCallback):
    def __init__(self):
        super().__init__()
        self.total = 0.0

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        self.total += outputs["log"]["loss"]

    def on_train_epoch_end(self, trainer, module):
        self.log("total", self.total)


@case(options={"callbacks": lambda: [Sums()]}, eager="a value of a tensor decides")
class ACallbackOfTheStepLooksAtANumber(ReturnsNumbers):
    pass
