"""Generators of the user's own that steps or transfer hooks draw from: a fetch that does so, too, has its turn."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterable, Iterator
from types import CellType, FunctionType, MethodType
from typing import Any

import torch

from lightning_sink.held import held_by
from lightning_sink.names import names_in
from lightning_sink.whose import is_users, module_of

_DEEPEST = 3
"""Objects between a function and a generator, counted with that."""


def drawn_from(functions: Iterable[Any]) -> Iterator[Any]:
    """Yields the generators that functions name: in their closures, in objects' attributes, and in those of these."""
    level, seen = [*functions], set[int]()
    kinds = _kinds()
    for _ in range(_DEEPEST):
        level = [item for item in level if id(item) not in seen]
        seen.update(map(id, level))
        named = [value for item in level for value in _named_by(item)]
        yield from (value for value in named if issubclass(type(value), kinds))
        level = [value for value in named if type(value) in (FunctionType, MethodType)]
        level += [method for value in named for method in methods_of(value)]


def methods_of(value: Any) -> list[Any]:
    """Returns the methods of an object of the user's, and functions that somebody has put on it."""
    kinds = [kind for kind in type(value).__mro__ if is_users(module_of(kind))]
    functions = [item for kind in kinds for item in vars(kind).values() if type(item) is FunctionType]
    own = (item for item in held_by(value).values() if type(item) is FunctionType)
    return [*(MethodType(function, value) for function in functions), *own]


def _named_by(function: Any) -> list[Any]:
    """Returns what is in a function's closure, and what it names of that and of the object whose method it is."""
    code = getattr(function, "__code__", None)
    if code is None:
        return []
    cells = [cell for cell in function.__closure__ or () if cell != CellType()]
    around = [cell.cell_contents for cell in cells]
    level, found = [*around, getattr(function, "__self__", None)], around
    for _ in range(_DEEPEST):
        held = map(held_by, level)
        level = [attributes[name] for attributes in held for name in names_in(code) & attributes.keys()]
        found = found + level
    return found


def _kinds() -> tuple[type, ...]:
    numpy = sys.modules.get("numpy")
    numpys = () if numpy is None else (numpy.random.Generator, numpy.random.RandomState)
    return (torch.Generator, random.Random, *numpys)
