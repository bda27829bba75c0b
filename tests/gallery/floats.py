"""Numbers that change from step to step, made plain by `float()` or computed with by numpy, as schedules have it."""

import math
from functools import partial

import numpy as np
import torch

from gallery.case import Small, add, from_3_11

NEEDED = "is needed as a plain number"


def cosine(step, steps, first, last):
    """Comes to the last one in as many steps."""
    if step >= steps - 1:
        return float(last)
    return float(last - (last - first) * (np.cos(np.pi * step / (steps - 1)) + 1) / 2)


class Teaching(Small):
    """Its weights are averaged by a momentum that a function gives."""

    def __init__(self, momentum):
        super().__init__()
        self.momentum = momentum
        self.average = torch.nn.Linear(6, 8).requires_grad_(False)

    def training_step(self, batch, batch_idx):
        momentum = self.momentum(self)
        own, other = [*self.average.parameters()], [*self.net[0].parameters()]
        with torch.no_grad():
            torch._foreach_mul_(own, momentum)
            torch._foreach_add_(own, other, alpha=1.0 - momentum)
        self.log("momentum", momentum)
        return self.loss(batch)


SCHEDULES = {
    "by epochs": lambda module: cosine(module.current_epoch, 3, 0.9, 1.0),
    "by steps": lambda module: cosine(module.global_step, 30, 0.9, 1.0),
    "of a quotient of floats": lambda module: min(1.0, float(module.global_step) / float(max(1, 20))),
    "of batches": lambda module: 1.0 / float(batches(module) + 1),
    "of numpy's roots": lambda module: 1 / np.sqrt(module.global_step + 1),
    "of what numpy computed, as a tensor": lambda module: torch.tensor(np.exp(-0.1 * module.global_step)).item(),
    "that is drawn": lambda module: float(np.random.beta(0.4, 0.4)),
    "of a float": lambda module: float(math.exp(-0.1 * module.global_step)),
}


def batches(module):
    return module.trainer.fit_loop.epoch_loop.batch_idx


for name, schedule in SCHEDULES.items():
    few = {"options": {"max_epochs": 4}, "inductor": name == "by epochs"}
    add(f"momentum {name}", partial(Teaching, schedule), **few, **from_3_11(NEEDED))
