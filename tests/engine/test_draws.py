"""Random draws keep their order and their values when a graph is compiled."""

import pytest
import torch
from torch import nn

from lightning_sink.engine.counts import Counts
from lightning_sink.engine.draws import hoist_draws
from lightning_sink.engine.hyper import Hyperparameters
from lightning_sink.engine.inductor import graph_module
from lightning_sink.engine.record import Recorder
from lightning_sink.engine.slots import Parts, Snapshot


def record(step, *leaves):
    module = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    recorder = Recorder(Hyperparameters([optimizer]), Counts({}), Snapshot(Parts(module), [optimizer]), {}, leaves)
    output = recorder.span(lambda: step(*leaves), lambda: None)
    return recorder.finish([output])


def many(x):
    x = nn.functional.dropout(x, 0.3)
    x = x + torch.rand_like(x) + torch.randn(3)
    x = x * torch.empty_like(x).uniform_(0.5, 1.0)
    return nn.functional.dropout(x.sin(), 0.5)


def run(function, *inputs):
    torch.manual_seed(4)
    return function(*inputs)


def test_hoisted_draws_are_those_of_the_step():
    x = torch.randn(2, 3)
    recording = record(many, x)
    expected = run(many, x)
    draws = hoist_draws(recording.graph)
    function = graph_module(recording).forward
    assert len(draws) == 5
    assert not any(torch.Tag.nondeterministic_seeded in getattr(n.target, "tags", ()) for n in recording.graph.nodes)
    assert torch.equal(run(lambda *inputs: function(*inputs, *[draw() for draw in draws])[0], x), expected)
    # The control: in another order the values are others.
    swapped = run(lambda *inputs: function(*inputs, *reversed([draw() for draw in reversed(draws)]))[0], x)
    assert not torch.equal(swapped, expected)


def test_a_single_draw_that_depends_on_data_stays_in_the_graph():
    x = torch.rand(2, 3)
    recording = record(torch.bernoulli, x)
    assert hoist_draws(recording.graph) == []


def test_two_draws_of_which_one_depends_on_data_are_refused():
    recording = record(lambda x: torch.bernoulli(x) + torch.rand(3), torch.rand(2, 3))
    with pytest.raises(ValueError, match=r"the order of its random draws cannot be kept \(aten.bernoulli.default"):
        hoist_draws(recording.graph)
