"""Numbers that a module keeps in small objects of its own, from step to step (from Python 3.11 on)."""

import copy
import math
from functools import partial

import torch

from gallery.case import Small, add, case
from gallery.optimizers import Optimized
from gallery.own_optimizers import AddingTwoNumbers
from gallery.state import even
from parity import loader

CHANGES = {"eager": "changes Python state", "data": even}


class Annealer:
    """Forgets a weight, step by step."""

    def __init__(self, weight=1.0):
        self.weight, self.steps = weight, 0

    def step(self):
        self.steps += 1
        self.weight *= 0.95


class Annealed(Small):
    make = Annealer

    def __init__(self):
        super().__init__()
        self.annealer = type(self).make()

    def training_step(self, batch, batch_idx):
        self.annealer.step()
        return self.loss(batch) * self.annealer.weight

    def on_train_epoch_end(self):
        self.log("weight", self.annealer.weight)
        self.log("steps", float(self.annealer.steps))


add("weight in an object", Annealed, data=even, inductor=True)
add("weight in an object, in windows", Annealed, data=even, options={"accumulate_grad_batches": 2})


@case(data=even)
class CountInAnObjectDecides(Annealed):
    def training_step(self, batch, batch_idx):
        self.annealer.step()
        loss = self.loss(batch)
        return 2 * loss if self.annealer.steps % 3 == 0 else loss


@case(data=even)
class TwoObjectsOfOneClass(Annealed):
    def __init__(self):
        super().__init__()
        self.other = Annealer(0.5)

    def training_step(self, batch, batch_idx):
        self.other.step()
        return super().training_step(batch, batch_idx) * self.other.weight


@case(data=even)
class OneObjectByTwoNames(Annealed):
    def __init__(self):
        super().__init__()
        self.other = self.annealer

    def training_step(self, batch, batch_idx):
        return super().training_step(batch, batch_idx) * self.other.weight


@case(data=even, options={"max_epochs": 4})
class AnotherObjectFromTheThirdEpochOn(Annealed):
    def on_train_epoch_end(self):
        super().on_train_epoch_end()
        if self.current_epoch == 1:
            self.annealer = Annealer(0.7)


@case(data=even, options={"max_epochs": 4})
class WhatItHoldsIsSetByAnEpochsEnd(Annealed):
    def on_train_epoch_end(self):
        super().on_train_epoch_end()
        self.annealer.weight = 1.0


class Momentum:
    """A teacher follows a network, ever more slowly, as bolts has it for BYOL."""

    def __init__(self):
        self.first = self.present = 0.9

    def update(self, module):
        for own, other in zip(module.teacher.parameters(), module.net.parameters(), strict=True):
            own.data = self.present * own.data + (1.0 - self.present) * other.data
        self.present = 1 - (1 - self.first) * (math.cos(math.pi * module.global_step / 40) + 1) / 2


@case(data=even)
class MomentumInAnObject(Small):
    def __init__(self):
        super().__init__()
        self.teacher = copy.deepcopy(self.net).requires_grad_(False)
        self.momentum = Momentum()

    def training_step(self, batch, batch_idx):
        return self.loss(batch) + (self.teacher(batch[0]) - self(batch[0])).square().mean()

    def on_train_batch_end(self, *_):
        self.momentum.update(self)


class Shadow:
    """An average of weights with its tensors in a dictionary, and the module that it is of."""

    def __init__(self, net):
        self.net, self.updates = net, 0
        self.shadow = {name: p.detach().clone() for name, p in net.named_parameters()}

    def update(self):
        self.updates += 1
        decay = min(0.9, (1 + self.updates) / (10 + self.updates))
        with torch.no_grad():
            for name, parameter in self.net.named_parameters():
                self.shadow[name].mul_(decay).add_(parameter, alpha=1 - decay)


@case(data=even)
class ShadowInAnObject(Small):
    def __init__(self):
        super().__init__()
        self.average = Shadow(self.net)

    def on_train_batch_end(self, *_):
        self.average.update()

    def on_train_epoch_end(self):
        pairs = zip(self.average.shadow.values(), self.net.parameters(), strict=True)
        self.log("distance", sum((average - parameter).abs().sum() for average, parameter in pairs))


class Meter:
    def __init__(self):
        self.count, self.total, self.seen = 0, 0.0, []

    def update(self, value, items):
        self.count += items
        self.total += value * items
        self.seen.append(value)


@case(data=even)
class MeterInAnObject(Small):
    def __init__(self):
        super().__init__()
        self.meter = Meter()

    def training_step(self, batch, batch_idx):
        loss = self.loss(batch)
        self.meter.update(loss.item(), len(batch[0]))
        return loss

    def on_train_epoch_end(self):
        self.log("average", self.meter.total / self.meter.count)
        self.log("last", sum(self.meter.seen[-3:]))


class Careful(Annealer):
    def __setattr__(self, name, value):
        object.__setattr__(self, name, value)


@case(**CHANGES)
class AnObjectThatSetsForItself(Annealed):
    make = Careful


class Around:
    def __init__(self):
        self.inner, self.size = Annealer(), 1

    def step(self):
        self.inner.step()

    weight = property(lambda self: self.inner.weight)
    steps = property(lambda self: self.inner.steps)


@case(eager="", data=even)
class AnObjectInAnObject(Annealed):
    make = Around


KEPT = Annealer()


@case(data=even)
class AnObjectThatAFunctionKnowsToo(Annealed):
    def __init__(self):
        super().__init__()
        KEPT.weight, KEPT.steps = 1.0, 0
        self.annealer = KEPT

    def training_step(self, batch, batch_idx):
        KEPT.step()
        return self.loss(batch) * KEPT.weight


@case(eager="", data=even)
class AnObjectThatIsLookedAtAsAWhole(Annealed):
    def training_step(self, batch, batch_idx):
        loss = super().training_step(batch, batch_idx)
        return loss * (1 + vars(self.annealer)["weight"])


class Neuron(torch.nn.Linear):
    """Its class knows them all, as snntorch's does."""

    instances = []

    def __init__(self):
        super().__init__(6, 6)
        self.state = None
        Neuron.instances.append(self)

    def forward(self, x):
        self.state = super().forward(x) if self.state is None else 0.9 * self.state.detach() + super().forward(x)
        return self.state.tanh()


@case()
class StartsItsNeuronsAnew(Small):
    def __init__(self):
        super().__init__()
        Neuron.instances = []
        self.neuron = Neuron()

    def forward(self, x):
        for neuron in Neuron.instances:
            neuron.state = None
        return self.net(self.neuron(self.neuron(x)))


# Last, since each eighth case has other data.
add(
    "own optimizer AddingTwoNumbers past what tensors hold",
    partial(Optimized, AddingTwoNumbers),
    data=loader,
    eager="changes Python state",
)
