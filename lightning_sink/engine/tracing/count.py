"""A number in a tensor to which each step adds the same, and nothing else: known ahead, so Python may decide by it.

Optimizers keep such numbers (`step_counts.py`), and so do modules (`asked_counts.py`). Steps in a row are gone through
before any of them has run (`ahead.py`): a `Count` then says what the tensor will hold.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import cached_property
from typing import Any, cast

import torch
from torch import Tensor, fx

from lightning_sink.engine.numbers.guards import Guard
from lightning_sink.engine.state.ahead import Ahead

_aten = torch.ops.aten
_SIGNS = {_aten.add_.Tensor: 1, _aten.add_.Scalar: 1, _aten.sub_.Tensor: -1}

EXACT, TYPES = 1 << 24, (torch.float32, torch.float64, torch.int32, torch.int64)
"""Whole numbers up to this are added exactly in these types, which counts mostly have."""

_MOST_STEPS = 1 << 12
"""More steps than a row has."""

Add = tuple[float, float]
"""A number, and what it is multiplied by."""


class Count(Ahead):
    """A number in a tensor, as a step that is about to run finds it where it asks.

    Args:
        node: What stands for that in the graph.
        before: What the step adds to it before it asks.
    """

    def __init__(self, tensor: Tensor, node: fx.Node, before: list[Add]) -> None:
        super().__init__()
        self._tensor, self.node, self._before = tensor, node, before
        self._is_asked = False

    @property
    def input(self) -> int:
        """Which input of the recording it is."""
        return int(self.node.meta["input"])

    @cached_property
    def adds(self) -> list[Add] | None:
        """What a whole step adds to it, once that is recorded; None where nobody knows it ahead."""
        return added_to(self.node)

    def __call__(self) -> float:
        """Returns it."""
        self._is_asked = True
        found = _sum(self.found(), self._before)
        return cast(float, found.item()) if isinstance(found, Tensor) else found

    def decides(self, guard: Guard) -> bool:
        """Tells whether it is asked for what a guard decides."""
        self._is_asked = False
        guard.holds()
        return self._is_asked

    def present(self) -> Tensor:
        """Returns the tensor."""
        return self._tensor

    def begin_row(self, follows: bool) -> None:
        """Steps in a row are about to be gone through: it is a float where what they add to it is exact in floats."""
        super().begin_row(follows)
        dtype = self._tensor.dtype
        start = torch.as_tensor(self.found(), dtype=dtype).detach().to("cpu", copy=True)
        number, moves = float(start), [float(each * alpha) for each, alpha in self.adds or ()]
        is_whole = all(map(float.is_integer, (number, *moves)))
        is_exact = is_whole and abs(number) + _MOST_STEPS * sum(map(abs, moves)) < EXACT
        self.leave(number if is_exact and dtype in TYPES else start)

    def passed(self) -> None:
        """A step was gone through."""
        self.leave(_sum(self.found(), self.adds or []))  # none are asked of which that is not known


def _sum(held: Tensor | float, adds: list[Add]) -> Tensor | float:
    """Returns what numbers are added to, as the step does it: in the tensor's own type, one after the other."""
    if not isinstance(held, Tensor):
        return held + sum(number * alpha for number, alpha in adds)
    if not adds:
        return held
    total = held.detach().to("cpu", copy=True)
    for number, alpha in adds:
        total.add_(number, alpha=alpha)
    return total


def added_to(node: fx.Node, behind: Collection[fx.Node] = ()) -> list[Add] | None:
    """Returns what operations add to a tensor, in their order; None where they change it otherwise.

    But for those that come `behind` the moment that is asked about.
    """
    adds: list[Add] = []
    for user in node.users:
        if user in behind:
            continue
        if user.target in _SIGNS and isinstance(user.args[1], (int, float)):
            factor = _SIGNS[user.target] * cast(float, user.kwargs.get("alpha", 1))
            adds.append((user.args[1], factor))
        elif writes_through(user, node):
            return None
    return adds


def writes_through(user: fx.Node, node: fx.Node) -> bool:
    """Tells whether an operation, or one on a view that it gives, may write to one of its arguments."""
    if user.op == "output":
        return False
    schema: Any = getattr(user.target, "_schema", None)
    if schema is None:  # a part of what an operation gave
        return any(writes_through(other, user) for other in user.users)
    given = [*zip(schema.arguments, user.args, strict=False)]
    given += [(argument, user.kwargs[argument.name]) for argument in schema.arguments if argument.name in user.kwargs]
    for argument, value in given:
        holds = value is node or (isinstance(value, (list, tuple)) and any(item is node for item in value))
        shares = argument.alias_info if holds else None
        if shares is not None and (shares.is_write or any(writes_through(other, user) for other in user.users)):
            return True
    return False
