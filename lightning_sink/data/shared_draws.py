"""Generators of the user's own that steps or transfer hooks draw from: a fetch that does so, too, has its turn.

They are looked for where the code of these names them. What is asked for by a text, or kept in large containers, is not
found.
"""

from __future__ import annotations

import inspect
import random
from collections.abc import Iterable, Iterator
from functools import partial
from types import FunctionType, MethodType
from typing import Any

import numpy as np
import torch

from lightning_sink.data.holding_training import enclosed_by, functions_of
from lightning_sink.held import ABSENT, held_by, slots_of
from lightning_sink.names import names_in
from lightning_sink.whose import is_users, module_of

_KINDS = (torch.Generator, random.Random, np.random.Generator, np.random.RandomState)

_DEEPEST = 3
"""Objects between a function and a generator, counted with that."""

_FEW = 32
"""Items of a container that are looked at."""


def drawn_from(functions: Iterable[Any]) -> Iterator[Any]:
    """Yields the generators that functions name: in their closures, in objects' attributes, and in those of these."""
    level, seen = [*functions], set[tuple[int, int]]()
    for _ in range(_DEEPEST):
        level = [item for key, item in {_key(item): item for item in level}.items() if key not in seen]
        seen.update(map(_key, level))
        named = _once(value for item in level for value in _named_by(item))
        yield from (value for value in named if issubclass(type(value), _KINDS))
        level = [value for value in named if type(value) in (FunctionType, MethodType)]
        level += [method for value in named for method in methods_of(value)]


def methods_of(value: Any) -> list[Any]:
    """Returns the methods and properties of an object of the user's, and functions that somebody has put on it."""
    functions = [function for kind in type(value).__mro__ for function in functions_of(kind).values()]
    own = (item for item in held_by(value).values() if type(item) is FunctionType)
    return [*(MethodType(function, value) for function in functions), *own]


def _key(function: Any) -> tuple[int, int]:
    """Tells functions apart. A method is made anew each time that it is asked for."""
    return id(getattr(function, "__func__", function)), id(getattr(function, "__self__", None))


def _once(values: Iterable[Any]) -> list[Any]:
    return [*{id(value): value for value in values}.values()]


def _named_by(function: Any) -> list[Any]:
    """Returns what is in a function's closure, and what it names of that and of the object whose method it is."""
    code = getattr(function, "__code__", None)
    if code is None:
        return []
    around, names = enclosed_by(function), names_in(code)
    owner = getattr(function, "__self__", None)
    # What a decorator wraps is a method of the same object.
    found = [MethodType(item, owner) if type(item) is FunctionType and owner is not None else item for item in around]
    level = [*around, owner]
    for _ in range(_DEEPEST):
        level = _once(part for item in level for name in names for part in _parts(_attribute(item, name)))
        found += level
    return found


def _attribute(item: Any, name: str) -> Any:
    """Returns what an object, or its class if that is the user's, has under a name, and runs no code."""
    for held in (held_by(item), slots_of(item)):
        if name in held:
            return held[name]
    return inspect.getattr_static(type(item), name, ABSENT) if is_users(module_of(type(item))) else ABSENT


def _parts(value: Any) -> list[Any]:
    if type(value) is partial:
        return [value.func, *value.args, *value.keywords.values()]
    if type(value) in (list, tuple, dict) and len(value) <= _FEW:
        return [*(value.values() if type(value) is dict else value)]
    return [] if value is ABSENT else [value]
