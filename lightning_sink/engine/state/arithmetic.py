"""Tells by its code whether a function of the user's computes with numbers, and does nothing else.

Such a function may be run ahead of steps, or once more: it reads no tensor, draws nothing, asks for nothing that steps
may change, and leaves nothing behind but numbers of the object that it is a method of, and of that one's own lists and
dictionaries. All names that stand in its code have to be known.
"""

from __future__ import annotations

import builtins
import dis
import inspect
import math
import sys
import warnings
from collections.abc import Collection
from functools import lru_cache, partial
from types import BuiltinFunctionType, CellType, CodeType, FunctionType, ModuleType
from typing import Any

from torch.optim import Optimizer

from lightning_sink.engine.source import codes_in, line_at
from lightning_sink.engine.state.attributes import SCALARS
from lightning_sink.engine.state.insides import function_in
from lightning_sink.held import ABSENT, held_by
from lightning_sink.whose import is_library

_FUNCTIONS = (abs, all, any, divmod, isinstance, len, max, min, pow, round, sorted, sum)
_CLASSES = (bool, dict, enumerate, float, int, list, map, range, reversed, set, super, tuple, zip)
_OF_C = ("math", "_bisect")

_OF_TABLES = frozenset(["param_groups", "get", "items", "keys", "values", "warn"])
"""Attributes of optimizers, of dictionaries and of `warnings`."""

_TORCHS = "torch.optim"
"""All that torch's own schedulers are made of only computes."""

_LOADS = frozenset(["LOAD_GLOBAL", "LOAD_NAME"])
_GETS = frozenset(["LOAD_ATTR", "LOAD_METHOD", "LOAD_SUPER_ATTR"])
_DO_MORE = ("DELETE_", "IMPORT_", "LOAD_BUILD_CLASS", "STORE_DEREF", "STORE_GLOBAL")
_REFUSED = "refused"


def is_arithmetic(function: Any, of: Any = None, filled: Collection[int] = ()) -> bool:
    """Tells whether a function only computes with numbers; a method `of` an object may use and set that one's.

    `filled` are containers, by identity, that others may fill.
    """
    return _Reader(of, filled).understands(function)


def does_more_at(function: Any, of: Any = None, filled: Collection[int] = ()) -> str:
    """Returns file and line of what such a function does beside; "" where it does nothing, or no line shows it."""
    reader = _Reader(of, filled)
    return "" if reader.understands(function) else reader.refused_at


def only_reads(function: Any, of: Any, calls: Collection[str] = ()) -> bool:
    """Tells whether a function computes with numbers and what it asks of an object, and sets nothing anywhere.

    The object may be behind it (`lambda step: step / self.warmup`), or be what it is a method of. Methods with names in
    `calls` may do more.
    """
    return _Reader(of, (), sets=False, calls=calls).understands(getattr(function, "__func__", function))


class _Reader:
    """What is known wherever code is read.

    Attributes:
        refused_at: File and line of the first code that does more; "" where there is none, or it is nobody's line.
    """

    def __init__(self, of: Any, filled: Collection[int], sets: bool = True, calls: Collection[str] = ()) -> None:
        self._kind, self._held = type(of), held_by(of) if of is not None else {}
        self._filled, self._sets, self._of, self._calls = filled, sets, of, calls
        self._met: set[CodeType] = set()
        self.refused_at = ""

    def understands(self, function: Any) -> bool:
        """Tells whether a function, and all that it calls, only computes."""
        if isinstance(function, partial):
            given = (*function.args, *function.keywords.values())
            return all(map(_is_number, given)) and self.understands(function.func)
        if not isinstance(function, FunctionType):
            return _is_of_c(function)
        code = function.__code__
        if code in self._met or (function.__module__ or "").startswith(_TORCHS):
            return True
        self._met.add(code)
        given = (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values())
        if is_library(function.__module__ or "") or not all(map(_is_number, given)):
            return False
        if any(cell == CellType() or not self._knows(cell.cell_contents) for cell in function.__closure__ or ()):
            self.refused_at = self.refused_at or f"{code.co_filename}:{code.co_firstlineno}"
            return False
        codes = [*codes_in(code)]
        if not self._sets and any(map(_stores, codes)):
            return False
        for each in codes:
            refused = self._refuses(each, function.__globals__)
            if refused is not None:
                self.refused_at = self.refused_at or line_at(each, refused)
                return False
        return True

    def _refuses(self, code: CodeType, variables: dict[str, Any]) -> int | None:
        """Returns where some code has the first instruction that does more; None where there is none."""
        scope: Any = None  # a class or a module of the user's that is at hand
        for does, name, place in _named_in(code):
            if scope is not None:
                if does not in _GETS or not _is_number(vars(scope).get(name, scope)):
                    return place
                scope = None
            elif does in _LOADS:
                found = variables[name] if name in variables else vars(builtins).get(name, ABSENT)
                if not self._knows(found):
                    if not isinstance(found, (type, ModuleType)):
                        return place
                    scope = found
            elif does == "STORE_ATTR":
                if name not in self._held or not self._has_own(name):
                    return place
            elif does == _REFUSED or (does in _GETS and not (self._is_asked(does, name) or self._gives_a_number(name))):
                return place
        return None

    def _knows(self, value: Any) -> bool:
        """Tells whether a variable outside is a number, or computes with numbers."""
        if isinstance(value, type):
            is_error = issubclass(value, Warning) and value.__module__ == "builtins"
            is_torchs = value.__module__.startswith(_TORCHS)
            return value in _CLASSES or value in self._kind.__mro__ or is_error or is_torchs
        if not self._sets and value is self._of:
            return True
        if value is math or value is warnings or value is sys.modules.get("numpy"):
            return True
        return _is_number(value) or self.understands(value)

    def _has_own(self, name: str) -> bool:
        """Tells whether an attribute is a number, or a container of some that nobody else fills."""
        held = self._held[name]
        if type(held) not in (dict, list):
            return _is_number(held)
        return id(held) not in self._filled and all(map(_is_number, held.values() if type(held) is dict else held))

    def _is_asked(self, does: str, name: str) -> bool:
        """Tells whether nothing is set, and what has such an attribute is asked for it, which runs nobody's code."""
        if self._sets or does == "LOAD_METHOD":
            return False
        stands = inspect.getattr_static(self._kind, name, None)
        owner = next((base for base in self._kind.__mro__ if name in vars(base)), object)
        is_users = isinstance(stands, (FunctionType, property)) and not is_library(owner.__module__)
        return not is_users and not callable(self._held.get(name))

    def _gives_a_number(self, name: str) -> bool:
        """Tells whether an attribute of this name, of whatever is at hand, is a number, or computes with numbers."""
        if name in self._held:
            return self._has_own(name) or isinstance(self._held[name], Optimizer)
        found = function_in(inspect.getattr_static(self._kind, name, None)) if self._held else None
        if isinstance(found, FunctionType):
            return self.understands(found)
        is_known = name in self._calls or name in _OF_TABLES or name in _names_of_numbers()
        return is_known or (found is not None and _is_number(found))


@lru_cache(maxsize=1024)
def _stores(code: CodeType) -> bool:
    """Tells whether some code sets or deletes anything but variables of its own."""
    does = (each.opname for each in dis.get_instructions(code))
    return any(name.startswith(("STORE_", "DELETE_")) and "FAST" not in name for name in does)


@lru_cache(maxsize=1024)
def _named_in(code: CodeType) -> list[tuple[str, Any, int]]:
    """Returns the instructions that name something, with name and place, and `_REFUSED` for those that do more.

    What follows a variable that is loaded is among them, whatever it does: a class may be called. Code is read once:
    this is asked for at each row of steps.
    """
    found, was_loaded = [], False
    for instruction in dis.get_instructions(code):
        does, name = instruction.opname, instruction.argval
        does = "LOAD_METHOD" if "NULL|self" in instruction.argrepr else does  # from Python 3.12 on
        is_own = does == "STORE_DEREF" and name in code.co_cellvars  # a variable of its own, that inner code reads
        does_more = does.startswith(_DO_MORE) and not is_own
        if does_more or (isinstance(name, str) and name == "params"):  # an optimizer's: no numbers
            found.append((_REFUSED, name, instruction.offset))
        elif was_loaded or does in _LOADS or does in _GETS or does == "STORE_ATTR":
            found.append((does, name, instruction.offset))
        was_loaded = does in _LOADS
    return found


def _is_number(value: Any) -> bool:
    """Tells whether a value is a number, a text, or a tuple of some: what nobody changes."""
    if type(value) is tuple:
        return all(map(_is_number, value))
    numpy = sys.modules.get("numpy")
    return type(value) in SCALARS or (numpy is not None and isinstance(value, numpy.generic))


def _is_of_c(function: Any) -> bool:
    """Tells whether a function of C's only computes."""
    if isinstance(function, BuiltinFunctionType):
        return function in _FUNCTIONS or function.__module__ in _OF_C
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(function, numpy.ufunc)


@lru_cache(maxsize=1)
def _names_of_numbers() -> frozenset[str]:
    """Returns the names of what computes, and of constants, in `math` and numpy."""
    numpy = sys.modules.get("numpy")
    ufuncs = [name for name, value in vars(numpy).items() if isinstance(value, numpy.ufunc)] if numpy else []
    return frozenset([*vars(math), *ufuncs, "clip", "interp"])
