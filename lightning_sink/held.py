"""What an object holds under names: its attributes and slots, found without running any code of the user's."""

from __future__ import annotations

import gc
import inspect
import threading
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from types import GetSetDescriptorType, MemberDescriptorType
from typing import Any

ABSENT = object()
"""Stands for what is not there."""

_DESCRIPTORS = (GetSetDescriptorType, MemberDescriptorType)


def held_by(value: Any) -> dict[str, Any]:
    """Returns the dictionary of an object's attributes; an empty one where it has none. Asks no code of the user's."""
    kind = type(value)
    if issubclass(kind, threading.local):  # which has one for each thread
        found: dict[str, Any] = threading.local.__getattribute__(value, "__dict__")
        return found
    dictionary = _places(kind)[0]  # type: ignore[arg-type]
    return {} if dictionary is None else dictionary.__get__(value)


def slots_of(value: Any) -> dict[str, Any]:
    """Returns what an object holds in slots, and asks no code of the user's."""
    found = dict[str, Any]()
    for name, slot in _places(type(value))[1]:  # type: ignore[arg-type]
        try:
            found[name] = slot.__get__(value)
        except AttributeError:  # it is empty
            continue
    return found


def attribute_of(holder: Any, name: str) -> Any:
    """Returns what an object has under a name, without running code; None where it has nothing."""
    held = held_by(holder)
    modules = held.get("_modules")
    return held.get(name, modules.get(name) if type(modules) is dict else None)


def found_behind(path: Sequence[str], scopes: Iterable[Mapping[str, Any]]) -> Any:
    """Returns what a variable is, or an attribute of what it holds, without running code.

    Of a class's own it is what stands there: a function, a property. `ABSENT` for what there is not.
    """
    held = next((scope[path[0]] for scope in scopes if path[0] in scope), ABSENT)
    for name in path[1:]:
        holder, held = held, attribute_of(held, name)
        if held is None:
            held = inspect.getattr_static(type(holder), name, ABSENT)
    return held


@lru_cache(maxsize=4096)
def _places(kind: type) -> tuple[Any, list[tuple[str, Any]]]:
    """Returns what gives the dictionary of a class's objects, and what each of their slots holds."""
    found = (vars(base).get("__dict__") for base in kind.__mro__)
    dictionary = next((item for item in found if isinstance(item, _DESCRIPTORS)), None)
    slots = [item for base in kind.__mro__ if "__slots__" in vars(base) for item in vars(base).items()]
    return dictionary, [(name, item) for name, item in slots if type(item) is MemberDescriptorType]


def unfreeze() -> None:
    """Takes a `gc.freeze()` back, which hides objects from who looks for those that hold something.

    Functions whose globals change would not be compared, and numbers that a step keeps would stay stand-ins.
    """
    if gc.get_freeze_count():
        gc.unfreeze()
