"""A number in a tensor to which each step adds the same, and nothing else: known ahead, so Python may decide by it.

Optimizers keep such numbers (`step_counts.py`), and so do modules (`asked_counts.py`). Steps in a row are gone through
before any of them has run, while those before them may be running: a `Count` then says what the tensor will hold.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, cast

import torch
from torch import Tensor, fx

from lightning_sink.engine.numbers.guards import Guard

_aten = torch.ops.aten
_SIGNS = {_aten.add_.Tensor: 1, _aten.add_.Scalar: 1, _aten.sub_.Tensor: -1}

_EXACT, _MOST_STEPS = 1 << 24, 1 << 12
"""Whole numbers up to this are added exactly in the types that counts mostly have; and more steps than a row has."""

Add = tuple[float, float]
"""A number, and what it is multiplied by."""


class Count:
    """A number in a tensor, as a step that is about to run finds it where it asks.

    Args:
        node: What stands for that in the graph.
        before: What the step adds to it before it asks.
    """

    def __init__(self, tensor: Tensor, node: fx.Node, before: list[Add]) -> None:
        self._tensor, self._node, self._before = tensor, node, before
        self._is_asked = False
        self._in_row: Tensor | float | None = None  # what the next step of a row finds
        self._behind_row: Tensor | float = tensor  # what the first step behind the last row finds

    @property
    def input(self) -> int:
        """Which input of the recording it is."""
        return int(self._node.meta["input"])

    @property
    def adds(self) -> list[Add] | None:
        """What a whole step adds to it; None where steps change it otherwise, so that nobody knows it ahead."""
        return added_to(self._node)

    def __call__(self) -> float:
        """Returns it."""
        self._is_asked = True
        found = _sum(self._tensor if self._in_row is None else self._in_row, self._before)
        return cast(float, found.item()) if isinstance(found, Tensor) else found

    def decides(self, guard: Guard) -> bool:
        """Tells whether it is asked for what a guard decides."""
        self._is_asked = False
        guard.holds()
        return self._is_asked

    def begin_row(self, adds: list[Add], follows: bool) -> None:
        """Steps in a row are about to be gone through, each of which adds this.

        `follows`: they come right behind those that were gone through last, which may be running.
        """
        start = self._behind_row if follows else self._tensor.detach().to("cpu", copy=True)
        number, dtype = float(start), self._tensor.dtype
        most = abs(number) + _MOST_STEPS * sum(abs(each * alpha) for each, alpha in adds)
        is_whole = number.is_integer() and all(float(each * alpha).is_integer() for each, alpha in adds)
        is_exact = is_whole and most < _EXACT and dtype in (torch.float32, torch.float64, torch.int64)
        self._in_row = number if is_exact else torch.as_tensor(start, dtype=dtype)

    def passed(self, adds: list[Add]) -> None:
        """One of them was gone through, which adds this."""
        assert self._in_row is not None  # noqa: S101 - a row has begun
        self._in_row = _sum(self._in_row, adds)

    def end_row(self) -> None:
        """All of them were."""
        assert self._in_row is not None  # noqa: S101 - a row has begun
        self._behind_row, self._in_row = self._in_row, None


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
