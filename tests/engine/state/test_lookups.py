"""Who gets a `Lookup` for an attribute with numbers, and what it gives. The gallery's `lookups.py` has trainings."""

from threading import Thread

import numpy as np
import pytest
import torch

import positions
from lightning_sink.engine.numbers.guards import Uses
from lightning_sink.engine.numbers.number import Number
from lightning_sink.engine.state.lookups import lookups_known

pytestmark = positions.needed


class Holder:
    def __init__(self, rates):
        self.rates = rates


def place(value, hosted=True):
    """Returns a stand-in, what was told of it, and the values that it has in later steps: the last one counts."""
    told, values = [], [value]
    uses = Uses(told.append, told.append)
    host = (lambda: values[-1]) if hosted else None
    return Number(torch.tensor(float(value), dtype=torch.float64), value, uses, "`n`", host), told, values


def found_at(holder, n):
    with lookups_known([("self.", holder)]):
        return holder.rates[n]


KINDS = {"list": lambda: [0.5, 0.25, 0.125], "tuple": lambda: (0.5, 0.25, 0.125)}
KINDS["array"] = lambda: np.array([0.5, 0.25, 0.125])


@pytest.mark.parametrize("make", KINDS.values(), ids=KINDS)
@pytest.mark.parametrize("n", [0, 2, -1, -3])
def test_a_place_that_changes_gives_a_stand_in(make, n):
    holder = Holder(make())
    stands, told, values = place(n)
    found = found_at(holder, stands)
    assert type(found) is Number
    assert type(found.value) is type(holder.rates[n])
    assert found.value == holder.rates[n] == found.tensor.item()
    assert not told
    values.append(1)
    assert found.host() == 0.25


@pytest.mark.parametrize("make", KINDS.values(), ids=KINDS)
def test_steps_behind_its_end_are_others(make):
    stands, _, values = place(2)
    found_at(Holder(make()), stands)
    (guard,) = stands.uses.guards.values()
    assert guard.holds()
    values.append(3)
    assert not guard.holds()
    with pytest.raises(IndexError):
        found_at(Holder(make()), place(3)[0])


@pytest.mark.parametrize("hosted", [True, False])
@pytest.mark.parametrize("held", [[1, 2, 3], [0.5, 2, 3.0], [0.5], np.array([1, 2, 3]), np.ones((2, 2)), "abc"])
def test_what_is_no_table_of_floats_is_asked_for_by_the_number(held, hosted):
    stands, told, _ = place(0, hosted)
    assert np.all(found_at(Holder(held), stands) == held[0])
    assert told


def test_a_number_that_only_the_program_knows_is_asked_for():
    stands, told, _ = place(1, hosted=False)
    assert found_at(Holder([0.5, 0.25]), stands) == 0.25
    assert told


def test_whoever_asks_otherwise_gets_what_is_there():
    holder = Holder(np.array([0.5, 0.25, 0.125]))
    held, others = holder.rates, []
    with lookups_known([("self.", holder)]):
        assert holder.rates is held
        assert Holder.__dict__.keys() >= {"rates"}
        holder.rates[1:] *= 2
        rest = holder.rates[1:]
        rest *= 2
        holder.rates[0] += 1
        thread = Thread(target=lambda: others.append(holder.rates))
        thread.start()
        thread.join()
    assert "rates" not in Holder.__dict__
    assert held.tolist() == [1.5, 1.0, 0.5]
    assert others[0] is held


def test_what_has_changed_meanwhile_is_what_it_is():
    holder = Holder([0.5, 0.25, 0.125])
    with lookups_known([("self.", holder)]):
        holder.rates[1] = 7.0
        stands, told, _ = place(1)
        assert holder.rates[stands] == 7.0
        assert told
        holder.rates = (1.0, 2.0)
        assert holder.rates[stands] == 2.0
