"""Callbacks whose batch hooks act only where sinks of four begin and end: the training is plain Lightning's."""

import lightning as L
import torch
from torch import nn

from gallery.callbacks import Weighted
from gallery.case import add


def _weights(trainer, module, batch, count):
    with torch.no_grad():
        module.net[0].weight.mul_(0.95)


def _teacher(trainer, module, batch, count):
    with torch.no_grad():
        for mine, other in zip(module.teacher.parameters(), module.net.parameters(), strict=True):
            mine.lerp_(other, 0.3)


def _attribute(trainer, module, batch, count):
    module.weight = 1.0 + 0.5 * (count // 5)


def _buffer(trainer, module, batch, count):
    module.scale.mul_(0.9)


def _new_buffer(trainer, module, batch, count):
    module.scale = module.scale * 0.9


def _rate(trainer, module, batch, count):
    trainer.optimizers[0].param_groups[0]["lr"] *= 0.9


def _momentum(trainer, module, batch, count):
    trainer.optimizers[0].param_groups[0]["momentum"] = 0.9 - 0.1 * (count // 5)


def _frozen(trainer, module, batch, count):
    module.net[0].requires_grad_(count < 5)


def _mode(trainer, module, batch, count):
    module.net[1].train(count < 5)


def _state(trainer, module, batch, count):
    trainer.optimizers[0].state.clear()


def _draws(trainer, module, batch, count):
    torch.randn(3)


def _batch(trainer, module, batch, count):
    batch[0].mul_(1.5)


def _gradients(trainer, module, batch, count):
    for parameter in module.parameters():
        if parameter.grad is not None:
            parameter.grad.mul_(0.5)


def _hook(trainer, module, batch, count):
    if count == 5:
        module.net[0].register_forward_hook(lambda layer, given, out: 2 * out)


CHANGES = {
    "weights": _weights,
    "a teacher": _teacher,
    "an attribute": _attribute,
    "a buffer": _buffer,
    "a buffer by another": _new_buffer,
    "the rate": _rate,
    "the momentum": _momentum,
    "what is frozen": _frozen,
    "the mode of a layer": _mode,
    "the optimizer's state": _state,
    "random numbers": _draws,
    "the batch": _batch,
    "gradients": _gradients,
    "the hooks of a layer": _hook,
}


class AtStarts(L.Callback):
    """Acts at the first batch of each sink."""

    def __init__(self, change):
        self.change, self.count = change, 0

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        if batch_idx % 4 == 0:
            self.change(trainer, pl_module, batch, self.count)
            self.count += 1


class AtEnds(AtStarts):
    """Acts at the last batch of each sink."""

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        pass

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        if batch_idx % 4 == 3 or trainer.is_last_batch:
            self.change(trainer, pl_module, batch, self.count)
            self.count += 1


for name, change in CHANGES.items():
    for when, kind in (("starts", AtStarts), ("ends", AtEnds)):
        options = {"callbacks": lambda kind=kind, change=change: [kind(change)], "max_epochs": 3}
        add(f"{name} changed where sinks {when}", Weighted, options=options)
        if name == "gradients":
            options = {**options, "accumulate_grad_batches": 3}
            add(f"gradients of a window changed where sinks {when}", Weighted, options=options)


class HasUnused(Weighted):
    def __init__(self):
        super().__init__()
        self.unused = nn.Linear(2, 2)


def _stray(trainer, module, batch, count):
    if count == 1:
        module.unused.weight.grad = torch.ones_like(module.unused.weight)


for when, kind in (("starts", AtStarts), ("ends", AtEnds)):
    options = {"callbacks": lambda kind=kind: [kind(_stray)], "max_epochs": 3}
    add(f"a gradient put where sinks {when}", HasUnused, options=options)


class Carries(Weighted):
    """What it carries from step to step takes part where its shape fits."""

    def __init__(self):
        super().__init__()
        self.carried = torch.zeros(8, 3)

    def loss(self, batch):
        logits = self(batch[0])
        carried, self.carried = self.carried, logits.detach()
        logits = logits + 0.1 * carried if carried.shape == logits.shape else logits
        return nn.functional.cross_entropy(logits, batch[1])


def _carried(trainer, module, batch, count):
    module.carried = torch.zeros(2, 3) if count % 2 else torch.zeros(8, 1)


for when, kind in (("starts", AtStarts), ("ends", AtEnds)):
    add(f"the shape of what is carried changed where sinks {when}", Carries,
        options={"callbacks": lambda kind=kind: [kind(_carried)], "max_epochs": 3})  # fmt: skip
