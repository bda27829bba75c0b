"""What a line does with an attribute, as its source tells: arithmetic, or anything else."""

import functools
import math
import operator
import sys
from decimal import Decimal

import numpy as np
import pytest
import torch

import positions
from lightning_sink.engine.numbers.handed import Handed
from lightning_sink.engine.numbers.plain_uses import PlainUses

pytestmark = positions.needed


HANDED = Handed()


class Value:
    """Asks, where it is read, whether that is a plain use."""

    def __init__(self):
        self.found = []

    def __get__(self, holder, kind=None):
        plain = PlainUses(
            lambda owner, key: key in ("n", "other", "_Module__n"), lambda getter: getter.how == "log", HANDED
        )
        self.found.append(plain.reads(sys._getframe(1), "n"))
        return vars(holder)["n"]

    def __set__(self, holder, value):
        vars(holder)["n"] = value


class Module:
    n = Value()

    def __init__(self):
        vars(self)["n"] = 3
        self.other, self.limit, self.words, self.kept = 0, 4, "words", []

    def log(self, name, value):
        pass

    def get(self):
        return 4

    def private(self):
        self.__n = self.n
        return self.__n * 2

    @property
    def tau(self):
        return self.n / 2

    def double(self):
        return 2 * self.n

    def itself(self):
        return self.n

    @functools.lru_cache  # noqa: B019
    def kept_in_c(self):
        return self.n

    def shows(self, value, name="n"):
        self.log(name, value)
        return value / 2

    @staticmethod
    def ramp(value, most=4):
        return min(1.0, value / most)

    @classmethod
    def of_all(cls, value):
        return 2 * value


def ramp(value, *, most=4):
    while value > most:
        value -= 1
    return value / most if most else value


def type_of(value):
    return type(value)


def by_type(value):
    return type_of(value)


def all_of(*values):
    return values


def given_later(value):
    yield value


def clamp(value, most):
    return value if value < most else most


def asks_one_of_two(m):
    one = clamp(m.n, 30)
    kind = type(one)
    return kind, clamp(m.n, 20) + 1


def clamped_twice(m):
    return clamp(clamp(m.n, 30), 20) + 1


def clamped_twice_and_asked(m):
    return type(clamp(clamp(m.n, 30), 20))


def behind_an_import(m):
    weight = m.n
    import operator as ramp  # as another name

    return ramp(weight) if callable(ramp) else weight


def in_two(m):
    m.other, m.limit = m.n, 2


def two_at_once(m):
    ones, weight = torch.ones(2), m.n / 2
    return ones * weight


def two_at_once_and_asked(m):
    ones, weight = torch.ones(2), m.n
    return ones, type(weight)


def unpacked(m):
    ones, *weights = torch.ones(2), m.n
    return ones * weights[0]


def longer(m):
    items = [1]
    items *= m.n
    return items


def in_circles(value):
    return value if value > 2 else in_circles(value + 1)


@torch.no_grad()
def averages(own, other, decay):
    for a, b in zip(own, other, strict=True):
        a.mul_(decay).add_(b, alpha=1 - decay)


class Scale(torch.nn.Module):
    def forward(self, x, weight=1.0):
        return x * weight


class Asks(torch.nn.Module):
    def forward(self, x, weight=1.0):
        return x if isinstance(weight, float) else -x


SCALE, ASKS = Scale(), Asks()


def averages_here(m):
    decay = min(0.9, m.n / 10)
    for own, other in zip([torch.ones(2)], [torch.ones(2)], strict=True):
        own.mul_(decay).add_(other, alpha=1 - decay)


def adds(m):
    m.n += 1


def assigns(m):
    m.other = m.n


def by_a_variable(m):
    weight = m.n / 2
    if weight > 1:
        weight = min(1.0, weight)
    return weight * torch.ones(2)


def counts_down(m):
    while m.n > 3:
        m.n -= 1


def scales(m):
    ones = torch.ones(2)
    ones.mul_(0.1 * m.n).add_(ones, alpha=1 - m.n)


def on_the_right_of_a_tensor(m):
    ones = torch.ones(2)
    ones *= m.n
    return ones * m.n, -ones.data - m.n


def keeps(m):
    m.kept = m.n


def shown(m):
    weight = m.n
    return locals(), weight * 2


def closed_over(m):
    weight = m.n
    return lambda: weight


def shadowed(m):
    def min(*values):
        return type(values[0])

    return min(m.n, 2)


def rebound(m):
    weight = m.n
    unit = Unit()
    return unit * weight


def another_log(m):
    found = m
    weight = m.n
    found.log("n", weight)
    found = Unit()
    found.log("n", weight)


class Unit:
    def __mul__(self, other):
        return type(other)

    def log(self, name, value):
        return type(value)

    add_ = __mul__


PLAIN = {
    "on the right of a tensor": on_the_right_of_a_tensor,
    "arithmetic": lambda m: (m.n + 1) * 2 % 5 // 2,
    "powers": lambda m: 0.5**m.n,
    "a sign": lambda m: -m.n * 2,
    "a comparison": lambda m: 1 if m.n > 2 else 0,
    "a comparison with an attribute": lambda m: 1 if m.limit > m.n else 0,
    "not": lambda m: not m.n,
    "none": lambda m: m.n is None,
    "the least": lambda m: min(1.0, m.n / 2) + 1,
    "a cosine": lambda m: math.cos(m.n) * 2,
    "a tensor": lambda m: torch.tensor(m.n),
    "a log": lambda m: m.log("n", m.n),
    "a log by name": lambda m: m.log("n", value=m.n),
    "adding": adds,
    "assigning": assigns,
    "a variable": by_a_variable,
    "a loop": counts_down,
    "tensors in place": scales,
    "a property": lambda m: m.tau + 1,
    "a method": lambda m: m.double() + 1,
    "a method that gives it": lambda m: m.itself() * 2,
    "a call on its left": lambda m: torch.ones(2) * m.n,
    "an item on its left": lambda m: [Unit()][0] * m.n,
    "an object of the user's on its left": rebound,
    "a method that tensors have, too": lambda m: Unit().add_(m.n),
    "text on its left": lambda m: m.words * m.n,
    "the least of two that are not known": lambda m: min(m.get(), m.n) + 1,
    "tensors in place, in a loop": averages_here,
    "a function of torch's": lambda m: torch.clamp(torch.ones(2), 1 - m.n, 1 + m.n),
    "a function of torch's for networks": lambda m: torch.nn.functional.softplus(torch.ones(2), beta=m.n),
    "a function's argument": lambda m: ramp(m.n) * 2,
    "a function's argument by name": lambda m: ramp(most=m.n, value=1),
    "a function that calls itself": lambda m: in_circles(m.n) + 1,
    "a function of what it gives": clamped_twice,
    "a list that is made longer": longer,
    "two variables at once": two_at_once,
    "two attributes at once": in_two,
    "a private name": lambda m: m.private(),
    "a method's argument": lambda m: m.shows(m.n),
    "a static method's argument": lambda m: m.ramp(m.n),
    "a class method's argument": lambda m: Module.of_all(m.n),
    "a module's argument": lambda m: SCALE(torch.ones(2), m.n),
    "a module's argument by name": lambda m: SCALE(torch.ones(2), weight=m.n),
    "a chain": lambda m: 1 < m.n < 5,
    "what is not negative": lambda m: abs(m.n),
    "a truth of some": lambda m: (m.n > 1 and m.n) or 2.0,
    "a variable within a line": lambda m: (n := m.n) + n,
    "whether it is a number": lambda m: math.isnan(m.n) or np.isfinite(m.n),
    "an int, for which it is asked by then": lambda m: int(m.n),
    "words, likewise": lambda m: f"{m.n}",
    "an argument without gradients": lambda m: averages([torch.ones(2)], [torch.ones(2)], m.n),
}

OTHER = {
    "a variable that is another one later": another_log,
    "a type": lambda m: type(m.n),
    "a key": lambda m: {3: 1}[m.n],
    "an index": lambda m: [1, 2, 3, 4][m.n],
    "a range": lambda m: [*range(m.n)],
    "a list": lambda m: [m.n],
    "code in C": lambda m: torch.ones(4).roll(m.n, 0),
    "a decimal": lambda m: Decimal(m.n),
    "a method that C remembers": lambda m: m.kept_in_c() * 2,
    "a function that asks for its type": lambda m: by_type(m.n),
    "a module that asks for its type": lambda m: ASKS(torch.ones(2), m.n),
    "a function that takes all arguments": lambda m: all_of(m.n),
    "a function that takes all arguments as they come": lambda m: ramp(*[1.0], most=m.n) if 0 else ramp(*[m.n]),
    "a function, of whose results one is asked for its type": asks_one_of_two,
    "a function of what it gives, which is asked for its type": clamped_twice_and_asked,
    "two variables at once, of which one is asked for its type": two_at_once_and_asked,
    "variables of which one takes several": unpacked,
    "a variable that is imported later": behind_an_import,
    "a generator": lambda m: [*given_later(m.n)],
    "a function of C's": lambda m: operator.neg(m.n),
    "identity": lambda m: m.n is m.limit,
    "a function by another": lambda m: [*map(Module.itself, [m])],
    "another attribute": keeps,
    "a variable that is shown": shown,
    "a variable that is closed over": closed_over,
    "a least of ones own": shadowed,
    "a method that gives it to a type": lambda m: type(m.itself()),
}


def asked(use):
    module = Module()
    found = vars(Module)["n"].found
    found.clear()
    HANDED.hook = lambda frame, event, argument: None
    sys.setprofile(HANDED.hook)
    try:
        use(module)
    finally:
        sys.setprofile(None)
    return found


@pytest.mark.parametrize("what", PLAIN)
def test_arithmetic_is_a_plain_use(what):
    found = asked(PLAIN[what])
    assert found
    assert all(found)


@pytest.mark.parametrize("what", OTHER)
def test_anything_else_is_none(what):
    found = asked(OTHER[what])
    assert found
    assert not all(found)


def test_a_line_that_nobody_can_read_is_none():
    found = asked(eval("lambda m: m.n + 1"))
    assert found == [False]
