"""Functions of Python's that are called with a stand-in for an attribute get the number, but for those expected to."""

import sys
import weakref
from fractions import Fraction

import pytest
import torch
from torch import nn

import positions
from lightning_sink.engine.numbers.guards import Uses
from lightning_sink.engine.numbers.handed import Handed
from lightning_sink.engine.numbers.number import Number
from lightning_sink.engine.numbers.plain_uses import PlainUses


class Weight:
    def __mul__(self, other):
        return type(other)

    __add__ = __imul__ = __mul__

    def __lt__(self, other):
        SEEN.append(type(other))
        return True

    __gt__ = __lt__

    def __pow__(self, other):
        def inner():
            return other

        return type(inner())

    def __sub__(self, *others, **options):
        return [*map(type, others)]

    def mul_(self, other):
        return type(other)


SEEN = []


def compared(use):
    SEEN.clear()
    use()
    return [*SEEN]


class Asks(nn.Module):
    def forward(self, x, *rest, scale=1, **options):
        return [*map(type, (x, *rest, scale, *options.values()))]


ASKS, HOOKED = Asks(), Asks()


def add_one(module, args, options):
    options["scale"] += 1
    SEEN.append(type(options["scale"]))


HOOKED.register_forward_pre_hook(add_one, with_kwargs=True)


class Told(torch.Tensor):
    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        return [type(item) for item in (*args, *(kwargs or {}).values())]


def in_place(number):
    weight = Weight()
    weight *= number
    return weight


CALLS = {
    "an operator": lambda n: Weight() * n,
    "an operator of a variable": in_place,
    "an operator that closes over it": lambda n: Weight() ** n,
    "an operator of any arguments": lambda n: Weight() - n,
    "a comparison": lambda n: compared(lambda: Weight() < n),
    "a function in C between": lambda n: compared(lambda: min(Weight(), n)),
    "a method that tensors have, too": lambda n: Weight().mul_(n),
    "a module": lambda n: ASKS(n, n, scale=n, more=n),
    "a subclass of tensors": lambda n: torch.ones(2).as_subclass(Told).mul(n)[1:],
    "a library of Python's": lambda n: type(Fraction(1, 2) * n),
}


def called(use, stand_in, expected=(), lines=()):
    """Uses a stand-in as a recorded step does."""
    handed = Handed()
    handed.are_given = True
    handed.expected |= {*expected}
    handed.lines |= {*lines}
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
    found = called(lambda n: ASKS(n, scale=n), stand_in(frozen=frozen), [(Asks.forward.__code__, "scale")])
    assert found == [int, Number]
    assert len(frozen) == 1


def test_a_batch_that_holds_itself_is_no_trouble():
    batch = {"n": 1}
    batch["itself"] = (batch,)
    assert called(lambda n: ASKS(batch, n), stand_in()) == [dict, int, int]


def test_an_operator_never_does():
    assert called(lambda n: Weight() * n, stand_in(), [(Weight.__mul__.__code__, "other")]) is int


def test_what_a_hook_does_with_names_counts():
    found = called(lambda n: compared(lambda: HOOKED(1, scale=n)), stand_in())
    assert found == [int]
    assert called(lambda n: HOOKED(1, scale=n), stand_in()) == HOOKED(1, scale=3)


def test_a_line_that_hands_one_to_a_function_may_call_another_by_then():
    use = lambda n: kind_of(n)  # noqa: E731
    assert called(use, stand_in()) is Number
    assert called(use, stand_in(), lines=[(use.__code__, use.__code__.co_firstlineno)]) is int


def kind_of(value):
    return type(value)


@positions.needed
def test_what_a_line_calls_is_not_looked_at():
    """To ask for its variables would keep what it lets go of."""

    def lets_go(thing):
        reference = weakref.ref(thing)
        del thing
        return reference() is None

    assert called(lambda n: lets_go(Weight()), stand_in())


def test_those_of_counters_and_tensors_go_to_all():
    number = Number(torch.tensor(3.0), 3, Uses(print, print), "`batch_idx`", lambda: 3)
    assert called(lambda n: ASKS(n), number) == [Number, int]


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
