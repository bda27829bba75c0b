"""The source of users' functions, and what is found behind the names in it."""

from __future__ import annotations

import ast
from types import FunctionType
from typing import Any

from lightning_sink.engine import source as sources
from lightning_sink.held import ABSENT


def source_of(function: FunctionType) -> ast.FunctionDef | None:
    """Returns the source of a function or a property; None where there is none, or it is another one's by now.

    Nor is there one for what sees variables of the functions around it, or takes arguments in other ways than plain.
    """
    code = function.__code__
    file = sources.source_of((code,), code.co_filename)
    source = file.function(code) if file is not None and {*code.co_freevars} <= {"__class__"} else None
    if not isinstance(source, ast.FunctionDef):
        return None
    arguments = source.args
    is_plain = not (arguments.vararg or arguments.kwarg or arguments.kwonlyargs or arguments.posonlyargs)
    return source if is_plain and all(map(_is_property, source.decorator_list)) else None


def _is_property(decorator: ast.expr) -> bool:
    return isinstance(decorator, ast.Name) and decorator.id == "property"


def arguments_of(source: ast.FunctionDef | ast.AsyncFunctionDef) -> list[str]:
    """Returns the names of a function's plain arguments."""
    return [argument.arg for argument in source.args.args]


def variable(function: FunctionType, name: str) -> Any:
    """Returns a global variable as a function sees it, or what is built in; `ABSENT` where there is none."""
    return function.__globals__.get(name, function.__builtins__.get(name, ABSENT))
