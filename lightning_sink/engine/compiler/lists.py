"""Operations on lists of tensors, as optimizers and clipping call them, taken apart into those on each tensor.

Inductor does badly with the lists: the norms of one it calls through Python, at each step (an MLP that clips its
gradients took 141 microseconds a step so, and takes 27), and a graph with a transformer and lists it may not compile at
all (an `AssertionError` in `FusedSchedulerNode.reorder_loops_by_dep_pair`, torch 2.11). One by one it fuses them anew.

`cat` of a single tensor that has numbers, which a cache of keys and values makes that begins empty, is a copy. That of
Inductor lies as the tensor does, not in one piece as `cat` gives it, and views behind it fail (torch 2.13).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

_aten = torch.ops.aten


def take_lists_apart(graph: fx.Graph) -> None:
    """Replaces operations on lists by operations on each tensor; those that are not known stay.

    A `cat` that copies a single tensor becomes a copy.
    """
    for node in list(graph.nodes):
        single = _SINGLE.get(node.target) if node.op == "call_function" else None
        if single is not None:
            _take_apart(graph, node, single)
        elif node.target is _aten.cat.default:
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


def _take_apart(graph: fx.Graph, node: fx.Node, single: Any) -> None:
    lists = [argument for argument in node.args if isinstance(argument, (tuple, list))]
    made = []
    with graph.inserting_before(node):
        for index in range(len(lists[0])):
            args = [argument[index] if isinstance(argument, (tuple, list)) else argument for argument in node.args]
            kwargs = dict(node.kwargs)
            if single in _WITH_VALUE and len(args) > 3:
                kwargs["value"] = args.pop()
            made.append(graph.call_function(single, tuple(args), kwargs))
    for part in list(node.users):
        number: Any = part.args[1]
        made[number].meta.update(part.meta)
        part.replace_all_uses_with(made[number])
        graph.erase_node(part)
    graph.erase_node(node)


def _singles() -> dict[Any, Any]:
    found: dict[Any, Any] = {_aten._foreach_norm.Scalar: _aten.linalg_vector_norm.default}
    for name in ("add", "sub", "mul", "div"):
        for form in (name, f"{name}_"):
            lists = getattr(_aten, f"_foreach_{form}")
            found |= {getattr(lists, kind): getattr(_aten, form).Tensor for kind in ("List", "Scalar", "ScalarList")}
    for name in ("add_", "mul", "mul_", "div", "div_"):
        found[getattr(_aten, f"_foreach_{name}").Tensor] = getattr(_aten, name).Tensor
    for name in ("abs", "exp", "neg", "reciprocal", "sign", "sqrt"):
        for form in (name, f"{name}_"):
            found[getattr(_aten, f"_foreach_{form}").default] = getattr(_aten, form).default
    for form in ("lerp", "lerp_"):
        lists = getattr(_aten, f"_foreach_{form}")
        found |= {lists.List: getattr(_aten, form).Tensor, lists.Scalar: getattr(_aten, form).Scalar}
    for form in ("addcdiv", "addcdiv_", "addcmul", "addcmul_"):
        lists = getattr(_aten, f"_foreach_{form}")
        found |= {lists.Scalar: getattr(_aten, form).default, lists.ScalarList: getattr(_aten, form).default}
    found |= {_aten._foreach_zero_.default: _aten.zero_.default, _aten._foreach_copy_.default: _aten.copy_.default}
    return found


_SINGLE = _singles()
_WITH_VALUE = (_aten.addcdiv.default, _aten.addcdiv_.default, _aten.addcmul.default, _aten.addcmul_.default)
