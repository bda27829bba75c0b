"""What activation checkpointing computes again is computed where the backward pass needs it, and not before.

A compiler sees that none of it depends on a gradient, and Inductor does all of it before the backward pass begins, by
the same order by which it has gradients of weights come early: everything is kept then that was not to be. So what is
computed again is made to depend on the gradient that was there when it began, by a choice that always falls the same
way and that no compiler sees through: `where(g != g and g == g, 0, x)` is `x`, to the last bit.
"""

from __future__ import annotations

import operator

import torch
from torch import fx

from lightning_sink.engine.private import is_view
from lightning_sink.engine.tracing.draws import insert, owner_of, written_nodes
from lightning_sink.engine.tracing.recording import Recording

_aten = torch.ops.aten


def compute_late(recording: Recording) -> None:
    """Has what a recording computes again wait for the gradients before it."""
    nodes, gradient = list(recording.graph.nodes), None
    start = next((place for place, node in enumerate(nodes) if _go(node) is not None), len(nodes))
    changing = written_nodes(nodes[start:])
    late: dict[int, _Late] = {}
    for node in nodes:
        go = _go(node)
        if go is None:
            gradient = node if _may_be_a_gradient(node) else gradient
        elif gradient is not None and not _is_alias(node):
            kept = [given for given in node.all_input_nodes if _is_kept(given, recording, changing)]
            late.setdefault(go, _Late(recording.graph, gradient)).let_wait(node, kept)


class _Late:
    """What is computed again in one go, behind a gradient."""

    def __init__(self, graph: fx.Graph, gradient: fx.Node) -> None:
        self._graph, self._gradient = graph, gradient
        self._never: fx.Node | None = None
        self._waiting: dict[fx.Node, fx.Node] = {}

    def let_wait(self, node: fx.Node, given: list[fx.Node]) -> None:
        """Has an operation take what it is given when the gradient is there."""
        for tensor in given:
            if tensor not in self._waiting:
                with self._graph.inserting_before(node):
                    self._waiting[tensor] = self._wait(tensor)
            node.replace_input_with(tensor, self._waiting[tensor])

    def _wait(self, tensor: fx.Node) -> fx.Node:
        if self._never is None:
            self._never = self._false()
        return insert(self._graph, _aten.where.ScalarSelf, (self._never, False, tensor), tensor.meta["layout"])

    def _false(self) -> fx.Node:
        """Returns what is never true, and is known when the gradient is."""
        element, (shape, stride, dtype, device) = self._gradient, self._gradient.meta["layout"]
        for dim in range(1, len(shape) + 1):
            element = insert(self._graph, _aten.select.int, (element, 0, 0), (shape[dim:], stride[dim:], dtype, device))
        truth = (), (), torch.bool, device
        differs = insert(self._graph, _aten.ne.Tensor, (element, element), truth)
        equals = insert(self._graph, _aten.eq.Tensor, (element, element), truth)
        return insert(self._graph, _aten.logical_and.default, (differs, equals), truth)


def _go(node: fx.Node) -> int | None:
    """Returns the go in which an operation is computed again; None for one that is computed once."""
    while node.target is operator.getitem:
        node = node.all_input_nodes[0]
    go: int | None = node.meta.get("again")
    return go


def _may_be_a_gradient(node: fx.Node) -> bool:
    layout = node.meta.get("layout")
    return node.op == "call_function" and layout is not None and layout[2].is_floating_point and 0 not in layout[0]


def _is_alias(node: fx.Node) -> bool:
    """Tells whether an operation gives what it is given, seen otherwise: it computes nothing, and does not wait."""
    return node.target is operator.getitem or is_view(node.target)


def _is_kept(node: fx.Node, recording: Recording, changing: set[fx.Node]) -> bool:
    """Tells whether something was kept to compute again with.

    It is no weight; it lies in an order that a choice between it and a number has, too; and nothing writes to it after
    that has begun.
    """
    owner, layout = owner_of(node), node.meta.get("layout")
    if _go(owner) is not None or owner in changing or layout is None or not _is_dense(*layout[:2]):
        return False
    if layout[2].is_floating_point and layout[2].itemsize == 1:  # of which torch computes no choice
        return False
    number = owner.meta.get("input")  # None for what is drawn before the step
    return number is None or (number in recording.batch and number not in recording.written_inputs)


def _is_dense(shape: tuple[int, ...], stride: tuple[int, ...]) -> bool:
    """Tells whether a tensor's numbers lie side by side, in whichever order."""
    size = 1
    for step, length in sorted(zip(stride, shape, strict=True)):
        if length != 1:
            if step != size:
                return False
            size *= length
    return True
