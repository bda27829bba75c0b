"""Attributes that steps set to what Python knows: counts, phases, weights of a loss that are annealed."""

import copy
import math

import torch
from torch import nn

from gallery.case import Small, add, case
from gallery.state import even
from lightning_sink import StepCallback

CHANGES = {"eager": "the step changes Python state", "data": even}


class Counting(Small):
    """Counts its steps; `weigh` says what that makes of the loss, and `count` how they are counted."""

    start = 0

    def __init__(self, weigh=None, count=None, start=None):
        super().__init__()
        self.steps = self.start if start is None else start
        self.weigh, self.count = weigh, count

    def training_step(self, batch, batch_idx):
        if self.count is None:
            self.steps += 1
        else:
            self.count(self, batch, batch_idx)
        return self.loss(batch) * (1 if self.weigh is None else self.weigh(self.steps))

    def state_dict(self, *args, **kwargs):
        held = super().state_dict(*args, **kwargs)
        held["steps"] = torch.tensor(float(self.steps), dtype=torch.float64)
        return held


WEIGHED = {
    "ramp": lambda steps: min(1.0, steps / 20),
    "decay": lambda steps: 0.9**steps,
    "cosine": lambda steps: 0.5 * (1 + math.cos(math.pi * steps / 40)),
    "each third step": lambda steps: 2 if steps % 3 == 0 else 1,
    "warm up": lambda steps: 0.1 if steps < 7 else 1,
    "several ways": lambda steps: 2 if steps % 4 == 0 else 3 if steps > 10 and steps % 2 else 1,
    "tensor": lambda steps: 1 / torch.tensor(steps + 1.0),
    "whole number": lambda steps: steps // 5 + 1,
    "truth": lambda steps: 1 + bool(steps),
}
for name, weigh in WEIGHED.items():
    add(f"steps counted in Python, {name}", lambda weigh=weigh: Counting(weigh), data=even)
for name, weigh in {"power": lambda steps: int(steps) / 9, "key": lambda steps: {5: 2}.get(steps, 1)}.items():
    words = {"eager": "is needed as a plain number", "data": even}
    add(f"steps counted in Python, needed as a {name}", lambda weigh=weigh: Counting(weigh), **words)


def _assign(module, value):
    module.steps = value


COUNTED = {
    "by twos": lambda module, batch, index: _assign(module, module.steps + 2),
    "by a float": lambda module, batch, index: _assign(module, module.steps + 0.1),
    "by a factor": lambda module, batch, index: _assign(module, 0.97 * module.steps + 1),
    "around": lambda module, batch, index: _assign(module, (module.steps + 1) % 5),
    "around by a question": lambda module, batch, index: _assign(module, 0 if module.steps == 4 else module.steps + 1),
    "by the batch's index": lambda module, batch, index: _assign(module, index + 1),
    "by both": lambda module, batch, index: _assign(module, module.steps + index),
    "by the batch's rows": lambda module, batch, index: _assign(module, module.steps + len(batch[0])),
    "in two parts": lambda module, batch, index: (
        _assign(module, module.steps + 1),
        _assign(module, module.steps * 2 % 7),
    ),
    "down to nothing": lambda module, batch, index: _assign(module, max(0, 20 - index)),
}
for name, count in COUNTED.items():
    add(f"steps counted {name}", lambda count=count: Counting(lambda steps: 1 + steps / 8, count), data=even)

COUNTED_OTHERWISE = {
    "by a value": lambda module, batch, index: _assign(module, module.steps + batch[0].sum().item()),
    "past the attribute": lambda module, batch, index: vars(module).update(steps=vars(module)["steps"] + 1),
    "and shown to all": lambda module, batch, index: (_assign(module, module.steps + 1), copy.copy(module)),
}
for name, count in COUNTED_OTHERWISE.items():
    eager = "a value of a tensor" if "value" in name else "the step changes Python state"
    make = lambda count=count: Counting(lambda steps: 1 + steps / 8, count)  # noqa: E731
    add(f"steps counted {name}", make, eager=eager, data=even)


@case(data=even)
class PhasesThatTakeTurns(Counting):
    start = False

    def __init__(self):
        super().__init__(
            lambda phase: 2 if phase else 1, lambda module, batch, index: _assign(module, not module.steps)
        )


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
        return self.loss(batch) / self.steps


@case(data=even)
class CountsReadInOtherHooks(Counting):
    def __init__(self):
        super().__init__()
        self.updates = 0

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
    def __init__(self):
        super().__init__(lambda steps: 1 + steps % 3)

    def on_train_epoch_start(self):
        self.steps = 100 * self.current_epoch


@case(data=even)
class CountThatBecomesAFloat(Counting):
    def __init__(self):
        super().__init__(lambda steps: 1 + steps / 9)

    def on_train_epoch_start(self):
        self.steps = float(self.steps) if self.current_epoch else self.steps


@case(data=even)
class WholeCountThatBecomesAFloatInAStep(Counting):
    def __init__(self):
        weigh = lambda steps: torch.ones((), dtype=torch.int64) * steps / 7  # noqa: E731
        super().__init__(weigh, lambda module, batch, index: _assign(module, module.steps + (1 if index < 9 else 0.5)))


@case(options={"accumulate_grad_batches": 2})
class CountWhereGradientsAccumulate(Counting):
    def __init__(self):
        super().__init__(lambda steps: 1 + steps % 4)


@case(options={"accumulate_grad_batches": 2})
class CountOfWindows(Counting):
    def __init__(self):
        super().__init__(None, lambda module, batch, index: None)

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


@case(data=even)
class AverageByTheNumberOfSteps(Small):
    """Decays less at first, as most averages of weights do that are not torch's."""

    def __init__(self):
        super().__init__()
        self.average = copy.deepcopy(self.net).requires_grad_(False)
        self.updates = 0

    @torch.no_grad()
    def on_before_zero_grad(self, optimizer):
        self.updates += 1
        decay = min(0.99, (1 + self.updates) / (10 + self.updates))
        for own, other in zip(self.average.parameters(), self.net.parameters(), strict=True):
            own.sub_((1 - decay) * (own - other))


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
        return self.loss(batch) * (1 + self.counts[0] % 2)


@case(data=even)
class CountThatIsLoggedAndReadBetweenSinks(Counting):
    def __init__(self):
        super().__init__(lambda steps: 1 + steps % 2)

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
        self.last, self.steps = self.steps, self.steps + 1
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
