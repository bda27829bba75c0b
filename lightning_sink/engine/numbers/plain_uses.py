"""Whether all that is done with a number is arithmetic, as far as the source tells: what a stand-in may be used for.

A stand-in is a number to Python's operators, to torch and to `math`, and to nobody who asks for its type or hands it to
code in C. So an attribute that steps set (`carried.py`) has one only where the line that reads it does nothing else
with it: adds, multiplies, compares, decides, logs it, puts it into such an attribute, or into a variable of which the
same is true, or returns it to such a line. Of what is computed of a stand-in it is asked again. Positions within a line
are known from Python 3.11 on; before that nothing is certain.
"""

from __future__ import annotations

import ast
import builtins
import inspect
import math
from collections.abc import Callable
from types import FrameType
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from lightning_sink.engine.numbers.flows import attribute_of, instruction_at
from lightning_sink.engine.numbers.math_functions import KNOWN_TO_MATH
from lightning_sink.engine.numbers.number import Number
from lightning_sink.engine.numbers.passed_on import SHOWS_VARIABLES, Source, path_of, scope_of
from lightning_sink.engine.watch import is_user_frame

Takes = Callable[[Any, str], bool]
"""Tells something of an object's attribute, or of a method of its."""

_OPERATIONS = (ast.Add, ast.Sub, ast.Mult, ast.Div, ast.FloorDiv, ast.Mod, ast.Pow)
_COMPARISONS = (ast.Lt, ast.LtE, ast.Gt, ast.GtE, ast.Eq, ast.NotEq)
_CHOOSE = frozenset(["min", "max"])
_IN_PLACE = frozenset(["add_", "sub_", "mul_", "div_", "lerp_", "addcdiv_", "addcmul_"])
"""Methods by which a tensor is known as one."""
_MAKE = frozenset(["tensor", "as_tensor"])
_NUMBERS = frozenset([int, float, bool, Tensor, nn.Parameter, nn.Buffer, Number])
_PAUSES = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR
_TENSORS = frozenset([Tensor, nn.Parameter, nn.Buffer])
_UNKNOWN = object()


class PlainUses(NamedTuple):
    """What is known of those who may get a stand-in.

    Attributes:
        carries: Tells whether an attribute of an object may hold one while the step is recorded.
        takes: Tells whether a method of an object takes one and decides nothing by it.
    """

    carries: Takes
    takes: Takes

    def has(self, frame: FrameType) -> bool:
        """Tells whether what a frame's instruction gives is used as a number and as nothing else."""
        source, node = _value_at(frame)
        try:
            return source is not None and node is not None and _Uses(self, source, frame).is_plain(node)
        except RecursionError:  # an expression as long as generated ones are
            return False


def _value_at(frame: FrameType) -> tuple[Source | None, ast.AST | None]:
    """Returns what a frame is at: an attribute, a call, arithmetic."""
    source, span = instruction_at([frame])
    return source, None if source is None else source.value(span) or source.augmented(span)


class _Uses:
    """The uses of what the lines of one frame compute."""

    def __init__(self, known: PlainUses, source: Source, frame: FrameType) -> None:
        self._known, self._source, self._frame = known, source, frame
        self._variables: set[tuple[ast.AST, str]] = set()
        self._stored: set[str] = set()

    def is_plain(self, node: ast.AST) -> bool:
        """Tells whether a value is used as a number and as nothing else."""
        parent = self._source.parents[node]
        if isinstance(node, ast.AugAssign):
            return self._is_put_into(node.target)
        if isinstance(parent, (ast.BinOp, ast.AugAssign, ast.Compare)):
            return self._is_operand(node, parent)
        if isinstance(parent, ast.UnaryOp):
            return isinstance(parent.op, (ast.USub, ast.Not))
        if isinstance(parent, (ast.If, ast.While, ast.IfExp)) and parent.test is node:
            return True
        if isinstance(parent, ast.IfExp):
            return self.is_plain(parent)
        if isinstance(parent, ast.Assign):
            return len(parent.targets) == 1 and self._is_put_into(parent.targets[0])
        if isinstance(parent, ast.Dict):
            node, parent = parent, self._source.parents[parent]
        if isinstance(parent, ast.keyword):
            node, parent = parent, self._source.parents[parent]
        if isinstance(parent, ast.Call):
            return node is not parent.func and self._is_taken_by(parent, node)
        return isinstance(parent, (ast.Return, ast.Lambda)) and self._is_returned()

    def _is_operand(self, node: ast.AST, parent: ast.BinOp | ast.AugAssign | ast.Compare) -> bool:
        """Tells whether a value is computed with, or compared. What stands on its left gets it by a method."""
        if isinstance(parent, ast.AugAssign):
            return isinstance(parent.op, _OPERATIONS) and (parent.target is node or self._is_number(parent.target))
        if isinstance(parent, ast.BinOp):
            return isinstance(parent.op, _OPERATIONS) and (parent.left is node or self._is_number(parent.left))
        if len(parent.ops) != 1:
            return False
        right = parent.comparators[0]
        if isinstance(parent.ops[0], (ast.Is, ast.IsNot)):
            return isinstance(right, ast.Constant) and right.value is None
        return isinstance(parent.ops[0], _COMPARISONS) and (parent.left is node or self._is_number(parent.left))

    def _is_put_into(self, target: ast.expr) -> bool:
        if isinstance(target, ast.Name):
            return self._is_plain_variable(target)
        path = path_of(target)
        return len(path) > 1 and self._known.carries(self._held(path[:-1]), path[-1])

    def _is_taken_by(self, call: ast.Call, given: ast.AST) -> bool:
        """Tells whether a function takes a number as an argument, or gives what it makes of it to such a line."""
        path = path_of(call.func)
        if len(path) == 1:
            chooses = path[0] in _CHOOSE and self._held(path) is getattr(builtins, path[0]) and not call.keywords
            others = [item for item in call.args if item is not given]
            return chooses and bool(others) and all(map(self._is_number, others)) and self.is_plain(call)
        if not isinstance(call.func, ast.Attribute):
            return False
        holder, method = self._held(path[:-1]) if path else _UNKNOWN, call.func.attr
        if holder is math:
            return method in KNOWN_TO_MATH and self.is_plain(call)
        if holder is torch:
            return method in _MAKE
        if method in _IN_PLACE:
            return self._is_tensor(call.func.value)
        return holder is not _UNKNOWN and self._known.takes(holder, method)

    def _is_plain_variable(self, variable: ast.Name) -> bool:
        """Tells whether a function's variable is used so wherever it is."""
        function = self._source.function_of(variable)
        if function is None:
            return False
        if (function, variable.id) in self._variables:  # of one that goes in a circle, or was asked for before
            return True
        self._variables.add((function, variable.id))
        own, inner = scope_of(function)
        if variable.id in inner or SHOWS_VARIABLES & {node.id for node in own}:
            return False
        self._stored |= {node.id for node in own if not isinstance(node.ctx, ast.Load)}
        uses = [node for node in own if node.id == variable.id]
        return all(self.is_plain(node) for node in uses if self._is_used(node))

    def _is_used(self, node: ast.Name) -> bool:
        parent = self._source.parents[node]
        return not isinstance(node.ctx, ast.Store) or (isinstance(parent, ast.AugAssign) and parent.target is node)

    def _is_returned(self) -> bool:
        """Tells whether the line that calls the function uses what it returns so."""
        code, caller = self._frame.f_code, self._frame.f_back
        if caller is None or code.co_flags & _PAUSES or not is_user_frame(caller):
            return False
        _, node = _value_at(caller)
        name = path_of(node.func if isinstance(node, ast.Call) else node)[-1:] if node is not None else ()
        return name == (code.co_name,) and self._known.has(caller)

    def _is_number(self, node: ast.AST) -> bool:
        """Tells whether something is known to be a tensor or a number of Python's, or to be made of such."""
        if isinstance(node, ast.Constant):
            return type(node.value) in _NUMBERS
        if isinstance(node, ast.BinOp):
            return self._is_number(node.left) and self._is_number(node.right)
        if isinstance(node, ast.UnaryOp):
            return isinstance(node.op, ast.USub) and self._is_number(node.operand)
        path = path_of(node)
        return (bool(path) and type(self._held(path)) in _NUMBERS) or self._is_tensor(node)

    def _is_tensor(self, node: ast.AST) -> bool:
        """Tells whether something is known to be a tensor, or what a tensor has or gives that it is written to."""
        path = path_of(node)
        if path and type(self._held(path)) in _TENSORS:
            return True
        if isinstance(node, ast.Attribute):
            return node.attr in ("grad", "data") and self._is_tensor(node.value)
        method = node.func if isinstance(node, ast.Call) else None
        return isinstance(method, ast.Attribute) and method.attr in _IN_PLACE and self._is_tensor(method.value)

    def _held(self, path: tuple[str, ...]) -> Any:
        """Returns what a variable, or an attribute of what it holds, is, without running code.

        Where a variable is asked about that is used in other lines: of one that is nobody else by then.
        """
        frame, first = self._frame, path[0]
        if first in self._stored:
            return _UNKNOWN
        scopes = frame.f_locals, frame.f_globals, vars(builtins)
        held = next((scope[first] for scope in scopes if first in scope), _UNKNOWN)
        for name in path[1:]:
            held = _UNKNOWN if held is _UNKNOWN or (found := attribute_of(held, name)) is None else found
        return held
