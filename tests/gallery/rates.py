"""Rates, momenta and decays that users change by hand, read, log, or keep in groups."""

from functools import partial

import torch
from torch import nn, optim
from torch.optim import lr_scheduler as schedules
from torch.optim.lr_scheduler import ReduceLROnPlateau

from gallery.case import Small, add, case
from gallery.optimizers import Optimized
from gallery.schedulers import adam
from lightning_sink import StepCallback
from parity import loader


class TwoGroups(Small):
    """The body and the head have rates, momenta and decays of their own."""

    def configure_optimizers(self):
        body = {"params": self.net[0].parameters(), "lr": 0.01, "weight_decay": 0.1}
        head = {"params": self.net[2].parameters(), "momentum": 0.5, "nesterov": True}
        optimizer = optim.SGD([body, head], lr=0.1, momentum=0.9)
        rates = [lambda step: 0.9**step, lambda step: 1 / (1 + step)]
        return [optimizer], [{"scheduler": schedules.LambdaLR(optimizer, rates), "interval": "step"}]


case()(TwoGroups)


@case()
class GroupsWithAndWithoutDecay(Small):
    def configure_optimizers(self):
        decayed = [p for p in self.parameters() if p.dim() > 1]
        others = [p for p in self.parameters() if p.dim() <= 1]
        return optim.AdamW([{"params": decayed}, {"params": others, "weight_decay": 0.0}], lr=0.01, weight_decay=0.1)


@case()
class SchedulersStepIsOverridden(Small):
    """The user steps the scheduler by hand, and only every other time."""

    def configure_optimizers(self):
        optimizer = optim.SGD(self.parameters(), lr=0.1)
        return [optimizer], [{"scheduler": schedules.ExponentialLR(optimizer, 0.9), "interval": "step"}]

    def lr_scheduler_step(self, scheduler, metric):
        if self.global_step % 2:
            scheduler.step()


@case()
class TheSchedulersStepSetsAnAttribute(SchedulersStepIsOverridden):
    """What a step reads as a Python number changes on the host, in the middle of a sink."""

    smoothing = 0.0

    def loss(self, batch):
        return nn.functional.cross_entropy(self(batch[0]), batch[1], label_smoothing=self.smoothing)

    def lr_scheduler_step(self, scheduler, metric):
        super().lr_scheduler_step(scheduler, metric)
        self.smoothing = 0.3 if self.global_step > 10 else 0.0


class ActingInTheSchedulersStep(SchedulersStepIsOverridden):
    """Once, after eleven steps and in the middle of a sink, the hook of the scheduler does more than its name says."""

    def configure_optimizers(self):
        optimizer = optim.SGD(self.trained(), lr=0.05, momentum=0.9)
        return [optimizer], [{"scheduler": schedules.ExponentialLR(optimizer, 0.99), "interval": "step"}]

    def trained(self):
        return self.parameters()

    def lr_scheduler_step(self, scheduler, metric):
        scheduler.step()
        if self.global_step == 11:
            self.act(scheduler.optimizer)


@case()
class MomentumIsForgottenInTheSchedulersStep(ActingInTheSchedulersStep):
    def act(self, optimizer):
        optimizer.state.clear()


@case()
class WeightsAreReplacedInTheSchedulersStep(ActingInTheSchedulersStep):
    def act(self, optimizer):
        self.net[0].weight.data = self.net[0].weight.data * 0.5


@case()
class LayerIsFrozenInTheSchedulersStep(ActingInTheSchedulersStep):
    def act(self, optimizer):
        self.net[0].requires_grad_(False)


@case()
class DropoutIsSwitchedOffInTheSchedulersStep(ActingInTheSchedulersStep):
    def __init__(self):
        super().__init__()
        self.net.insert(1, nn.Dropout(0.4))

    def act(self, optimizer):
        self.net[1].eval()


@case()
class LayerIsAddedInTheSchedulersStep(ActingInTheSchedulersStep):
    """Progressive unfreezing, by steps."""

    def trained(self):
        return self.net[2].parameters()

    def act(self, optimizer):
        optimizer.add_param_group({"params": self.net[0].parameters()})


@case()
class TwoSchedulesOfWhichOneIsTheDecays(Small):
    """The user's own scheduler changes the weight decay."""

    def configure_optimizers(self):
        optimizer = optim.AdamW(self.parameters(), lr=0.01, weight_decay=0.1)

        class Decay(schedules.LRScheduler):
            def get_lr(self):
                self.optimizer.param_groups[0]["weight_decay"] = 0.1 / (1 + self.last_epoch // 5)
                return self.base_lrs

        return [optimizer], [{"scheduler": Decay(optimizer), "interval": "step"}]


@case()
class MomentumIsChangedByHand(Small):
    """A schedule of the user's own for the momentum, once an epoch."""

    def on_train_epoch_start(self):
        self.optimizers().param_groups[0]["momentum"] = 0.9 - 0.3 * self.current_epoch


@case()
class RateIsSetInTheStepFromTheEpoch(Small):
    def on_train_epoch_start(self):
        for group in self.trainer.optimizers[0].param_groups:
            group["lr"] = 0.05 / (1 + self.current_epoch)


@case()
class WarmupByHandInOptimizerStep(Small):
    """As in Lightning's own documentation."""

    def optimizer_step(self, epoch, batch_idx, optimizer, optimizer_closure):
        super().optimizer_step(epoch, batch_idx, optimizer, optimizer_closure)
        scale = min(1.0, (self.trainer.global_step + 1) / 20)
        for group in optimizer.param_groups:
            group["lr"] = scale * 0.05


@case()
class RateIsLoggedFromTheOptimizer(SchedulersStepIsOverridden):
    def training_step(self, batch, batch_idx):
        self.log("rate", self.trainer.optimizers[0].param_groups[0]["lr"], on_step=True, on_epoch=True)
        return self.loss(batch)


class LoggingTheRate(Small):
    """The rate is taken from the scheduler, as in many tutorials; it changes every seventh step."""

    def training_step(self, batch, batch_idx):
        self.log("rate", self.lr_schedulers().get_last_lr()[0])
        return self.loss(batch)

    def configure_optimizers(self):
        optimizer = optim.SGD(self.parameters(), lr=0.1)
        return [optimizer], [{"scheduler": schedules.StepLR(optimizer, 7, gamma=0.5), "interval": "step"}]


add("rate is logged from the scheduler", LoggingTheRate)


@case()
class RateIsLoggedFromASchedulerOfEpochs(LoggingTheRate):
    def configure_optimizers(self):
        optimizer = optim.SGD(self.parameters(), lr=0.1)
        return [optimizer], [schedules.StepLR(optimizer, 1, gamma=0.5)]


@case()
class RatesAreKeptInAList(SchedulersStepIsOverridden):
    def __init__(self):
        super().__init__()
        self.rates = []

    def training_step(self, batch, batch_idx):
        self.rates.append(self.trainer.optimizers[0].param_groups[0]["lr"])
        return self.loss(batch)


@case()
class TwoSchedulers(Small):
    def configure_optimizers(self):
        optimizer = optim.SGD(self.parameters(), lr=0.1)
        warm = {"scheduler": schedules.LinearLR(optimizer, 0.1, total_iters=9), "interval": "step"}
        return [optimizer], [warm, {"scheduler": schedules.StepLR(optimizer, 1, 0.5), "interval": "epoch"}]


class Halving(schedules.LRScheduler):
    """A scheduler of the user's own."""

    def get_lr(self):
        return [rate * 0.5 ** (self.last_epoch // 6) for rate in self.base_lrs]


add("own scheduler", partial(Optimized, adam, Halving, interval="step"))


@case()
class HookOnTheOptimizersStep(Small):
    """Weights are kept small after each step, by a hook of the optimizer."""

    def configure_optimizers(self):
        optimizer = super().configure_optimizers()

        def clamp(optimizer, args, kwargs):
            with torch.no_grad():
                for group in optimizer.param_groups:
                    for parameter in group["params"]:
                        parameter.clamp_(-0.3, 0.3)

        optimizer.register_step_post_hook(clamp)
        return optimizer


BEHIND = "the optimizer's 'lr' is another number here than in the optimizer's step"
for kind in (float, torch.tensor):

    class LogsTheRateBehindItsSchedule(Small):
        kind = staticmethod(kind)

        def configure_optimizers(self):
            optimizer = torch.optim.Adam(self.parameters(), lr=self.kind(0.01), foreach=False)
            schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.97)
            return [optimizer], [{"scheduler": schedule, "interval": "step"}]

        def on_train_batch_end(self, outputs, batch, batch_idx):
            self.log("rate", self.trainer.optimizers[0].param_groups[0]["lr"])

    add(f"the rate is logged behind its schedule as a {kind.__name__}", LogsTheRateBehindItsSchedule, eager=BEHIND)


class Decays(Small):
    """Weights decay behind a schedule, of which the rate is the same in the recorded steps, and later another one."""

    interval, schedule = "step", partial(schedules.StepLR, step_size=20, gamma=0.2)

    def configure_optimizers(self):
        optimizer = super().configure_optimizers()
        return [optimizer], [{"scheduler": self.schedule(optimizer), "interval": self.interval}]

    def decay(self):
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.mul_(1 - self.trainer.optimizers[0].param_groups[0]["lr"])


class DecaysWhereEpochsEnd(Decays):
    interval, schedule = "epoch", partial(schedules.StepLR, step_size=1, gamma=0.5)


class AtEachBatch(StepCallback):
    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        pl_module.decay()


def long():
    return loader(batches=40, last=8)


for about, kind, eager in [("", Decays, BEHIND), (" by epochs", DecaysWhereEpochsEnd, None)]:

    class DecaysByItself(kind):
        def on_train_batch_end(self, outputs, batch, batch_idx):
            self.decay()

    add(f"the rate decays weights behind a schedule{about}", DecaysByItself, data=long, size=10, eager=eager)
    options = {"callbacks": lambda: [AtEachBatch()]}
    name = f"a callback has the rate decay weights behind a schedule{about}"
    add(name, kind, data=long, size=10, eager=eager, options=options)


# -- what a schedule changes late -------------------------------------------------------------------------------------


class Late(schedules.LRScheduler):
    """Changes more than the rate at one step, and something of its own."""

    phase = 0

    def get_lr(self):
        if self.last_epoch == 23:
            self.phase = 1
            for group in self.optimizer.param_groups:
                group["weight_decay"], group["initial_lr"] = 0.3, 0.5
        return [group["lr"] for group in self.optimizer.param_groups]


class ScheduledLate(Small):
    def configure_optimizers(self):
        optimizer = super().configure_optimizers()
        return [optimizer], [{"scheduler": Late(optimizer), "interval": "step"}]


@case(data=long, size=10, eager="may be other numbers than in the optimizer's step", line="weight_decay")
class DecayThatASchedulesStepChanges(ScheduledLate):
    def on_train_batch_end(self, outputs, batch, batch_idx):
        self.log("decay", self.optimizers().param_groups[0]["weight_decay"])


@case(data=long, size=10)
class DecayThatWasChangedBefore(ScheduledLate):
    def training_step(self, batch, batch_idx):
        return self.loss(batch) * (1 + self.optimizers().param_groups[0]["weight_decay"])


@case(data=long, size=10)
class RateAtTheBeginningThatChanges(ScheduledLate):
    def training_step(self, batch, batch_idx):
        return self.loss(batch) * self.optimizers().param_groups[0]["initial_lr"]


@case(data=long, size=10, eager="the step changes Python state: `scheduler[0].phase`")
class PhaseOfASchedule(ScheduledLate):
    def training_step(self, batch, batch_idx):
        return self.loss(batch) * (1 + self.lr_schedulers().phase)


@case(data=long, size=10, eager="code of yours that steps a schedule")
class ScheduleThatSetsAnAttribute(ScheduledLate):
    level = 0.0

    def lr_scheduler_step(self, scheduler, metric):
        scheduler.step()
        self.level = float(self.global_step > 23)

    def on_train_batch_end(self, outputs, batch, batch_idx):
        self.log("level", self.level)


@case(data=long, size=10, eager="code of yours that steps a schedule")
class ScheduleOfABaseThatSetsAnAttribute(ScheduleThatSetsAnAttribute):
    def lr_scheduler_step(self, scheduler, metric):
        super().lr_scheduler_step(scheduler, metric)


@case(data=long, size=10)
class ScheduleThatIsSteppedByItsClass(Small):
    def configure_optimizers(self):
        optimizer = super().configure_optimizers()
        return [optimizer], [{"scheduler": schedules.ExponentialLR(optimizer, 0.99), "interval": "step"}]

    def lr_scheduler_step(self, scheduler, metric):
        if isinstance(scheduler, ReduceLROnPlateau):
            scheduler.step(metric)
        else:
            super().lr_scheduler_step(scheduler, metric)

    def on_train_batch_end(self, outputs, batch, batch_idx):
        self.log("weights", self.net[0].weight.abs().sum())


@case(data=long, size=10)
class ScheduleThatIsHandedACounter(ScheduledLate):
    """As schedules of timm's are."""

    def lr_scheduler_step(self, scheduler, metric):
        scheduler.step(epoch=self.global_step)

    def on_train_batch_end(self, outputs, batch, batch_idx):
        self.log("weights", self.net[0].weight.abs().sum())

    def configure_optimizers(self):
        optimizer = Small.configure_optimizers(self)
        return [optimizer], [{"scheduler": ByNumber(optimizer), "interval": "step"}]


class FunctionOfASchedule(Small):
    """Beside a hook that comes behind it."""

    def __init__(self):
        super().__init__()
        self.save_hyperparameters({"warmup": 20})
        self.warmup, self.level = 20, 0.0

    def factor(self, step):
        return min(1.0, (step + 1) / self.warmup)

    def configure_optimizers(self):
        optimizer = super().configure_optimizers()
        schedule = schedules.LambdaLR(optimizer, self.function())
        return [optimizer], [{"scheduler": schedule, "interval": "step"}]

    def on_train_batch_end(self, outputs, batch, batch_idx):
        self.log("level", self.level)


@case(data=long, size=10)
class FunctionThatReadsTheModule(FunctionOfASchedule):
    def function(self):
        return lambda step: min(1.0, (step + 1) / self.warmup) * min(1.0, self.hparams.warmup / 10)


@case(data=long, size=10)
class MethodThatReadsTheModule(FunctionOfASchedule):
    def function(self):
        return self.factor


@case(data=long, size=10, eager="code of yours that steps a schedule")
class MethodThatSetsAnAttributeLate(FunctionOfASchedule):
    def factor(self, step):
        if step == 23:
            self.level = 1.0
        return super().factor(step)

    def function(self):
        return self.factor


@case(data=long, size=10, eager="code of yours that steps a schedule")
class FunctionThatCallsAnother(FunctionOfASchedule):
    def function(self):
        return lambda step: self.note(step) or 1 / (1 + step)

    def note(self, step):
        self.level = float(step > 23)


class ByNumber:
    """Computes the rate, as timm's do."""

    def __init__(self, optimizer):
        self.optimizer, self.base = optimizer, optimizer.param_groups[0]["lr"]

    def step(self, epoch):
        for group in self.optimizer.param_groups:
            group["lr"] = self.base / (1 + epoch)

    def state_dict(self):
        return {"base": self.base}

    def load_state_dict(self, state):
        self.base = state["base"]
