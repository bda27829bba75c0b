"""Sums of a tensor and a multiple of another, written so that Inductor keeps the factor.

Inductor makes `addmm` of a matrix product that is added to a tensor, and does not look at `alpha`: a step that decays
its weights, by `gradient.add(weight, alpha=decay)`, would train with a decay of 1 (torch 2.13, `torch.compile` too).
It does so with tensors of one type only; those of two are left alone, since a multiple is of the second one's type.
"""

from __future__ import annotations

import torch
from torch import fx

_aten = torch.ops.aten
_SUMS = (_aten.add.Tensor, _aten.add_.Tensor)


def keep_factors(graph: fx.Graph) -> None:
    """Replaces `add(a, b, alpha=k)` by `add(a, b * k)`, where both are tensors of one type."""
    for node in list(graph.nodes):
        if node.target in _SUMS and "alpha" in node.kwargs and _are_of_one_type(node):
            first, second = node.args
            with graph.inserting_before(node):
                multiple = graph.call_function(_aten.mul.Tensor, (second, node.kwargs["alpha"]))
            node.args, node.kwargs = (first, multiple), {}


def _are_of_one_type(node: fx.Node) -> bool:
    layouts = [item.meta.get("layout") if isinstance(item, fx.Node) else None for item in node.args]
    return all(layouts) and len({layout[2] for layout in layouts if layout}) == 1
