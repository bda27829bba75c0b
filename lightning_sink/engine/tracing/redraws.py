"""Random draws that a step makes again: activation checkpointing sets generators back before it computes once more.

A program has no generator to set back. What it drew the first time is kept, and is what the second draw gives. Which
draw is made again is known by the state of the generator before it: no two draws of a generator have the same.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, fx

from lightning_sink.engine.operands import members
from lightning_sink.engine.private import schema_name
from lightning_sink.engine.state.default_generators import Generators, State
from lightning_sink.engine.tracing.draws import DROPOUT, draw_of, take_masks_apart, written_nodes
from lightning_sink.engine.watch import user_line

_aten = torch.ops.aten

Before = tuple[int, bytes]
"""Which generator a draw is of, and its state before it."""


class Redraws:
    """The draws of one recording.

    Args:
        generators: What is drawn from.
        hazard: Takes note of why no program may stand for the recording, and of the user's line.
    """

    def __init__(self, generators: Generators, hazard: Callable[[str, str | None], None]) -> None:
        self._generators, self._hazard = generators, hazard
        self._first: dict[Before, fx.Node] = {}
        self._known: set[Before] = set()
        self._again: list[tuple[fx.Node, fx.Node, str]] = []

    def begin(self) -> None:
        """The generators are as they were left by whatever came before: a span of the step begins."""
        self._known.update(_keys(self._generators.state()))

    def drew(self, node: fx.Node, before: State) -> fx.Node | None:
        """Takes a draw; returns the earlier one that it repeats, None for a new one."""
        after = _keys(self._generators.state())
        repeated = None
        for was, now in zip(_keys(before), after, strict=True):
            if was == now:
                continue
            if was not in self._known:
                self._hazard("a random generator is set to a state of another step", None)
            if (repeated := self._first.setdefault(was, node)) is not node:
                self._again.append((node, repeated, user_line()))
        self._known.update(after)
        return None if repeated is node else repeated

    def end(self) -> None:
        """The span ends: what comes next is to draw something new."""
        if not self._first.keys().isdisjoint(_keys(self._generators.state())):
            self._hazard("a random generator is set back, and left there", None)

    def finish(self, graph: fx.Graph) -> None:
        """Has the graph use what it drew first in the place of what was drawn again."""
        if not self._again:
            return
        take_masks_apart(graph)
        written = written_nodes(graph.nodes)
        for node, first, where in self._again:
            draws = [draw_of(first, written), draw_of(node, written)]
            if any(draw is None or members(Tensor, draw.arguments) for draw in draws):
                self._hazard("a random generator is set back, and what is drawn again depends on a tensor", where)
                return
            if draws[0] != draws[1]:
                self._hazard("a random generator is set back, and something else is drawn than before", where)
                return
        for node, first, _ in self._again:
            _replace(graph, node, _kept(graph, first))


def _keys(state: State) -> list[Before]:
    return [(number, of_one.numpy().tobytes()) for number, of_one in enumerate(state)]


def _kept(graph: fx.Graph, first: fx.Node) -> fx.Node:
    """Returns a copy of what was drawn, as it was then: what is drawn is often written to (`empty().bernoulli_()`)."""
    drawn = _drawn(first)
    with graph.inserting_after(drawn):
        return _insert(graph, _aten.clone.default, (drawn,), like=first)


def _replace(graph: fx.Graph, node: fx.Node, kept: fx.Node) -> None:
    """Has an operation that draws give what was kept."""
    drawn, filled = _drawn(node), _filled(node)
    with graph.inserting_before(drawn):
        if filled is None:
            given = _insert(graph, _aten.clone.default, (kept,), like=node)
        else:
            given = _insert(graph, _aten.copy_.default, (filled, kept), like=node)
    if "again" in node.meta:
        given.meta["again"] = node.meta["again"]
    drawn.replace_all_uses_with(given)
    graph.erase_node(drawn)
    if drawn is not node:
        graph.erase_node(node)


def _drawn(node: fx.Node) -> fx.Node:
    """Returns what stands for the tensor that is drawn: of a dropout that was taken apart, its mask."""
    return next(iter(node.users)) if node.target is DROPOUT else node


def _filled(node: fx.Node) -> Any:
    """Returns what a draw fills; None where it gives a tensor of its own."""
    return node.args[0] if schema_name(node.target).endswith("_") else None


def _insert(graph: fx.Graph, func: Any, args: tuple[Any, ...], like: fx.Node) -> fx.Node:
    """Inserts an operation that is none of the step's, with what is noted of others; it gives what a draw gives."""
    node = graph.call_function(func, args)
    node.meta["draws"], node.meta["layout"] = False, (_filled(like) or _drawn(like)).meta["layout"]
    return node
