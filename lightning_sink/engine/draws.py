"""Random draws of a step, taken out of its graph and made before it, in the order of the step.

A compiler may run operations in any order that their data allows, and two draws from one generator share no data that
it knows of: with more than one dropout the masks would be others than eager's. Draws depend on shapes only, so they are
made by the very operations of the step, one after another, and given to the graph as inputs.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, fx

from lightning_sink.engine.operands import members
from lightning_sink.engine.private import schema_name

_EMPTY = {"aten::empty", "aten::empty_like", "aten::empty_strided", "aten::new_empty", "aten::new_empty_strided"}
_LIKE = {"aten::rand_like", "aten::randn_like", "aten::randint_like"}


@dataclass(frozen=True)
class Draw:
    """A random draw; called, it is made.

    Attributes:
        target: The operation.
        arguments: Its arguments, but for the tensor that it fills or is to be like.
        options: Its arguments by name.
        layout: Shape, strides, type and device of that tensor; None where there is none.
    """

    target: Any
    arguments: tuple[Any, ...]
    options: dict[str, Any] = field(default_factory=dict)
    layout: tuple[tuple[int, ...], tuple[int, ...], torch.dtype, torch.device] | None = None

    def __call__(self) -> Tensor:
        """Returns what is drawn."""
        given: tuple[Any, ...] = self.arguments
        if self.layout is not None:
            shape, stride, dtype, device = self.layout
            given = (torch.empty_strided(shape, stride, dtype=dtype, device=device), *given)
        drawn: Tensor = self.target(*given, **self.options)
        return drawn


def hoist_draws(graph: fx.Graph) -> list[Draw]:
    """Replaces draws by placeholders behind the graph's other ones; returns what makes the tensors for them.

    Raises:
        ValueError: For a draw that depends on data beside another draw, whose order nothing would keep.
    """
    nodes = [node for node in graph.nodes if _is_draw(node)]
    draws = [_as_draw(node) for node in nodes]
    if None in draws:
        if len(nodes) > 1:
            names = ", ".join(sorted({str(node.target) for node in nodes}))
            raise ValueError(f"the order of its random draws cannot be kept ({names})")
        return []
    first = next(node for node in graph.nodes if node.op != "placeholder")
    with graph.inserting_before(first):
        placeholders = [graph.placeholder(f"draw_{number}") for number in range(len(nodes))]
    for node, placeholder in zip(nodes, placeholders, strict=True):
        filled = node.args[0] if schema_name(node.target).endswith("_") else None
        placeholder.meta["layout"] = (filled or node).meta["layout"]
        node.replace_all_uses_with(placeholder)
        graph.erase_node(node)
        if filled is not None:
            filled.replace_all_uses_with(placeholder)
            graph.erase_node(filled)
    return [draw for draw in draws if draw is not None]


def _is_draw(node: fx.Node) -> bool:
    return bool(node.meta.get("draws"))


def _as_draw(node: fx.Node) -> Draw | None:
    """Returns what repeats a draw; None where its result depends on more than shapes."""
    target: Any = node.target
    name, arguments = schema_name(target), node.args
    tensors = members(fx.Node, (*arguments, *node.kwargs.values()))
    if not tensors:
        return Draw(target, arguments, dict(node.kwargs))
    if len(tensors) > 1 or tensors[0] is not arguments[0]:
        return None
    if name.endswith("_"):
        source = tensors[0]
        fresh = source.op == "call_function" and schema_name(source.target) in _EMPTY
        if not fresh or next(iter(source.users)) is not node:
            return None
    elif name not in _LIKE:
        return None
    return Draw(target, arguments[1:], dict(node.kwargs), tensors[0].meta["layout"])
