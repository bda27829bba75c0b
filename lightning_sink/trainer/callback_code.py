"""What the code of callbacks' batch hooks tells: who has one, which arguments it may use, and by what it decides."""

from __future__ import annotations

import ast
import dis
import inspect
from collections.abc import Collection
from functools import lru_cache, partial
from types import CodeType, FunctionType
from typing import Any

from lightning.pytorch import Callback

from lightning_sink.engine.source import source_of
from lightning_sink.trainer.sources import arguments_of, variable
from lightning_sink.whose import is_users


def overrides(callback: Callback, hook: str) -> bool:
    """Tells whether a callback has a hook of its own."""
    return getattr(getattr(callback, hook), "__func__", None) is not getattr(Callback, hook)


_BATCH = {"on_train_batch_start": 2, "on_train_batch_end": 3}
"""Where the batch is among the arguments of a hook, behind the callback itself; its index is the next one."""


def uses_batch(callback: Callback, hook: str) -> bool:
    """Tells whether a callback's hook may look at the batch; true where its code does not say."""
    return uses_argument(getattr(callback, hook), _BATCH[hook])


def uses_argument(method: Any, place: int) -> bool:
    """Tells whether a hook may look at an argument, behind the object; true where its code does not say."""
    function = getattr(method, "__func__", method)
    number = place + (function is not method)
    code = getattr(function, "__code__", None)
    if code is None or code.co_argcount <= number:
        return True
    name = code.co_varnames[number]
    if name in code.co_cellvars or _ALL_NAMES & {*code.co_names}:
        return True
    loads = (each.argval for each in dis.get_instructions(code) if "LOAD_FAST" in each.opname)
    return any(name in given if isinstance(given, tuple) else name == given for given in loads)


_ALL_NAMES = {"locals", "vars", "eval", "exec"}


def sets_batch(callback: Callback, hook: str) -> bool:
    """Tells whether a hook changes the batch, as far as its source says."""
    function = function_of(callback, hook)
    return isinstance(function, FunctionType) and _sets_argument(function.__code__, _BATCH[hook] + 1)


@lru_cache(maxsize=256)
def _sets_argument(code: CodeType, place: int) -> bool:
    file = source_of((code,), code.co_filename)
    source = None if file is None else file.function(code)
    given = [] if source is None else arguments_of(source)
    if source is None or len(given) <= place:
        return False
    return any(_sets_something(node) and _holder(node) == given[place] for node in ast.walk(source))


def _sets_something(node: ast.AST) -> bool:
    """Tells whether something is set there, or is changed by a method whose name says so: `batch[0].mul_`."""
    if not isinstance(node, (ast.Attribute, ast.Subscript)):
        return False
    in_place = isinstance(node, ast.Attribute) and node.attr.endswith("_") and not node.attr.endswith("__")
    return in_place or isinstance(node.ctx, ast.Store)


def _holder(node: ast.AST) -> str | None:
    """Returns the variable in whose value something is, at whatever depth."""
    while isinstance(node, (ast.Attribute, ast.Subscript)):
        node = node.value
    return node.id if isinstance(node, ast.Name) else None


def function_of(callback: Callback, hook: str) -> Any:
    """Returns the function behind a hook."""
    function: Any = getattr(callback, hook)
    while isinstance(function, partial):
        function = function.func
    return getattr(function, "__func__", function)


_COUNTS = {"batch_idx", "global_step"}


def decides_by_counts(callback: Callback, hook: str) -> bool:
    """Tells whether a hook does something for some batches only, by their number, as far as its source says.

    A sink's first batch, and an epoch's last, are always shown to it.
    """
    return _decides(function_of(callback, hook), {_BATCH[hook] + 2}, callback, hook, set(), True)


def _decides(
    function: Any, counts: set[int | str], callback: Callback, hook: str, seen: set[Any], is_asked: bool
) -> bool:
    """Tells whether a function decides so, or one of the user's that it calls.

    `counts`: which of its arguments are counts, by place or name. `seen`: functions that need no look. `is_asked`:
    whether what it returns decides something.
    """
    is_hook = not seen
    if isinstance(function, (staticmethod, classmethod)):
        function = function.__func__
    while isinstance(function, FunctionType) and "__wrapped__" in vars(function) and function not in seen:
        seen.add(function)
        function = vars(function)["__wrapped__"]
    if not isinstance(function, FunctionType) or function in seen or not is_users(function.__module__ or ""):
        return False
    seen.add(function)
    file = source_of((function.__code__,), function.__code__.co_filename)
    source = None if file is None else file.function(function.__code__)
    if source is None:
        return False
    given = arguments_of(source)
    names = _COUNTS | {name for place, name in enumerate(given) if {place, name} & counts}
    nodes = [*ast.walk(source)]
    for node in nodes:
        if isinstance(node, ast.Assign) and _mentions(node.value, names):
            names |= {target.id for target in node.targets if isinstance(target, ast.Name)}
    kinds: Any = (ast.If, ast.While, ast.IfExp) if is_hook else (ast.If, ast.While)
    tests = [node.test for node in nodes if isinstance(node, kinds)]
    answers = [node.value for node in nodes if isinstance(node, ast.Return) and node.value is not None] * is_asked
    # What a helper does with large numbers, or with none, is how it does it; with some numbers, it is for a reason.
    if any(_computes_with(part, names, hook) and (is_hook or _is_of_some(part)) for part in _parts(tests)):
        return True
    if any(_computes_with(part, names, hook) for part in _parts(answers)):
        return True
    asked = {*map(id, _parts([*tests, *answers]))}
    for call in (node for node in nodes if isinstance(node, ast.Call)):
        called, offset = _called(call.func, function, given, callback)
        known: set[int | str] = {offset + place for place, each in enumerate(call.args) if _mentions(each, names)}
        known |= {each.arg for each in call.keywords if each.arg is not None and _mentions(each.value, names)}
        if _decides(called, known, callback, hook, seen, id(call) in asked):
            return True
    return False


def _called(func: ast.expr, function: FunctionType, given: list[str], callback: Callback) -> tuple[Any, int]:
    """Returns the function that is called by its name, or as the callback's method, and the number of its own place."""
    if isinstance(func, ast.Name):
        return variable(function, func.id), 0
    of = func.value if isinstance(func, ast.Attribute) else None
    if not given or not isinstance(of, ast.Name) or of.id != given[0]:
        return None, 0
    found = inspect.getattr_static(type(callback), func.attr, None)  # type: ignore[attr-defined]
    return found, int(not isinstance(found, staticmethod))


def _computes_with(part: ast.AST, names: Collection[str], hook: str) -> bool:
    if not isinstance(part, (ast.Compare, ast.BinOp)) or not _mentions(part, names):
        return False
    if _mentions(part, {"num_training_batches", "is_last_batch"}):
        return False
    if isinstance(part, ast.Compare):
        is_first = hook == "on_train_batch_start" and isinstance(part.ops[0], ast.Eq) and _is_zero(part)
        return not is_first and not isinstance(part.ops[0], (ast.Is, ast.IsNot))
    return isinstance(part.op, ast.Mod)


def _parts(nodes: list[ast.expr]) -> list[ast.AST]:
    return [part for node in nodes for part in ast.walk(node)]


def _is_of_some(part: ast.AST) -> bool:
    """Tells whether a number is asked whether it is one of some."""
    if isinstance(part, ast.Compare):
        is_equal = isinstance(part.ops[0], (ast.Eq, ast.NotEq, ast.In, ast.NotIn))
        return is_equal and ast.unparse(part.comparators[0]) != "0"
    return isinstance(part, ast.BinOp) and isinstance(part.op, ast.Mod)


def _is_zero(part: ast.Compare) -> bool:
    return isinstance(part.left, ast.Name) and ast.unparse(part.comparators[0]) == "0"


def _mentions(part: ast.AST, names: Collection[str]) -> bool:
    return any(
        (each.attr if isinstance(each, ast.Attribute) else getattr(each, "id", "")) in names for each in ast.walk(part)
    )
