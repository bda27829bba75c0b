"""Step counts that optimizers keep in tensors."""

from contextlib import nullcontext

import torch
from torch import fx, nn

from lightning_sink.engine.numbers.guards import Uses
from lightning_sink.engine.numbers.number import Number
from lightning_sink.engine.state.counts import Counts
from lightning_sink.engine.state.hyper import Hyperparameters
from lightning_sink.engine.state.slots import Parts, Snapshot
from lightning_sink.engine.tracing.graph_writer import GraphWriter
from lightning_sink.engine.tracing.record import Recorder
from lightning_sink.engine.tracing.recording import Recording
from lightning_sink.engine.tracing.stand_in import StandInMode
from lightning_sink.engine.tracing.step_counts import StepCounts


def after_steps(steps):
    module = nn.Linear(2, 1)
    optimizer = torch.optim.Adam(module.parameters())
    for _ in range(steps):
        optimizer.zero_grad()
        module(torch.ones(2)).sum().backward()
        optimizer.step()
    recording, uses = Recording(fx.Graph()), Uses(print, lambda what: None)
    before = Snapshot(Parts(module, [optimizer]))
    writer = GraphWriter(recording, lambda tensor, index: None)
    counts = StepCounts(before, writer.node, uses, recording, nullcontext)
    return module, optimizer, counts, recording.equal, uses


def test_the_first_count_stands_for_all_that_agree():
    _, optimizer, counts, equal, _ = after_steps(3)
    first, second = (state["step"] for state in optimizer.state.values())
    number = counts.number(first)
    assert type(number) is Number
    assert number.value == 3
    assert counts.number(second) is number
    assert [(id(a), id(b)) for a, b in equal] == [(id(first), id(second))]


def test_other_tensors_keep_their_values():
    module, _, counts, _, _ = after_steps(1)
    assert counts.number(module.weight) is None
    with StandInMode(lambda tensor, caller: counts.number(tensor), None, nullcontext):
        assert type(torch.ones(()).item()) is float


def test_a_decision_by_a_count_holds_for_the_steps_where_it_comes_out_the_same():
    _, optimizer, counts, _, uses = after_steps(3)
    step = next(iter(optimizer.state.values()))["step"]
    with StandInMode(lambda tensor, caller: counts.number(tensor), None, nullcontext):
        assert step.item() < 5
    (guard,) = uses.guards.values()
    step.fill_(4.0)
    assert guard.holds()
    step.fill_(5.0)
    assert not guard.holds()


def test_a_step_of_adam_decides_nothing_by_its_counts():
    module, optimizer, *_ = after_steps(3)
    recorder = Recorder(Hyperparameters([optimizer]), Counts({}), Snapshot(Parts(module, [optimizer])))
    recorder.span(optimizer.step, lambda: None)
    recording = recorder.finish([])
    assert recording.hazards == []
    assert recording.guards == []
