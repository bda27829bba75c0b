"""Random draws that a step makes again: activation checkpointing sets generators back before it computes once more.

A program has no generator to set back. What it drew the first time is kept, and is what the second draw gives. Which
draw is made again is known by the state of the generator before it: no two draws of a generator have the same.
"""

from __future__ import annotations

from collections.abc import Callable
from types import FrameType
from typing import Any

import torch
from torch import Tensor, fx

from lightning_sink.engine.state.default_generators import Generators, State
from lightning_sink.engine.tracing.draws import (
    Draw,
    draw_of,
    drawn_by,
    filled_by,
    insert,
    layout_of,
    replace_draw,
    take_masks_apart,
    written_nodes,
)
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
        self._forks: dict[int, bool] = {}  # whether each was left
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

    def sets_back(self, frame: FrameType, is_set: bool) -> None:
        """Takes note of a function of torch's that asks for a generator's state, or sets it.

        What `fork_rng` does when it is left, it does in the frame in which it was entered.
        """
        if frame.f_code.co_name != torch.random.fork_rng.__name__:
            return
        fork = id(frame)
        if not is_set:
            self._forks[fork] = False
        elif fork in self._forks:
            self._forks[fork] = True
        else:
            self._hazard("`torch.random.fork_rng()` is entered in one step and left in another", None)

    def end(self) -> None:
        """The span ends: what comes next is to draw something new."""
        present = _keys(self._generators.state())
        if not self._first.keys().isdisjoint(present) or not self._known.issuperset(present):
            self._hazard("a random generator is set back, and left there", None)
        if not all(self._forks.values()):
            self._hazard("`torch.random.fork_rng()` is entered in one step and left in another", None)

    def finish(self, graph: fx.Graph) -> None:
        """Has the graph use what it drew first in the place of what was drawn again."""
        if not self._again:
            return
        take_masks_apart(graph)
        written = written_nodes(graph.nodes)
        for node, first, where in self._again:
            one, other = draw_of(first, written), draw_of(node, written)
            if one is None or other is None:
                self._hazard("a random generator is set back, and what is drawn again depends on a tensor", where)
                return
            if layout_of(first) != layout_of(node) or not _are_alike(_without_type(one), _without_type(other)):
                self._hazard("a random generator is set back, and something else is drawn than before", where)
                return
        for node, first, _ in self._again:
            _repeat(graph, node, _kept(graph, first))


def _without_type(draw: Draw) -> tuple[Any, ...]:
    """Returns what a draw is made by, but for the type: that it is given one does not show by what it gives."""
    options = sorted((name, value) for name, value in draw.options.items() if name != "dtype")
    return draw.target, draw.arguments, options, draw.layout, draw.part


def _are_alike(one: Any, other: Any) -> bool:
    """Tells whether two things are equal, tensors by their numbers."""
    if isinstance(one, (tuple, list)) and isinstance(other, (tuple, list)):
        return len(one) == len(other) and all(map(_are_alike, one, other))
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    return type(one) is type(other) and bool(one == other)


def _keys(state: State) -> list[Before]:
    return [(number, of_one.numpy().tobytes()) for number, of_one in enumerate(state)]


def _kept(graph: fx.Graph, first: fx.Node) -> fx.Node:
    """Returns a copy of what was drawn, as it was then: what is drawn is often written to (`empty().bernoulli_()`)."""
    drawn = drawn_by(first)
    with graph.inserting_after(drawn):
        return insert(graph, _aten.clone.default, (drawn,), layout_of(first))


def _repeat(graph: fx.Graph, node: fx.Node, kept: fx.Node) -> None:
    """Has an operation that draws give what was kept."""
    filled = filled_by(node)
    func, args = (_aten.clone.default, (kept,)) if filled is None else (_aten.copy_.default, (filled, kept))
    with graph.inserting_before(drawn_by(node)):
        given = insert(graph, func, args, layout_of(node))
    if "again" in node.meta:
        given.meta["again"] = node.meta["again"]
    replace_draw(node, given)
