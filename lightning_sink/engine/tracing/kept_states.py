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

_MOST_BYTES = 1 << 20
"""Bytes of an array that is kept: larger ones are data, which steps read."""


class KeptStates:
    """The states of such objects at one moment.

    Args:
        values: Objects, those that hold none among them.
    """

    def __init__(self, values: Iterable[Any]) -> None:
        found = {id(value): value for value in values}
        self._put_back = [put_back for value in found.values() if (put_back := _kept(value)) is not None]

    def restore(self) -> None:
        """Puts them back."""
        for put_back in self._put_back:
            put_back()


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
    if type(value) in (bytearray, array) and len(value) <= _MOST_BYTES:
        content = value[:]
        return lambda: value.__setitem__(slice(None), content)
    return _kept_of_numpy(value) if type(value).__module__.startswith("numpy") else None


def _kept_of_numpy(value: Any) -> Callable[[], None] | None:
    if hasattr(value, "bit_generator"):
        present = value.bit_generator.state
        return lambda: setattr(value.bit_generator, "state", present)
    if type(value).__name__ == "RandomState":
        state = value.get_state()
        return lambda: value.set_state(state)
    if type(value).__name__ == "ndarray" and value.nbytes <= _MOST_BYTES and value.flags.writeable:
        content = value.copy()
        return lambda: value.__setitem__(..., content)
    return None
