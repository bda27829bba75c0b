"""What is done to a recording's graph before Inductor compiles it, for a CPU or a GPU.

Some operations are written so that Inductor (torch 2.13) does not get them wrong. `torch.compile` does, too.
"""

from __future__ import annotations

import math
from operator import getitem
from typing import Any

import torch
from torch import fx

from lightning_sink.engine.compiler.copies import is_in_one_piece
from lightning_sink.engine.compiler.recomputed import compute_late
from lightning_sink.engine.compiler.value_checks import keep_value_checks
from lightning_sink.engine.tracing.recording import Recording

_aten = torch.ops.aten

_BATCH_NORMS = (_aten.native_batch_norm.default, _aten.native_batch_norm_backward.default)


def prepare(recording: Recording, *, on_host: bool) -> None:
    """Changes the graph of a recording, whose random draws have been taken out, for Inductor to compile it."""
    compute_late(recording)
    keep_value_checks(recording.graph, on_host)
    copy_joins_of_one(recording.graph)
    copy_normalized(recording.graph)
    keep_factors(recording.graph)
    fill_by_masks(recording.graph)
    add_up_single_rows(recording.graph)


def keep_factors(graph: fx.Graph) -> None:
    """Replaces `add(a, b, alpha=k)` by `add(a, b * k)`, where both are tensors of one type.

    Inductor makes `addmm` of a matrix product that is added to a tensor, and does not look at `alpha`: a step that
    decays its weights, by `gradient.add(weight, alpha=decay)`, would train with a decay of 1. It does so with tensors
    of one type only; those of two are left alone, since a multiple is of the second one's type.
    """
    for node in list(graph.nodes):
        if node.target in (_aten.add.Tensor, _aten.add_.Tensor) and "alpha" in node.kwargs and _are_of_one_type(node):
            first, second = node.args
            with graph.inserting_before(node):
                multiple = graph.call_function(_aten.mul.Tensor, (second, node.kwargs["alpha"]))
            node.args, node.kwargs = (first, multiple), {}


def _are_of_one_type(node: fx.Node) -> bool:
    layouts = [item.meta.get("layout") if isinstance(item, fx.Node) else None for item in node.args]
    return all(layouts) and len({layout[2] for layout in layouts if layout}) == 1


def copy_joins_of_one(graph: fx.Graph) -> None:
    """Replaces each `cat` of a single tensor that has numbers by a copy: a cache of keys begins empty.

    Inductor's copy lies as the tensor does, not in one piece as `cat` gives it, and views behind it fail.
    """
    for node in graph.find_nodes(op="call_function", target=_aten.cat.default):
        tensors: Any = node.args[0]
        if any(each.meta.get("layout") is None for each in (*tensors, node)):
            continue
        full = [tensor for tensor in tensors if 0 not in tensor.meta["layout"][0]]
        shape, stride, dtype, _ = node.meta["layout"]
        # The shapes are those that tensors had when they were made: an empty one may have been filled since.
        is_one = len(full) == 1 and (full[0].meta["layout"][0], full[0].meta["layout"][2]) == (shape, dtype)
        if not is_one or not is_in_one_piece(shape, stride):
            continue
        with graph.inserting_before(node):
            copy = graph.call_function(_aten.clone.default, (full[0],), {"memory_format": torch.contiguous_format})
        copy.meta.update(node.meta)
        node.replace_all_uses_with(copy)
        graph.erase_node(node)


def copy_normalized(graph: fx.Graph) -> None:
    """Copies what batch normalization makes in one piece of a tensor that does not lie so: a transposed one.

    Inductor's lies as the tensor does, and views behind it fail.
    """
    for node in [node for node in graph.nodes if node.target in _BATCH_NORMS]:
        given = [item.meta["layout"] for item in node.args if isinstance(item, fx.Node) and item.meta.get("layout")]
        if all(is_in_one_piece(shape, stride) for shape, stride, *_ in given):
            continue
        for part in [user for user in node.users if user.target is getitem and user.args[1] == 0]:
            if part.meta.get("layout") is None or not is_in_one_piece(*part.meta["layout"][:2]):
                continue
            with graph.inserting_after(part):
                copy = graph.call_function(_aten.clone.default, (part,), {"memory_format": torch.contiguous_format})
            copy.meta.update(part.meta)
            part.replace_all_uses_with(copy, lambda user, copy=copy: user is not copy)


def fill_by_masks(graph: fx.Graph) -> None:
    """Replaces putting one value where a mask has ones, `tensor[mask] = 0.0`, or adding it, by what asks the mask.

    Where numbers were put into the tensor by places before (`tensor[[0, 2]] = ...`, `scatter_`), Inductor may change
    the order: it did in 12 of 200 chance sequences of writes.
    """
    for node in [node for node in graph.nodes if node.target in (_aten.index_put.default, _aten.index_put_.default)]:
        tensor, indices, value, *accumulate = node.args
        layouts = [item.meta.get("layout") for item in (tensor, *indices, value) if item is not None]
        if len(layouts) != 3 or len(indices) != 1 or not all(layouts):
            continue
        (shape, *_), (of_mask, _, dtype, _), (of_value, *_) = layouts
        if dtype is not torch.bool or math.prod(of_value) != 1:
            continue
        with graph.inserting_before(node):
            missing = [1] * (len(shape) - len(of_mask))
            mask = graph.call_function(_aten.view.default, (*indices, [*of_mask, *missing])) if missing else indices[0]
            put = graph.call_function(_aten.view.default, (value, [])) if of_value else value
            if True in (*accumulate, *node.kwargs.values()):
                put = graph.call_function(_aten.add.Tensor, (tensor, put))
            put = graph.call_function(_aten.where.self, (mask, put, tensor))
            if node.target is _aten.index_put_.default:
                put = graph.call_function(_aten.copy_.default, (tensor, put))
        put.meta.update(node.meta)
        node.replace_all_uses_with(put)
        graph.erase_node(node)


def add_up_single_rows(graph: fx.Graph) -> None:
    """Replaces the gradient of a table of one row by a sum: gluonts' DeepAR has such tables by default.

    Inductor fails to add to one place from vectors, where the index is known to be 0.
    """
    for node in graph.find_nodes(op="call_function", target=_aten.embedding_dense_backward.default):
        gradient, _, rows, padding, scaled = node.args
        if rows != 1 or padding == 0 or scaled or node.meta.get("layout") is None:
            continue
        with graph.inserting_before(node):
            parts = graph.call_function(_aten.reshape.default, (gradient, [-1, node.meta["layout"][0][1]]))
            total = graph.call_function(_aten.sum.dim_IntList, (parts, [0], True))
        total.meta.update(node.meta)
        node.replace_all_uses_with(total)
        graph.erase_node(node)
