"""What stands on a class, for the time of a recorded step, before an attribute of its objects, and sees it be used.

`AttributeWatch` owns the place on the class. What is to be known of one object's attribute is for who watches it: steps
that add to it (`collectors.py`), or that use it at all (`varying.py`).
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterable, Mapping
from functools import lru_cache
from threading import Lock
from types import CodeType, FrameType, FunctionType
from typing import Any, NamedTuple, Protocol

from lightning_sink.engine.numbers.guards import Uses
from lightning_sink.engine.numbers.plain_uses import PlainUses
from lightning_sink.held import ABSENT
from lightning_sink.whose import is_library, is_pythons


class Watcher(Protocol):
    """What is told of one object's attribute."""

    def got(self, value: Any, frame: FrameType) -> Any:
        """Returns what a frame gets that asks for it."""

    def changed(self) -> None:
        """Called when it was set or deleted."""


class Looks(NamedTuple):
    """What those who watch attributes know of the step that is recorded.

    Attributes:
        ran: Takes the step's code.
        past: Takes functions that look at all attributes at once.
        plain: Tells where a stand-in goes to nobody who needs the number itself.
    """

    uses: Uses
    ran: Mapping[int, CodeType]
    past: list[Any]
    plain: PlainUses


class AttributeWatch:
    """Stands before an attribute; the value stays where it is.

    Attributes:
        own: What the class has itself; `ABSENT` for nothing.
    """

    def __init__(self, kind: type, key: str) -> None:
        self._kind, self._key = kind, key
        self._default: Any
        self.own = vars(kind).get(key, ABSENT)
        found = next((vars(base)[key] for base in kind.__mro__ if key in vars(base)), ABSENT)
        self._default = found._default if type(found) is AttributeWatch else found
        self._watchers: dict[int, Watcher] = {}
        type.__setattr__(kind, key, self)

    def watch(self, holder: Any, watcher: Watcher) -> None:
        """Watches an object of the class."""
        self._watchers[id(holder)] = watcher

    def __get__(self, holder: Any, kind: type | None = None) -> Any:
        # One whose own class has another watch comes here by `super()`, which asks classes alone.
        nearest = vars(type(holder)).get(self._key)
        is_asked = holder is not None and (nearest is self or type(nearest) is not AttributeWatch)
        held = vars(holder) if is_asked else {}
        value = held.get(self._key, self._default)
        if value is ABSENT:
            raise AttributeError(f"{self._kind.__name__!r} object has no attribute {self._key!r}")
        watcher = self._watchers.get(id(holder)) if is_asked else None
        return value if watcher is None else watcher.got(value, sys._getframe(1))

    def __set__(self, holder: Any, value: Any) -> None:
        vars(holder)[self._key] = value
        if (watcher := self._watchers.get(id(holder))) is not None:
            watcher.changed()

    def __delete__(self, holder: Any) -> None:
        if self._key not in vars(holder):
            raise AttributeError(self._key)
        del vars(holder)[self._key]
        if (watcher := self._watchers.get(id(holder))) is not None:
            watcher.changed()

    @property
    def is_there(self) -> bool:
        """Whether the step has left it there."""
        return vars(self._kind).get(self._key) is self

    def end(self) -> None:
        """Leaves the class as it was, or as the step has made it."""
        if not self.is_there:
            return
        if self.own is ABSENT:
            type.__delattr__(self._kind, self._key)
        else:
            type.__setattr__(self._kind, self._key, self.own)


_ONE_AT_A_TIME = Lock()
"""Steps of two threads may be recorded at once, and one of them has a class's attribute."""


class AttributeWatches:
    """Those of one recorded step: one for each attribute of a class, whichever of its objects are watched."""

    def __init__(self) -> None:
        self._all: dict[tuple[type, str], AttributeWatch] = {}

    def watch(self, holder: Any, key: str, watcher: Watcher) -> AttributeWatch | None:
        """Watches an object's attribute; returns what stands on the class, None where somebody else has one there."""
        kind = type(holder)
        with _ONE_AT_A_TIME:
            if type(vars(kind).get(key)) is not AttributeWatch:
                self._all[kind, key] = AttributeWatch(kind, key)
        found = self._all.get((kind, key))
        if found is not None:
            found.watch(holder, watcher)
        return found

    def end(self) -> None:
        """Leaves the classes as they were, or as the step has made them."""
        for watch in self._all.values():
            watch.end()


def is_plain(kind: type, key: str) -> bool:
    """Tells whether getting and setting an attribute runs no code of the user's."""
    methods = (inspect.getattr_static(kind, name) for name in ("__setattr__", "__getattribute__"))
    are_users = any(isinstance(method, FunctionType) and not is_library(method.__module__) for method in methods)
    return not are_users and not hasattr(type(inspect.getattr_static(kind, key, None)), "__get__")


_READS_PAST = frozenset(["vars", "__dict__", "dir", "getmembers", "getattr_static", "copy", "deepcopy"])
_READS_PAST |= {"__getstate__", "__reduce_ex__", "__dir__", "dumps"}


_ASKS = frozenset(["type", "__class__"])


def asking_for_types(codes: Iterable[CodeType]) -> list[CodeType]:
    """Returns the code of the user's that may ask for the type of what it gets, which a stand-in has not."""
    return [code for code in codes if not is_pythons(code) and _asks_for_types(code)]


@lru_cache(maxsize=4096)
def _asks_for_types(code: CodeType) -> bool:
    inside = (inner for inner in code.co_consts if isinstance(inner, CodeType))
    return bool(_ASKS.intersection(code.co_names)) or any(map(_asks_for_types, inside))


def may_read_past(codes: Iterable[CodeType]) -> bool:
    """Tells whether code of the user's may see attributes, or what stands on their class, without asking for them.

    The standard library knows no attribute of the user's by its name.
    """
    return any(_reads_past(code) for code in codes if not is_pythons(code))


@lru_cache(maxsize=4096)
def _reads_past(code: CodeType) -> bool:
    return bool(_READS_PAST & {*code.co_names, *code.co_consts})
