"""What an object holds under names: its attributes and slots, found without running any code of the user's."""

from __future__ import annotations

import threading
from functools import lru_cache
from types import GetSetDescriptorType, MemberDescriptorType
from typing import Any

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


@lru_cache(maxsize=4096)
def _places(kind: type) -> tuple[Any, list[tuple[str, Any]]]:
    """Returns what gives the dictionary of a class's objects, and what each of their slots holds."""
    found = (vars(base).get("__dict__") for base in kind.__mro__)
    dictionary = next((item for item in found if isinstance(item, _DESCRIPTORS)), None)
    slots = [item for base in kind.__mro__ if "__slots__" in vars(base) for item in vars(base).items()]
    return dictionary, [(name, item) for name, item in slots if type(item) is MemberDescriptorType]
