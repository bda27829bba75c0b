"""Numbers that change from step to step, made plain by `float()` or computed with by numpy, as schedules have it."""

import math
from functools import partial

import numpy as np
import torch

from gallery.case import Small, add, case, from_3_11, late_before_3_11, numbers

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


BEFORE = {
    "by epochs": late_before_3_11(),
    "of numpy's roots": late_before_3_11(),
    "of what numpy computed, as a tensor": numbers(),
}
"""Those of which Python 3.10 says something else."""


def batches(module):
    return module.trainer.fit_loop.epoch_loop.batch_idx


for name, schedule in SCHEDULES.items():
    few = {"options": {"max_epochs": 4}, "inductor": name == "by epochs"}
    before = BEFORE.get(name, from_3_11(NEEDED))
    add(f"momentum {name}", partial(Teaching, schedule), **few, **before)


@case(inductor=True, size=9, **numbers())
class FloatsOfTensors(Small):
    """By Python's `float`, as by `item()`."""

    def __init__(self):
        super().__init__()
        self.outs, self.mean, self.total = [], 1.0, 0.0

    def training_step(self, batch, batch_idx):
        loss = self.loss(batch)
        right = (self(batch[0]).argmax(1) == batch[1]).sum()
        self.outs.append(float(loss))
        self.outs.append({"right": float(right.item()) / len(batch[1]), "mean": float(self.net[0].weight.mean())})
        self.total += float(loss.detach()) * 2
        self.mean = 0.9 * self.mean + 0.1 * float(loss)
        self.log("loss", float(loss) / 3)
        return {"loss": loss / (1 + float(loss)), "right": float(right)}

    def on_train_epoch_end(self):
        kinds = [type(self.outs[0]), type(self.mean), type(self.outs[1]["right"])]
        assert [kind.__name__ for kind in kinds] == ["float"] * 3
        self.log("mean", self.mean + self.outs[-1]["mean"] + self.outs[-1]["right"])
        self.log("all", sum(self.outs[::2]) + self.total)


@case(inductor=True, size=9, options={"max_epochs": 3}, **numbers())
class WholeNumbersOfTensors(Small):
    """By Python's `int`, as by `item()`; of what is whole already it makes the same."""

    def __init__(self):
        super().__init__()
        self.outs, self.right, self.seen = [], 0, 0

    def training_step(self, batch, batch_idx):
        right = (self(batch[0]).argmax(1) == batch[1]).sum()
        self.outs.append(int(right))
        self.outs.append((int(right.item()), int(self.global_step)))
        self.right += int(right.cpu())
        self.seen += int(len(batch[1]))
        self.log("right", int(right) / len(batch[1]))
        self.log("running", self.right / self.seen)
        return self.loss(batch) * (1 + int(self.global_step) / 50)

    def on_train_epoch_end(self):
        kinds = [type(self.right), type(self.outs[0]), *map(type, self.outs[1])]
        assert [kind.__name__ for kind in kinds] == ["int"] * 4
        self.log("all", sum(self.outs[::2]) + self.right + sum(map(sum, self.outs[1::2])))


@case(eager="decides what Python does")
class WholeNumbersOfFloats(Small):
    """Of a float it makes another number."""

    def training_step(self, batch, batch_idx):
        loss = self.loss(batch)
        self.log("loss", int(loss * 10))
        return loss
