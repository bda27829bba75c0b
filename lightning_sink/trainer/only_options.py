"""Tells whether a hook of the user's does nothing but set the optimizers' options, by numbers that Python knows.

Such a hook (a warmup in `optimizer_step`, a cosine in `on_train_batch_start`) may be run ahead of the steps before it:
it reads no tensor, changes nothing else, and asks nothing that a step changes. That is told by its source, all of which
has to be understood: numbers, attributes that are numbers now (no compiled step changes one that is asked for here),
counters, functions of numbers, the optimizers' groups, and functions of the user's that do no more.
"""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Sequence
from types import FunctionType, ModuleType
from typing import Any

from lightning.pytorch import LightningModule

from lightning_sink.engine.source import path_of
from lightning_sink.engine.state.attributes import SCALARS
from lightning_sink.trainer.sources import arguments_of, held, source_of, variable
from lightning_sink.whose import is_library

# What an expression may be; anything else is "", which is not understood.
NUMBER, TABLE, GROUP, GROUPS = "number", "table", "group", "groups"
OPTIMIZER, OPTIMIZERS, CLOSURE, SELF, NOTHING = "optimizer", "optimizers", "closure", "self", "nothing"
_ITEMS = {GROUPS: GROUP, OPTIMIZERS: OPTIMIZER, TABLE: NUMBER}

_COUNTERS = frozenset(["global_step", "current_epoch"])
_OF_TRAINER = _COUNTERS | {"is_last_batch", "num_training_batches", "estimated_stepping_batches", "max_steps"}
_OF_TRAINER |= {"max_epochs", "accumulate_grad_batches", "log_every_n_steps"}
_PURE = (float, int, bool, min, max, abs, round, pow, sum, len)
_OPERATIONS = (ast.BinOp, ast.UnaryOp, ast.Compare, ast.BoolOp, ast.IfExp)
_MOST = 10_000
_DEEPEST = 4


def what_it_asks_for(
    hook: Any, module: LightningModule, kinds: Sequence[str], groups: list[dict[str, Any]]
) -> set[str] | None:
    """Returns the names of attributes that a hook asks for which sets options and does nothing else; None for others.

    It may do one step of the optimizer where it is given one. `kinds` is what its arguments are; "" for one that it may
    not use. The module has its trainer attached.
    """
    function = getattr(hook, "__func__", None)
    values = [value for group in groups for key, value in group.items() if key != "params"]
    if not isinstance(function, FunctionType) or hook.__self__ is not module or not all(map(_kind_of, values)):
        return None
    reader = _Reader(module, {key for group in groups for key in group} - {"params"})
    return reader.asked if reader.understands_hook(function, kinds) and reader.sets else None


class _Reader:
    """What is known wherever the source is read.

    Attributes:
        sets: Whether an option is set.
        asked: The names of attributes that are asked for.
    """

    def __init__(self, module: LightningModule, options: set[str]) -> None:
        self.module, self.options, self.sets = module, options, False
        self.asked: set[str] = set()

    def understands_hook(self, function: FunctionType, kinds: Sequence[str]) -> bool:
        """Tells whether all of a hook is understood, and it steps the optimizer, where it is given one, once."""
        source = source_of(function)
        if source is None or len(source.args.args) != 1 + len(kinds):
            return False
        body = _Body(self, function, dict(zip(arguments_of(source), (SELF, *kinds), strict=True)), _DEEPEST)
        steps = [statement for statement in source.body if body.is_step(statement)]
        others = [statement for statement in source.body if statement not in steps]
        ends = [node for node in ast.walk(source) if isinstance(node, ast.Return)]
        if len(steps) != (OPTIMIZER in kinds) or ends not in ([], source.body[-1:]):
            return False
        return all(map(body.understands, others)) and body.returns <= {NOTHING}

    def called(self, function: Any, kinds: list[str], depth: int) -> str:
        """Returns what a function of the user's gives, for arguments of these kinds."""
        source = source_of(function) if isinstance(function, FunctionType) and depth else None
        if source is None or len(source.args.args) != len(kinds):
            return ""
        body = _Body(self, function, dict(zip(arguments_of(source), kinds, strict=True)), depth - 1)
        understood = all(map(body.understands, source.body))
        return (body.returns or {NOTHING}).pop() if understood and len(body.returns) < 2 else ""

    def attribute(self, path: Sequence[str], depth: int) -> str:
        """Returns what an attribute of the module is, or one of what that holds."""
        if path[0] == "trainer":
            known = {"optimizers": OPTIMIZERS, **dict.fromkeys(_OF_TRAINER, NUMBER)}
            return known.get(path[1], "") if len(path) == 2 else ""
        found = inspect.getattr_static(type(self.module), path[0], None)
        if isinstance(found, property):
            if not is_library(found.fget.__module__):
                return self.called(found.fget, [SELF], depth) if len(path) == 1 else ""
            return NUMBER if path[0] in _COUNTERS and len(path) == 1 else _kind_of(held(self.module.hparams, path[1:]))
        return _kind_of(held(self.module, path))


class _Body:
    """The body of a function, for arguments of such kinds; from it, `depth` functions may call each other.

    Attributes:
        returns: What it may return.
    """

    def __init__(self, reader: _Reader, function: FunctionType, names: dict[str, str], depth: int) -> None:
        self._reader, self._function, self._names, self._depth = reader, function, names, depth
        self.returns: set[str] = set()

    def is_step(self, node: ast.stmt) -> bool:
        """Tells whether a statement steps the optimizer, with the closure, as a LightningModule does by itself."""
        call = node.value if isinstance(node, (ast.Expr, ast.Return)) else None
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute):
            return False
        given = [self.kind(argument) for argument in (*call.args, *(keyword.value for keyword in call.keywords))]
        if call.func.attr == "step":
            return self.kind(call.func.value) == OPTIMIZER and given == [CLOSURE]
        owner, kinds = call.func.value, [NUMBER, NUMBER, OPTIMIZER, CLOSURE]
        is_super = isinstance(owner, ast.Call) and isinstance(owner.func, ast.Name) and owner.func.id == "super"
        if call.func.attr != "optimizer_step" or not is_super or call.keywords or given != kinds:
            return False
        classes = [kind for kind in type(self._reader.module).__mro__ if "optimizer_step" in vars(kind)]
        owners = [vars(kind)["optimizer_step"] for kind in classes]
        return owners[-2:] == [self._function, LightningModule.optimizer_step]

    def understands(self, node: ast.stmt) -> bool:
        """Tells whether a statement is one that computes with numbers, or sets options."""
        if isinstance(node, ast.Return):
            self.returns.add(NOTHING if node.value is None else self.kind(node.value))
            return "" not in self.returns
        if isinstance(node, ast.Expr):
            return self.kind(node.value) != ""
        if isinstance(node, ast.Assign):
            kind = self.kind(node.value)
            return kind != "" and all(self._takes(target, kind) for target in node.targets)
        if isinstance(node, ast.AugAssign):
            are_numbers = self.kind(node.target) == self.kind(node.value) == NUMBER
            return are_numbers and self._takes(node.target, NUMBER)
        if isinstance(node, ast.If):
            return self.kind(node.test) == NUMBER and all(map(self.understands, (*node.body, *node.orelse)))
        if isinstance(node, ast.For) and not node.orelse:
            return self._takes_turns(node.target, node.iter) and all(map(self.understands, node.body))
        return isinstance(node, ast.Pass)

    def _takes(self, target: ast.expr, kind: str) -> bool:
        if isinstance(target, ast.Name):
            return kind not in ("", NOTHING) and self._names.setdefault(target.id, kind) == kind
        option = _text(target.slice) if isinstance(target, ast.Subscript) and self.kind(target.value) == GROUP else ""
        self._reader.sets |= option in self._reader.options
        return option in self._reader.options and kind in (NUMBER, TABLE)

    def _takes_turns(self, target: ast.expr, over: ast.expr) -> bool:
        """Takes what a loop goes over."""
        if not isinstance(over, ast.Call):
            return self._takes(target, _ITEMS.get(self.kind(over), ""))
        name = over.func.id if isinstance(over.func, ast.Name) and not over.keywords else ""
        kinds = [_ITEMS.get(self.kind(argument), "") for argument in over.args]
        if name == "range" and all(self.kind(argument) == NUMBER for argument in over.args):
            return self._takes(target, NUMBER)
        if name == "enumerate" and len(kinds) == 1:
            kinds = [NUMBER, *kinds]
        elif name != "zip":
            return self._takes(target, _ITEMS.get(self.kind(over), ""))
        parts = target.elts if isinstance(target, ast.Tuple) else []
        return len(parts) == len(kinds) and all(map(self._takes, parts, kinds))

    def kind(self, node: ast.expr) -> str:
        """Returns what an expression is."""
        if isinstance(node, ast.Constant):
            return NUMBER
        if isinstance(node, _OPERATIONS):
            parts = [part for part in ast.iter_child_nodes(node) if isinstance(part, ast.expr)]
            allowed = {NUMBER, TABLE} if isinstance(node, ast.Compare) else {NUMBER}
            return NUMBER if {self.kind(part) for part in parts} <= allowed else ""
        if isinstance(node, (ast.Tuple, ast.List)):
            return TABLE if {self.kind(item) for item in node.elts} <= {NUMBER} else ""
        if isinstance(node, ast.Subscript):
            return self._item(self.kind(node.value), node.slice)
        if isinstance(node, ast.Name):
            return self._names.get(node.id) or _kind_of(variable(self._function, node.id))
        if isinstance(node, ast.Attribute):
            return self._attribute(node)
        return self._call(node) if isinstance(node, ast.Call) else ""

    def _item(self, kind: str, index: ast.expr) -> str:
        if kind == GROUP:
            return NUMBER if _text(index) in self._reader.options else ""
        return _ITEMS.get(kind, "") if self.kind(index) == NUMBER else ""

    def _attribute(self, node: ast.Attribute) -> str:
        self._reader.asked.add(node.attr)
        kind = self.kind(node.value) if not isinstance(node.value, ast.Name) or node.value.id in self._names else ""
        if kind == OPTIMIZER:
            return {"param_groups": GROUPS, "optimizer": OPTIMIZER}.get(node.attr, "")
        if not (names := path_of(node)):
            return ""
        owner, path = names[0], names[1:]
        if self._names.get(owner) == SELF:
            return self._reader.attribute(path, self._depth)
        known = None if owner in self._names else variable(self._function, owner)
        return _kind_of(held(known, path))

    def _call(self, node: ast.Call) -> str:
        given = [self.kind(argument) for argument in (*node.args, *(keyword.value for keyword in node.keywords))]
        if "" in given:
            return ""
        function = node.func
        if isinstance(function, ast.Name):
            known = function.id not in self._names
            return self._result(variable(self._function, function.id), given, node) if known else ""
        if not isinstance(function, ast.Attribute):
            return ""
        name, owner = function.attr, self.kind(function.value)
        if owner == GROUP:
            known = name == "get" and bool(_text(node.args[0])) and given[1:] == [NUMBER]
            return NUMBER if known else ""
        if owner == SELF and name == "optimizers":
            return "" if given else OPTIMIZER if len(self._reader.module.trainer.optimizers) == 1 else OPTIMIZERS
        if owner == SELF:
            method = inspect.getattr_static(type(self._reader.module), name, None)
            return self._result(method, [SELF, *given], node) if isinstance(method, FunctionType) else ""
        is_name = isinstance(function.value, ast.Name) and function.value.id not in self._names
        module = variable(self._function, function.value.id) if is_name else None  # type: ignore[attr-defined]
        return self._result(vars(module).get(name), given, node) if isinstance(module, ModuleType) else ""

    def _result(self, function: Any, given: list[str], node: ast.Call) -> str:
        """Returns what a call of a function gives."""
        if _computes(function):
            return NUMBER if {*given} <= {NUMBER, TABLE, GROUPS} else ""
        return "" if node.keywords else self._reader.called(function, given, self._depth)


def _computes(function: Any) -> bool:
    """Tells whether a function is one of Python's or numpy's that only computes with numbers."""
    if any(function is known for known in _PURE) or getattr(function, "__module__", "") == "math":
        return True
    numpy = sys.modules.get("numpy")
    return numpy is not None and (isinstance(function, numpy.ufunc) or function in (numpy.clip, numpy.interp))


def _kind_of(value: Any) -> str:
    if type(value) in SCALARS or type(value).__module__ == "numpy" and getattr(value, "shape", None) == ():
        return NUMBER
    if type(value).__module__ == "numpy" and len(getattr(value, "shape", ())) == 1 and str(value.dtype) == "float64":
        return TABLE  # of as many steps as a training has; what is computed with narrower numbers is narrow
    if type(value) in (tuple, list, dict) and 0 < len(value) <= _MOST:  # an empty list may be one that steps fill
        items = value.values() if type(value) is dict else value
        return TABLE if all(type(item) in SCALARS for item in items) else ""
    return ""


def _text(node: ast.expr) -> str:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""
