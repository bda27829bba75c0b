"""Which function runs where something is called: a method's, a module's `forward`, what torch has wrapped.

And by which name it knows what it is given there.
"""

from __future__ import annotations

import ast
import inspect
from types import MethodType
from typing import Any

from torch import nn

from lightning_sink.held import attribute_of, held_by


def called_by(called: Any, holder: Any, name: str) -> tuple[Any, list[Any]]:
    """Returns the function, and what it is given before all arguments.

    Args:
        called: What is called, as `found_behind` gives it.
        holder: What has it as an attribute; anything else where nothing has.
        name: The attribute's name.
    """
    function, before = called, list[Any]()
    if isinstance(called, nn.Module):
        if type(called).__call__ is nn.Module.__call__ and "forward" not in held_by(called):
            function, before = inspect.getattr_static(type(called), "forward", None), [called]
    elif isinstance(called, (MethodType, classmethod)):
        function = called.__func__
        owner = holder if isinstance(holder, type) else type(holder)
        before = [called.__self__ if isinstance(called, MethodType) else owner]
    elif isinstance(called, staticmethod):
        function = called.__func__
    elif name and attribute_of(holder, name) is not called:  # found on the class
        before = [holder]
    # By `torch.no_grad()`, which hands all arguments on.
    return inspect.unwrap(function, stop=lambda wrapper: not _is_of_torch(wrapper)), before


def _is_of_torch(function: Any) -> bool:
    return bool(getattr(function, "__globals__", {}).get("__name__", "").startswith("torch."))


def argument_of(arguments: ast.arguments, call: ast.Call, given: ast.AST, before: int) -> str | None:
    """Returns the name by which a function knows what a call gives it; None where that is not certain.

    `before`: how many arguments it is given before all of the call's.
    """
    if isinstance(given, ast.keyword):
        by_name = arguments.args[max(0, before - len(arguments.posonlyargs)) :]
        return given.arg if given.arg in {each.arg for each in (*by_name, *arguments.kwonlyargs)} else None
    place = call.args.index(given)  # type: ignore[arg-type]
    by_place = [*arguments.posonlyargs, *arguments.args][before + place :]
    are_certain = not any(isinstance(item, ast.Starred) for item in call.args[:place])
    return by_place[0].arg if by_place and are_certain else None
