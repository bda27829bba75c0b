"""Options of optimizers that hooks of the module set at each step, by numbers."""

import math
from math import cos, pi

import numpy as np
import torch
from lightning.pytorch.callbacks import LearningRateMonitor
from torch import optim
from torch.optim import lr_scheduler as schedules

from gallery.case import Small, add, carried, case
from gallery.state import even
from lightning_sink import StepCallback


class Setting(Small):
    peak = 0.1

    def configure_optimizers(self):
        return optim.SGD(self.parameters(), lr=self.peak, momentum=0.9)


@case(inductor=True, size=8)
class AWarmupBehindTheStep(Setting):
    """As Lightning's guide has it."""

    def optimizer_step(self, epoch, batch_idx, optimizer, optimizer_closure):
        optimizer.step(closure=optimizer_closure)
        if self.trainer.global_step < 9:
            scale = min(1.0, float(self.trainer.global_step + 1) / 9.0)
            for group in optimizer.param_groups:
                group["lr"] = scale * self.peak


@case(size=8)
class AWarmupBeforeTheStep(Setting):
    def optimizer_step(self, epoch, batch_idx, optimizer, optimizer_closure):
        if self.global_step < 9:
            for index, group in enumerate(optimizer.param_groups):
                group["lr"] = (index + self.global_step + 1) / 9.0 * self.peak
        super().optimizer_step(epoch, batch_idx, optimizer, optimizer_closure)


@case()
class RatesBeforeAndBehindTheStep(Setting):
    def optimizer_step(self, epoch, batch_idx, optimizer, optimizer_closure):
        for group in optimizer.param_groups:
            group["lr"] = self.peak / (1 + batch_idx)
        optimizer.step(closure=optimizer_closure)
        for group in optimizer.param_groups:
            group["lr"] = 0.5


@case()
class ARateThatIsMultiplied(Setting):
    """A step that is run again must not find it multiplied."""

    def optimizer_step(self, epoch, batch_idx, optimizer, optimizer_closure):
        optimizer.param_groups[0]["lr"] *= 0.9
        optimizer.step(closure=optimizer_closure)
        optimizer.param_groups[0]["lr"] *= 0.9


@case(size=8)
class ACosineBeforeTheBatch(Setting):
    def on_train_batch_start(self, batch, batch_idx):
        progress = self.trainer.global_step / 20
        for group in self.optimizers().param_groups:
            group["lr"] = self.peak * 0.5 * (1 + math.cos(math.pi * progress))


@case()
class ACosineBeforeABatchOfWhichTheRateIsLogged(Setting):
    def on_train_batch_start(self, batch, batch_idx):
        for group in self.trainer.optimizers[0].param_groups:
            group["lr"] = self.peak * math.cos(pi * batch_idx / 20)

    def training_step(self, batch, batch_idx):
        rate = self.optimizers().param_groups[0]["lr"]
        self.log("rate", rate)
        return self.loss(batch) * (1 + rate)

    def on_train_batch_end(self, outputs, batch, batch_idx):
        self.log("rate at the end", self.optimizers().param_groups[0]["lr"])


@case(**carried())
class ACosineThatWasImported(Setting):
    def on_train_batch_start(self, batch, batch_idx):
        self.optimizers().param_groups[0]["lr"] = self.peak * cos(pi * batch_idx / 20)


@case()
class AllThreeHooks(Setting):
    def on_train_batch_start(self, batch, batch_idx):
        self.optimizers().param_groups[0]["lr"] = 0.1 / (1 + batch_idx)

    def optimizer_step(self, epoch, batch_idx, optimizer, optimizer_closure):
        optimizer.param_groups[0]["lr"] *= 0.5 ** int(epoch)
        optimizer.step(closure=optimizer_closure)

    def on_train_batch_end(self, outputs, batch, batch_idx):
        self.optimizers().param_groups[0]["lr"] += 1.0


def adjust(optimizer, step, peak):
    rate = peak * np.cos(np.pi * step / 40) if step > 2 else peak * pow(step / 3, 2)
    for group in optimizer.param_groups:
        group["lr"] = float(rate)
    return rate


@case(options={"accumulate_grad_batches": 2}, **carried())
class AFunctionSetsTheRate(Setting):
    def optimizer_step(self, epoch, batch_idx, optimizer, optimizer_closure):
        adjust(optimizer, self.global_step, self.peak)
        optimizer.step(closure=optimizer_closure)


@case()
class AMethodSetsTheRate(Setting):
    @property
    def ceiling(self):
        return min(self.peak, 0.08)

    def adjust(self, optimizer):
        optimizer.param_groups[0]["lr"] = self.ceiling / (1 + self.global_step)

    def optimizer_step(self, epoch, batch_idx, optimizer, closure):
        self.adjust(optimizer)
        optimizer.step(closure=closure)


@case(size=8, **carried())
class RatesAndDecaysOfTables(Setting):
    """Arrays, as DINO's have one for each step."""

    def __init__(self):
        super().__init__()
        self.rates, self.decays = np.linspace(0.1, 0.01, 40), np.linspace(0.04, 0.4, 40)

    def on_train_batch_start(self, batch, batch_idx):
        for index, group in enumerate(self.optimizers().param_groups):
            group["lr"] = self.rates[self.trainer.global_step]
            if index == 0:
                group["weight_decay"] = self.decays[self.trainer.global_step]


@case(eager="the step changes Python state: `rates`")
class ATableThatTheStepChanges(RatesAndDecaysOfTables):
    def training_step(self, batch, batch_idx):
        self.rates[batch_idx:] *= 0.9
        return self.loss(batch)


@case()
class MomentumIsSet(Setting):
    """A constant until it is seen to change."""

    def optimizer_step(self, epoch, batch_idx, optimizer, optimizer_closure):
        optimizer.param_groups[0]["momentum"] = min(0.95, 0.5 + 0.05 * self.global_step)
        optimizer.step(closure=optimizer_closure)


@case()
class NesterovIsSetInTheMiddle(Setting):
    def optimizer_step(self, epoch, batch_idx, optimizer, optimizer_closure):
        optimizer.param_groups[0]["nesterov"] = self.global_step > 6
        optimizer.step(closure=optimizer_closure)


@case()
class AWarmupAndASchedule(Setting):
    def configure_optimizers(self):
        optimizer = super().configure_optimizers()
        return [optimizer], [{"scheduler": schedules.StepLR(optimizer, 3), "interval": "step"}]

    def optimizer_step(self, epoch, batch_idx, optimizer, optimizer_closure):
        optimizer.step(closure=optimizer_closure)
        if self.global_step < 4:
            optimizer.param_groups[0]["lr"] = 0.01 * (self.global_step + 1)


@case()
class ARateByHandInManualOptimization(Setting):
    def __init__(self):
        super().__init__()
        self.automatic_optimization = False

    def on_train_batch_start(self, batch, batch_idx):
        for group in self.optimizers().param_groups:
            group["lr"] = self.peak / (1 + self.global_step)

    def training_step(self, batch, batch_idx):
        optimizer = self.optimizers()
        optimizer.zero_grad()
        self.manual_backward(self.loss(batch))
        optimizer.step()


@case()
class ARateInTheLastBatch(Setting):
    def optimizer_step(self, epoch, batch_idx, optimizer, optimizer_closure):
        optimizer.param_groups[0]["lr"] = 0.001 if self.trainer.is_last_batch else 0.1
        optimizer.step(closure=optimizer_closure)


@case(raises="float division by zero")
class ARateThatCannotBeHad(Setting):
    def optimizer_step(self, epoch, batch_idx, optimizer, optimizer_closure):
        optimizer.param_groups[0]["lr"] = 0.1 / float(8 - self.global_step)
        optimizer.step(closure=optimizer_closure)


# -- hooks that do more -----------------------------------------------------------------------------------------------


def set_by(body):
    """Returns a module whose `optimizer_step` sets the rate, and does something else besides."""

    class Made(Setting):
        def __init__(self):
            super().__init__()
            self.register_buffer("scale", torch.tensor(0.9))
            self.rate = 0.1

        def optimizer_step(self, epoch, batch_idx, optimizer, optimizer_closure):
            body(self, optimizer, optimizer_closure)

    return Made


def by_a_tensor(self, optimizer, closure):
    optimizer.step(closure=closure)
    optimizer.param_groups[0]["lr"] = 0.1 * float(self.scale)


def by_an_attribute(self, optimizer, closure):
    self.rate = 0.9 * self.rate
    optimizer.param_groups[0]["lr"] = self.rate
    optimizer.step(closure=closure)


def by_what_was_logged(self, optimizer, closure):
    optimizer.step(closure=closure)
    optimizer.param_groups[0]["lr"] = 0.1 / (1 + len(self.trainer.callback_metrics))


def and_calls_the_closure(self, optimizer, closure):
    closure()
    optimizer.param_groups[0]["lr"] = 0.1 / (1 + self.global_step)
    optimizer.step()


def and_logs_it(self, optimizer, closure):
    optimizer.param_groups[0]["lr"] = rate = 0.1 / (1 + self.global_step)
    self.log("rate", rate)
    optimizer.step(closure=closure)


add("the rate is set by what was logged", set_by(by_what_was_logged), eager="")
add("the rate is set by an attribute", set_by(by_an_attribute), **carried())
for body in (by_a_tensor, and_calls_the_closure, and_logs_it):
    add(f"the rate is set {body.__name__.replace('_', ' ')}", set_by(body))


class Holding:
    """What is found in it is a tensor: no name in the hook's code says so."""

    def __init__(self, value):
        self.value = value


@case()
class ATensorInAnObjectSetsTheRate(Setting):
    def __init__(self):
        super().__init__()
        self.held = Holding(torch.tensor(0.1))

    def optimizer_step(self, epoch, batch_idx, optimizer, optimizer_closure):
        optimizer.param_groups[0]["lr"] = float(self.held.value) / (1 + batch_idx)
        optimizer.step(closure=optimizer_closure)


@case(**carried())
class TheHookCountsInADictionary(Setting):
    def __init__(self):
        super().__init__()
        self.counts = {"steps": 0}

    def optimizer_step(self, epoch, batch_idx, optimizer, optimizer_closure):
        self.counts["steps"] += 1
        optimizer.param_groups[0]["lr"] = self.peak / self.counts["steps"]
        optimizer.step(closure=optimizer_closure)


class AnotherStepBelow(Setting):
    def optimizer_step(self, epoch, batch_idx, optimizer, optimizer_closure):
        optimizer.step(closure=optimizer_closure)
        if batch_idx % 5 == 4:
            with torch.no_grad():
                self.net[0].weight.mul_(0.5)


@case()
class TheStepOfAClassBelowDoesMore(AnotherStepBelow):
    def optimizer_step(self, epoch, batch_idx, optimizer, optimizer_closure):
        optimizer.param_groups[0]["lr"] = self.peak / (1 + batch_idx)
        super().optimizer_step(epoch, batch_idx, optimizer, optimizer_closure)


@case()
class AHelperEndsTheEpoch(Setting):
    stop = -1

    def check(self, batch_idx):
        return self.stop if batch_idx > 5 else None

    def on_train_batch_start(self, batch, batch_idx):
        ends = self.check(batch_idx)
        if ends is None:
            self.optimizers().param_groups[0]["lr"] = self.peak / (1 + batch_idx)
        return ends


@case()
class TheRateIsSetAndTheEpochEnds(Setting):
    def on_train_batch_start(self, batch, batch_idx):
        # Callbacks see the batch before behind this, and so the rate.
        self.optimizers().param_groups[0]["lr"] = self.peak / (1 + min(batch_idx, 5))
        return -1 if batch_idx > 5 else None


@case()
class TheRateBehindTheHookIsLogged(AWarmupBehindTheStep):
    def on_train_batch_end(self, outputs, batch, batch_idx):
        self.log("rate", self.optimizers().param_groups[0]["lr"])


@case()
class TheRateBeforeTheHookIsLogged(AWarmupBeforeTheStep):
    def on_train_batch_start(self, batch, batch_idx):
        self.log("rate", self.optimizers().param_groups[0]["lr"])


# -- in the step ------------------------------------------------------------------------------------------------------


class InTheStep(Setting):
    """As nanoGPT sets it."""

    def rate(self):
        step = self.global_step
        if step < 5:
            return self.peak * (step + 1) / 5
        if step > 14:
            return 0.01
        share = (step - 5) / 10
        assert 0 <= share <= 1
        return 0.01 + 0.5 * (1.0 + math.cos(math.pi * share)) * self.peak

    def training_step(self, batch, batch_idx):
        rate = self.rate()
        for group in self.optimizers().param_groups:
            group["lr"] = rate
        self.log("rate", rate)
        return self.loss(batch)


def monitor():
    return LearningRateMonitor("step")


add("the step sets the rate", InTheStep, data=even, inductor=True, size=8)
add("the step sets the rate, in windows", InTheStep, data=even, options={"accumulate_grad_batches": 2})
add("the step sets the rate, met by a monitor", InTheStep, data=even, options={"callbacks": lambda: [monitor()]})


@case(data=even)
class TheStepMultipliesTheRate(InTheStep):
    def training_step(self, batch, batch_idx):
        self.log("before", self.optimizers().param_groups[0]["lr"])
        self.optimizers().param_groups[0]["lr"] *= 0.9
        return self.loss(batch)


@case(data=even)
class SomeStepsSetTheRate(InTheStep):
    """Others compute with what those have left."""

    def training_step(self, batch, batch_idx):
        if batch_idx % 3 == 0:
            self.optimizers().param_groups[0]["lr"] = self.rate()
        self.log("rate", self.optimizers().param_groups[0]["lr"])
        return self.loss(batch)


@case(data=even)
class TheStepSetsTheRateByHand(InTheStep):
    def __init__(self):
        super().__init__()
        self.automatic_optimization = False

    def training_step(self, batch, batch_idx):
        optimizer = self.optimizers()
        for group in optimizer.param_groups:
            group["lr"] = self.rate()
        optimizer.zero_grad()
        self.manual_backward(self.loss(batch))
        optimizer.step()
        optimizer.param_groups[0]["lr"] = 0.5 * self.rate()


@case(data=even)
class ACallbackOfTheStepSetsTheDecay(InTheStep):
    def on_before_optimizer_step(self, optimizer):
        optimizer.param_groups[0]["weight_decay"] = 0.1 * self.rate()


@case(data=even, **carried())
class TheRateByACountOfItsOwn(InTheStep):
    def __init__(self):
        super().__init__()
        self.steps = 0

    def training_step(self, batch, batch_idx):
        self.steps += 1
        rate = self.peak / (1 + self.steps)
        for group in self.optimizers().param_groups:
            group["lr"] = rate
        self.optimizers().param_groups[0]["weight_decay"] = 0.01 * self.steps
        return self.loss(batch)


class OfWhatTheGroupHolds(InTheStep):
    """Which is another after the first epoch."""

    key = "initial_lr"

    def configure_optimizers(self):
        optimizer = super().configure_optimizers()
        optimizer.param_groups[0].update(initial_lr=0.05, table={"factor": [0.05]})
        return optimizer

    def base(self, group):
        return group["initial_lr"]

    def training_step(self, batch, batch_idx):
        group = self.optimizers().param_groups[0]
        group["lr"] = self.base(group) * 0.9**batch_idx
        return self.loss(batch)

    def on_train_epoch_end(self):
        group = self.optimizers().param_groups[0]
        group["initial_lr"] *= 0.1
        group["table"]["factor"][0] *= 0.1


class OfATableInTheGroup(OfWhatTheGroupHolds):
    def base(self, group):
        return group["table"]["factor"][0]


add("the step sets the rate by what a scheduler keeps", OfWhatTheGroupHolds, data=even)
add("the step sets the rate by what is in a table of the group", OfATableInTheGroup, data=even)


@case(data=even)
class RatesOfOtherTypesAreCollected(InTheStep):
    """Each is of its own."""

    def __init__(self):
        super().__init__()
        self.rates, self.wide = [], np.float64(0.1)

    def training_step(self, batch, batch_idx):
        group = self.optimizers().param_groups[0]
        self.rates.append(group["lr"])
        group["lr"] = self.wide if batch_idx % 3 else 0.05
        return self.loss(batch)

    def on_train_epoch_end(self):
        self.log("floats", float(sum(not isinstance(rate, np.float64) for rate in self.rates)))


@case(eager="not to a number that the host knows", data=even)
class ARateThatIsATensorIsMultiplied(InTheStep):
    def configure_optimizers(self):
        return optim.SGD(self.parameters(), lr=torch.tensor(0.05))

    def training_step(self, batch, batch_idx):
        self.optimizers().param_groups[0]["lr"] *= 0.98
        return self.loss(batch)

    def on_train_epoch_end(self):
        assert torch.is_tensor(self.optimizers().param_groups[0]["lr"])


class Lowers(StepCallback):
    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        group = trainer.optimizers[0].param_groups[0]
        with torch.no_grad():
            module.net[0].weight.mul_(1 - group["lr"] / 10)
        if self.again:
            group["lr"] = group["lr"] / 2

    def __init__(self, again):
        self.again = again


class ALaterPartComputesWithIt(InTheStep):
    def on_train_batch_end(self, outputs, batch, batch_idx):
        with torch.no_grad():
            self.net[0].bias.add_(0.1 * self.optimizers().param_groups[0]["lr"])


def lowers(again):
    return {"callbacks": lambda: [Lowers(again)]}


add("two later parts compute with the rate", ALaterPartComputesWithIt, data=even, options=lowers(again=False))
add(
    "two later parts compute with the rate, and one sets it",
    ALaterPartComputesWithIt,
    data=even,
    options=lowers(again=True),
    eager="'lr' is another number here than in the optimizer's step",
)


class ScheduledToo(InTheStep):
    def configure_optimizers(self):
        optimizer = super().configure_optimizers()
        return [optimizer], [{"scheduler": schedules.ExponentialLR(optimizer, 0.9), "interval": "step"}]


@case(data=even)
class TheStepSetsTheRateBehindAHook(InTheStep):
    """The group holds the step's when the epoch ends."""

    def optimizer_step(self, epoch, batch_idx, optimizer, optimizer_closure):
        for group in optimizer.param_groups:
            group["lr"] = self.peak / (1 + batch_idx)
        optimizer.step(closure=optimizer_closure)

    def on_train_epoch_end(self):
        self.log("at the end", self.optimizers().param_groups[0]["lr"])


add("the step sets the rate, and a schedule", ScheduledToo, data=even, eager="a schedule does so, too")


@case(eager="a value of a tensor decides", data=even)
class TheStepSetsTheRateByATensor(InTheStep):
    def training_step(self, batch, batch_idx):
        loss = self.loss(batch)
        self.optimizers().param_groups[0]["lr"] = 0.1 * loss.detach()
        return loss


@case(eager="the step sets the optimizer's 'betas'", data=even)
class TheStepSetsAPair(InTheStep):
    def configure_optimizers(self):
        return optim.AdamW(self.parameters(), lr=0.01)

    def training_step(self, batch, batch_idx):
        self.optimizers().param_groups[0]["betas"] = 0.9, 0.99 + 0.001 * (batch_idx % 2)
        return self.loss(batch)
