"""The owner's counters as inputs of programs."""

from lightning_sink.engine.numbers.guards import Uses
from lightning_sink.engine.state.counts import Counts


def test_a_counter_stands_for_what_the_owner_counts():
    now = {"batch_idx": 3}
    counts = Counts({"batch_idx": lambda: now["batch_idx"]})
    uses = Uses(print, lambda what: None)
    (tensor,) = counts.begin()
    assert tensor == 3
    number = counts.number("batch_idx", 3, uses)
    assert number == 3
    now["batch_idx"] = 4
    assert not uses.guards.popitem()[1].holds()
    assert counts.begin()[0] is tensor
    assert tensor == 4


def test_a_counter_that_moves_in_the_middle_of_a_step_is_one_more_in_every_step():
    now = [7]
    counts = Counts({"global_step": lambda: now[0]})
    counts.begin()
    number = counts.number("global_step", 8, Uses(print, print))
    assert number.value == 8
    assert number.tensor == 8
    ((tensor, get),) = counts.inputs()
    assert tensor is counts.begin()[0]
    assert get() == 7
