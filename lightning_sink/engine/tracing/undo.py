"""Keeps what a recorded step overwrites, so that a recording that fails costs the training nothing.

`Undo` keeps memory that was there before the step, once for each storage, at the moment it is about to be written to.
`Attributes` keeps what is Python: attributes, containers' contents, and by `keep_objects` what objects hold that a step
changes in place, and no operation shows: generators, arrays, bytes. Iterators cannot be put back, nor can objects of
the user's with slots: whoever records says that they have moved.
"""

from __future__ import annotations

import random
import sys
from array import array
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable
from copy import copy
from itertools import chain
from operator import is_
from types import CellType
from typing import Any

import torch
from torch import Tensor

from lightning_sink.engine.numbers.flows import TABLES
from lightning_sink.engine.state.attributes import MOST_VALUES, NUMBERS, TENSOR_HOLDERS, is_a, items_of, nested
from lightning_sink.engine.state.slots import Parts
from lightning_sink.engine.tracing.origins import memory_of
from lightning_sink.held import ABSENT

_RESTORED = frozenset([list, deque, set, dict, OrderedDict, defaultdict, Counter])

_MOST_BYTES = 1 << 24
"""Bytes of arrays that are kept in all: what is more is data, which steps read."""


class Undo:
    """The contents of storages before the step wrote to them."""

    def __init__(self) -> None:
        self._outside: set[int] = set()
        self._saved: dict[int, tuple[torch.UntypedStorage, torch.UntypedStorage]] = {}

    def watch(self, tensor: Tensor) -> None:
        """Takes note of a tensor that the step did not make."""
        self._outside.add(memory_of(tensor))

    def keep(self, written: Iterable[Tensor]) -> set[int]:
        """Keeps what is about to be overwritten; returns the storages that are kept from now on."""
        kept = set()
        for tensor in written:
            if tensor.layout is torch.strided:
                storage, key = tensor.untyped_storage(), memory_of(tensor)
                if key in self._outside and key not in self._saved:
                    self._saved[key] = (storage, storage.clone())
                    kept.add(key)
        return kept

    def restore(self) -> None:
        """Puts everything back."""
        for storage, saved in self._saved.values():
            storage.copy_(saved)
        self._saved.clear()

    def forget(self) -> None:
        """Lets go of what was kept."""
        self._saved.clear()


class Attributes:
    """The attributes of all that belongs to a training at one moment, to go back to, containers' contents included.

    With them the states of Python's and numpy's global generators.
    """

    def __init__(self, parts: Parts) -> None:
        self._holders = [(prefix, vars(holder), dict(vars(holder))) for prefix, holder in parts.holders()]
        values = [value for *_, held in self._holders for name, value in held.items() if name not in TENSOR_HOLDERS]
        beside = parts.beside()
        self._cells = [(cell, ABSENT if cell == CellType() else cell.cell_contents) for cell in beside.cells]
        self._names = [(scope, name, scope.get(name, ABSENT)) for scope, name in beside.names]
        values += [*beside.values, *(value for *_, value in (*self._cells, *self._names))]
        containers = nested(values)
        self._contents = [
            (content, copy(content) if content else ()) for content in containers if type(content) in _RESTORED
        ]
        inside = (items_of(held)[:MOST_VALUES] for held in containers)
        self._put_back = keep_objects(chain(values, *inside))
        self._random = random.getstate()
        self._numpy = sys.modules["numpy"].random.get_state() if "numpy" in sys.modules else None

    def grown(self) -> list[list[Any]]:
        """Returns the lists that hold more by now, behind what they held."""
        lists = ((content, held) for content, held in self._contents if type(content) is list)
        return [now for now, held in lists if len(now) > len(held) and all(map(is_, now, held))]

    def with_other_numbers(self) -> set[tuple[int, Any]]:
        """Returns where attributes and dictionaries hold another number by now: a dictionary's identity, and a key."""
        tables = [(now, held) for now, held in self._contents if type(now) in TABLES and held]
        pairs = [*((now, held) for _, now, held in self._holders), *tables]
        numbers = ((now, key, was) for now, held in pairs for key, was in held.items() if type(was) in NUMBERS)
        return {
            (id(now), key) for now, key, was in numbers if now.get(key) is not was and type(now.get(key)) in NUMBERS
        }

    def replaced(self) -> set[str]:
        """Returns the attributes that hold another object by now, by the names that users know them by."""
        return {
            prefix + name
            for prefix, now, held in self._holders
            for name, value in now.items()
            if value is not held.get(name, ABSENT)
        }

    def hold(self, container: Any) -> bool:
        """Tells whether a container could be reached by then."""
        return any(content is container for content, _ in self._contents)

    def restore(self) -> None:
        """Puts everything back."""
        for _, attributes, held in self._holders:
            attributes.clear()
            attributes.update(held)
        for container, content in self._contents:
            container.clear()
            (container.extend if isinstance(container, (list, deque)) else container.update)(content)
        for cell, value in self._cells:
            if value is not ABSENT:
                cell.cell_contents = value
            elif cell != CellType():
                del cell.cell_contents
        for scope, name, value in self._names:
            if value is not ABSENT:
                scope[name] = value
            else:
                scope.pop(name, None)
        for put_back in self._put_back:
            put_back()
        random.setstate(self._random)
        if self._numpy is not None:
            sys.modules["numpy"].random.set_state(self._numpy)


def keep_objects(values: Iterable[Any]) -> list[Callable[[], object]]:
    """Returns what puts back generators, arrays and bytes among some values, each to where it is now."""
    found, room = list[Callable[[], object]](), _MOST_BYTES
    for value in {id(value): value for value in values}.values():
        size = _bytes_of(value)
        if size <= room and (put_back := _kept(value)) is not None:
            found.append(put_back)
            room -= size
    return found


def _bytes_of(value: Any) -> int:
    """Returns the bytes of an array; none for any other object."""
    if type(value) is bytearray:
        return len(value)
    if type(value) is array:
        return len(value) * value.itemsize
    return int(value.nbytes) if _is_numpys(value, "ndarray") else 0


def _kept(value: Any) -> Callable[[], object] | None:
    """Returns what puts an object back; None for one of which nothing is kept."""
    if is_a(value, random.Random):
        state = random.Random.getstate(value)
        return lambda: random.Random.setstate(value, state)
    if is_a(value, torch.Generator) or _is_numpys(value, "RandomState"):
        present = value.get_state()
        return lambda: value.set_state(present)
    if type(value) in (bytearray, array):
        content = value[:]
        return lambda: value.__setitem__(slice(None), content)
    if _is_numpys(value, "Generator"):
        numbers = value.bit_generator.state
        return lambda: setattr(value.bit_generator, "state", numbers)
    if _is_numpys(value, "ndarray") and value.flags.writeable:
        items = value.copy()
        return lambda: value.__setitem__(..., items)
    return None


def _is_numpys(value: Any, name: str) -> bool:
    return type(value).__name__ == name and type(value).__module__.startswith("numpy")
