"""What takes the place of a method, a property or an attribute for a while.

Not `unittest.mock`: its own code would run in the midst of a recorded step, and be taken for the user's.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

_ONE_AT_A_TIME = threading.RLock()


@contextmanager
def alone() -> Iterator[bool]:
    """Tells whether no other thread is in here, and keeps others out.

    What stands in classes and modules while a step is recorded stands there for the whole process: two threads that
    take it out again in another order than it was put in would leave some of it there. None waits for another, whose
    step may wait for what this one does.
    """
    is_alone = _ONE_AT_A_TIME.acquire(blocking=False)
    try:
        yield is_alone
    finally:
        if is_alone:
            _ONE_AT_A_TIME.release()


@contextmanager
def shadowed(item: Any, others: Mapping[str, Any]) -> Iterator[None]:
    """Has others take the place of methods or attributes, on the instance alone."""
    held = vars(item)
    own = {name: held[name] for name in others if name in held}
    held.update(others)
    try:
        yield
    finally:
        for name in others:
            if name in own:
                held[name] = own[name]
            else:
                del held[name]


@contextmanager
def replaced(kind: type, name: str, new: Any) -> Iterator[None]:
    """Has something take the place of what a class has, itself or by those that it is derived from."""
    has_own, own = name in vars(kind), vars(kind).get(name)
    setattr(kind, name, new)
    try:
        yield
    finally:
        if has_own:
            setattr(kind, name, own)
        else:
            delattr(kind, name)
