"""What a step has on the host is found, and its graph computes on the device alone."""

import pytest
import torch
from loop import record
from torch import fx

from fake_device import DEVICE
from lightning_sink.engine.compiler.inductor import graph_module
from lightning_sink.engine.device import placement
from lightning_sink.engine.device.placement import Placement, place
from lightning_sink.engine.tracing.draws import hoist_draws

pytestmark = pytest.mark.usefixtures("fake")

COUNT = torch.tensor(3.0)


def step(x):
    COUNT.add_(1)
    scale = torch.full((), 2.0) + COUNT  # both on the host
    return (x * scale).sum().cpu()


def test_what_is_on_the_host_is_found_and_the_graph_runs_on_the_device():
    COUNT.fill_(3.0)
    x = torch.ones(4, device=DEVICE)
    recording = record(step, x)
    placed = place(recording, torch.device(DEVICE))
    count = next(number for number, tensor in enumerate(recording.inputs) if tensor is COUNT)
    assert placed == Placement(frozenset({count}), frozenset(), frozenset({0}), frozenset({count}))
    there = [tensor.to(DEVICE) for tensor in recording.inputs]
    (output,) = graph_module(recording).forward(*there)
    assert output.device.type == "fake"
    assert float(output) == 4 * (2.0 + 5.0)
    assert float(there[count]) == 5.0


def test_draws_on_the_host_are_told_from_those_on_the_device():
    x = torch.ones(4, device=DEVICE)
    recording = record(lambda x: x + torch.rand(4, device="cpu").to(x.device) + torch.rand_like(x), x)
    draws = hoist_draws(recording.graph)
    assert len(draws) == 2
    assert place(recording, torch.device(DEVICE)).draws == frozenset({0})


def test_a_step_without_anything_there_is_left_as_it_is():
    x = torch.ones(4, device=DEVICE)
    recording = record(lambda x: x * 2, x)
    assert place(recording, torch.device(DEVICE)) == Placement()


LARGE = torch.ones(1 << 17)


def test_large_tensors_on_the_host_are_refused():
    recording = record(lambda x: x + LARGE.sum().to(x.device), torch.ones(1, device=DEVICE))
    with pytest.raises(ValueError, match=r"a tensor of 131,072 elements that lies on the host takes part \(.*:\d+\)"):
        place(recording, torch.device(DEVICE))


PAIR = torch.zeros(2)


def test_tensors_on_the_host_that_share_what_is_written_are_refused():
    first, second = PAIR[0], PAIR[1]

    def both(x):
        first.add_(1)
        return x * first.to(x.device) * second.to(x.device)

    with pytest.raises(ValueError, match="share their memory"):
        place(record(both, torch.ones(1, device=DEVICE)), torch.device(DEVICE))


def test_draws_on_the_host_that_depend_on_data_are_refused():
    odds = torch.full((2,), 0.5)
    recording = record(lambda x: x * torch.bernoulli(odds).to(x.device), torch.ones(2, device=DEVICE))
    assert hoist_draws(recording.graph) == []
    with pytest.raises(ValueError, match="drawn on the host in a way that depends on data"):
        place(recording, torch.device(DEVICE))


def test_every_operation_is_on_the_device():
    x = torch.ones(2, device=DEVICE)
    recording = record(lambda x: x * torch.ones(2, device="cpu").to(x.device), x)
    place(recording, torch.device(DEVICE))
    devices = [node.kwargs.get("device") for node in recording.graph.nodes if isinstance(node, fx.Node)]
    assert {str(device) for device in devices if device is not None} == {DEVICE}


def test_nothing_is_pinned_on_a_device():
    x = torch.ones(2, device=DEVICE)
    recording = record(lambda x: x * torch.ones(2, device="cpu").to(x.device), x)
    (ones,) = [node for node in recording.graph.nodes if "ones" in str(node.target)]
    ones.kwargs = {**ones.kwargs, "pin_memory": True}
    with recording.graph.inserting_after(ones):
        pinned = recording.graph.call_function(torch.ops.aten._pin_memory.default, (ones, torch.device("cpu")))
    place(recording, torch.device(DEVICE))
    assert "pin_memory" not in ones.kwargs
    assert (pinned.target, pinned.args) == (torch.ops.aten.clone.default, (ones,))


def test_what_there_is_no_operation_for_on_the_device_is_refused(monkeypatch):
    x = torch.ones(2, device=DEVICE)
    monkeypatch.setattr(placement, "has_kernel", lambda operation, device: operation is not torch.ops.aten.sin.default)
    place(record(lambda x: x.cos(), x), torch.device(DEVICE))
    with pytest.raises(ValueError, match="`aten::sin` computes on the host, and there is none for fake"):
        place(record(lambda x: x.sin(), x), torch.device(DEVICE))
