"""Attributes that steps set to what Python knows: counts, phases, weights of a loss that are annealed."""

import copy
import functools
import math
import random
from decimal import Decimal

import torch
from torch import nn

from gallery.case import Small, add, case
from gallery.state import even
from lightning_sink import StepCallback

CHANGES = {"eager": "the step changes Python state", "data": even}


class Counting(Small):
    """Counts its steps; `weight` says what that makes of the loss, and `count` how they are counted."""

    def __init__(self):
        super().__init__()
        self.steps = 0

    def training_step(self, batch, batch_idx):
        self.count(batch, batch_idx)
        loss = self.loss(batch)
        return loss * self.weight()

    def count(self, batch, batch_idx):
        self.steps += 1

    def weight(self):
        return 1 + self.steps / 8


@case(data=even)
class RampByACount(Counting):
    def weight(self):
        return min(1.0, self.steps / 20)


@case(data=even)
class DecayByACount(Counting):
    def weight(self):
        return 0.9**self.steps


@case(data=even)
class CosineOfACount(Counting):
    def weight(self):
        angle = math.pi * self.steps / 40
        return 0.5 * (1 + math.cos(angle))


@case(data=even)
class EachThirdStepByACount(Counting):
    def weight(self):
        return 2 if self.steps % 3 == 0 else 1


@case(data=even)
class WarmUpByACount(Counting):
    def weight(self):
        if self.steps < 7:
            return 0.1
        return 1


@case(data=even)
class SeveralWaysByACount(Counting):
    def weight(self):
        if self.steps % 4 == 0:
            return 2
        return 3 if self.steps > 10 and self.steps % 2 == 1 else 1


@case(data=even)
class TensorOfACount(Counting):
    def weight(self):
        return 1 / torch.tensor(self.steps + 1.0)


@case(data=even)
class WholeNumberOfACount(Counting):
    def weight(self):
        weight = self.steps // 5 + 1
        return 2 * weight


@case(eager="is needed as a plain number", data=even)
class PowersOfACountThatGrow(Counting):
    def weight(self):
        return 1 + 3 ** (2 * self.steps) % 7 + self.steps**8 % 5  # past 2**53, too, which no float has exactly


@case(data=even)
class ScaleOfACountForTensorsInPlace(Counting):
    def on_before_optimizer_step(self, optimizer):
        scale = 1 / (1 + self.steps % 3)
        for parameter in self.parameters():
            parameter.grad.mul_(scale)


@case(data=even)
class PropertyOfACount(Counting):
    @property
    def tau(self):
        return min(1.0, 0.1 + self.steps / 30)

    def weight(self):
        return self.tau


PLAIN = {"eager": "is needed as a plain number", "data": even}


@case(**PLAIN)
class CountNeededAsAWholeNumber(Counting):
    def weight(self):
        return int(self.steps) / 9


@case(**PLAIN)
class CountNeededAsAKey(Counting):
    def weight(self):
        return {5: 2}.get(self.steps, 1)


@case(**PLAIN)
class CountWhoseTypeIsAsked(Counting):
    def weight(self):
        return 1 + self.steps / 9 if type(self.steps) is int else 2


@case(**PLAIN)
class CountThatDecimalTakes(Counting):
    def weight(self):
        return float(Decimal(self.steps) / 9)


@case(**PLAIN)
class CountThatSeeds(Counting):
    def weight(self):
        return random.Random(-self.steps).random()


@case(data=even)
class CountThatCRemembers(Counting):
    @functools.lru_cache(maxsize=4)  # noqa: B019
    def of_ten(self, tens):
        return self.steps

    def training_step(self, batch, batch_idx):
        self.steps += 1
        loss = self.loss(batch)
        return loss * self.of_ten(batch_idx // 10) if batch_idx > 3 else loss


@case(**CHANGES)
class CountHandedToOneOfTwo(Counting):
    """The function is another one by the time that it is called."""

    def weight(self):
        steps = self.steps
        self.function = ramp_of_ten if steps % 2 else by_its_type
        return self.function(steps)


def ramp_of_ten(steps):
    return min(1.0, steps / 10)


def by_its_type(steps):
    return steps / 20 if type(steps) is int else 7


class Weight:
    """Weighs by the type of what it is multiplied by."""

    def __mul__(self, other):
        return 1 + other / 9 if type(other) is int else 2.0


@case(**PLAIN)
class CountBesideAnObjectThatAsksForTypes(Counting):
    def weight(self):
        return Weight() * self.steps


@case(**PLAIN)
class CountBesideAnObjectThatKeepsItToItself(Counting):
    """What ends the recording ends in the step's own hands."""

    def weight(self):
        try:
            return Weight() * self.steps
        except Exception:
            return 3.0


@case(data=even)
class CountThatMakesAListLonger(Counting):
    def weight(self):
        weights = [0.25]
        same = weights
        weights *= self.steps % 3 + 1
        return sum(same)


@case(data=even)
class CountThatIsHandedOn(Counting):
    def weight(self):
        return ramp(self.steps, most=20) * self.after(steps=self.steps)

    def after(self, steps):
        return 1 if steps < 9 else 0.5


def ramp(steps, most):
    return min(1.0, steps / most)


@case(data=even)
class CountThatBoundsAndDivides(Counting):
    """A range that is annealed, and whole numbers divided by a count."""

    def training_step(self, batch, batch_idx):
        self.steps += 1
        scores, clip = self(batch[0]), 0.1 + self.steps / 30
        places = torch.arange(len(scores)) % self.steps
        return nn.functional.cross_entropy(torch.clamp(scores, -clip, clip), batch[1]) * places.sum() / 9


@case(data=even)
class CountThatIsHandedToAModule(Counting):
    def __init__(self):
        super().__init__()
        self.scaled = ScaledBy()

    def training_step(self, batch, batch_idx):
        self.steps += 1
        loss = self.loss(batch)
        return self.scaled(loss, weight=self.steps / 8)


class ScaledBy(nn.Module):
    def forward(self, loss, weight):
        return loss * weight


@case(data=even)
class CountBesideACall(Counting):
    def training_step(self, batch, batch_idx):
        self.steps += 1
        return self.loss(batch) * self.steps / 20


@case(data=even)
class CountThatIsReturnedAndLogged(Counting):
    def training_step(self, batch, batch_idx):
        self.steps += 1
        loss, weight = self.weighed(batch)
        self.log("weight", weight)
        return loss

    def weighed(self, batch):
        weight = self.steps / 20
        return self.loss(batch) * weight, weight


@case(**PLAIN)
class CountThatRolls(Counting):
    def loss(self, batch):
        return super().loss((batch[0].roll(self.steps, 0), batch[1]))


@case(data=even)
class CountInStepsOfTwo(Counting):
    def count(self, batch, batch_idx):
        self.steps = self.steps + 2


@case(data=even)
class CountByAFloat(Counting):
    def count(self, batch, batch_idx):
        self.steps += 0.1


@case(data=even)
class CountByAFactor(Counting):
    def count(self, batch, batch_idx):
        self.steps = 0.97 * self.steps + 1


@case(data=even)
class CountAround(Counting):
    def count(self, batch, batch_idx):
        self.steps = (self.steps + 1) % 5


@case(data=even)
class CountAroundByAQuestion(Counting):
    def count(self, batch, batch_idx):
        self.steps = 0 if self.steps == 4 else self.steps + 1


@case(data=even)
class CountByTheBatchsIndex(Counting):
    def count(self, batch, batch_idx):
        self.steps = batch_idx + 1


@case(data=even)
class CountByBoth(Counting):
    def count(self, batch, batch_idx):
        self.steps = self.steps + batch_idx


@case(data=even)
class CountByTheBatchsRows(Counting):
    def count(self, batch, batch_idx):
        self.steps += len(batch[0])


@case(data=even)
class CountInTwoParts(Counting):
    def count(self, batch, batch_idx):
        self.steps += 1
        self.steps = self.steps * 2 % 7


@case(data=even)
class CountDownToNothing(Counting):
    def count(self, batch, batch_idx):
        self.steps = max(0, 20 - batch_idx)


@case(data=even)
class CountThatOverflows(Counting):
    """Python raises an error, which the step handles."""

    def __init__(self):
        super().__init__()
        self.steps = 1.5

    def count(self, batch, batch_idx):
        try:
            self.steps = self.steps**2
        except OverflowError:
            self.steps = 1.5

    def weight(self):
        return 1


@case(data=even)
class CountByAValue(Counting):
    def count(self, batch, batch_idx):
        self.steps = self.steps + batch[0].sum().item()


@case(**CHANGES)
class CountPastTheAttribute(Counting):
    def count(self, batch, batch_idx):
        vars(self).update(steps=vars(self)["steps"] + 1)


@case(**CHANGES)
class CountShownToAll(Counting):
    def count(self, batch, batch_idx):
        self.steps += 1
        copy.copy(self)


@case(data=even)
class PhasesThatTakeTurns(Small):
    def __init__(self):
        super().__init__()
        self.phase = False

    def training_step(self, batch, batch_idx):
        self.phase = not self.phase
        loss = self.loss(batch)
        return loss * (2 if self.phase else 1)


@case(data=even)
class PhaseByName(Small):
    def __init__(self):
        super().__init__()
        self.phase = "first"

    def training_step(self, batch, batch_idx):
        weight = 2 if self.phase == "first" else 1
        self.phase = "second" if batch_idx % 3 == 2 else "first"
        return weight * self.loss(batch)


@case(data=even)
class CountThatIsNoneAtFirst(Small):
    def __init__(self):
        super().__init__()
        self.steps = None

    def training_step(self, batch, batch_idx):
        self.steps = 1 if self.steps is None else self.steps + 1
        loss = self.loss(batch)
        return loss / self.steps


@case(data=even)
class CountsReadInOtherHooks(Small):
    def __init__(self):
        super().__init__()
        self.steps = self.updates = 0

    def on_train_batch_start(self, batch, batch_idx):
        self.updates += 2

    def on_before_optimizer_step(self, optimizer):
        for parameter in self.parameters():
            parameter.grad.mul_(1 / (1 + self.steps % 3 + self.updates % 5))

    def on_train_batch_end(self, outputs, batch, batch_idx):
        self.steps += 1
        self.log("steps", self.steps)


@case(data=even)
class CountThatAnEpochSetsAnew(Counting):
    def weight(self):
        return 1 + self.steps % 3

    def on_train_epoch_start(self):
        self.steps = 100 * self.current_epoch


@case(data=even)
class CountThatBecomesAFloat(Counting):
    def on_train_epoch_start(self):
        self.steps = float(self.steps) if self.current_epoch else self.steps


@case(data=even)
class WholeCountThatBecomesAFloatInAStep(Counting):
    def count(self, batch, batch_idx):
        self.steps = self.steps + (1 if batch_idx < 9 else 0.5)

    def weight(self):
        one = torch.ones((), dtype=torch.int64)
        return one * self.steps / 7


@case(options={"accumulate_grad_batches": 2})
class CountWhereGradientsAccumulate(Counting):
    def weight(self):
        return 1 + self.steps % 4


@case(options={"accumulate_grad_batches": 2})
class CountOfWindows(Small):
    def __init__(self):
        super().__init__()
        self.steps = 0

    def on_before_zero_grad(self, optimizer):
        self.steps += 1

    def on_before_optimizer_step(self, optimizer):
        for parameter in self.parameters():
            parameter.grad.mul_(1 / (1 + self.steps % 3))


class Scaled(nn.Module):
    """Counts how often it was called."""

    def __init__(self):
        super().__init__()
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        return x * (1 + self.calls % 3)


@case(data=even, inductor=True)
class CallsCountedBySubmodules(Small):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(6, 8), Scaled(), nn.Tanh(), nn.Linear(8, 3), Scaled())


@case(data=even)
class OneSubmoduleThatIsCalledTwice(Small):
    def __init__(self):
        super().__init__()
        scaled = Scaled()
        self.net = nn.Sequential(nn.Linear(6, 8), scaled, nn.Tanh(), nn.Linear(8, 3), scaled)


class Averaged(Small):
    """Keeps an average of its weights, and how often it was updated."""

    def __init__(self):
        super().__init__()
        self.average = copy.deepcopy(self.net).requires_grad_(False)
        self.updates = 0


@case(data=even)
class AverageByTheNumberOfSteps(Averaged):
    """Decays less at first, as most averages of weights do that are not torch's."""

    @torch.no_grad()
    def on_before_zero_grad(self, optimizer):
        self.updates += 1
        decay = min(0.99, (1 + self.updates) / (10 + self.updates))
        for own, other in zip(self.average.parameters(), self.net.parameters(), strict=True):
            own.sub_((1 - decay) * (own - other))


@case(data=even)
class AverageByVariables(Averaged):
    """As most averages are written: `decay` in a variable, tensors in a loop."""

    def on_before_zero_grad(self, optimizer):
        self.updates += 1
        decay = min(0.99, (1 + self.updates) / (10 + self.updates))
        with torch.no_grad():
            for own, other in zip(self.average.parameters(), self.net.parameters(), strict=True):
                own.mul_(decay).add_(other, alpha=1 - decay)


@case(data=even)
class AverageByAFunction(Averaged):
    def on_before_zero_grad(self, optimizer):
        self.updates += 1
        follow(self.average, self.net, 1 / (1 + self.updates))


@torch.no_grad()
def follow(average, net, rate):
    for own, other in zip(average.parameters(), net.parameters(), strict=True):
        own.lerp_(other, rate)


class CountsInACallback(StepCallback):
    def __init__(self):
        self.seen = 0

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        self.seen += 1
        if self.seen % 3 == 0:
            with torch.no_grad():
                module.net[0].weight.mul_(0.99)


add("steps counted in a callback", Small, options={"callbacks": lambda: [CountsInACallback()]}, data=even)


@case(**CHANGES)
class CountInPythonsList(Small):
    def __init__(self):
        super().__init__()
        self.counts = [0]

    def training_step(self, batch, batch_idx):
        self.counts[0] += 1
        loss = self.loss(batch)
        return loss * (1 + self.counts[0] % 2)


@case(data=even)
class CountThatIsLoggedAndReadBetweenSinks(Counting):
    def weight(self):
        return 1 + self.steps % 2

    def training_step(self, batch, batch_idx):
        loss = super().training_step(batch, batch_idx)
        self.log("steps", self.steps)
        return loss

    def on_train_epoch_end(self):
        self.log("steps at the end", float(self.steps))


@case(data=even)
class CountThatGoesToAnotherAttribute(Counting):
    def __init__(self):
        super().__init__()
        self.last = 0

    def training_step(self, batch, batch_idx):
        loss = self.loss(batch) * (1 + (batch_idx + self.last) % 3)
        self.last = self.steps
        self.steps = self.steps + 1
        return loss


@case(options={"accumulate_grad_batches": 2})
class SumThatIsReadInOtherSteps(Small):
    """Some steps do nothing but add to it, as one that is collected; others decide by it."""

    def __init__(self):
        super().__init__()
        self.steps = 0

    def training_step(self, batch, batch_idx):
        self.steps += 1
        return self.loss(batch)

    def on_before_optimizer_step(self, optimizer):
        for parameter in self.parameters():
            parameter.grad.mul_(1 / (1 + self.steps % 3))


@case(data=even, raises="math domain error")
class CosineOfWhatGrowsTooLarge(Small):
    """Python raises nothing where it becomes infinite, and torch nothing behind that."""

    scale = 1e250

    def training_step(self, batch, batch_idx):
        self.scale = self.scale * 1e5
        return self.loss(batch) * (1 + 0.1 * math.cos(self.scale))
