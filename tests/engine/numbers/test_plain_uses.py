"""What a line does with an attribute, as its source tells: arithmetic, or anything else."""

import math
import sys
from decimal import Decimal
from types import CodeType

import pytest
import torch

from lightning_sink.engine.numbers.plain_uses import PlainUses

pytestmark = pytest.mark.skipif(not hasattr(CodeType, "co_positions"), reason="positions are known from Python 3.11 on")


class Value:
    """Asks, where it is read, whether that is a plain use."""

    def __init__(self):
        self.found = []

    def __get__(self, holder, kind=None):
        plain = PlainUses(lambda owner, key: key in ("n", "other"), lambda owner, method: method == "log")
        self.found.append(plain.has(sys._getframe(1)))
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

    @property
    def tau(self):
        return self.n / 2

    def double(self):
        return 2 * self.n

    def itself(self):
        return self.n


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
}


def keeps(m):
    m.kept = m.n


def in_two(m):
    m.other, m.limit = m.n, 2


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


OTHER = {
    "a call on its left": lambda m: torch.ones(2) * m.n,
    "an item on its left": lambda m: [Unit()][0] * m.n,
    "an object of the user's on its left": rebound,
    "a method of an object's": lambda m: Unit().add_(m.n),
    "a variable that is another one later": another_log,
    "a type": lambda m: type(m.n),
    "an int": lambda m: int(m.n),
    "a key": lambda m: {3: 1}[m.n],
    "an index": lambda m: [1, 2, 3, 4][m.n],
    "a range": lambda m: [*range(m.n)],
    "words": lambda m: f"{m.n}",
    "a list": lambda m: [m.n],
    "a function": lambda m: abs(m.n),
    "code in C": lambda m: torch.ones(4).roll(m.n, 0),
    "a decimal": lambda m: Decimal(m.n),
    "text on its left": lambda m: m.words * m.n,
    "identity": lambda m: m.n is m.limit,
    "a chain": lambda m: 1 < m.n < 5,
    "a function by another": lambda m: [*map(Module.itself, [m])],
    "another attribute": keeps,
    "a tuple": in_two,
    "a variable that is shown": shown,
    "a variable that is closed over": closed_over,
    "a least of ones own": shadowed,
    "a method that gives it to a type": lambda m: type(m.itself()),
}


def asked(use):
    module = Module()
    found = vars(Module)["n"].found
    found.clear()
    use(module)
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
