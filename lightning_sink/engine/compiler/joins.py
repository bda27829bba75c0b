"""`cat` of a single tensor that has numbers, which a cache of keys and values makes that begins empty.

It is a copy. That of Inductor lies as the tensor does, not in one piece as `cat` gives it, and views behind it fail
(torch 2.13).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

_aten = torch.ops.aten


def copy_joins_of_one(graph: fx.Graph) -> None:
    """Replaces each `cat` that copies a single tensor by a copy."""
    for node in list(graph.nodes):
        if node.target is _aten.cat.default:
            _copy_instead(graph, node)


def _copy_instead(graph: fx.Graph, node: fx.Node) -> None:
    """Replaces a `cat` that copies one tensor into one piece; others stay."""
    tensors: Any = node.args[0]
    if any(each.meta.get("layout") is None for each in (*tensors, node)):
        return
    full = [tensor for tensor in tensors if 0 not in tensor.meta["layout"][0]]
    shape, stride, dtype, _ = node.meta["layout"]
    in_one_piece = stride == torch.empty(shape, device="meta").stride()
    # The shapes are those that tensors had when they were made: an empty one may have been filled since.
    if len(full) != 1 or not in_one_piece or full[0].meta["layout"][0] != shape or full[0].meta["layout"][2] != dtype:
        return
    with graph.inserting_before(node):
        copy = graph.call_function(_aten.clone.default, (full[0],), {"memory_format": torch.contiguous_format})
    copy.meta.update(node.meta)
    node.replace_all_uses_with(copy)
    graph.erase_node(node)
