"""`float(self.global_step)`: which modules' own code may be given a `float` that knows stand-ins.

Python's `float` asks for the number itself, and has to be given a plain one, which would be another in each step. Where
the functions of a module do nothing with that name but call it, another function may stand there in its place while a
step is recorded (`known_to`). Modules are looked at once they have asked for a stand-in's number. Calls are told
from other uses by the bytecode, from Python 3.11 on.
"""

from __future__ import annotations

import dis
import gc
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import CodeType, FrameType, FunctionType
from typing import Any

from lightning_sink.held import unfreeze
from lightning_sink.whose import is_library

_CALLS_ARE_MARKED = sys.version_info >= (3, 11)

_OF_NAMES = frozenset(["LOAD_GLOBAL", "LOAD_NAME", "STORE_GLOBAL", "DELETE_GLOBAL"])

_found: dict[str, bool] = {}
"""Modules whose code has asked, and whether it does nothing else: what code does is the same for all trainings."""


def asked(frame: FrameType) -> None:
    """Takes note of the code that asks for a stand-in's number, if it may have done so by its global `float`."""
    names = frame.f_globals
    name = names.get("__name__", "")
    if name in _found or "float" not in frame.f_code.co_names or "float" in names or is_library(name):
        return
    module = sys.modules.get(name)
    _found[name] = _CALLS_ARE_MARKED and module is not None and vars(module) is names and _only_calls(names)


@contextmanager
def known_to(function: Callable[[Any], Any]) -> Iterator[None]:
    """Has a function take the place of `float` in these modules for a while."""
    found = [name for name, only_calls in _found.items() if only_calls and name in sys.modules]
    taken = [names for names in map(vars, map(sys.modules.__getitem__, found)) if "float" not in names]
    # Each cell of a notebook may add functions there. A look takes about 60 ms.
    taken = [names for names in taken if names.get("__name__") != "__main__" or _only_calls(names)]
    for names in taken:
        names["float"] = function
    try:
        yield
    finally:
        for names in taken:
            names.pop("float", None)


def _only_calls(names: dict[str, Any]) -> bool:
    """Tells whether all functions with these global names do nothing with `float` but call it."""
    return all(_calls(function.__code__) for function in functions_with(names))


def functions_with(names: dict[str, Any]) -> list[FunctionType]:
    """Returns the functions with these global names, whoever holds them."""
    unfreeze()
    found = (item for item in gc.get_referrers(names) if isinstance(item, FunctionType))
    return [function for function in found if function.__globals__ is names]


def _calls(code: CodeType) -> bool:
    if code.co_name == "__annotate__":  # of Python 3.14: a function's annotations
        return True
    instructions = dis.get_instructions(code) if "float" in code.co_names else ()
    uses = [each for each in instructions if each.argval == "float" and each.opname in _OF_NAMES]
    # The lowest bit says that what is loaded is called.
    if any(each.opname != "LOAD_GLOBAL" or not (each.arg or 0) & 1 for each in uses):
        return False
    return all(_calls(inner) for inner in code.co_consts if isinstance(inner, CodeType))
