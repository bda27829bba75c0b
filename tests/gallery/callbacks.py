"""Callbacks that users write, beside a small module.

What a callback does between two sinks is right. What it does in a batch hook it does once per sink: where the training
would be another one, a warning has to say so.
"""

import copy

import lightning as L
import torch
from lightning.pytorch.callbacks import LambdaCallback
from torch import nn
from torch.optim.swa_utils import AveragedModel

from gallery.case import add
from gallery.options import Logged

DIFFERS = "the training differs from plain Lightning's"


class Weighted(Logged):
    """Reads what a callback may change: a number, a tensor, random numbers, another network."""

    def __init__(self):
        super().__init__()
        self.net.insert(1, nn.Dropout(0.3))
        self.weight = 1.0
        self.register_buffer("scale", torch.ones(()))
        self.teacher = copy.deepcopy(self.net).requires_grad_(False)

    def training_step(self, batch, batch_idx):
        distance = (self(batch[0]) - self.teacher(batch[0])).square().mean()
        return (self.loss(batch) + 0.3 * distance) * self.weight * self.scale


def users(kind, warns=None, eager=None, make=Weighted, **options):
    """Puts a callback into the gallery under its docstring."""
    add(kind.__doc__.rstrip("."), make, options={"callbacks": lambda: [kind()], **options}, warns=warns, eager=eager)


# -- callbacks that look ----------------------------------------------------------------------------------------------


class ReadsOutputs(L.Callback):
    """a callback that reads outputs."""

    def __init__(self):
        self.losses = []

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        self.losses.append(outputs["loss"])


class Counts(L.Callback):
    """a callback that counts batches."""

    def __init__(self):
        self.batches = 0

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        self.batches += 1

    def state_dict(self):
        return {"batches": self.batches}

    def load_state_dict(self, state):
        self.batches = state["batches"]


class LogsPerEpoch(L.Callback):
    """a callback that logs at epoch ends."""

    def on_train_epoch_end(self, trainer, pl_module):
        self.log("rate", trainer.optimizers[0].param_groups[0]["lr"])
        pl_module.log("largest", pl_module.net[0].weight.detach().max())


for kind in (ReadsOutputs, Counts, LogsPerEpoch):
    users(kind)

# -- callbacks that act between sinks ---------------------------------------------------------------------------------


class Anneals(L.Callback):
    """a callback that changes the rate at each epoch."""

    def on_train_epoch_start(self, trainer, pl_module):
        for group in trainer.optimizers[0].param_groups:
            group["lr"] = 0.05 * 0.5**trainer.current_epoch


class Weighs(L.Callback):
    """a callback that changes an attribute at each epoch."""

    def on_train_epoch_start(self, trainer, pl_module):
        pl_module.weight = 1.0 + trainer.current_epoch


class Teaches(L.Callback):
    """a callback that averages into a teacher at each epoch."""

    def on_train_epoch_end(self, trainer, pl_module):
        for mine, other in zip(pl_module.teacher.parameters(), pl_module.net.parameters(), strict=True):
            mine.data.lerp_(other.data, 0.5)


class StopsAtEpochs(L.Callback):
    """a callback that stops at an epoch's end."""

    def on_train_epoch_end(self, trainer, pl_module):
        trainer.should_stop = trainer.current_epoch >= 1


class ActsAfterValidation(L.Callback):
    """a callback that acts after validation."""

    def on_validation_end(self, trainer, pl_module):
        if trainer.training or not trainer.sanity_checking:
            pl_module.scale.mul_(0.9)


class Freezes(L.Callback):
    """a callback that freezes a layer at an epoch."""

    def on_train_epoch_start(self, trainer, pl_module):
        pl_module.net[0].requires_grad_(trainer.current_epoch != 1)


class Unhooks(L.Callback):
    """a callback that hooks a layer while it fits."""

    def on_fit_start(self, trainer, pl_module):
        self.handle = pl_module.net[3].register_forward_hook(lambda layer, given, out: 2 * out)

    def on_fit_end(self, trainer, pl_module):
        self.handle.remove()


for kind in (Anneals, Weighs, Teaches, StopsAtEpochs, Freezes, Unhooks):
    users(kind, max_epochs=3)
users(ActsAfterValidation, val_check_interval=5)

# -- callbacks that take part in the step -----------------------------------------------------------------------------


class HalvesGradients(L.Callback):
    """a callback that halves gradients before the optimizer steps."""

    def on_before_optimizer_step(self, trainer, pl_module, optimizer):
        pl_module.net[0].weight.grad.mul_(0.5)


users(HalvesGradients)
for hook in ("on_before_zero_grad", "on_before_backward", "on_after_backward", "on_before_optimizer_step"):

    class Part(LambdaCallback):
        """a callback made of functions with"""

        def __init__(self, hook=hook):
            super().__init__(**{hook: lambda trainer, module, *_: module.net[0].bias.data.mul_(0.99)})

    Part.__doc__ += f" {hook}."
    users(Part)

# -- callbacks whose batch hooks change the training ------------------------------------------------------------------


class ChangesWeights(L.Callback):
    """a callback that changes weights at each batch."""

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        with torch.no_grad():
            pl_module.net[0].weight.mul_(0.99)


class ChangesRates(L.Callback):
    """a callback that changes the rate at each batch."""

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        trainer.optimizers[0].param_groups[0]["lr"] *= 0.98


class AveragesByHand(L.Callback):
    """a callback that averages weights by hand."""

    def on_fit_start(self, trainer, pl_module):
        self.average = [parameter.detach().clone() for parameter in pl_module.parameters()]

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        for average, parameter in zip(self.average, pl_module.parameters(), strict=True):
            average.lerp_(parameter.detach(), 0.1)

    def on_train_end(self, trainer, pl_module):
        for average, parameter in zip(self.average, pl_module.parameters(), strict=True):
            parameter.data.copy_(average)


class AveragesByTorch(L.Callback):
    """a callback that averages weights with torch's class."""

    def on_fit_start(self, trainer, pl_module):
        self.average = AveragedModel(pl_module.net)

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        self.average.update_parameters(pl_module.net)

    def on_train_end(self, trainer, pl_module):
        pl_module.net.load_state_dict(self.average.module.state_dict())


class TeachesAtEachBatch(L.Callback):
    """a callback that averages into a teacher at each batch."""

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        for mine, other in zip(pl_module.teacher.parameters(), pl_module.net.parameters(), strict=True):
            mine.data = mine.data * 0.9 + other.data * 0.1


class TeachesThroughData(L.Callback):
    """a callback that averages into a teacher at each batch through data."""

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        for mine, other in zip(pl_module.teacher.parameters(), pl_module.net.parameters(), strict=True):
            mine.data.mul_(0.9).add_(other.data, alpha=0.1)


class TeachesInItsPlace(L.Callback):
    """a callback that averages into a teacher at each batch in its place."""

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        with torch.no_grad():
            for mine, other in zip(pl_module.teacher.parameters(), pl_module.net.parameters(), strict=True):
                mine.lerp_(other, 0.1)


class WeighsAtEachBatch(L.Callback):
    """a callback that anneals an attribute at each batch."""

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        pl_module.weight = min(1.0, (1 + trainer.global_step) / 20)


class ScalesAtEachBatch(L.Callback):
    """a callback that anneals a buffer at each batch."""

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        pl_module.scale.fill_(min(1.0, (1 + trainer.global_step) / 20))


class FreezesAtABatch(L.Callback):
    """a callback that freezes a layer at a step."""

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        pl_module.net[0].requires_grad_(trainer.global_step < 10)


class ChangesBatches(L.Callback):
    """a callback that changes each batch."""

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        batch[0].mul_(1.5)

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        batch[0].mul_(0.5)


class PutsIntoBatches(ChangesBatches):
    """a callback that puts something into each batch."""

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        batch[0], batch[1] = batch[0] * 1.5 + batch_idx, 2 - batch[1]


class PutsIntoBatchesElsewhere(PutsIntoBatches):
    """a callback that puts something into each batch by another function."""

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        self.change(batch)

    def change(self, batch):
        batch[0] = batch[0] * 1.5


class Draws(L.Callback):
    """a callback that draws random numbers at each batch."""

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        self.noise = torch.randn(2)


class ForgetsMomentum(L.Callback):
    """a callback that forgets the momentum at each batch."""

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        trainer.optimizers[0].state.clear()


class EvaluatesALayer(L.Callback):
    """a callback that puts a layer into evaluation at a step."""

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        pl_module.net[1].train(trainer.global_step < 10)


class Accumulates(L.Callback):
    """a callback that accumulates more from a step on."""

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        trainer.accumulate_grad_batches = 1 if trainer.global_step < 10 else 2


class StepsASchedule(L.Callback):
    """a callback that steps a schedule at each batch."""

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        for config in trainer.lr_scheduler_configs:
            config.scheduler.step()


class WithASchedule(Weighted):
    def configure_optimizers(self):
        optimizer = super().configure_optimizers()
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 9)]


users(StepsASchedule, make=WithASchedule, warns=DIFFERS)

TEACHERS = (TeachesAtEachBatch, TeachesThroughData, TeachesInItsPlace)
for kind in (ChangesWeights, ChangesRates, AveragesByHand, AveragesByTorch, *TEACHERS):
    users(kind, warns=DIFFERS)
for kind in (ChangesBatches, PutsIntoBatches):
    users(kind)
users(PutsIntoBatchesElsewhere, warns=DIFFERS)
for kind in (WeighsAtEachBatch, ScalesAtEachBatch, FreezesAtABatch, Draws, ForgetsMomentum):
    users(kind, warns=DIFFERS)
for kind in (EvaluatesALayer, Accumulates):
    users(kind, warns=DIFFERS)
