"""What objects of the language and its standard library hold that is in no attribute: closures, iterators, wrappers.

Owns the list of kinds that a fingerprint (`attributes.py`) looks into so. What is in no list counts as the same while
it is the same object: nobody keeps a step's numbers in a lock or a logger.
"""

from __future__ import annotations

import ctypes
import gc
import weakref
from collections.abc import Collection
from contextvars import ContextVar
from functools import lru_cache, partial, partialmethod, singledispatch, singledispatchmethod
from itertools import count
from operator import length_hint
from types import FunctionType, GeneratorType, MethodType
from typing import Any

CACHED = type(lru_cache(len))
"""Of functions whose results are kept."""

_BY_TYPE = singledispatch(len).__code__  # type: ignore[attr-defined]
_OF_C: Any = ctypes.c_int.__mro__[-2]
"""Numbers, structures and arrays of `ctypes`."""

_EVENTS = frozenset(["threading", "multiprocessing.synchronize"])


def insides(value: Any) -> Collection[Any] | None:
    """Returns what such an object holds, None for any other one."""
    if isinstance(value, FunctionType):
        return _of_function(value)
    if isinstance(value, GeneratorType):
        frame = value.gi_frame
        return [] if frame is None else [frame.f_lasti, *frame.f_locals.values()]
    if isinstance(value, (partial, partialmethod)):
        return [value.func, value.args, value.keywords]
    if isinstance(value, MethodType):
        return [value.__func__, value.__self__]
    if isinstance(value, (CACHED, staticmethod, classmethod)):
        return [value.__wrapped__]
    if isinstance(value, property):
        return [value.fget, value.fset]
    if isinstance(value, singledispatchmethod):
        return [value.dispatcher, value.func]
    if isinstance(value, ContextVar):
        return [value.get(None)]
    if isinstance(value, weakref.ref):
        return [value()]
    if isinstance(value, _OF_C):
        return [memoryview(value).tobytes()]
    if type(value).__module__ == "multiprocessing.sharedctypes":
        return [value.get_obj()]
    if type(value).__module__ in _EVENTS and hasattr(value, "is_set"):
        return [value.is_set()]
    return _of_iterator(value)


def _of_function(function: FunctionType) -> list[Any]:
    if function.__code__ is _BY_TYPE:
        # The rest of what it holds is a cache, in which each first call with a type is noted.
        return [function.registry]  # type: ignore[attr-defined]
    return [cell.cell_contents for cell in function.__closure__ or () if _is_full(cell)]


def _is_full(cell: Any) -> bool:
    try:
        return cell.cell_contents is not cell
    except ValueError:
        return False


def _of_iterator(value: Any) -> list[Any] | None:
    """Returns what an iterator of the language's own goes through, and how much of that is left.

    Of those over others (`zip`, `itertools.chain`) the others say that. `itertools.cycle` does so in its first pass.
    """
    if type(value).__module__ not in ("builtins", "itertools") or not hasattr(value, "__next__"):
        return None
    if isinstance(value, count):
        return [repr(value)]
    return [length_hint(value, -1), *gc.get_referents(value)]
