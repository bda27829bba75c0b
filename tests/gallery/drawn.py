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


class DrawsFromWhatItGives(Small):
    """As policies do, twice in a step and beside a draw of another kind."""

    def training_step(self, batch, batch_idx):
        x, y = batch
        logits = self(x + 0.1 * torch.randn_like(x))
        first = torch.distributions.Categorical(logits=logits).sample()
        noise = torch.rand(3)
        pair = torch.multinomial(logits.detach().softmax(1), 2)
        second = nn.functional.cross_entropy(logits + noise, pair[:, 1])
        return self.loss(batch) + nn.functional.cross_entropy(logits, first) + 0.5 * second


case(inductor=True)(DrawsFromWhatItGives)


class LeavesLayersOut(Small):
    """Two residual layers, each of which is left out now and then."""

    def __init__(self, optimizer, layers=2, **options):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(layers))
        self.optimizer, self.options = optimizer, options

    def forward(self, x):
        hidden = self.net[:2](x)
        for layer in self.layers:
            if random.random() < 0.3:
                continue
            hidden = hidden + torch.tanh(layer(hidden))
        return self.net[2](hidden)

    def configure_optimizers(self):
        return self.optimizer(self.parameters(), lr=0.01, **self.options)


LEFT_OUT = {
    "SGD": lambda: LeavesLayersOut(torch.optim.SGD, momentum=0.9),
    "Adam": lambda: LeavesLayersOut(torch.optim.Adam),
    "RAdam": lambda: LeavesLayersOut(torch.optim.RAdam),
    "Adagrad": lambda: LeavesLayersOut(torch.optim.Adagrad),
    "fused AdamW": lambda: LeavesLayersOut(torch.optim.AdamW, fused=True),
    "four of them, Adam": lambda: LeavesLayersOut(torch.optim.Adam, layers=4),
    "one layer only, Adam": lambda: LeavesLayersOut(torch.optim.Adam, layers=1),
}
for name, make in LEFT_OUT.items():
    # Each layer's count of steps is another one.
    add(f"layers left out by chance, {name}", make, data=lambda: loader(60, last=8), size=20)


@case(data=lambda: loader(60, last=8), size=20)
class LayersLeftOutOfWhichOneIsInNoOptimizer(LeavesLayersOut):
    """Its gradient is what it has ever got: nobody clears it."""

    def __init__(self):
        super().__init__(torch.optim.Adam)

    def configure_optimizers(self):
        return torch.optim.Adam([*self.net.parameters(), *self.layers[0].parameters()], lr=0.01)


@case(data=lambda: loader(60, last=8), size=20, options={"accumulate_grad_batches": 2})
class LayersLeftOutBetweenStepsOfTheOptimizer(LeavesLayersOut):
    def __init__(self):
        super().__init__(torch.optim.Adam)


@case(
    data=lambda: loader(60, last=8),
    size=20,
    options={"max_epochs": 3},
    eager="a number that the step draws from torch's generator decides what Python does",
    line="if torch.rand([]) < 0.5:",
)
class LayersLeftOutByANumberOfTorchs(LeavesLayersOut):
    def __init__(self):
        super().__init__(torch.optim.Adam)

    def forward(self, x):
        hidden = self.net[:2](x)
        for layer in self.layers:
            if torch.rand([]) < 0.5:
                continue
            hidden = hidden + torch.tanh(layer(hidden))
        return self.net[2](hidden)
