"""What Inductor makes one kernel of, of a step for a GPU: private names, looked for on a machine without one."""

import inspect
from types import SimpleNamespace

import pytest
from torch import fx, nn
from torch._inductor.codegen.simd import SIMDScheduling
from torch._inductor.graph import GraphLowering
from torch._inductor.virtualized import V

from lightning_sink.engine.compiler.combined import combined_where_small

scheduler = pytest.importorskip("torch._inductor.scheduler")
Combined = scheduler.ForeachKernelSchedulerNode


def node(numbers, each, is_sum=True):
    return SimpleNamespace(is_reduction=lambda: is_sum, group=("cuda", (numbers, each)))


def test_larger_sums_stay_by_themselves(monkeypatch):
    small, large, elementwise = node(64, 32), node(48_000, 32), node(10**7, 1, is_sum=False)
    monkeypatch.setattr(
        Combined, "group_algorithm_for_combo_kernels", staticmethod(lambda given: [[small, large], [elementwise]])
    )
    with combined_where_small():
        assert Combined.group_nodes_for_combo_kernels(None) == [[small], [elementwise]]
    assert Combined.group_nodes_for_combo_kernels(None) == [[small, large], [elementwise]]


def test_what_a_group_is():
    """Numbers, and how many of others each is a sum of."""
    with V.set_graph_handler(GraphLowering(fx.symbolic_trace(nn.Identity()))):
        assert tuple(SIMDScheduling.group_fn(None, ((64, 2), (32,)))) == (128, 32)
    assert "self.group = (device, " in inspect.getsource(scheduler.SchedulerNode), "see engine/compiler/combined.py"


def test_names_of_inductor():
    names = {
        "ForeachKernelSchedulerNode.group_algorithm_for_combo_kernels": Combined,
        "ForeachKernelSchedulerNode.group_nodes_for_combo_kernels": Combined,
        "BaseSchedulerNode.is_reduction": scheduler.BaseSchedulerNode,
    }
    lost = [name for name, owner in names.items() if not hasattr(owner, name.rpartition(".")[2])]
    assert not lost, f"Inductor has no {', '.join(lost)} any more: see lightning_sink/engine/compiler/combined.py"
