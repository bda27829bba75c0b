"""Numbers that optimizers keep for each parameter."""

import torch
from torch import nn, optim

from lightning_sink.engine.numbers.guards import Uses
from lightning_sink.engine.numbers.number import Number
from lightning_sink.engine.state.kept_counts import OptimizerCounts


def counting(values):
    """Returns an optimizer that keeps these numbers under `step`, and counts that have seen it do so."""
    parameters = [nn.Parameter(torch.zeros(2)) for _ in values]
    optimizer = optim.SGD(parameters, lr=0.1)
    before = {parameter: {"step": -1, "other": "text"} for parameter in parameters}
    for parameter, value in zip(parameters, values, strict=True):
        optimizer.state[parameter] = {"step": value, "other": "text"}
    counts = OptimizerCounts()
    counts.learn([optimizer], [before])
    return optimizer, counts


def record(counts, step):
    """Lets a step run as a recorded one does; returns what was told of it."""
    told = []
    counts.begin()
    with counts.lifted(Uses(lambda what, where=None: told.append(what), lambda *rest: None, lambda: True)):
        step()
    return told


def steps(optimizer):
    return [state["step"] for state in optimizer.state.values()]


def add(optimizer, to=slice(None)):
    for state in [*optimizer.state.values()][to]:
        state["step"] += 1


def test_what_is_set_for_all_is_known_for_later_steps():
    optimizer, counts = counting([3, 3, 3])
    assert counts.names(optimizer) == {"step"}
    assert not record(counts, lambda: add(optimizer))
    assert steps(optimizer) == [4, 4, 4]
    ((shared, host, text),) = counts.set_by_step()
    assert "step" in text
    assert host() == 5  # of the step that is about to run
    shared.set(host())
    assert steps(optimizer) == [5, 5, 5]


def test_numbers_that_differ_are_known_apart():
    optimizer, counts = counting([3, 7, 3])
    assert not record(counts, lambda: add(optimizer))
    assert [host() for _, host, _ in counts.set_by_step()] == [5, 9]


def test_the_step_gets_stand_ins():
    optimizer, counts = counting([3])
    seen = []
    record(counts, lambda: seen.extend(steps(optimizer)))
    assert type(seen[0]) is Number
    assert type(steps(optimizer)[0]) is int
    assert not counts.set_by_step()


def test_what_the_step_sets_for_some_only_is_told_and_stays():
    optimizer, counts = counting([3, 3])
    (told,) = record(counts, lambda: add(optimizer, slice(1)))
    assert "`optimizer 0 state 'step'`" in told
    assert steps(optimizer) == [4, 3]
    assert not record(counts, lambda: add(optimizer, slice(1)))
    assert [host() for _, host, _ in counts.set_by_step()] == [6]


def test_another_type_is_told():
    optimizer, counts = counting([3])
    (told,) = record(counts, lambda: optimizer.state[next(iter(optimizer.state))].update(step=4.0))
    assert "the host does not know" in told
    assert steps(optimizer) == [4.0]


def test_what_is_no_number_is_none_of_them():
    optimizer, counts = counting([3, 3])
    optimizer.state[next(iter(optimizer.state))]["step"] = None
    assert not counts.names(optimizer)
    assert not counts.state()


def test_programs_take_for_granted_which_are_the_same():
    optimizer, counts = counting([3, 3])
    before = counts.state()
    add(optimizer)
    assert counts.state() == before
    add(optimizer, slice(1))
    assert counts.state() != before


def test_numbers_that_have_differed_stay_apart():
    optimizer, counts = counting([3, 3])
    counts.state()
    add(optimizer, slice(1))
    before = counts.state()
    assert len(before) == 2
    add(optimizer, slice(1, 2))
    assert steps(optimizer) == [4, 4]
    assert counts.state() == before
