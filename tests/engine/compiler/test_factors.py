"""A multiple that is added is the same multiple in compiled code."""

import pytest
import torch
from loop import record

from lightning_sink.engine.compiler.factors import keep_factors
from lightning_sink.engine.compiler.generated import compile_graph, missing_compiler
from lightning_sink.engine.compiler.inductor import compile_inductor, graph_module

missing = pytest.mark.skipif(missing_compiler() is not None, reason="no C++ compiler")

SUMS = {
    "product first": lambda a, b, p: torch.add(a @ b, p, alpha=0.01),
    "product second": lambda a, b, p: torch.add(p, a @ b, alpha=0.01),
    "in place": lambda a, b, p: (a @ b).add_(p, alpha=0.01),
    "two products": lambda a, b, p: torch.add(a @ b, b.t() @ a.t(), alpha=3),
    "a row": lambda a, b, p: torch.add(a @ b, p[0], alpha=-2),
    "a bias, too": lambda a, b, p: torch.add(torch.addmm(p[0], a, b), p, alpha=0.3),
    "a number": lambda a, b, p: torch.add(a @ b, 2.0, alpha=0.25),
    "a difference": lambda a, b, p: torch.sub(a @ b, p, alpha=0.01),
    "lists": lambda a, b, p: torch._foreach_add([a @ b, p], [p, a @ b], alpha=0.5)[0],
    "bytes": lambda a, b, p: torch.add(a @ b, (p > 0).to(torch.uint8) * 100, alpha=3),
    "flags": lambda a, b, p: torch.add((a @ b).double(), p > 0, alpha=0.1).float(),
    "integers": lambda a, b, p: torch.add(a.int(), b.t().int(), alpha=3) + 0.0,
}


def step(a, b, p):
    return torch.cat([total(a, b, p).reshape(-1) for total in SUMS.values()])


def given():
    torch.manual_seed(3)
    return torch.randn(5, 5), torch.randn(5, 5), torch.randn(5, 5)


@missing
def test_factors_are_kept():
    recording = record(step, *given())
    found = compile_inductor(recording)(*recording.inputs)[0]
    torch.testing.assert_close(found, step(*given()))


@missing
def test_control_inductor_loses_factors():
    recording = record(SUMS["product first"], *given())
    with torch.no_grad():  # as for each step without a recurrent layer
        function, _ = compile_graph(graph_module(recording), recording.inputs, {"fallback_random": True})
    found = function(*recording.inputs)[0]
    expected = SUMS["product first"](*given())
    if torch.allclose(found, expected):
        pytest.skip("this Inductor keeps factors")


def test_no_factor_is_left_to_inductor():
    recording = record(step, *given())
    keep_factors(recording.graph)
    sums = [node for node in recording.graph.nodes if node.target is torch.ops.aten.add.Tensor]
    assert len(sums) > 5
    assert sum("alpha" in node.kwargs for node in sums) == 3, "those of a number, and of two types"
    recording.graph.lint()
    torch.testing.assert_close(graph_module(recording).forward(*recording.inputs)[0], step(*given()))
