"""Whose own code may be given functions that know stand-ins: `float(n)`, `cos(n)` behind `from math import cos`.

Python's `float` and `int`, and a function of C's that a module has under a name of its own, ask for the number itself,
and have to be given a plain one, which would be another in each step. Where the functions of a module do nothing with
such a name but call it, another function may stand there in its place while a step is recorded (`known_to`). Names are
looked at once somebody has asked a stand-in for its number by one. Calls are told from other uses by the bytecode, from
Python 3.11 on.
"""

from __future__ import annotations

import dis
import gc
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import BuiltinFunctionType, CodeType, FrameType, FunctionType
from typing import Any

from lightning_sink.held import ABSENT, unfreeze
from lightning_sink.whose import is_library

CONVERSIONS = (float, int)

_CALLS_ARE_MARKED = sys.version_info >= (3, 11)

_OF_NAMES = frozenset(["LOAD_GLOBAL", "LOAD_NAME", "STORE_GLOBAL", "DELETE_GLOBAL"])

_found: dict[tuple[str, str], bool] = {}
"""Names of modules whose code has asked, and whether it does nothing else: what code does is the same for all."""


def asked(frame: FrameType) -> bool:
    """Takes note of the code that asks for a stand-in's number, if it may have done so by such a name.

    Returns whether another function stands there from now on, which did not.
    """
    names, is_new = frame.f_globals, False
    module = names.get("__name__", "")
    if is_library(module):
        return False
    for name in frame.f_code.co_names:
        if (module, name) not in _found and _behind(names, name) is not None:
            is_all = module in sys.modules and vars(sys.modules[module]) is names
            _found[module, name] = _CALLS_ARE_MARKED and is_all and _only_call(functions_with(names), name)
            is_new |= _found[module, name]
    return is_new


def _behind(names: dict[str, Any], name: str) -> Any:
    """Returns one of Python's `CONVERSIONS`, or of `math`, that code with these global names has by a name; or None."""
    if name not in names:
        return next((kind for kind in CONVERSIONS if kind.__name__ == name), None)
    is_of_math = type(names[name]) is BuiltinFunctionType and names[name].__module__ == "math"
    return names[name] if is_of_math else None


@contextmanager
def known_to(known: Callable[[Any], Any]) -> Iterator[None]:
    """Has other functions take the place of these for a while: those that `known` gives for them, or None."""
    taken: list[tuple[dict[str, Any], str, Any, Any]] = []
    for module in {module for (module, _), only_calls in _found.items() if only_calls and module in sys.modules}:
        names = vars(sys.modules[module])
        # Each cell of a notebook may add functions there. A look takes about 60 ms.
        functions = functions_with(names) if module == "__main__" else []
        for name in [name for (of, name), only_calls in _found.items() if only_calls and of == module]:
            function = _behind(names, name)
            other = None if function is None or not _only_call(functions, name) else known(function)
            if other is not None:
                taken.append((names, name, names.get(name, ABSENT), other))
                names[name] = other
    try:
        yield
    finally:
        for names, name, before, other in taken:
            if names.get(name) is not other:  # the step has put something else there
                continue
            if before is ABSENT:
                del names[name]
            else:
                names[name] = before


def _only_call(functions: list[FunctionType], name: str) -> bool:
    """Tells whether functions do nothing with one of their global names but call it."""
    return all(_calls(function.__code__, name) for function in functions)


def functions_with(names: dict[str, Any]) -> list[FunctionType]:
    """Returns the functions with these global names, whoever holds them."""
    unfreeze()
    found = (item for item in gc.get_referrers(names) if isinstance(item, FunctionType))
    return [function for function in found if function.__globals__ is names]


def _calls(code: CodeType, name: str) -> bool:
    if code.co_name == "__annotate__":  # of Python 3.14: a function's annotations
        return True
    instructions = dis.get_instructions(code) if name in code.co_names else ()
    uses = [each for each in instructions if each.argval == name and each.opname in _OF_NAMES]
    # The lowest bit says that what is loaded is called.
    if any(each.opname != "LOAD_GLOBAL" or not (each.arg or 0) & 1 for each in uses):
        return False
    return all(_calls(inner, name) for inner in code.co_consts if isinstance(inner, CodeType))
