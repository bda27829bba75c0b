"""Whether a value in a file's source is computed with: added, multiplied, compared.

`Operands` looks at what a value stands in, and at the loads of a local variable that it is put into, some of which may
pass it on. Who gets it there is for `passed_on.py`.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from functools import lru_cache
from itertools import chain
from typing import Any

from torch import Tensor, nn

from lightning_sink.engine.numbers.passed_on import ARITHMETIC, SHOWS_VARIABLES, Receiver, Returned, Source, scope_of

_COMPARISONS = (ast.Lt, ast.LtE, ast.Gt, ast.GtE, ast.Eq, ast.NotEq)
_KNOWN = frozenset([int, float, Tensor, nn.Parameter])


class Operands:
    """The values of a source that are operands."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._variables: dict[tuple[ast.AST, str], list[Receiver | Returned] | None] = {}

    @staticmethod
    @lru_cache(maxsize=32)
    def of(source: Source) -> Operands:
        """Returns those of a source."""
        return Operands(source)

    def others(self, value: ast.expr, variables: Mapping[str, Any]) -> list[Receiver | Returned] | None:
        """Returns who gets a value that, beside that, is computed with, is compared or decides; None for any other.

        By way of a local variable it may be both. `variables` are those that the line sees, with their values.
        """
        parent = self._source.parents[value]
        if self._is_operand(value, parent, variables):
            return []
        if isinstance(parent, ast.IfExp) and parent.test is not value:
            return self.others(parent, variables)
        if isinstance(parent, ast.Assign) and len(parent.targets) == 1 and isinstance(parent.targets[0], ast.Name):
            return self._others_of(parent.targets[0])
        return self._source.receivers(value, None) or None if self._is_handed_on(parent) else None

    def _is_handed_on(self, parent: ast.AST) -> bool:
        """Tells whether a value is given to a call or returned at once, by itself, in a tuple or in a dictionary."""
        if isinstance(parent, (ast.Dict, ast.Tuple)):
            parent = self._source.parents[parent]
        return isinstance(parent, (ast.Call, ast.keyword, ast.Return))

    def _is_operand(self, value: ast.expr, parent: ast.AST, variables: Mapping[str, Any]) -> bool:
        """Tells whether a value decides, is compared, added, subtracted, multiplied or divided.

        What stands on its left gets it by a method, and is to be a tensor or a number.
        """
        if isinstance(parent, ast.UnaryOp):
            return isinstance(parent.op, ast.USub)
        if isinstance(parent, ast.AugAssign):
            return parent.value is value and isinstance(parent.op, ARITHMETIC) and _is_known(parent.target, variables)
        if isinstance(parent, ast.BinOp):
            return isinstance(parent.op, ARITHMETIC) and (parent.left is value or _is_known(parent.left, variables))
        if isinstance(parent, ast.Compare):
            return _compares(parent) and (parent.left is value or _is_known(parent.left, variables))
        return isinstance(parent, (ast.If, ast.While)) or (isinstance(parent, ast.IfExp) and parent.test is value)

    def _others_of(self, variable: ast.Name) -> list[Receiver | Returned] | None:
        """Returns who gets the values of a function's variable, likewise."""
        function = self._source.function_of(variable)
        if function is None:
            return None
        key = function, variable.id
        if key not in self._variables:
            self._variables[key] = None  # of one that goes in a circle
            own, inner = scope_of(function)
            if variable.id not in inner and not SHOWS_VARIABLES & {node.id for node in own}:
                loads = [node for node in own if node.id == variable.id and isinstance(node.ctx, ast.Load)]
                found = [self.others(load, {}) for load in loads]
                getters = [*dict.fromkeys(chain.from_iterable(filter(None, found)))]
                # Who a variable is by then is known of those that are nobody else later.
                stored = {node.id for node in own if not isinstance(node.ctx, ast.Load)}
                stays = all(isinstance(got, Returned) or got.path[0] not in stored for got in getters)
                if None not in found and stays:
                    self._variables[key] = getters
        return self._variables[key]


def is_computed_with(source: Source, value: ast.expr) -> bool:
    """Tells whether a value is an operand, whatever the other one is."""
    return isinstance(source.parents[value], (ast.BinOp, ast.AugAssign, ast.Compare))


def is_returned(source: Source, value: ast.expr) -> bool:
    """Tells whether a function returns a value as it is."""
    return isinstance(source.parents[value], (ast.Return, ast.Lambda))


def _compares(node: ast.Compare) -> bool:
    """Tells whether one value is compared with another one, or told from `None` by identity."""
    if len(node.ops) != 1:
        return False
    (operator,), (right,) = node.ops, node.comparators
    is_none = isinstance(right, ast.Constant) and right.value is None
    return isinstance(operator, _COMPARISONS) or (is_none and isinstance(operator, (ast.Is, ast.IsNot)))


def _is_known(node: ast.expr, variables: Mapping[str, Any]) -> bool:
    """Tells whether what a line computes there is a plain tensor or a number of Python's, or what is made of these."""
    if isinstance(node, ast.Constant):
        return type(node.value) in _KNOWN
    if isinstance(node, ast.Name):
        return type(variables.get(node.id)) in _KNOWN
    if isinstance(node, ast.BinOp):
        return _is_known(node.left, variables) and _is_known(node.right, variables)
    return isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub) and _is_known(node.operand, variables)
