"""Steps that return more than a loss: numbers of Python's that they computed, for hooks and callbacks."""

from collections import deque
from math import isclose

import lightning as L

from gallery.case import Small, case, from_3_11, numbers
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
class AHookCollectsANumber(ReturnsNumbers):
    """As it is written where outputs of an epoch are gathered: the hook is part of the step."""

    def __init__(self):
        super().__init__()
        self.losses, self.right = [], 0

    def on_train_batch_end(self, outputs, batch, batch_idx):
        self.losses.append(outputs["log"]["loss"])
        self.right += outputs["log"]["right"]
        self.log("right", outputs["log"]["right"])

    def on_train_epoch_end(self):
        assert [type(loss) for loss in self.losses] == [float] * self.trainer.num_training_batches
        self.log("epoch", sum(self.losses) / len(self.losses) + self.right)
        self.losses.clear()


@case(**from_3_11("a value of a tensor"))
class AHookDecidesByANumber(ReturnsNumbers):
    def __init__(self):
        super().__init__()
        self.bad = 0

    def on_train_batch_end(self, outputs, batch, batch_idx):
        if outputs["log"]["loss"] > 100:
            self.bad += 1
        self.log("bad", float(self.bad))


@case(eager="a value of a tensor")
class AHookNeedsTheNumberItself(ReturnsNumbers):
    def on_train_batch_end(self, outputs, batch, batch_idx):
        self.log("right", float(str(outputs["log"]["right"])))


@case(eager="the step keeps a value of a tensor" if numbers() == {} else "a value of a tensor decides")
class AHookKeepsANumberInADeque(ReturnsNumbers):
    def __init__(self):
        super().__init__()
        self.last = deque(maxlen=2)

    def on_train_batch_end(self, outputs, batch, batch_idx):
        self.last.append(outputs["log"]["loss"])

    def on_train_epoch_end(self):
        assert [type(loss) for loss in self.last] == [float] * 2
        self.log("last", sum(self.last))


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


@case(options={"callbacks": lambda: [Sums()]}, **numbers())
class ACallbackOfTheStepAddsANumber(ReturnsNumbers):
    pass


@case(size=9, options={"max_epochs": 3}, **numbers())
class NumbersThatAreTheSameForAWhile(Small):
    """None of the first batches has any, and later ones do."""

    def __init__(self):
        super().__init__()
        self.many = []

    def training_step(self, batch, batch_idx):
        loss = self.loss(batch)
        return {"loss": loss, "many": (loss < 1.05).sum().item()}

    def on_train_batch_end(self, outputs, batch, batch_idx):
        self.many.append(outputs["many"])

    def on_train_epoch_end(self):
        self.log("many", float(sum(self.many)))
