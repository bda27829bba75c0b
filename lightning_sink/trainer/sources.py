"""The source of users' functions, and what is found behind the names in it."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Mapping, Sequence
from functools import lru_cache
from types import CodeType, FunctionType, ModuleType
from typing import Any

_PARTS = ("co_code", "co_names", "co_varnames", "co_consts", "co_freevars")  # what makes code the same

ABSENT = object()
"""Stands for what is not there."""


def source_of(function: FunctionType) -> ast.FunctionDef | None:
    """Returns the source of a function or a property; None where there is none, or it is another one's by now."""
    modules = tuple(name for name in function.__code__.co_names if isinstance(variable(function, name), ModuleType))
    # Attributes of what a module imports by name have instructions of their own.
    return _parsed(function.__code__, modules) or _parsed(function.__code__, ())


@lru_cache(maxsize=256)
def _parsed(code: CodeType, imported: tuple[str, ...]) -> ast.FunctionDef | None:
    try:
        source = inspect.getsource(code)
        # What stands in a class is compiled in one, for `super()`, and as it is indented: texts may have several lines.
        inside = "class _:\n" if source[:1].isspace() else ""
        tree = ast.parse("".join(f"import {name}\n" for name in imported) + inside + source)
        compiled = compile(tree, "", "exec")
    except (OSError, SyntaxError, TypeError):
        return None
    found, parsed = _codes_in(compiled), tree.body[len(imported) :]
    if inside:
        found, parsed = _codes_in(found[0]), tree.body[-1].body  # type: ignore[attr-defined]
    function = parsed[0] if len(parsed) == 1 else None
    if len(found) != 1 or not isinstance(function, ast.FunctionDef):
        return None
    arguments = function.args
    is_plain = not (arguments.vararg or arguments.kwarg or arguments.kwonlyargs or arguments.posonlyargs)
    is_plain = is_plain and all(isinstance(by, ast.Name) and by.id == "property" for by in function.decorator_list)
    same = all(getattr(found[0], part) == getattr(code, part) for part in _PARTS)
    return function if is_plain and same else None


def _codes_in(code: CodeType) -> list[CodeType]:
    return [constant for constant in code.co_consts if isinstance(constant, CodeType)]


def held(value: Any, path: Sequence[str]) -> Any:
    """Returns what is found behind names, without running code of the user's; `ABSENT` where there is nothing."""
    for name in path:
        if isinstance(value, Mapping) and name in value:  # `hparams`
            value = value[name]
        elif name in getattr(value, "__dict__", {}):
            value = vars(value)[name]
        else:
            value = inspect.getattr_static(type(value), name, ABSENT)
    return value


def variable(function: FunctionType, name: str) -> Any:
    """Returns a global variable as a function sees it, or what is built in; `ABSENT` where there is none."""
    builtins = function.__globals__.get("__builtins__", {})
    kept = builtins if isinstance(builtins, dict) else vars(builtins)
    return function.__globals__.get(name, kept.get(name, ABSENT))
