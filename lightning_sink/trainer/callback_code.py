"""What the code of callbacks' batch hooks tells: who has one, which arguments it may use, and by what it decides."""

from __future__ import annotations

import ast
import dis
import inspect
from functools import partial
from types import FunctionType
from typing import Any

from lightning.pytorch import Callback

from lightning_sink.trainer.sources import source_of


def overrides(callback: Callback, hook: str) -> bool:
    """Tells whether a callback has a hook of its own."""
    return inspect.getattr_static(callback, hook) is not getattr(Callback, hook)


def uses(callback: Callback, hook: str, number: int) -> bool:
    """Tells whether a callback's hook may look at one of its arguments; true where its code does not say."""
    method = getattr(callback, hook)
    function = getattr(method, "__func__", method)
    number += function is not method
    code = getattr(function, "__code__", None)
    if code is None or code.co_argcount <= number:
        return True
    name = code.co_varnames[number]
    if name in code.co_cellvars or _ALL_NAMES & {*code.co_names}:
        return True
    loads = (each.argval for each in dis.get_instructions(code) if "LOAD_FAST" in each.opname)
    return any(name in given if isinstance(given, tuple) else name == given for given in loads)


_ALL_NAMES = {"locals", "vars", "eval", "exec"}


def function_of(callback: Callback, hook: str) -> Any:
    """Returns the function behind a hook."""
    function: Any = getattr(callback, hook)
    while isinstance(function, partial):
        function = function.func
    return getattr(function, "__func__", function)


_COUNTS = {"batch_idx", "global_step"}


def decides_by_counts(function: Any) -> bool:
    """Tells whether a hook does something for some batches only, by their number, as far as its source says."""
    source = source_of(function) if isinstance(function, FunctionType) else None
    choices = (node for node in ast.walk(source) if isinstance(node, (ast.If, ast.IfExp))) if source else ()
    asked = (part for node in choices for part in ast.walk(node.test))
    return any((part.attr if isinstance(part, ast.Attribute) else getattr(part, "id", "")) in _COUNTS for part in asked)
