"""What Python decided by the batch of a recorded step is asked of each batch before a program takes its place."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from loop import batches, both, loss_of
from test_compiled import of, scaled

from lightning_sink.engine.programs.program import Program
from lightning_sink.engine.state.counts import Counts
from lightning_sink.engine.state.hyper import Hyperparameters
from lightning_sink.engine.state.slots import Parts, Snapshot
from lightning_sink.engine.tracing import questions
from lightning_sink.engine.tracing.record import Recorder

init = Program.__init__

LIMITS = torch.tensor([0, 1, 2])

QUESTIONS = {
    "all": lambda x, y: bool((x > 0).all()),
    "any": lambda x, y: bool((x == -2).any()),
    "largest": lambda x, y: int(x.max()),
    "a sum of both": lambda x, y: int((x * y).sum()),
    "an element": lambda x, y: x[1].item(),
    "equal": lambda x, y: torch.equal(x, y),
    "beside what is closed over": lambda x, y: bool((x.clamp(0, 2)[:, None] == LIMITS).any()),
    "an element of it": lambda x, y: LIMITS[x[0].clamp(0, 2)].item(),
    "after a pair": lambda x, y: int(x.max(0)[1]),
    "through a list": lambda x, y: bool(torch.stack([x, y]).any()),
    "of what was written to": lambda x, y: int(torch.zeros_like(x).masked_fill_(x > 0, 1).add_(y).sum()),
    "of a view of that": lambda x, y: written(x, y)[0, 1].item(),
}


def written(x, y):
    """Puts both into memory by views of it, and reads it by another view."""
    memory = torch.zeros(2, 3, dtype=torch.long)
    rows = memory.unbind(0)
    rows[0].copy_(x)
    rows[1].copy_(y)
    memory[0].mul_(memory[1])
    return memory


def recorded(body, *leaves):
    """Records what a step does with a batch."""
    recorder = Recorder(Hyperparameters([]), Counts({}), Snapshot(Parts(torch.nn.Module())), leaves)
    recorder.span(lambda: body(*leaves), lambda: None)
    return recorder.finish([])


def holds(recording, leaves):
    """Tells whether a recording stands for a batch."""
    return all(asked.holds(leaves) for asked in recording.questions)


def vectors():
    return st.lists(st.integers(-2, 2), min_size=3, max_size=3).map(torch.tensor)


@pytest.mark.narrow(11)
@pytest.mark.parametrize("name", QUESTIONS)
@given(st.data())
def test_it_holds_for_the_batches_that_give_the_same(name, data):
    first, second = (data.draw(st.tuples(vectors(), vectors())) for _ in range(2))
    ask = QUESTIONS[name]
    recording = recorded(ask, *first)
    assert recording.hazards == []
    assert holds(recording, first)
    assert holds(recording, second) is (ask(*first) == ask(*second))


def test_the_same_question_has_the_same_name_and_another_has_not():
    one, other = torch.tensor([1, 1]), torch.tensor([1, 3])
    names = []
    for ask in (lambda x: int(x.max()), lambda x: int(x.min())):
        first, second = (recorded(ask, x).questions[0] for x in (one, other))
        assert first.name == second.name
        names.append(first.name)
    assert names[0] != names[1]


def test_a_question_that_a_batch_has_no_answer_to_does_not_hold():
    recording = recorded(lambda x: int(LIMITS[x].sum()), torch.tensor([0]))
    assert holds(recording, [torch.tensor([0])])
    assert not holds(recording, [torch.tensor([7])])


def test_two_of_the_same_memory_are_two_where_it_was_written_to_between_them():
    def ask(x):
        memory = x.clone()
        return bool((memory > 0).all()), bool((memory.add_(1) > 0).all())

    first, second = recorded(ask, torch.tensor([0, 1])).questions
    assert first.name != second.name
    assert (first.value, second.value) == (False, True)
    assert first.holds([torch.tensor([0, 5])])
    assert second.holds([torch.tensor([0, 5])])
    assert not second.holds([torch.tensor([-1, 5])])


def test_none_is_asked_of_a_batch_that_was_written_to():
    recording = recorded(lambda x: int(x.add_(1).max()), torch.tensor([0, 1]))
    assert recording.questions == []
    assert recording.hazards


def test_one_that_takes_many_operations_is_none():
    def ask(x, times):
        for _ in range(times):
            x = x + 1
        return bool(x.any())

    assert recorded(lambda x: ask(x, questions._MOST_OPERATIONS - 1), torch.ones(2)).hazards == []
    recording = recorded(lambda x: ask(x, 100), torch.ones(2))
    assert not recording.questions
    assert len(recording.assumed) == 1


def test_a_measured_value_is_none():
    assert "a value of a tensor" in recorded(lambda x: float(x.sum()), torch.ones(2)).hazards[0].what


# -- a training -------------------------------------------------------------------------------------------------------

WAYS = {
    "a sign": lambda batch, i: 2 if batch[0].sum() > 0 else 1,
    "a label": lambda batch, i: int(batch[1].max()),
    "one after the other": lambda batch, i: (3 if batch[0][0, 0] > 0 else 4) if (batch[1] == 2).any() else 5,
    "with its index": lambda batch, i: 2 if i % 2 and batch[0].sum() > 0 else 1,
    "an error for none": lambda batch, i: 1 if torch.isfinite(batch[0]).all() else 1 / 0,
}


@pytest.mark.narrow(11)
@pytest.mark.parametrize("engine", [{}, {"costly": True}], ids=["at once", "with patience"])
@pytest.mark.parametrize("way", WAYS)
def test_each_way_has_a_program(way, engine):
    _, sink = both(scaled(WAYS[way]), [batches(24), batches(48), batches(48)], **engine)
    assert sink.compiled > (80 if not engine else 30)
    assert sink.hazards == []


def test_control_a_decision_that_nobody_asks_for_is_seen(monkeypatch):
    monkeypatch.setattr(questions.Question, "holds", lambda self, leaves: True)
    with pytest.raises(AssertionError, match="loss"):
        both(scaled(WAYS["a sign"]), [batches(48)], verify=0)


def test_control_a_row_of_steps_asks_too(monkeypatch):
    monkeypatch.setattr(Program, "leading", lambda self, columns, steps: steps)
    with pytest.raises(AssertionError, match="loss"):
        both(scaled(WAYS["a sign"]), [batches(48)], verify=0)


def test_a_batch_that_the_step_refuses_is_refused_at_its_turn():
    def factor(batch, index):
        if torch.isnan(batch[0]).any():
            raise ValueError(f"not a number in batch {int(index)}")
        return 1

    wrong = batches(40)
    wrong[30][0][0, 0] = float("nan")
    with pytest.raises(ValueError, match="in batch 30"):
        both(scaled(factor), [wrong])


def test_what_is_closed_over_may_change_between_sinks():
    limit = torch.zeros(())

    def change(training, sink):
        limit.fill_(-1000.0 if sink % 2 else 0.0)

    def step(module, batch, index):
        return loss_of(module, batch) * (2.0 if batch[0].sum() > limit else 1.0)

    _, sink = both(of(step, between=change), [batches(24)] * 4)
    assert sink.compiled > 24


def test_many_outcomes_leave_the_rest_to_the_eager_path(monkeypatch):
    """There is no program for each number that a batch can hold."""
    made = []
    monkeypatch.setattr(Program, "__init__", lambda self, *args: made.append(self) or init(self, *args))
    values = [(x, y, torch.tensor(number // 4 % 24)) for number, (x, y) in enumerate(batches(480))]
    _, sink = both(scaled(lambda batch, i: int(batch[2])), [values] * 2)
    assert len(made) == questions.MOST_ANSWERS
    assert 100 < sink.compiled < 400
    assert "there are 8 programs for different ones" in sink.reasons
    assert f"{__file__}:" in sink.reasons


def test_where_none_comes_again_the_step_is_left_to_the_eager_path():
    values = [(x, y, torch.tensor(number)) for number, (x, y) in enumerate(batches(48))]
    _, sink = both(scaled(lambda batch, i: int(batch[2])), [values])
    assert sink.compiled == 0
    assert "a value of a tensor of the batch decides" in sink.reasons


def test_a_batch_is_asked_when_the_step_before_it_has_written_to_it():
    """From the 40th on, each batch holds what the one before it writes to."""
    generator = torch.Generator().manual_seed(0)
    apart, frames = ([torch.randn(8, 4, generator=generator) for _ in range(121)] for _ in range(2))
    pairs = [*zip(apart[:40], apart[40:80], strict=True), *zip(frames, frames[1:], strict=False)]
    data = [(x, y, other) for (x, other), (_, y) in zip(pairs, batches(160), strict=True)]

    def step(module, batch, index):
        loss = loss_of(module, batch) * (3 if batch[0][0, 0] > 0 else 1)
        batch[2].neg_()
        return loss

    _, sink = both(of(step), [data])
    assert sink.compiled > 100


def test_what_is_beside_the_batch_may_change_at_each_step():
    limit = torch.zeros(())

    def after(done):
        limit.fill_(0.1 * (done % 5) - 0.2)

    def step(module, batch, index):
        return loss_of(module, batch) * (2.0 if batch[0].mean() > limit else 1.0)

    _, sink = both(of(step, after=after), [batches(48)])
    assert sink.compiled > 36
