"""Numbers that steps look up by their place in an attribute: schedules that were worked out beforehand."""

import numpy as np
import torch
from torch import nn

from gallery.case import Small, carried, case, late_before_3_11


class Scaled(Small):
    """The loss of each step has a weight."""

    def __init__(self):
        super().__init__()
        self.weights = self.made()

    def made(self):
        return [1 / (1 + step) for step in range(40)]

    def weight(self, batch_idx):
        return self.weights[self.global_step]

    def training_step(self, batch, batch_idx):
        return self.loss(batch) * self.weight(batch_idx)


@case(inductor=True, **carried())
class AListOfNumbers(Scaled):
    """A step of the whole training has each."""


@case(**carried())
class ATupleOfNumbers(Scaled):
    def made(self):
        return tuple(super().made())


@case(**carried())
class AnArrayOfNumbers(Scaled):
    """It gives numbers of numpy's own kind."""

    def made(self):
        return np.linspace(1.0, 0.1, 40)

    def weight(self, batch_idx):
        return 0.5 + self.weights[self.trainer.global_step] ** 2


@case(**carried())
class NumbersAreCountedFromTheEnd(Scaled):
    def weight(self, batch_idx):
        return self.weights[-1 - batch_idx] + self.weights[batch_idx - 3]


@case(**late_before_3_11())
class ANumberForEachEpoch(Scaled):
    def weight(self, batch_idx):
        return self.weights[self.current_epoch] * self.weights[min(batch_idx, 3)]


@case(**carried())
class TheTableEnds(Scaled):
    """Steps behind its end go another way."""

    def made(self):
        return super().made()[:7]

    def weight(self, batch_idx):
        try:
            return self.weights[self.global_step]
        except IndexError:
            return 0.1


@case(**carried())
class TheNumberIsDecidedBy(Scaled):
    def weight(self, batch_idx):
        weight = self.weights[batch_idx]
        self.log("weight", weight)
        return weight if weight > 0.3 else 0.3


@case(**carried())
class OneNumberIsLookedUpTwice(Scaled):
    def weight(self, batch_idx):
        return self.weights[batch_idx] + self.weights[batch_idx] * self.weights[batch_idx + 1]


@case(**carried())
class ATableOfASubmodules(Small):
    class Scale(nn.Module):
        def __init__(self):
            super().__init__()
            self.factors = np.linspace(0.5, 2.0, 40)

        def forward(self, loss, step):
            return loss * self.factors[step]

    def __init__(self):
        super().__init__()
        self.scale = self.Scale()

    def training_step(self, batch, batch_idx):
        return self.scale(self.loss(batch), batch_idx)


@case(**carried())
class EachEpochHasATableOfItsOwn(Scaled):
    def on_train_epoch_start(self):
        self.weights = [weight * (1 + self.current_epoch) for weight in self.made()]


@case(**carried())
class EachEpochWritesIntoTheTable(Scaled):
    def made(self):
        return np.linspace(1.0, 0.1, 40)

    def on_train_epoch_start(self):
        self.weights[5:] *= 0.5


@case(eager="the step changes Python state: `weights`")
class ThePartsOfATableAreWrittenTo(Scaled):
    """A part of an array is the array's memory."""

    def made(self):
        return np.linspace(1.0, 0.1, 40)

    def weight(self, batch_idx):
        rest = self.weights[batch_idx:]
        rest *= 0.9
        return rest[0]


@case(eager="is needed as a plain number")
class WholeNumbersByTheirPlaces(Scaled):
    def made(self):
        return [*range(1, 41)]


@case(eager="is needed as a plain number")
class ATableThatAVariableHolds(Scaled):
    def weight(self, batch_idx):
        weights = self.weights
        return weights[batch_idx]


@case(eager="a value of a tensor decides what Python does")
class APlaceThatATensorGives(Scaled):
    def weight(self, batch_idx):
        return self.weights[int(torch.tensor(batch_idx) + 1)]
