"""Sums of a tensor and a multiple of another, written so that Inductor keeps the factor.

Inductor makes `addmm` of a matrix product that is added to a tensor, and does not look at `alpha`: a step that decays
its weights, by `gradient.add(weight, alpha=decay)`, would train with a decay of 1 (torch 2.13, `torch.compile` too).
Where it adds element by element, it multiplies by the factor just the same.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

_aten = torch.ops.aten
_SUMS = (_aten.add.Tensor, _aten.add_.Tensor)


def keep_factors(graph: fx.Graph) -> None:
    """Replaces `add(a, b, alpha=k)` by `add(a, b * k)`."""
    for node in list(graph.nodes):
        if node.target in _SUMS and "alpha" in node.kwargs:
            _multiply_before(graph, node)


def _multiply_before(graph: fx.Graph, node: fx.Node) -> None:
    first, second = node.args
    factor: Any = node.kwargs["alpha"]
    if isinstance(second, fx.Node):
        with graph.inserting_before(node):
            node.args = (first, graph.call_function(_aten.mul.Tensor, (second, factor)))
    else:
        node.args = (first, second * factor)
    node.kwargs = {}
