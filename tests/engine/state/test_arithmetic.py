"""Functions of the user's that only compute with numbers, and those that may do more."""

import math
import random
import types
import warnings
from bisect import bisect_right
from functools import partial
from math import cos

import numpy as np
import pytest
import torch
from torch import optim
from torch.optim.lr_scheduler import LambdaLR, LRScheduler, SequentialLR, StepLR

from lightning_sink.engine.state.arithmetic import does_more_at, is_arithmetic
from lightning_sink.engine.state.schedulers import does_more, keep_schedulers, only_computes

WARMUP, EDGES, WEIGHT, COUNTED = 10, (3, 7, 12), torch.ones(()), []
config = types.ModuleType("config")
config.warmup, config.weight = 10, WEIGHT


class Config:
    warmup, weight = 10, WEIGHT


def ramp(step, warmup=10):
    return min(1.0, step / warmup)


def noisy(step):
    return ramp(step) + random.random()


def remembers(step):
    global LAST
    LAST = step
    return 0.5


def imports(step):
    import os

    return len(os.environ)


def by_default(step, of=WEIGHT):
    return step


def closed_over(value):
    return lambda step: step * value


def counting():
    calls = 0

    def count(step):
        nonlocal calls
        calls += 1
        return 1 / calls

    return count


def closed_over_nothing():
    function = lambda step: 1.0 if step < WARMUP else late  # noqa: E731
    if WARMUP < 0:
        late = 0.5
    return function


def applied(function):
    return lambda step: 2 * function(step)


ARITHMETIC = {
    "a constant": lambda step: 0.5,
    "a global": lambda step: step / WARMUP,
    "a tuple": lambda step: EDGES[bisect_right(EDGES, step) - 1],
    "math": lambda step: 0.5 * (1 + math.cos(math.pi * step)),
    "a function of math's": lambda step: cos(step),
    "numpy": lambda step: np.clip(0.5 * (1 + np.cos(np.pi * step)), 0, 1),
    "a function": lambda step: ramp(step, warmup=5),
    "a function itself": ramp,
    "given before": partial(ramp, warmup=3),
    "closed over": closed_over(3.0),
    "closed over a function": applied(ramp),
    "a class": lambda step: step / Config.warmup,
    "a module": lambda step: step / config.warmup,
    "a loop": lambda step: sum(0.9**i for i in range(step)),
    "calls itself": lambda step: 1 if step < 2 else ARITHMETIC_ITSELF(step - 1),
    "warns": lambda step: warnings.warn("late", UserWarning, stacklevel=2) if step > 5 else 0.5,
}


def ARITHMETIC_ITSELF(step):
    return 1 if step < 2 else ARITHMETIC_ITSELF(step - 1)


MORE = {
    "a tensor": lambda step: step * WEIGHT,
    "a tensor's number": lambda step: WEIGHT.item(),
    "a tensor in a class": lambda step: Config.weight,
    "a tensor in a module": lambda step: config.weight,
    "an object is made": lambda step: Config(),
    "a class by another name": lambda step: getattr(Config, "weight"),  # noqa: B009
    "prints": lambda step: print(step) or 0.5,
    "opens": lambda step: open("/dev/null") and 0.5,  # noqa: SIM115
    "draws": lambda step: random.random(),
    "draws by numpy": lambda step: np.random.rand(),
    "draws by torch": lambda step: torch.rand(()).item(),
    "calls what draws": noisy,
    "writes to a list": lambda step: COUNTED.append(step) or 0.5,
    "reads a list, which steps may fill": lambda step: len(COUNTED),
    "closed over a list": closed_over([1]),
    "closed over nothing": closed_over_nothing(),
    "an array of a number": closed_over(np.array(1.0)),
    "counts its calls": counting(),
    "sets a global": remembers,
    "imports": imports,
    "a default": by_default,
    "closed over": closed_over(WEIGHT),
    "given before": partial(ramp, warmup=WEIGHT),
    "a name that is not there": lambda step: nowhere(step),  # noqa: F821
    "an object with a call": nn if (nn := torch.nn.Identity()) else None,
    "a bound method": EDGES.index,
    "a function of torch's": torch.exp,
}


@pytest.mark.parametrize("name", ARITHMETIC)
def test_what_only_computes(name):
    assert is_arithmetic(ARITHMETIC[name])
    assert only_computes(LambdaLR(optimizer(), ARITHMETIC[name]))


@pytest.mark.parametrize("name", MORE)
def test_what_may_do_more(name):
    assert not is_arithmetic(MORE[name])


def line_of(function, number=0):
    return f"{__file__}:{function.__code__.co_firstlineno + number}"


def test_the_line_that_does_more():
    first = closed_over(WEIGHT)
    assert does_more_at(noisy) == line_of(noisy, 1)
    assert does_more_at(imports) == line_of(imports, 1)
    assert does_more_at(applied(noisy)) == line_of(noisy, 1)  # the innermost one
    assert does_more_at(first) == line_of(first)  # by what it is closed over
    assert does_more_at(ramp) == ""
    assert does_more_at(torch.exp) == ""  # nobody's line


def optimizer():
    return optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1)


class Own(LRScheduler):
    scale = 2.0

    def __init__(self, of, held=1.0):
        self.held, self.rates = held, [0.1, 0.2]
        super().__init__(of)

    def get_lr(self):
        return [rate * self.factor * self.scale for rate in self.base_lrs]

    @property
    def factor(self):
        return 1 / (1 + self.last_epoch)


class Writes(Own):
    def get_lr(self):
        self.held += 1
        self.rates[0] = self.held
        group = self.optimizer.param_groups[0]
        group["lr"] = self.rates[0]
        return [group["lr"] for group in self.optimizer.param_groups]


class Parameters(Own):
    def get_lr(self):
        return [float(group["params"][0].detach()) for group in self.optimizer.param_groups]


class SetsMore(Own):
    def get_lr(self):
        if self.last_epoch:
            Config.warmup = self.last_epoch
        return self.base_lrs


class OwnState(Own):
    def state_dict(self):
        return {}


class AnyName(Own):
    def __getattr__(self, name):
        return 1.0


class Inner(Own):
    """Keeps a variable that the code inside of its comprehension reads."""

    def get_lr(self):
        factor = 0.5 * (1 + np.cos(np.pi * self.last_epoch / 10))
        if self.last_epoch <= 3:
            factor *= self.last_epoch / 3
        return [rate * factor for rate in self.base_lrs]


class Plots(Own):
    """Has a method that is not called in a step."""

    def plot(self):
        print(self.rates)


class NoScheduler:
    def step(self):
        pass


@pytest.mark.parametrize("kind", [Own, Writes, Inner, Plots])
def test_schedulers_of_the_users_that_only_compute(kind):
    assert only_computes(kind(optimizer()))


@pytest.mark.parametrize("kind", [Parameters, SetsMore, OwnState, AnyName])
def test_schedulers_of_the_users_that_may_do_more(kind):
    assert not only_computes(kind(optimizer()))


def test_the_line_of_a_scheduler_that_does_more():
    first, inner = optimizer(), line_of(Parameters.get_lr, 1)
    assert does_more(Parameters(first)) == inner
    assert does_more(SequentialLR(first, [StepLR(first, 2), Parameters(first)], [3])) == inner
    assert does_more(LambdaLR(first, noisy)) == line_of(noisy, 1)
    assert does_more(Own(first)) == does_more(OwnState(first)) == ""


def test_what_a_scheduler_holds_beside_numbers_is_not_for_its_step():
    own = Own(optimizer())
    own.held = WEIGHT
    assert only_computes(own)  # its step does not ask for it
    own.base_lrs = [WEIGHT]
    assert not only_computes(own)


def test_a_list_that_somebody_else_holds_too_may_change():
    own, module = Writes(optimizer()), torch.nn.Linear(1, 1)
    assert only_computes(own, module)
    module.rates = own.rates
    assert not only_computes(own, module)


def test_steps_that_are_not_the_classes():
    own = Own(optimizer())
    own.step = lambda: None
    assert not only_computes(own)
    assert not only_computes(NoScheduler())


def test_torchs_own_that_keep_functions_of_theirs():
    rates = {"base_lr": 0.01, "max_lr": 0.1, "cycle_momentum": False}
    assert only_computes(torch.optim.lr_scheduler.CyclicLR(optimizer(), **rates))
    assert only_computes(optim.swa_utils.SWALR(optimizer(), 0.01))
    drawn = torch.optim.lr_scheduler.CyclicLR(optimizer(), **rates, scale_fn=MORE["draws"])
    assert not only_computes(drawn)


def test_those_in_another_one_count():
    first = optimizer()
    parts = [StepLR(first, 2), LambdaLR(first, MORE["draws"])]
    assert not only_computes(SequentialLR(first, parts, [3]))
    assert only_computes(SequentialLR(first, [StepLR(first, 2), Own(first)], [3]))


@pytest.mark.parametrize("is_inner", [False, True])
def test_what_a_step_wrote_to_lists_and_options_is_put_back(is_inner):
    of = optimizer()
    scheduler = Writes(of)
    outer = SequentialLR(of, [scheduler, StepLR(of, 2)], [100]) if is_inner else scheduler
    restore = keep_schedulers([outer], [of])
    before = {**vars(scheduler), "rates": [*scheduler.rates]}, dict(of.param_groups[0])
    of.step()
    for _ in range(3):
        outer.step()
        of.param_groups[0]["steps"] = scheduler.last_epoch
    assert scheduler.rates != before[0]["rates"]
    restore()
    assert (vars(scheduler), of.param_groups[0]) == before
