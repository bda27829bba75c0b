"""What takes the place of a method or a property for a while.

Not `unittest.mock`: its own code would run in the midst of a recorded step, and be taken for the user's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any


@contextmanager
def shadowed(module: Any, methods: Mapping[str, Callable[..., Any]]) -> Iterator[None]:
    """Has others take the place of methods, on the instance alone."""
    held = vars(module)
    own = {name: held[name] for name in methods if name in held}
    held.update(methods)
    try:
        yield
    finally:
        for name in methods:
            del held[name]
        held.update(own)


@contextmanager
def replaced(kind: type, name: str, new: Any) -> Iterator[None]:
    """Has something take the place of what a class has, itself or by those that it is derived from."""
    own = vars(kind).get(name)
    setattr(kind, name, new)
    try:
        yield
    finally:
        if own is None:
            delattr(kind, name)
        else:
            setattr(kind, name, own)
