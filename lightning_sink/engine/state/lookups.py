"""Attributes that hold numbers by their places, as a schedule has one for each step: `self.rates[self.global_step]`.

A list, or an array of numpy's, asks a stand-in for the number itself, and gives a plain one. So while a step is
recorded, a line that looks something up in such an attribute, and does nothing else with it there, gets a `Lookup`,
which gives a stand-in for what it has at a stand-in's place. A program has the numbers as a constant: what attributes
hold is taken for granted. Where an attribute stands in a line is known from Python 3.11 on.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from copy import copy
from functools import cached_property
from threading import get_ident
from types import FrameType
from typing import Any

import torch
from torch import Tensor

from lightning_sink.engine.numbers.flows import value_at
from lightning_sink.engine.numbers.number import Number
from lightning_sink.engine.state.attribute_watch import AttributeWatches, is_plain
from lightning_sink.engine.watch import is_user_frame
from lightning_sink.whose import is_users

_MOST = 1 << 17
"""Numbers at most: more are no schedule, and in much larger arrays changes are not seen (docs/steps.md)."""


@contextmanager
def lookups_known(holders: Iterable[tuple[str, Any]]) -> Iterator[None]:
    """Stands before attributes that hold such numbers, of objects with what the attributes' names begin with."""
    watches = AttributeWatches()
    try:
        for prefix, holder in holders:
            kind = type(holder)
            for key in [key for key, value in vars(holder).items() if _has_floats(value)]:
                if is_users(kind.__module__) and is_plain(kind, key):
                    watches.watch(holder, key, _Asked(prefix + key, key))
        yield
    finally:
        watches.end()


class Lookup:
    """Stands for a list or an array where something is looked up in it.

    Args:
        held: What the attribute holds.
        numbers: The same, in a copy that stays as it is.
        name: What users call it.
    """

    def __init__(self, held: Any, numbers: Any, name: str) -> None:
        self._held, self._numbers, self._name = held, numbers, name

    def __getitem__(self, place: Any) -> Any:
        is_known = type(place) is Number and place.host is not None and type(place.value) is int
        is_known = is_known and [*self._held] == [*self._numbers]  # the place may have been worked out by a change
        name, plain = f"{self._name} at", self._numbers.__getitem__
        found = place.computed(name, plain, self._look_up, self._has) if is_known else None
        return self._held[place] if found is None else found

    def _look_up(self, place: Tensor) -> Tensor:
        places = place.to(torch.int64).remainder(len(self._numbers)).reshape(1)  # those below zero are from the end
        return self._tensor.index_select(0, places).reshape(())

    def _has(self, place: Tensor) -> Tensor:
        return (place >= -len(self._numbers)) & (place < len(self._numbers))

    @cached_property
    def _tensor(self) -> Tensor:
        return torch.tensor(self._numbers, dtype=torch.float64, device="cpu")


class _Asked:
    """What becomes of one attribute in a step, which may change what is there."""

    def __init__(self, name: str, key: str) -> None:
        self._name, self._key, self._thread = name, key, get_ident()
        self._numbers: Any = None

    def got(self, value: Any, frame: FrameType) -> Any:
        """Returns what a frame gets that asks for it."""
        if not (self._is_looked_up_in(frame) and _has_floats(value)):
            return value
        if self._numbers is None:
            self._numbers = copy(value)
        return Lookup(value, self._numbers, self._name)

    def changed(self) -> None:
        """What has been put there is taken for what it is, and the step for one that changes an attribute."""

    def _is_looked_up_in(self, frame: FrameType) -> bool:
        if get_ident() != self._thread or not is_user_frame(frame):
            return False
        source, node = value_at([frame])
        if source is None or not isinstance(node, ast.Attribute) or node.attr != self._key:
            return False
        around = source.parents[node]
        return isinstance(around, ast.Subscript) and around.value is node and isinstance(around.ctx, ast.Load)


def _has_floats(value: Any) -> bool:
    """Tells whether something holds nothing but floats, by their places, and is looked at as a whole for changes."""
    if type(value) in (list, tuple):
        return 1 < len(value) <= _MOST and all(type(item) is float for item in value)
    numpy = sys.modules.get("numpy")
    if numpy is None or type(value) is not numpy.ndarray:
        return False
    return value.ndim == 1 and len(value) <= _MOST and value.dtype == numpy.float64
