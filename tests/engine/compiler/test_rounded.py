"""What a step rounds on purpose is rounded by machine code, too."""

import pytest
import torch
from loop import record
from torch import nn

from lightning_sink.engine.compiler import inductor
from lightning_sink.engine.compiler.generated import missing_compiler
from lightning_sink.engine.compiler.inductor import compile_inductor, graph_module
from lightning_sink.engine.compiler.rounded import keep_rounding

BF16 = torch.bfloat16


def casts(x):
    return (x * 1.1).to(BF16).float() * 3


def halved(x):
    return (x * 1.1).half().float() * 3


def by_views(x):
    return (x * 1.1).half().reshape(-1)[:4].double()


def one_by_one(x):
    return ((x * 1.1).to(BF16) * 0.7).tanh().float()


def wide(x):
    return (x.double() * 1.1).float().double()


def stays_narrow(x):
    return x.to(BF16) * 2


def was_narrow(x):
    return x.to(BF16).mm(x.to(BF16).t()).float()


def mixed(x):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 4), nn.GELU(), nn.LayerNorm(4), nn.Linear(4, 2))
    with torch.autocast("cpu", BF16):
        loss = nn.functional.cross_entropy(net(x), torch.zeros(len(x), dtype=torch.long))
    return torch.autograd.grad(loss, net[0].weight)[0]


def views(step):
    """Returns how many conversions are kept, and whether the graph gives what the step gives."""
    x = torch.randn(5, 3)
    recording = record(step, x)
    given = [tensor.detach() for tensor in recording.inputs]
    torch.manual_seed(0)
    expected = graph_module(recording).forward(*given)[0]
    keep_rounding(recording.graph)
    recording.graph.lint()
    torch.manual_seed(0)
    assert torch.equal(graph_module(recording).forward(*given)[0], expected)
    return len(recording.graph.find_nodes(op="call_function", target=torch.ops.aten.view.dtype)) // 2


@pytest.mark.parametrize("step", [casts, halved, by_views, one_by_one])
def test_what_is_rounded_on_purpose_is_known(step):
    assert views(step) == 1


@pytest.mark.parametrize("step", [wide, stays_narrow, was_narrow, mixed])
def test_what_is_not_is_known_too(step):
    """Mixed precision among it: there it would cost time, and change next to nothing."""
    assert views(step) == 0


@pytest.mark.skipif(missing_compiler() is not None, reason="no C++ compiler")
@pytest.mark.parametrize("step", [casts, halved])
def test_machine_code_rounds(step, monkeypatch):
    x = torch.randn(8, 3)

    def compiled():
        recording = record(step, x)
        return compile_inductor(recording)(*recording.inputs)[0]

    assert torch.equal(compiled(), step(x))
    monkeypatch.setattr(inductor, "keep_rounding", lambda graph: None)
    assert not torch.equal(compiled(), step(x))  # the control
