"""What objects in attributes hold that a step changes in place, and no operation shows: generators, arrays, bytes.

Iterators cannot be put back, nor can objects of the user's with slots: whoever records says that they have moved.
"""

from __future__ import annotations

import random
from array import array
from collections.abc import Callable, Iterable
from typing import Any

import torch

from lightning_sink.engine.state.attributes import is_a

_MOST_BYTES = 1 << 24
"""Bytes of arrays that are kept in all: what is more is data, which steps read."""


class KeptStates:
    """The states of such objects at one moment, among any others."""

    def __init__(self, values: Iterable[Any]) -> None:
        self._put_back: list[Callable[[], None]] = []
        room = _MOST_BYTES
        for value in {id(value): value for value in values}.values():
            size = _bytes_of(value)
            if size <= room and (put_back := _kept(value)) is not None:
                self._put_back.append(put_back)
                room -= size

    def restore(self) -> None:
        """Puts them back."""
        for put_back in self._put_back:
            put_back()


def _bytes_of(value: Any) -> int:
    """Returns the bytes of an array; none for any other object."""
    if type(value) is bytearray:
        return len(value)
    if type(value) is array:
        return len(value) * value.itemsize
    return int(value.nbytes) if _is_numpys(value, "ndarray") else 0


def _kept(value: Any) -> Callable[[], None] | None:
    """Returns what puts an object back; None for one of which nothing is kept."""
    if is_a(value, random.Random):
        state = value.getstate()
        return lambda: value.setstate(state)
    if is_a(value, torch.Generator):
        present = value.get_state()

        def put_back() -> None:
            value.set_state(present)

        return put_back
    if type(value) in (bytearray, array):
        content = value[:]
        return lambda: value.__setitem__(slice(None), content)
    if _is_numpys(value, "Generator"):
        numbers = value.bit_generator.state
        return lambda: setattr(value.bit_generator, "state", numbers)
    if _is_numpys(value, "RandomState"):
        older = value.get_state()
        return lambda: value.set_state(older)
    if _is_numpys(value, "ndarray") and value.flags.writeable:
        items = value.copy()
        return lambda: value.__setitem__(..., items)
    return None


def _is_numpys(value: Any, name: str) -> bool:
    return type(value).__name__ == name and type(value).__module__.startswith("numpy")
