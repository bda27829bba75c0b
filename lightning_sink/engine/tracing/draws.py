"""Random draws of a step, taken out of its graph and made before it, in the order of the step.

A compiler may run operations in any order that their data allows, and two draws from one generator share no data that
it knows of: with more than one dropout the masks would be others than eager's. Draws depend on shapes only, or on
numbers that are the same in each step (`Beta(0.4, 0.4)`), so they are made by the very operations of the step, one
after another, and given to the graph as inputs.
"""

from __future__ import annotations

import operator
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, fx
from torch.fx.node import map_arg

from lightning_sink.engine.failures import RefusedError
from lightning_sink.engine.operands import members
from lightning_sink.engine.private import draws_otherwise, is_mutable, is_view, schema_name, written_arguments
from lightning_sink.engine.tracing.unrepeatable import EMPTY
from lightning_sink.engine.watch import Hazard

DROPOUT: Any = torch.ops.aten.native_dropout.default
_BY_NUMBERS = (
    "draw by numbers, and compute with what is drawn (for `torch.bernoulli(p)`: `torch.rand_like(p) < p`;"
    ' `engine="traced"` runs the step uncompiled)'
)
_LIKE = {"aten::rand_like", "aten::randn_like", "aten::randint_like"}


@dataclass(frozen=True)
class Draw:
    """A random draw; called, it is made.

    Attributes:
        arguments: Its arguments, but for the tensor that it fills or is to be like.
        layout: Shape, strides, type and device of that tensor; None where there is none.
        part: Which of the operation's results is drawn; None where it has one.
    """

    target: Any
    arguments: tuple[Any, ...]
    options: dict[str, Any] = field(default_factory=dict)
    layout: tuple[tuple[int, ...], tuple[int, ...], torch.dtype, torch.device] | None = None
    part: int | None = None

    def __call__(self) -> Tensor:
        """Returns what is drawn."""
        given: tuple[Any, ...] = self.arguments
        if self.layout is not None:
            shape, stride, dtype, device = self.layout
            given = (torch.empty_strided(shape, stride, dtype=dtype, device=device), *given)
        drawn = self.target(*given, **self.options)
        result: Tensor = drawn if self.part is None else drawn[self.part]
        return result


def hoist_draws(graph: fx.Graph) -> list[Draw]:
    """Replaces draws by placeholders behind the graph's other ones; returns what makes the tensors for them.

    Raises:
        RefusedError: For a draw that depends on data, beside another draw, whose order nothing would keep, or if
            Inductor would draw other numbers for it.
    """
    take_masks_apart(graph)
    nodes = [node for node in graph.nodes if node.meta.get("draws")]
    written = written_nodes(graph.nodes) if nodes else set()
    draws = [draw_of(node, written) for node in nodes]
    if None in draws:
        by_values = nodes[draws.index(None)]
        if len(nodes) > 1:
            raise refused(by_values, "draws by values of a tensor, beside other draws, and could change places")
        _, _, dtype, _ = by_values.meta.get("layout", (None, None, torch.float32, None))  # one result, or several
        if draws_otherwise(by_values.target, dtype):
            raise refused(by_values, "draws other numbers where this version of torch compiles it")
        return []
    first = next(node for node in graph.nodes if node.op != "placeholder")
    with graph.inserting_before(first):
        placeholders = [graph.placeholder(f"draw_{number}") for number in range(len(nodes))]
    for node, placeholder in zip(nodes, placeholders, strict=True):
        filled = filled_by(node)
        placeholder.meta["layout"] = layout_of(node)
        replace_draw(node, placeholder)
        if filled is not None:
            filled.replace_all_uses_with(placeholder)
            graph.erase_node(filled)
    return [draw for draw in draws if draw is not None]


def refused(node: fx.Node, why: str) -> RefusedError:
    """Returns the error of a draw that is not compiled, which tells users where it is."""
    target: Any = node.target
    return RefusedError(Hazard(f"`{target.name()}` {why}", node.meta.get("where", ""), _BY_NUMBERS))


def take_masks_apart(graph: fx.Graph) -> None:
    """Has the dropout of a GPU, one operation that draws a mask and applies it, draw the mask alone.

    What it draws depends on how the tensor lies that it is given, and on none of its numbers.
    """
    for node in graph.find_nodes(op="call_function", target=DROPOUT):
        if not node.meta.get("draws"):
            continue
        parts = {part.args[1]: part for part in node.users}
        given, probability = node.args[:2]
        if 0 in parts:  # it has not been taken apart yet
            layout, factor = parts[0].meta["layout"], 0.0 if probability == 1 else 1.0 / (1.0 - probability)
            with graph.inserting_after(parts[1]):
                kept = insert(graph, torch.ops.aten.mul.Tensor, (given, parts[1]), layout)
            with graph.inserting_after(kept):
                scaled = insert(graph, torch.ops.aten.mul.Tensor, (kept, factor), layout)
            parts[0].replace_all_uses_with(scaled)
            graph.erase_node(parts[0])
        node.meta["layout"] = given.meta["layout"]


def drawn_by(node: fx.Node) -> fx.Node:
    """Returns what stands for the tensor that is drawn: of a dropout that was taken apart, its mask."""
    return next(iter(node.users)) if node.target is DROPOUT else node


def filled_by(node: fx.Node) -> Any:
    """Returns what a draw fills; None where it gives a tensor of its own."""
    return node.args[0] if schema_name(node.target).endswith("_") else None


def layout_of(node: fx.Node) -> Any:
    """Returns how the tensor lies that is drawn."""
    return (filled_by(node) or drawn_by(node)).meta["layout"]


def replace_draw(node: fx.Node, given: fx.Node) -> None:
    """Takes a draw out of its graph; what it has drawn is given in its place."""
    drawn = drawn_by(node)
    drawn.replace_all_uses_with(given)
    node.graph.erase_node(drawn)
    if drawn is not node:
        node.graph.erase_node(node)


def insert(graph: fx.Graph, func: Any, args: tuple[Any, ...], layout: Any, **options: Any) -> fx.Node:
    """Inserts an operation that is none of the step's, with what is noted of others; its result looks so."""
    node = graph.call_function(func, args, options)
    node.meta["draws"], node.meta["layout"] = False, layout
    return node


def draw_of(node: fx.Node, written: Collection[fx.Node]) -> Draw | None:
    """Returns what repeats a draw; None where its result depends on more than shapes."""
    target: Any = node.target
    name, arguments = schema_name(target), node.args
    tensors = members(fx.Node, (*arguments, *node.kwargs.values()))
    if not tensors:
        return Draw(target, arguments, dict(node.kwargs))
    if all(_is_constant(tensor, written) for tensor in tensors):
        given = map_arg((arguments, node.kwargs), _value)
        return Draw(target, *given)
    if len(tensors) > 1 or tensors[0] is not arguments[0]:
        return None
    if target is DROPOUT:
        return Draw(target, arguments[1:], dict(node.kwargs), node.meta["layout"], part=1)
    if name.endswith("_"):
        source = tensors[0]
        fresh = source.op == "call_function" and schema_name(source.target) in EMPTY
        if not fresh or next(iter(source.users)) is not node:
            return None
    elif name not in _LIKE:
        return None
    return Draw(target, arguments[1:], dict(node.kwargs), tensors[0].meta["layout"])


def _is_constant(node: fx.Node, written: Collection[fx.Node]) -> bool:
    """Tells whether a node is computed of tensors made of numbers alone, and nothing writes to its memory."""
    if owner_of(node) in written:
        return False
    if node.op == "placeholder":
        return "value" in node.meta
    known = node.op == "call_function" and not node.meta.get("draws") and bool(node.all_input_nodes)
    return known and all(_is_constant(given, written) for given in node.all_input_nodes)


def owner_of(node: fx.Node) -> fx.Node:
    """Returns the node whose memory a node is a view of: itself, where it is none."""
    while node.op == "call_function" and (node.target is operator.getitem or is_view(node.target)):
        node = node.all_input_nodes[0]
    return node


def written_nodes(nodes: Iterable[fx.Node]) -> set[fx.Node]:
    """Returns the nodes whose memory some operations write to."""
    called = (node for node in nodes if node.op == "call_function" and node.target is not operator.getitem)
    mutable = [node for node in called if is_mutable(node.target)]
    given = (written_arguments(node.target, node.args, node.kwargs, fx.Node) for node in mutable)
    return {owner_of(argument) for arguments in given for argument in arguments}


def _value(node: fx.Node) -> Tensor:
    """Returns what a constant is computed to."""
    if node.op == "placeholder":
        value: Tensor = node.meta["value"]
        return value
    target: Any = node.target
    arguments, options = map_arg((node.args, node.kwargs), _value)
    result: Tensor = target(*arguments, **options)
    return result
