"""Whether all that is done with a number is arithmetic, as far as the source tells: what a stand-in may be used for.

A stand-in is a number to Python's operators, to torch and to `math`, and to nobody who asks for its type or keeps it.
So an attribute has one only where the line that reads it does nothing else with it: adds, multiplies, compares,
decides, logs it, collects it, puts it into an attribute that steps set, or into a variable of which the same is true,
hands it to a function that does no more, or returns it to such a line. Of what is computed of a stand-in it is asked
again. What stands beside it is not known; `handed.py` sees who it is. Positions within a line are known from Python
3.11 on; before that nothing is certain.
"""

from __future__ import annotations

import ast
import builtins
import math
from collections.abc import Callable, Mapping
from functools import partial
from types import FrameType, FunctionType
from typing import Any

import torch

from lightning_sink.engine.held import ABSENT, found_behind
from lightning_sink.engine.numbers.called import called_by
from lightning_sink.engine.numbers.flows import Getter, getter, gives_later, got, is_of, scopes_of, value_at
from lightning_sink.engine.numbers.handed import Handed
from lightning_sink.engine.numbers.math_functions import KNOWN_TO_MATH
from lightning_sink.engine.numbers.passed_on import PassedOn, Receiver
from lightning_sink.engine.source import Source, instruction_at, path_of, scope_of, source_of
from lightning_sink.engine.watch import is_library, is_user_frame

_OPERATIONS = (ast.Add, ast.Sub, ast.Mult, ast.Div, ast.FloorDiv, ast.Mod, ast.Pow)
_COMPARISONS = (ast.Lt, ast.LtE, ast.Gt, ast.GtE, ast.Eq, ast.NotEq)
_OF_TENSORS = frozenset(["add_", "sub_", "mul_", "div_", "lerp_", "addcdiv_", "addcmul_", "sub", "mul", "div", "lerp"])
"""Methods that nothing in C has that would keep what it is given."""
_MAKE = frozenset(["tensor", "as_tensor"])


class PlainUses:
    """Who may get a stand-in, in one recording.

    Args:
        carries: Tells whether an attribute of an object may hold one while the step is recorded.
        receives: Tells whether somebody takes one and decides nothing by it.
        handed: Told of functions that do nothing else with one, either.
    """

    def __init__(self, carries: Callable[[Any, str], bool], receives: Callable[[Getter], bool], handed: Handed) -> None:
        self.carries, self.receives, self.handed = carries, receives, handed

    def has(self, frame: FrameType, attribute: str = "") -> bool:
        """Tells whether what a frame's instruction gives is used as a number and as nothing else.

        An attribute's name is the one that the instruction has to read.
        """
        source, span = instruction_at([frame])
        if source is None or frame.f_code in self.handed.unfit:
            return False
        node = source.value(span) or source.augmented(span)
        if node is None or (attribute and not (isinstance(node, ast.Attribute) and node.attr == attribute)):
            return False
        try:
            return _Uses(self, source, scopes_of([frame]), partial(self._is_returned, frame), frame).is_plain(node)
        except RecursionError:  # an expression as long as generated ones are
            return False

    def _is_returned(self, frame: FrameType) -> bool:
        """Tells whether the line that calls a frame's function, or asks for its property, uses what it returns so."""
        code, caller = frame.f_code, frame.f_back
        if caller is None or not is_user_frame(caller) or gives_later(code):
            return False
        _, value = value_at([caller])
        return value is not None and is_of(value, scopes_of([caller]), code) and self.has(caller)


class _Uses:
    """The uses of what the lines of one function compute.

    Args:
        scopes: The variables that they see.
        is_returned: Tells whether what the function returns is used so.
        frame: Where the function is by now; None where it does not run yet.
    """

    def __init__(
        self,
        known: PlainUses,
        source: Source,
        scopes: list[Mapping[str, Any]],
        is_returned: Callable[[], bool],
        frame: FrameType | None = None,
    ) -> None:
        self._known, self._source, self._is_returned, self._frame = known, source, is_returned, frame
        self._scopes = [*scopes, vars(builtins)]
        self._met: set[tuple[ast.AST, str]] = set()
        self._hidden: set[str] = set()

    def is_plain(self, node: ast.AST) -> bool:
        """Tells whether a value is used as a number and as nothing else."""
        parent = self._source.parents[node]
        if isinstance(node, ast.AugAssign):
            return self._is_put_into(node.target)
        if isinstance(parent, (ast.BinOp, ast.AugAssign)):
            return isinstance(parent.op, _OPERATIONS)
        if isinstance(parent, ast.Compare):
            return _compares(parent)
        if isinstance(parent, ast.UnaryOp):
            return isinstance(parent.op, (ast.USub, ast.Not))
        if isinstance(parent, (ast.If, ast.While, ast.IfExp)) and parent.test is node:
            return True
        if isinstance(parent, ast.IfExp):
            return self.is_plain(parent)
        if isinstance(parent, ast.Assign) and not isinstance(parent.targets[0], ast.Subscript):
            return len(parent.targets) == 1 and self._is_put_into(parent.targets[0])
        if isinstance(parent, (ast.Call, ast.keyword)):
            return self._is_argument(node, parent)
        if isinstance(parent, (ast.Return, ast.Lambda)):
            return self._is_returned()
        return self._is_received(node)

    def _is_put_into(self, target: ast.expr) -> bool:
        if isinstance(target, ast.Name):
            function = self._source.function_of(target)
            return function is not None and self.is_plain_variable(function, target.id)
        path = path_of(target)
        return len(path) > 1 and self._known.carries(self._held(path[:-1]), path[-1])

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
            are_alone = not any(isinstance(item, ast.Starred) for item in call.args)
            return are_alone and len(call.args) > 1 and not call.keywords and self.is_plain(call)
        if holder is math:
            return name in KNOWN_TO_MATH and self.is_plain(call)
        if name in (_MAKE if holder is torch else _OF_TENSORS) or self._is_received(node):
            return True
        return called is not ABSENT and self._is_handed_to(*called_by(called, holder, name), call, given)

    def _is_handed_to(self, function: Any, before: list[Any], call: ast.Call, given: ast.AST) -> bool:
        """Tells whether a function of the user's does nothing else with an argument, which may have others before."""
        if not isinstance(function, FunctionType) or is_library(function.__globals__.get("__name__", "")):
            return False
        code = function.__code__
        source = source_of((code,), code.co_filename)
        node = None if source is None else source.function(code)
        if source is None or node is None or gives_later(code) or code in self._known.handed.unfit:
            return False
        name = _argument(node.args, call, given, len(before))
        first = dict(zip(code.co_varnames, before, strict=False))
        inside = _Uses(self._known, source, [first, function.__globals__], lambda: self.is_plain(call))
        inside._met = self._met
        inside._hidden = {*code.co_varnames, *code.co_freevars} - first.keys()
        if name is None or not inside.is_plain_variable(node, name):
            return False
        self._known.handed.expected.add((code, name))
        return True

    def is_plain_variable(self, function: ast.AST, name: str) -> bool:
        """Tells whether a function's variable is used so wherever it is."""
        if (function, name) in self._met:  # of one that goes in a circle, or was asked for before
            return True
        self._met.add((function, name))
        uses = self._source.uses(function, name)
        if uses is None:
            return False
        # Others may be somebody else in the lines behind.
        self._hidden |= {each.id for each in scope_of(function)[0] if not isinstance(each.ctx, ast.Load)}
        return all(self.is_plain(node) for node in uses if self._is_used(node))

    def _is_used(self, node: ast.Name) -> bool:
        parent = self._source.parents[node]
        return not isinstance(node.ctx, ast.Store) or (isinstance(parent, ast.AugAssign) and parent.target is node)

    def _held(self, path: tuple[str, ...]) -> Any:
        return ABSENT if not path or path[0] in self._hidden else found_behind(path, self._scopes)


def _compares(node: ast.Compare) -> bool:
    """Tells whether one value is compared with another one, or told from `None` by identity."""
    if len(node.ops) != 1:
        return False
    right = node.comparators[0]
    is_none = isinstance(right, ast.Constant) and right.value is None
    return isinstance(node.ops[0], _COMPARISONS) or (is_none and isinstance(node.ops[0], (ast.Is, ast.IsNot)))


def _argument(arguments: ast.arguments, call: ast.Call, given: ast.AST, before: int) -> str | None:
    """Returns the name by which a function knows what a call gives it; None where that is not certain."""
    if isinstance(given, ast.keyword):
        named = {each.arg for each in (*arguments.args[before:], *arguments.kwonlyargs)}
        return given.arg if given.arg in named else None
    place = call.args.index(given)  # type: ignore[arg-type]
    by_place = [*arguments.posonlyargs, *arguments.args][before + place :]
    are_certain = not any(isinstance(item, ast.Starred) for item in call.args[:place])
    return by_place[0].arg if by_place and are_certain else None
