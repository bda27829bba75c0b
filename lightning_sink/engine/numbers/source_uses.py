"""What one function's source does with a value: whether it is used as a number, and as nothing else.

`SourceUses` goes from the expression that gives the value to those that it is part of, by way of variables, and into
the functions that are called with it. `plain_uses.py` says what that is asked for.
"""

from __future__ import annotations

import ast
import builtins
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import CodeType, FrameType, FunctionType
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lightning_sink.engine.numbers.called import argument_of, called_by
from lightning_sink.engine.numbers.flows import KEYS, TABLES, getter, gives_later, got
from lightning_sink.engine.numbers.handed import OF_TENSORS
from lightning_sink.engine.numbers.known_functions import DOMAINS, TRUTHS
from lightning_sink.engine.numbers.passed_on import PassedOn, Receiver
from lightning_sink.engine.source import Source, bound_in, path_of, source_of
from lightning_sink.held import ABSENT, found_behind
from lightning_sink.whose import is_library

if TYPE_CHECKING:
    from lightning_sink.engine.numbers.plain_uses import PlainUses

_OPERATIONS = (ast.Add, ast.Sub, ast.Mult, ast.Div, ast.FloorDiv, ast.Mod, ast.Pow)
_COMPARISONS = (ast.Lt, ast.LtE, ast.Gt, ast.GtE, ast.Eq, ast.NotEq)
_FREEZE = (bool, float, int, print, repr, round, str)
"""These take the number itself by asking the stand-in for it, which tells; most are where a step ends by an error."""

_TENSORS = frozenset([Tensor, nn.Parameter, nn.Buffer])


@dataclass
class Way:
    """What becomes of one value, in all functions that it gets to.

    Attributes:
        follows: Whether it is asked of what is computed of the value, too; most often that is asked when it is there.
        is_kept: Whether something of it is put into an attribute that may hold a stand-in.
        decides: Whether something is decided by it.
    """

    follows: bool = False
    is_kept: bool = False
    decides: bool = False


class SourceUses:
    """The uses of what the lines of one function compute, in one call of it.

    Args:
        code: The function's.
        scopes: The variables that they see.
        is_returned: Tells whether what the function returns is used so.
        way: Takes note of what becomes of the value.
        frame: Where the function is by now; None where it does not run yet.
        calls: The calls on the way to one that does not run yet, and whose methods they call.

    Attributes:
        handed_to: Functions that get such numbers, by code, and the names of the arguments.
        handing: Where that is, by code and line.
    """

    def __init__(
        self,
        known: PlainUses,
        source: Source,
        code: CodeType,
        scopes: Sequence[Mapping[str, Any]],
        is_returned: Callable[[], bool],
        way: Way,
        frame: FrameType | None = None,
        calls: frozenset[tuple[ast.AST, ast.AST, tuple[int, ...]]] = frozenset(),
    ) -> None:
        self._known, self._source, self._is_returned, self._frame = known, source, is_returned, frame
        self._code, self._way = code, way
        self._scopes, self._calls = [*scopes, vars(builtins)], calls
        self._met: set[tuple[ast.AST, str]] = set()
        self._hidden: set[str] = set()  # variables that may be somebody else by then
        self.handed_to: set[tuple[CodeType, str]] = set()
        self.handing: set[tuple[CodeType, int]] = set()

    def is_plain(self, node: ast.AST) -> bool:
        """Tells whether a value is used as a number and as nothing else."""
        parent = self._source.parents[node]
        if isinstance(node, ast.AugAssign):
            return self._is_put_into(node.target)
        if isinstance(parent, (ast.BinOp, ast.AugAssign)):
            return isinstance(parent.op, _OPERATIONS) and self._goes_on(parent)
        if isinstance(parent, ast.Compare):
            self._way.decides = True
            return _compares(parent)
        if isinstance(parent, ast.UnaryOp):
            self._way.decides |= isinstance(parent.op, ast.Not)
            return isinstance(parent.op, (ast.USub, ast.Not)) and self._goes_on(parent)
        if isinstance(parent, (ast.If, ast.While, ast.IfExp, ast.Assert)) and parent.test is node:
            self._way.decides = True
            return True
        if isinstance(parent, ast.BoolOp):
            self._way.decides = True
            return self.is_plain(parent)
        if isinstance(parent, ast.NamedExpr):
            return self._is_put_into(parent.target) and self.is_plain(parent)
        if isinstance(parent, ast.FormattedValue):  # asks for the number itself, as `_FREEZE` do
            self._way.decides = True
            return True
        if isinstance(parent, ast.Expr):
            return True
        if isinstance(parent, ast.IfExp):
            return self.is_plain(parent)
        if isinstance(parent, ast.Assign) and all(map(self._is_option, parent.targets)):
            return True
        if isinstance(parent, ast.Assign) and not _is_of_variable(parent.targets[0]):
            return all(map(self._is_put_into, parent.targets))
        if isinstance(parent, ast.Tuple) and (target := self._target_of(node, parent)) is not None:
            return self._is_put_into(target)
        if isinstance(parent, (ast.Call, ast.keyword)):
            return self._is_argument(node, parent)
        if isinstance(parent, (ast.Return, ast.Lambda)):
            return self._is_returned()
        return self._is_received(node)

    def _goes_on(self, node: ast.AST) -> bool:
        return not self._way.follows or self.is_plain(node)

    def _target_of(self, node: ast.AST, item_of: ast.Tuple) -> ast.expr | None:
        """Returns what an item is put into by an assignment of several: `x, y = 1, 2`; None for any other tuple."""
        assignment = self._source.parents[item_of]
        targets = assignment.targets if isinstance(assignment, ast.Assign) else []
        if len(targets) != 1 or not isinstance(targets[0], ast.Tuple):
            return None
        items = [*item_of.elts, *targets[0].elts]
        are_alike = len(items) == 2 * len(item_of.elts) and not any(isinstance(item, ast.Starred) for item in items)
        return targets[0].elts[item_of.elts.index(node)] if are_alike else None  # type: ignore[arg-type]

    def _is_option(self, target: ast.AST) -> bool:
        """Tells whether something is an option of an optimizer's: `group["lr"]`."""
        if not isinstance(target, ast.Subscript) or not isinstance(target.slice, ast.Constant):
            return False
        group = target.value
        if isinstance(group, ast.Subscript):
            return _are_groups(group.value)
        function = self._source.function_of(group) if isinstance(group, ast.Name) else None
        uses = self._source.uses(function, group.id) if function is not None else None  # type: ignore[attr-defined]
        stores = [self._source.parents[node] for node in uses or () if isinstance(node.ctx, ast.Store)]
        return bool(stores) and all(isinstance(loop, ast.For) and _are_groups(loop.iter) for loop in stores)

    def _is_put_into(self, target: ast.expr) -> bool:
        if isinstance(target, ast.Name):
            function = self._source.function_of(target)
            return function is not None and self._is_plain_variable(function, target.id)
        holder, key = self._place(target)
        if holder is ABSENT or key is ABSENT:
            return False
        carries = self._known.carries(holder, key)
        self._way.is_kept |= carries
        if not carries:
            self._known.wanted.append((holder, key))
        return carries

    def _place(self, target: ast.expr) -> tuple[Any, Any]:
        """Returns the object and the name of an attribute, or a dictionary and where in it, if it is that of one."""
        if isinstance(target, ast.Subscript):
            item, table = target.slice, self._held(path_of(target.value))
            key = item.value if isinstance(item, ast.Constant) else self._held(path_of(item))
            return (table, key) if type(table) in TABLES and type(key) in KEYS else (ABSENT, ABSENT)
        path = path_of(target)
        return (self._held(path[:-1]), path[-1]) if len(path) > 1 else (ABSENT, ABSENT)

    def _is_received(self, node: Any) -> bool:
        """Tells whether a value goes to who takes stand-ins, be it in a container or by the lines behind."""
        receivers = PassedOn.of(self._source).receivers(node, None)
        for each in receivers:
            if not isinstance(each, Receiver):
                getters = [] if self._frame is None else got([self._frame], [each])
            elif each.path[0] in self._hidden:
                return False
            else:
                getters = [getter(each, self._scopes)]
            if not getters or not all(map(self._known.receives, getters)):
                return False
        return bool(receivers)

    def _is_argument(self, node: ast.AST, parent: ast.Call | ast.keyword) -> bool:
        """Tells whether a function computes with an argument, or gives what it makes of it to such a line."""
        call, given = (self._source.parents[parent], parent) if isinstance(parent, ast.keyword) else (parent, node)
        if not isinstance(call, ast.Call) or given is call.func:
            return False
        path, name = path_of(call.func), call.func.attr if isinstance(call.func, ast.Attribute) else ""
        called, holder = self._held(path), self._held(path[:-1])
        if called is min or called is max:
            self._way.decides = True
            are_alone = not any(isinstance(item, ast.Starred) for item in call.args)
            return are_alone and len(call.args) > 1 and not call.keywords and self.is_plain(call)
        if called is abs:
            return self.is_plain(call)
        if any(called is each for each in _FREEZE):
            self._way.decides = True
            return True
        if name in TRUTHS and (holder is math or holder is sys.modules.get("numpy")):
            self._way.decides = True
            return not call.keywords
        if holder is math:
            return name in DOMAINS and self.is_plain(call)
        if holder is torch or holder is F:  # ask the stand-in, as its operators do
            return True
        if self._is_received(node):
            return True
        function, before = called_by(called, holder, name)
        if isinstance(function, FunctionType):
            return self._is_handed_to(function, before, call, given)
        return name in OF_TENSORS and (name.endswith("_") or type(holder) in _TENSORS)

    def _is_handed_to(self, function: FunctionType, before: list[Any], call: ast.Call, given: ast.AST) -> bool:
        """Tells whether a function of the user's does nothing else with an argument, which may have others before."""
        key = call, given, tuple(map(id, before))
        if key in self._calls:  # it calls itself
            return True
        code = function.__code__
        source = source_of((code,), code.co_filename)
        node = None if source is None else source.function(code)
        if source is None or node is None or gives_later(code) or is_library(function.__globals__.get("__name__", "")):
            return False
        name = argument_of(node.args, call, given, len(before))
        if name is None:
            return False
        first = dict(zip(code.co_varnames, before, strict=False))
        scopes, calls = [first, function.__globals__], self._calls | {key}
        inside = SourceUses(self._known, source, code, scopes, lambda: self.is_plain(call), self._way, calls=calls)
        inside._hidden = {*code.co_varnames, *code.co_freevars, *bound_in(node)} - first.keys()
        is_plain = inside._is_plain_variable(node, name)
        self.handed_to |= inside.handed_to | {(code, name)}
        lines = range(call.lineno, (call.end_lineno or call.lineno) + 1)
        self.handing |= inside.handing | {(self._code, line) for line in lines}
        return is_plain

    def _is_plain_variable(self, function: ast.AST, name: str) -> bool:
        """Tells whether a variable of the function's is used so wherever it is."""
        if (function, name) in self._met:  # of one that goes in a circle, or that all has been asked of by then
            return True
        self._met.add((function, name))
        uses = self._source.uses(function, name)
        if uses is None:
            return False
        self._hidden |= bound_in(function)
        return all(self.is_plain(node) for node in uses if self._is_used(node))

    def _is_used(self, node: ast.Name) -> bool:
        parent = self._source.parents[node]
        return not isinstance(node.ctx, ast.Store) or (isinstance(parent, ast.AugAssign) and parent.target is node)

    def _held(self, path: tuple[str, ...]) -> Any:
        return ABSENT if not path or path[0] in self._hidden else found_behind(path, self._scopes)


def _is_of_variable(target: ast.expr) -> bool:
    """Tells whether something is put into what a variable holds, which `passed_on.py` knows."""
    return isinstance(target, ast.Subscript) and len(path_of(target.value)) < 2


def _are_groups(node: ast.expr) -> bool:
    return isinstance(node, ast.Attribute) and node.attr == "param_groups"


def _compares(node: ast.Compare) -> bool:
    """Tells whether values are compared with each other, or one is told from `None` by identity."""
    if all(isinstance(op, _COMPARISONS) for op in node.ops):
        return True
    right = node.comparators[0]
    is_none = isinstance(right, ast.Constant) and right.value is None
    return len(node.ops) == 1 and is_none and isinstance(node.ops[0], (ast.Is, ast.IsNot))
