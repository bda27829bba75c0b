"""Schedulers that a step steps by hand, and what a step does in an epoch's last batch."""

import io
from functools import partial

import torch
from torch import optim
from torch.optim import lr_scheduler as schedules

from gallery.case import Small, add, case
from gallery.manual import Manual


class Stepping(Manual):
    """Manual optimization, as Lightning's guide has it."""

    make = partial(schedules.ExponentialLR, gamma=0.9)

    def configure_optimizers(self):
        optimizer = optim.SGD(self.parameters(), lr=0.1, momentum=0.9)
        return [optimizer], [type(self).make(optimizer)]

    def training_step(self, batch, batch_idx):
        super().training_step(batch, batch_idx)
        self.lr_schedulers().step()


@case(size=8)
class StepsItsScheduler(Stepping):
    pass


SCHEDULERS = {
    "a cycle of rate and momentum": partial(schedules.OneCycleLR, max_lr=0.2, total_steps=40),
    "one behind another": lambda optimizer: schedules.SequentialLR(
        optimizer,
        [schedules.LinearLR(optimizer, total_iters=3), schedules.CosineAnnealingLR(optimizer, 10)],
        milestones=[4],
    ),
    "two at once": lambda optimizer: schedules.ChainedScheduler(
        [schedules.ConstantLR(optimizer, total_iters=5), schedules.StepLR(optimizer, 3)]
    ),
    "a function of numbers": partial(schedules.LambdaLR, lr_lambda=lambda step: 1 / (1 + step)),
    "warm restarts": partial(schedules.CosineAnnealingWarmRestarts, T_0=5),
}
for name, make in SCHEDULERS.items():
    add(f"a scheduler stepped by hand: {name}", type("Made", (Stepping,), {"make": staticmethod(make)}))


@case()
class EveryThirdStep(Stepping):
    def training_step(self, batch, batch_idx):
        Manual.training_step(self, batch, batch_idx)
        if (batch_idx + 1) % 3 == 0:
            self.lr_schedulers().step()


@case()
class TwiceAStep(Stepping):
    def training_step(self, batch, batch_idx):
        Manual.training_step(self, batch, batch_idx)
        for _ in range(2):
            self.lr_schedulers().step()


@case()
class InTheHookBehindTheStep(Stepping):
    def training_step(self, batch, batch_idx):
        Manual.training_step(self, batch, batch_idx)

    def on_train_batch_end(self, outputs, batch, batch_idx):
        self.lr_schedulers().step()


@case()
class InTheLastBatchOfEachSecondEpoch(Stepping):
    def training_step(self, batch, batch_idx):
        Manual.training_step(self, batch, batch_idx)
        if self.trainer.is_last_batch and (self.trainer.current_epoch + 1) % 2 == 0:
            self.lr_schedulers().step()


@case()
class TheRateBeforeIsLogged(Stepping):
    def training_step(self, batch, batch_idx):
        self.log("rate", self.lr_schedulers().get_last_lr()[0])
        super().training_step(batch, batch_idx)


@case(options={"max_epochs": 3})
class OnTopOfLightningsOwnStep(Small):
    """Lightning steps it at each epoch's end, the module every other step besides."""

    def configure_optimizers(self):
        optimizer = optim.Adam(self.parameters(), lr=0.02)
        return [optimizer], [schedules.ExponentialLR(optimizer, 0.95)]

    def on_train_batch_end(self, outputs, batch, batch_idx):
        if batch_idx % 2:
            self.lr_schedulers().step()


@case()
class ARateThatIsATensor(Stepping):
    def configure_optimizers(self):
        optimizer = optim.Adam(self.parameters(), lr=torch.tensor(0.05), capturable=False, foreach=False)
        return [optimizer], [schedules.ExponentialLR(optimizer, 0.9)]


@case(options={"max_epochs": 3})
class TheLastBatchIsLogged(Small):
    def training_step(self, batch, batch_idx):
        loss = self.loss(batch)
        if self.trainer.is_last_batch:
            self.log("last", loss)
        return loss if not self.trainer.is_last_batch else 2 * loss


@case()
class OneOptimizerBehindTheOthersScheduler(Stepping):
    """A scheduler's step changes nothing of another optimizer."""

    def configure_optimizers(self):
        optimizers = [optim.Adam(layer.parameters(), lr=0.02) for layer in (self.net[0], self.net[2])]
        return optimizers, [schedules.StepLR(optimizer, 3) for optimizer in optimizers]

    def training_step(self, batch, batch_idx):
        for optimizer, scheduler in zip(self.optimizers(), self.lr_schedulers(), strict=True):
            optimizer.zero_grad()
            self.manual_backward(self.loss(batch))
            optimizer.step()
            scheduler.step()


@case(eager="")
class ACheckpointIsWrittenInTheStep(Stepping):
    def on_train_batch_end(self, outputs, batch, batch_idx):
        if batch_idx % 5 == 1:
            torch.save([scheduler.state_dict() for scheduler in [self.lr_schedulers()]], io.BytesIO())
        self.log("rate", self.lr_schedulers().get_last_lr()[0])


# -- what makes steps eager -------------------------------------------------------------------------------------------


@case(eager="may be other numbers than in the optimizer's step", line="optimizer.step()")
class BeforeTheOptimizersStep(Stepping):
    def training_step(self, batch, batch_idx):
        optimizer = self.optimizers()
        optimizer.zero_grad()
        self.manual_backward(self.loss(batch))
        self.lr_schedulers().step()
        optimizer.step()


@case(eager="the optimizer's 'lr' is another number here than in the optimizer's step", line="get_last_lr()")
class TheRateBehindIsLogged(Stepping):
    def training_step(self, batch, batch_idx):
        super().training_step(batch, batch_idx)
        self.log("rate", self.lr_schedulers().get_last_lr()[0])


@case(eager="the optimizer's 'lr' is another number here than in the optimizer's step", line="param_groups")
class TheRateBehindIsLoggedThatChangesSeldom(Stepping):
    """It is the same in the recorded steps."""

    make = partial(schedules.StepLR, step_size=6)

    def training_step(self, batch, batch_idx):
        super().training_step(batch, batch_idx)
        self.log("rate", self.optimizers().param_groups[0]["lr"])


@case(eager="the optimizer's 'lr' is another number here than in the optimizer's step", line="> 0.05")
class TheRateBehindDecides(Stepping):
    def training_step(self, batch, batch_idx):
        super().training_step(batch, batch_idx)
        for group in self.optimizers().param_groups:
            if group["lr"] > 0.05:
                self.net[0].bias.data.zero_()


@case(eager="the optimizer's 'lr' is another number here than in the optimizer's step", line="self.smooth.mul_")
class TheRateBehindIsUsedInTheHook(Stepping):
    def __init__(self):
        super().__init__()
        self.register_buffer("smooth", torch.ones(()))

    def on_train_batch_end(self, outputs, batch, batch_idx):
        self.smooth.mul_(1 - self.optimizers().param_groups[0]["lr"])


@case(eager="`StepLR.get_last_lr()` gives a rate that is not the optimizer's", line="get_last_lr()")
class TwoSchedulersOfOneOptimizer(Stepping):
    """Each tells what it left, which the other may have changed since."""

    def configure_optimizers(self):
        optimizer = optim.SGD(self.parameters(), lr=0.1)
        return [optimizer], [schedules.StepLR(optimizer, 6), schedules.StepLR(optimizer, 1, gamma=0.5)]

    def training_step(self, batch, batch_idx):
        first, second = self.lr_schedulers()
        optimizer = self.optimizers()
        optimizer.zero_grad()
        self.manual_backward(self.loss(batch) * (1 + first.get_last_lr()[0] + second.get_last_lr()[0]))
        optimizer.step()
        first.step()
        if batch_idx % 5 == 4:
            second.step()


@case(eager="`StepLR.get_last_lr()` gives a rate that is not the optimizer's", line="get_last_lr()")
class RatesThatAreTensors(Stepping):
    def configure_optimizers(self):
        optimizer = optim.Adam(self.parameters(), lr=torch.tensor(0.05), foreach=False)
        return [optimizer], [schedules.StepLR(optimizer, 6)]

    def training_step(self, batch, batch_idx):
        self.log("rate", self.lr_schedulers().get_last_lr()[0])
        super().training_step(batch, batch_idx)


@case(eager="`ReduceLROnPlateau.step()` is called with arguments", line="lr_schedulers().step(")
class ByTheLoss(Stepping):
    make = partial(schedules.ReduceLROnPlateau, patience=1)

    def training_step(self, batch, batch_idx):
        Manual.training_step(self, batch, batch_idx)
        self.lr_schedulers().step(0.5)


@case(eager="`LambdaLR.step()` is called", line="lr_schedulers().step()")
class ByAFunctionThatLooksFurther(Stepping):
    def configure_optimizers(self):
        optimizer = optim.SGD(self.parameters(), lr=0.1)
        return [optimizer], [schedules.LambdaLR(optimizer, lambda step: 1 / (1 + float(self.net[0].bias.abs().max())))]


@case(eager="recording it failed")
class ARecordingThatFailsBehindIt(Stepping):
    """The step is run again; the scheduler is not stepped twice."""

    def training_step(self, batch, batch_idx):
        super().training_step(batch, batch_idx)
        assert type(batch_idx) is int
