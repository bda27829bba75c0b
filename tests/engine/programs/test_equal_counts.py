"""Counts that one number stands for are looked at where they are, in tensors and in slots."""

import pytest
import torch

from lightning_sink.engine.programs.binding import Binding
from lightning_sink.engine.programs.equal_counts import EqualCounts
from lightning_sink.engine.state.slot import Slot


class Holder:
    """Holds counts that steps replace."""

    def __init__(self):
        self.one, self.other = torch.tensor(3.0), torch.tensor(3.0)


@pytest.fixture
def holder():
    return Holder()


def slots(holder):
    return Slot("one", holder, "one"), Slot("other", holder, "other")


def asked_before(holder):
    """Both counts are inputs that slots hold."""
    inputs = [holder.one, holder.other]
    bindings = [Binding(slot.name, slot=slot) for slot in slots(holder)]
    return EqualCounts([(holder.one, holder.other)], inputs, bindings, [])


def asked_behind(holder):
    """Both counts are what the step has put into slots."""
    return EqualCounts([(holder.one, holder.other)], [], [], slots(holder))


@pytest.mark.parametrize("make", [asked_before, asked_behind])
def test_counts_that_are_replaced(holder, make):
    counts = make(holder)
    holder.one = holder.one + 1
    assert not counts.hold()
    holder.other = holder.other + 1
    assert counts.hold()
    holder.other = None
    assert not counts.hold()


@pytest.mark.parametrize("make", [asked_before, asked_behind])
def test_who_changes_one_of_them(holder, make):
    counts, (one, other) = make(holder), slots(holder)
    assert counts.are_kept_by([], {})
    assert not counts.are_kept_by([one, other], {}), "what is put there is not known"
    assert not counts.are_kept_by([one], {})


def test_counts_that_stay():
    one, other = torch.tensor(3.0), torch.tensor(3.0)
    counts = EqualCounts([(one, other)], [], [], [])
    assert counts.hold()
    one += 1
    assert not counts.hold()


def test_who_adds_to_counts_that_stay():
    one, other = torch.tensor(3.0), torch.tensor(3.0)
    counts = EqualCounts([(one, other)], [], [], [])
    assert counts.are_kept_by([], {id(one): [(1, 1)], id(other): [(1, 1)]})
    assert not counts.are_kept_by([], {id(one): [(1, 1)]})
    assert not counts.are_kept_by([], {id(one): [(1, 1), (1, 1)], id(other): [(1, 1)]})
    assert not counts.are_kept_by([], {id(one): None, id(other): None}), "what is done to them is not known"


def test_no_counts():
    counts = EqualCounts([], [], [], [])
    assert counts.hold()
    assert counts.are_kept_by([], {id(counts): None})
