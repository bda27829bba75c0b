"""Numbers that a step draws from Python's and numpy's own generators; the host draws them for the programs."""

import math
import random

import numpy as np
import torch
from torch import nn

from gallery.case import Small, add, case
from parity import loader


class Scaled(Small):
    """The loss is scaled by a number that is drawn."""

    def __init__(self, draw=None):
        super().__init__()
        self.draw = draw

    def training_step(self, batch, batch_idx):
        factor = 1 + 0.1 * self.draw()
        self.log("factor", factor)
        return self.loss(batch) * factor


def largest():
    weight = np.random.beta(0.4, 0.4)
    return max(weight, 1 - weight)


def both_kinds():
    return random.gauss(0.0, 0.1) + np.random.normal(0.0, scale=0.1) - random.random() * np.random.rand()


NUMBERS = {
    "of Python's": lambda: random.random(),
    "of Python's, with arguments": lambda: random.uniform(0.5, b=1.5),
    "of numpy's": lambda: np.random.beta(0.4, 0.4),
    "of numpy's, by name": lambda: np.random.uniform(low=0.5, high=1.5),
    "whole, of Python's": lambda: random.randint(1, 6),
    "whole, of numpy's": lambda: np.random.randint(1, 6),
    "and the larger one of two": largest,
    "that seldom count": lambda: 10.0 if random.random() < 0.05 else 0.0,
    "of both generators": both_kinds,
    "that are computed with": lambda: math.exp(-random.random()) / (1 + np.random.randint(3)),
    "that one decides about": lambda: np.random.rand() if random.random() < 0.5 else random.random(),
    "of pairs that are kept": lambda: random.gauss(0.0, 1.0) if random.random() < 0.5 else np.random.randn(),
}
for name, draw in NUMBERS.items():
    # Each way has to come twice before it has a program.
    add(f"numbers {name}", lambda draw=draw: Scaled(draw), data=lambda: loader(24, last=8))


class Mixup(Small):
    """Mixes each sample with another one."""

    def training_step(self, batch, batch_idx):
        x, y = batch
        weight = np.random.beta(0.4, 0.4)
        order = torch.randperm(len(x))
        logits = self(weight * x + (1 - weight) * x[order])
        first, second = nn.functional.cross_entropy(logits, y), nn.functional.cross_entropy(logits, y[order])
        self.log("weight", weight)
        return weight * first + (1 - weight) * second


add("mixup", Mixup, inductor=True)
add("mixup of accumulated gradients", Mixup, options={"accumulate_grad_batches": 2})


@case()
class NumbersInTwoPartsOfAStep(Scaled):
    def __init__(self):
        super().__init__(np.random.rand)

    def training_step(self, batch, batch_idx):
        return self.loss(batch) * random.random()

    def on_before_optimizer_step(self, optimizer):
        scale = random.random()
        for parameter in self.parameters():
            parameter.grad.mul_(scale)


@case(data=lambda: loader(24, last=8))
class NumbersThatAreDrawnInManualOptimization(Small):
    def __init__(self):
        super().__init__()
        self.automatic_optimization = False

    def training_step(self, batch, batch_idx):
        optimizer = self.optimizers()
        for _ in range(2):
            optimizer.zero_grad()
            self.manual_backward(self.loss(batch) * random.random())
            optimizer.step()
