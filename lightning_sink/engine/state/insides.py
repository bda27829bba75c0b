"""What objects of the language and its standard library hold that is in no attribute: closures, iterators, wrappers.

Owns the list of kinds that a fingerprint (`attributes.py`) looks into so. Looking runs none of the user's code, takes
nothing from an iterator and waits for no lock. What is in no list counts as the same while it is the same object:
nobody keeps a step's numbers in a lock or a logger.
"""

from __future__ import annotations

import ctypes
import gc
import itertools
import random
import threading
import weakref
from array import array
from collections import OrderedDict, deque
from collections.abc import Callable, Collection
from contextvars import ContextVar
from functools import lru_cache, partial, partialmethod, singledispatch, singledispatchmethod
from multiprocessing.sharedctypes import SynchronizedBase
from operator import length_hint
from types import BuiltinFunctionType, FrameType, FunctionType, GeneratorType, MethodType, MethodWrapperType, ModuleType
from typing import Any

MOST_BYTES = 1 << 24
"""Bytes, and plain numbers, that are compared as a whole."""

CACHED = type(lru_cache(len))
"""Of functions whose results are kept."""

_Look = Callable[[Any], Collection[Any] | None]


def insides(value: Any) -> Collection[Any] | None:
    """Returns what such an object holds, None for any other one."""
    look = _look_at(type(value))  # type: ignore[arg-type]
    return None if look is None else look(value)


@lru_cache(maxsize=1024)
def _look_at(kind: type) -> _Look | None:
    return next((look for base, look in _LOOKS.items() if issubclass(kind, base)), None)


# -- functions --------------------------------------------------------------------------------------------------------

_BY_TYPE = singledispatch(len).__code__  # type: ignore[attr-defined]


def _of_function(function: FunctionType) -> list[Any]:
    if function.__code__ is _BY_TYPE:
        # The rest of what it holds is a cache, in which each first call with a type is noted.
        return [function.registry]  # type: ignore[attr-defined]
    cells = [cell.cell_contents for cell in function.__closure__ or () if _is_full(cell)]
    return [*cells, *(own := put_on_function(function)), *own.values()]


def put_on_function(function: Any) -> dict[str, Any]:
    """Returns what somebody has put on a function."""
    return {name: value for name, value in vars(function).items() if not name.startswith("__")}


def function_in(value: Any) -> Any:
    """Returns the function of a method of a class's, or of a property; other values as they are, and asked nothing."""
    if issubclass(type(value), (staticmethod, classmethod)):
        return value.__func__
    return value.fget if issubclass(type(value), property) else value


def _is_full(cell: Any) -> bool:
    try:
        return cell.cell_contents is not cell
    except ValueError:
        return False


_PYTHONS_GENERATOR = getattr(random.random, "__self__", None)


def _of_bound_to_c(method: Any) -> list[Any] | None:
    owner = method.__self__
    if owner is None or owner is _PYTHONS_GENERATOR or isinstance(owner, (ModuleType, type)):
        return None
    return [method.__name__, owner]


_CACHES: weakref.WeakKeyDictionary[Any, tuple[int, int, int]] = weakref.WeakKeyDictionary()
"""Hits and misses of caches when they were last looked at, and how many times they were seen to be cleared."""


def _of_cache(cache: Any) -> list[Any]:
    found = cache.cache_info()
    hits, misses, cleared = _CACHES.get(cache, (0, 0, 0))
    cleared += found.hits < hits or found.misses < misses
    _CACHES[cache] = found.hits, found.misses, cleared
    return [cache.__wrapped__, cleared, *(own := put_on_function(cache)), *own.values()]


# -- iterators --------------------------------------------------------------------------------------------------------


class _Sequence:
    def __getitem__(self, index: int) -> int:
        raise IndexError

    def __len__(self) -> int:
        return 0


_GONE_THROUGH: list[Any] = [[], (), range(0), range(1 << 70), "", "\N{BULLET}", b"", bytearray(), deque(), array("b")]
_BACKWARDS: list[Any] = [[], deque(), _Sequence()]
_IN_PLACE = [*map(iter, [*_GONE_THROUGH, OrderedDict(), _Sequence()]), *map(reversed, _BACKWARDS)]
_VIEWS: list[Any] = [{}, {}.values(), {}.items()]
_BY_HASH = [iter(set[Any]()), *map(iter, _VIEWS), *map(reversed, _VIEWS)]


def _of_generator(generator: GeneratorType[Any, Any, Any]) -> list[Any]:
    frame = generator.gi_frame
    if frame is None:
        return []
    # A `for` of its own goes through an iterator that has no name; Python 3.10 holds it by the frame.
    held = gc.get_referents(generator)
    held += [item for inner in held if isinstance(inner, FrameType) for item in gc.get_referents(inner)]
    return [frame.f_lasti, *frame.f_locals.values(), *(item for item in held if hasattr(type(item), "__next__"))]


def _of_memory(value: Any) -> list[Any] | None:
    try:
        with memoryview(value) as seen:
            return [seen.tobytes()] if seen.nbytes <= MOST_BYTES else None
    except (ValueError, TypeError, BufferError):  # it has been released, or is of a format that has no bytes
        return None


# -- the list ---------------------------------------------------------------------------------------------------------

_LOOKS: dict[type, _Look] = {
    FunctionType: _of_function,
    MethodType: lambda value: [value.__func__, value.__self__],
    BuiltinFunctionType: _of_bound_to_c,
    MethodWrapperType: _of_bound_to_c,
    CACHED: _of_cache,
    **dict.fromkeys((partial, partialmethod), lambda value: [value.func, value.args, value.keywords, vars(value)]),
    **dict.fromkeys((staticmethod, classmethod), lambda value: [value.__wrapped__, put_on_function(value)]),
    property: lambda value: [value.fget, value.fset],
    singledispatchmethod: lambda value: [value.dispatcher, value.func],
    ContextVar: lambda value: [value.get(None)],
    weakref.ref: lambda value: [value()],
    threading.Event: lambda value: [threading.Event.is_set(value)],
    SynchronizedBase: lambda value: [value.get_obj()],
    **dict.fromkeys((bytearray, array, memoryview, ctypes.c_int.__mro__[-2]), _of_memory),
    GeneratorType: _of_generator,
    # Those that go through others leave the place to them. `itertools.cycle` does so in its first pass only.
    **dict.fromkeys((enumerate, zip, map, filter, type(iter(int, 1))), gc.get_referents),
    **dict.fromkeys((kind for kind in vars(itertools).values() if isinstance(kind, type)), gc.get_referents),
    itertools.count: lambda value: [repr(value)],
    itertools.repeat: lambda value: [length_hint(value, -1), *gc.get_referents(value)],
    # What they go through and how far they are.
    **dict.fromkeys(map(type, _IN_PLACE), lambda value: value.__reduce__()[1:]),
    **dict.fromkeys(map(type, _BY_HASH), lambda value: [length_hint(value), *gc.get_referents(value)]),
}
