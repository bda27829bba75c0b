"""What a count in a tensor decides is done in Python for later steps, and comes to what torch comes to."""

import operator

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from lightning_sink.engine.state.counts import Counts
from lightning_sink.engine.state.hyper import Hyperparameters
from lightning_sink.engine.state.slots import Parts, Snapshot
from lightning_sink.engine.tracing.record import Recorder

ARITHMETIC = [operator.add, operator.sub, operator.floordiv, operator.mod, lambda one, other: other - one]
COMPARISONS = [operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge]


def module(start, dtype=torch.int64):
    made = nn.Module()
    made.register_buffer("count", torch.tensor(start, dtype=dtype))
    return made


def recorded(made, body):
    recorder = Recorder(Hyperparameters([]), Counts({}), Snapshot(Parts(made)))
    recorder.span(body, lambda: None)
    return recorder.finish([])


@given(
    start=st.integers(-50, 50),
    later=st.integers(-50, 50),
    chain=st.lists(st.tuples(st.sampled_from(ARITHMETIC), st.integers(-9, 9)), max_size=4),
    comparison=st.sampled_from(COMPARISONS),
    limit=st.integers(-9, 9),
    before=st.integers(0, 3),
)
def test_a_decision_comes_to_what_torch_comes_to(start, later, chain, comparison, limit, before):
    made = module(start)

    def ask(count):
        for symbol, number in chain:
            count = symbol(count, number)
        return bool(comparison(count, limit))

    def step():
        for _ in range(before):
            made.count += 2
        answers.append(ask(made.count))
        made.count += 1

    answers = []
    if any(symbol in (operator.floordiv, operator.mod) and number == 0 for symbol, number in chain):
        with pytest.raises(RuntimeError, match="ZeroDivisionError"):
            ask(made.count)
        return
    recording = recorded(made, step)
    assert recording.hazards == []
    (guard,) = recording.guards
    (count,) = recording.counts
    assert count.adds == [(2, 1)] * before + [(1, 1)]
    assert guard.outcome == answers[0]
    made.count.fill_(later)
    assert guard.holds() == (ask(made.count + 2 * before) == answers[0])


@given(start=st.integers(0, 9), dtype=st.sampled_from([torch.int64, torch.float32, torch.float64]))
def test_steps_in_a_row_are_known_before_they_run(start, dtype):
    made = module(start, dtype)

    def step():
        if made.count > 4:
            torch.ones(2).exp()
        made.count += 3

    recording = recorded(made, step)
    (guard,), (count,) = recording.guards, recording.counts
    made.count.fill_(start)
    expected = [(start + 3 * ahead > 4) == (start > 4) for ahead in range(5)]
    found = []
    count.begin_row(follows=False)
    for _ in expected:
        found.append(guard.holds())
        count.passed()
    count.end_row()
    assert found == expected
    assert made.count == start


STAYS = torch.tensor(0.45)

BY_THEMSELVES = {
    "another whole type": (torch.int32, lambda count: count > 3),
    "a remainder of floats": (torch.float32, lambda count: count % 3 == 0),
    "a division": (torch.int64, lambda count: count / 2 > 3),
    "a float": (torch.int64, lambda count: count > 2.5),
    "a large number": (torch.int64, lambda count: count > 1 << 40),
    "a product": (torch.int64, lambda count: count * 3 > 5),
    "a quotient of floats": (torch.float32, lambda count: (1 + count) / (10 + count) < 0.45),
    "another type on the way": (torch.int32, lambda count: count.double().sqrt().to(torch.float16) > 2),
    "a number that stays": (torch.int32, lambda count: (1 + count) / (10 + count) < STAYS),
    "the smaller one": (torch.int32, lambda count: min(STAYS, (1 + count) / (10 + count)) is not STAYS),
}


@pytest.mark.parametrize("what", BY_THEMSELVES)
def test_other_operations_are_done_as_the_step_does_them(what):
    dtype, ask = BY_THEMSELVES[what]
    made = module(1, dtype)

    def step():
        made.count += 1
        if ask(made.count):
            torch.ones(2).exp()

    recording = recorded(made, step)
    assert recording.hazards == []
    (guard,), (count,) = recording.guards, recording.counts
    expected = [bool(ask(torch.tensor(2 + ahead, dtype=dtype))) for ahead in range(20)]
    found = []
    made.count.fill_(1)
    count.begin_row(follows=False)
    for _ in expected:
        found.append(guard.holds() == bool(guard.outcome))
        count.passed()
    count.end_row()
    assert found == expected
    assert {id(recording.inputs[index]) for index in recording.read} <= {id(STAYS)}


REFUSED = {
    "a small type": (torch.uint8, lambda count: count > 3),
    "a number that is drawn": (torch.int64, lambda count: count * torch.rand(()) > 3),
    "more than one number": (torch.int64, lambda count: (count + torch.arange(3)).sum() > 3),
    "nothing of few answers": (torch.int64, lambda count: int(count + 1)),
    "what is written to later": (torch.int64, lambda count: (count + 1).mul_(2) > 3),
}


@pytest.mark.parametrize("what", REFUSED)
def test_others_are_told(what):
    dtype, ask = REFUSED[what]
    made = module(1, dtype)

    def step():
        if ask(made.count):
            torch.ones(2).exp()
        made.count += 1

    recording = recorded(made, step)
    told = [*recording.hazards, *recording.assumed]
    assert [each.what for each in told] == [
        "a value of a tensor decides what Python does (`.item()`, `if tensor:`, `float(tensor)`)"
    ]
    assert recording.guards == recording.counts == []


def test_a_count_to_which_no_step_adds_stays_what_it_is():
    made = module(7)
    recording = recorded(made, lambda: bool(made.count > 3))
    assert (recording.hazards, recording.guards) == ([], [])
    assert {id(recording.inputs[index]) for index in recording.read} == {id(made.count)}
