"""An error in a recorded step is the user's own, or may be one of recording, after which the step is run again."""

import json
import math

import pytest
import torch

from lightning_sink.engine.numbers.guards import Uses
from lightning_sink.engine.numbers.number import Number
from lightning_sink.engine.tracing.whose_error import may_be_ours


def stand_in():
    return Number(torch.tensor(3.0, dtype=torch.float64), 3, Uses(lambda what: None, lambda what: None), "batch_idx")


class LostError(RuntimeError):
    pass


def is_lost(kind):
    raise kind("lost")


def refuses(value):
    if type(value) is not int:
        raise TypeError("a whole number is expected")


def holds(values):
    assert all(type(value) is int for value in values.values()), "whole numbers"


USERS = {
    "a connection that is lost": lambda number: is_lost(LostError),
    "another type": lambda number: [][3],
}

OURS = {
    "code in C that takes no stand-in": lambda number: json.dumps({"b": number}),
    "what C makes of numbers": lambda number: math.comb(number.value + 0.5, 2),
    "a type that is looked at": lambda number: refuses(number),
    "types that are looked at": lambda number: holds({"a": number}),
    "a type that an attribute has": lambda number: looks(Holder(number)),
    "what is deep in containers": lambda number: looks([{"a": (number,)}]),
    "code that refuses to be recorded": lambda number: is_lost(RuntimeError),
    "an error of the user's own beside a stand-in": lambda number: raises_beside(number),
    "an operation": lambda number: torch.ones(2) + torch.ones(3),
}


class Holder:
    def __init__(self, index):
        self.index = index


def looks(held):
    raise LostError("a whole number is expected")


def raises_beside(number):
    raise LostError("in the midst of a step")


def error_of(body):
    with pytest.raises(Exception) as raised:  # noqa: PT011 - whichever it is
        body(stand_in())
    return raised.value


@pytest.mark.parametrize("name", USERS)
def test_an_error_of_the_users(name):
    assert not may_be_ours(error_of(USERS[name]))


@pytest.mark.parametrize("name", OURS)
def test_an_error_that_may_be_of_recording(name):
    assert may_be_ours(error_of(OURS[name]))
