"""Schedulers that a module keeps for itself, and schedulers of classes of the user's."""

from functools import partial

import numpy as np
import torch
from torch import optim
from torch.optim import lr_scheduler as schedules

from gallery.case import Small, add, case
from gallery.optimizers import Optimized


class Warmup(schedules.LRScheduler):
    """A cosine behind a warmup, as it is found in many a module: by numpy, which gives floats of its own."""

    def __init__(self, optimizer, warmup=5, most=40):
        self.warmup, self.most = warmup, most
        super().__init__(optimizer)

    def get_lr(self):
        return [base * self.factor(self.last_epoch) for base in self.base_lrs]

    def factor(self, step):
        factor = 0.5 * (1 + np.cos(np.pi * step / self.most))
        return factor * step / self.warmup if step <= self.warmup else factor


class Restarts(schedules.LRScheduler):
    """Counts for itself, in a `step` of its own, and writes to a list of its own."""

    def __init__(self, optimizer, cycle=4):
        self.cycle, self.cycles, self.recent = cycle, 0, [0, 0, 0]
        super().__init__(optimizer)

    def get_lr(self):
        return [base / (1 + self.last_epoch + self.recent[0]) for base in self.base_lrs]

    def step(self, epoch=None):
        self.last_epoch += 1
        self.recent[self.last_epoch % 3] = self.last_epoch
        if self.last_epoch >= self.cycle:
            self.last_epoch, self.cycles = 0, self.cycles + 1
        for group, rate in zip(self.optimizer.param_groups, self.get_lr(), strict=True):
            group["lr"] = rate / (1 + self.cycles)
        self._last_lr = [group["lr"] for group in self.optimizer.param_groups]


class Held(Small):
    """Steps it behind each step of the optimizer, as tutorials have it."""

    make = Warmup

    def configure_optimizers(self):
        optimizer = optim.Adam(self.parameters(), lr=0.02)
        self.scheduler = type(self).make(optimizer)
        return optimizer

    def optimizer_step(self, *args, **kwargs):
        super().optimizer_step(*args, **kwargs)
        self.scheduler.step()


SCHEDULERS = {
    "of torch's": partial(schedules.ExponentialLR, gamma=0.9),
    "a function with numpy": partial(schedules.LambdaLR, lr_lambda=lambda step: 1 / (1 + np.sqrt(step))),
    "a cosine of the user's": Warmup,
    "restarts of the user's": Restarts,
}
for name, make in SCHEDULERS.items():
    made = type("Made", (Held,), {"make": staticmethod(make)})
    add(f"a scheduler that the module has: {name}", made, inductor=make is Warmup)
    for interval in ("step", "epoch"):
        descent = partial(optim.SGD, lr=0.05, momentum=0.9)
        add(f"{name}, at each {interval}", partial(Optimized, descent, make, interval=interval))


@case(options={"accumulate_grad_batches": 3})
class HeldAndAccumulating(Held):
    pass


@case()
class BehindTheStep(Held):
    def optimizer_step(self, *args, **kwargs):
        Small.optimizer_step(self, *args, **kwargs)

    def on_train_batch_end(self, *_):
        self.scheduler.step()


@case()
class InAListAndInADictionary(Held):
    def configure_optimizers(self):
        optimizer = optim.Adam(self.parameters(), lr=0.02)
        self.all = {"first": [schedules.StepLR(optimizer, 3), Warmup(optimizer)]}
        return optimizer

    def optimizer_step(self, *args, **kwargs):
        Small.optimizer_step(self, *args, **kwargs)
        for scheduler in self.all["first"]:
            scheduler.step()


@case()
class PartsOfOneThatAreHeldToo(Held):
    """They are stepped once, by the one around them."""

    def configure_optimizers(self):
        optimizer = optim.Adam(self.parameters(), lr=0.02)
        self.first, self.second = schedules.LinearLR(optimizer, total_iters=4), schedules.ExponentialLR(optimizer, 0.9)
        self.scheduler = schedules.SequentialLR(optimizer, [self.first, self.second], [4])
        return optimizer


@case()
class OneThatLightningStepsIsHeldToo(Held):
    def configure_optimizers(self):
        optimizer = super().configure_optimizers()
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": self.scheduler, "interval": "step"}}

    def optimizer_step(self, *args, **kwargs):
        Small.optimizer_step(self, *args, **kwargs)


class AtEachEpoch(Held):
    make = partial(schedules.ExponentialLR, gamma=0.5)

    def optimizer_step(self, *args, **kwargs):
        Small.optimizer_step(self, *args, **kwargs)

    def on_train_epoch_end(self):
        self.scheduler.step()


@case(options={"max_epochs": 4})
class SteppedAtEachEpochsEnd(AtEachEpoch):
    pass


@case(options={"max_epochs": 4})
class ItsRateIsUsed(AtEachEpoch):
    def training_step(self, batch, batch_idx):
        return self.loss(batch) * (1 + 100 * self.scheduler.get_last_lr()[0])


@case(options={"max_epochs": 4})
class ItsCountIsUsed(AtEachEpoch):
    make = Warmup

    def training_step(self, batch, batch_idx):
        return self.loss(batch) * (1 + self.scheduler.last_epoch)


@case(options={"max_epochs": 4})
class TheCountOfOneInADictionaryIsUsed(AtEachEpoch):
    def training_step(self, batch, batch_idx):
        return self.loss(batch) * (1 + self.all["first"][0].last_epoch)

    def on_train_start(self):
        self.all = {"first": [self.scheduler]}


class Keeper:
    """An object of the user's around a scheduler."""

    def __init__(self, scheduler):
        self.inner = scheduler


@case(options={"max_epochs": 4})
class TheCountOfOneBehindAnObjectIsUsed(AtEachEpoch):
    def on_train_start(self):
        self.keeper = Keeper(self.scheduler)
        del self.scheduler

    def on_train_epoch_end(self):
        self.keeper.inner.step()

    def training_step(self, batch, batch_idx):
        return self.loss(batch) * (1 + self.keeper.inner.last_epoch)


REACHED = {}


class Reached(AtEachEpoch):
    """Lightning steps it, and the step reads its count by some way of its own."""

    def configure_optimizers(self):
        optimizer = super().configure_optimizers()
        self.hide(self.scheduler)
        known = {"optimizer": optimizer, "lr_scheduler": self.scheduler}
        del self.scheduler
        return known

    def on_train_epoch_end(self):
        pass

    def training_step(self, batch, batch_idx):
        return self.loss(batch) * (1 + self.count())


@case(options={"max_epochs": 4})
class ReachedByAnObject(Reached):
    def hide(self, scheduler):
        self.keeper = Keeper(scheduler)

    def count(self):
        return self.keeper.inner.last_epoch


@case(options={"max_epochs": 4})
class ReachedByAGlobalVariable(Reached):
    def hide(self, scheduler):
        REACHED["scheduler"] = scheduler

    def count(self):
        return REACHED["scheduler"].last_epoch


@case(options={"max_epochs": 4})
class ReachedByAClosure(Reached):
    def hide(self, scheduler):
        self.count = lambda: scheduler.last_epoch


@case(options={"max_epochs": 4})
class ReachedByASubmodule(Reached):
    def hide(self, scheduler):
        self.net[1].hidden = [scheduler]

    def count(self):
        return self.net[1].hidden[0].last_epoch


# -- what makes steps eager -------------------------------------------------------------------------------------------


@case(eager="`LRScheduler.get_last_lr()` is called", line="get_last_lr()", options={"max_epochs": 4})
class TheRateOfOneBehindAnObjectIsUsed(TheCountOfOneBehindAnObjectIsUsed):
    def training_step(self, batch, batch_idx):
        return self.loss(batch) * (1 + 100 * self.keeper.inner.get_last_lr()[0])


@case(eager="the step changes Python state: `scheduler[0].last_epoch`")
class TheCountOfOneThatItStepsIsUsed(Held):
    def training_step(self, batch, batch_idx):
        return self.loss(batch) * (1 + self.scheduler.last_epoch)


@case(eager="")
class ItsFunctionReadsWhatStepsCollect(Held):
    def __init__(self):
        super().__init__()
        self.seen = []

    def configure_optimizers(self):
        optimizer, seen = optim.Adam(self.parameters(), lr=0.02), self.seen
        self.scheduler = schedules.LambdaLR(optimizer, lambda step: 1 / (1 + 0.1 * len(seen)))
        return optimizer

    def training_step(self, batch, batch_idx):
        self.seen.append(len(batch[0]))
        return super().training_step(batch, batch_idx)


class Looks(Warmup):
    """Computes by what the step left."""

    def get_lr(self):
        largest = max(float(p.detach().abs().max()) for group in self.optimizer.param_groups for p in group["params"])
        return [base / (1 + largest) for base in self.base_lrs]


@case(eager="`Looks.step()` is called", line="self.scheduler.step()")
class HeldAndLooksFurther(Held):
    make = Looks


class Draws(Warmup):
    def get_lr(self):
        return [base * (0.5 + 0.5 * np.random.rand()) for base in self.base_lrs]


@case(eager="`Draws.step()` is called, which does more than arithmetic at", line="self.scheduler.step()")
class HeldAndDraws(Held):
    make = Draws


@case(eager="may be other numbers than in the optimizer's step")
class HeldAndSteppedBeforeTheOptimizer(Held):
    def optimizer_step(self, *args, **kwargs):
        self.scheduler.step()
        Small.optimizer_step(self, *args, **kwargs)


@case(eager="the optimizer's 'lr'")
class OfAnOptimizerThatNobodyKnows(Held):
    """Its groups are those of the one that trains."""

    def configure_optimizers(self):
        optimizer = optim.Adam(self.parameters(), lr=0.02)
        other = optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.02)
        other.param_groups = optimizer.param_groups
        self.scheduler = schedules.ExponentialLR(other, 0.9)
        return optimizer
