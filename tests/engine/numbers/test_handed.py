"""Functions of Python's that are called with a stand-in for an attribute get the number, but for those expected to."""

import sys
from fractions import Fraction

import pytest
import torch

from lightning_sink.engine.numbers.guards import Uses
from lightning_sink.engine.numbers.handed import Handed
from lightning_sink.engine.numbers.number import Number
from lightning_sink.engine.numbers.plain_uses import PlainUses


class Weight:
    def __mul__(self, other):
        return type(other)

    __add__ = __lt__ = __imul__ = __mul__


class Told(torch.Tensor):
    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        return [type(item) for item in (*args, *(kwargs or {}).values())]


def kinds(first, *others, named=0, **options):
    return [*map(type, (first, *others, named, *options.values()))]


def closed_over(given):
    def inner():
        return given

    return type(inner())


def in_place(number):
    weight = Weight()
    weight *= number
    return weight


CALLS = {
    "an operator": lambda n: Weight() * n,
    "a comparison": lambda n: Weight() < n,
    "an operator in place": in_place,
    "arguments of all kinds": lambda n: kinds(n, n, named=n, more=n),
    "a function in C between": lambda n: [*map(kinds, [n])],
    "a variable that is closed over": lambda n: closed_over(n),
    "a subclass of tensors": lambda n: torch.ones(2).as_subclass(Told).mul(n)[1:],
    "a library of Python's": lambda n: type(Fraction(1, 2) * n),
}


def called(use, stand_in, expected=()):
    """Uses a stand-in as a recorded step does."""
    handed = Handed()
    handed.expected |= {*expected, *((use.__code__, name) for name in ("n", "number", "value"))}
    handed.hook = lambda frame, event, argument: handed.called(frame) if event == "call" else None
    sys.setprofile(handed.hook)
    try:
        return use(stand_in)
    finally:
        sys.setprofile(None)


def stand_in(value=3, frozen=None):
    plain = PlainUses(lambda holder, key: False, lambda getter: False, Handed())
    uses = Uses(print, [].append if frozen is None else frozen.append)
    return Number(torch.tensor(float(value)), value, uses, ("an attribute", "`n`"), lambda: value, plain=plain)


@pytest.mark.parametrize("name", CALLS)
def test_it_gets_the_number_and_that_is_told(name):
    frozen = []
    found = called(CALLS[name], stand_in(frozen=frozen))
    assert found == CALLS[name](3)
    assert frozen
    assert "`n` is needed as a plain number" in frozen[0]


def test_one_that_is_expected_gets_the_stand_in():
    frozen = []
    found = called(lambda n: kinds(n, named=n), stand_in(frozen=frozen), [(kinds.__code__, "named")])
    assert found == [int, Number]
    assert len(frozen) == 1


def test_those_of_counters_and_tensors_go_to_all():
    number = Number(torch.tensor(3.0), 3, Uses(print, print), "`batch_idx`", lambda: 3)
    assert called(kinds, number) == [Number, int]


def test_functions_of_torchs_get_the_stand_in():
    frozen = []
    assert called(lambda n: 2 / (torch.ones(2) - n), stand_in(frozen=frozen)).tolist() == [-1, -1]
    assert frozen == []


def test_another_hook_in_its_place_is_seen():
    handed = Handed()
    assert not handed.sees_calls
    handed.hook = lambda frame, event, argument: None
    assert not handed.sees_calls
    sys.setprofile(handed.hook)
    try:
        assert handed.sees_calls
    finally:
        sys.setprofile(None)
