"""What activation checkpointing computes again is computed where the backward pass needs it, and not before.

A compiler sees that none of it depends on a gradient, and Inductor does all of it before the backward pass begins, by
the same order by which it has gradients of weights come early: everything is kept then that was not to be. So what is
computed again is made to depend on the gradient that was there when it began, by a choice that always falls the same
way and that no compiler sees through: `where(g != g and g == g, 0, x)` is `x`, to the last bit.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import fx

from lightning_sink.engine.tracing.draws import owner_of, written_nodes
from lightning_sink.engine.tracing.recording import Recording

_aten = torch.ops.aten

_PLAIN = [torch.contiguous_format]
_ORDERS = {4: [*_PLAIN, torch.channels_last], 5: [*_PLAIN, torch.channels_last_3d]}
"""In which tensors may lie, by their dimensions, for a choice between them and a number to lie likewise."""


def compute_late(recording: Recording) -> None:
    """Has what a recording computes again wait for the gradients before it."""
    graph, gradient = recording.graph, None
    again = [node for node in graph.nodes if _go(node) is not None]
    fixed = written_nodes(again) if again else set()
    late: dict[int, _Late] = {}
    for node in list(graph.nodes) if again else ():
        go = _go(node)
        if go is None:
            gradient = node if _may_be_a_gradient(node) else gradient
        elif gradient is not None:
            given = [each for each in node.all_input_nodes if _go(each) is None and owner_of(each) not in fixed]
            kept = [each for each in given if _is_kept(each, recording)]
            late.setdefault(go, _Late(graph, gradient)).let_wait(node, kept)


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
        layout = tensor.meta["layout"]
        zero = self._insert(_aten.zeros.default, ([],), ((), (), *layout[2:]))
        zero.kwargs = {"dtype": layout[2], "device": layout[3]}
        return self._insert(_aten.where.self, (self._never, zero, tensor), layout)

    def _false(self) -> fx.Node:
        """Returns what is never true, and is known when the gradient is."""
        element, (shape, stride, dtype, device) = self._gradient, self._gradient.meta["layout"]
        for dim in range(1, len(shape) + 1):
            element = self._insert(_aten.select.int, (element, 0, 0), (shape[dim:], stride[dim:], dtype, device))
        truth = (), (), torch.bool, device
        differs = self._insert(_aten.ne.Tensor, (element, element), truth)
        equals = self._insert(_aten.eq.Tensor, (element, element), truth)
        return self._insert(_aten.logical_and.default, (differs, equals), truth)

    def _insert(self, func: Any, args: tuple[Any, ...], layout: Any) -> fx.Node:
        node = self._graph.call_function(func, args)
        node.meta["draws"], node.meta["layout"] = False, layout
        return node


def _go(node: fx.Node) -> int | None:
    """Returns the go in which an operation is computed again; None for one that is computed once."""
    while node.target is operator.getitem:
        node = node.all_input_nodes[0]
    go: int | None = node.meta.get("again")
    return go


def _may_be_a_gradient(node: fx.Node) -> bool:
    layout = node.meta.get("layout")
    return node.op == "call_function" and layout is not None and layout[2].is_floating_point and 0 not in layout[0]


def _is_kept(node: fx.Node, recording: Recording) -> bool:
    """Tells whether something was kept to compute again with: no weight, and nothing that lies in an odd order."""
    owner, layout = owner_of(node), node.meta.get("layout")
    if layout is None:
        return False
    if owner.op == "placeholder":
        number = owner.meta.get("input")  # None for what is drawn before the step
        if number is not None and (recording.inputs[number].requires_grad or number in recording.written_inputs):
            return False
    alike = torch.empty_strided(*layout[:2], device="meta")
    return any(alike.is_contiguous(memory_format=order) for order in _ORDERS.get(alike.dim(), _PLAIN))
