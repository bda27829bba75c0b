"""What becomes of a number in a file's source: who is called with it, what it is added to, whether it is returned.

`PassedOn` follows what a call gives from node to node: as it is, through arithmetic, as an element of a list, a tuple
or a dictionary, by way of a local variable. Where it may go anywhere else it says that nobody gets it.
"""

from __future__ import annotations

import ast
from functools import lru_cache
from itertools import chain
from types import CodeType
from typing import NamedTuple

from lightning_sink.engine.numbers.bound_names import CONVERSIONS
from lightning_sink.engine.source import Source, path_of, scope_of

ADDED = "+="
"""How an attribute receives what is added to it."""

RETURNED = "return"
"""How the code of a function receives what it returns to nobody's code."""

_CONVERSIONS = frozenset((kind.__name__,) for kind in CONVERSIONS)

_ARITHMETIC = (ast.Add, ast.Sub, ast.Mult, ast.Div)


class Receiver(NamedTuple):
    """Who gets a number.

    Attributes:
        path: A variable and names of attributes: `("self", "losses")`.
        how: The method of that which is called with it, or `ADDED`.
        item: What stands for it in a dictionary that is there; None where it is there itself.
    """

    path: tuple[str, ...]
    how: str
    item: ast.Constant | ast.Name | None = None


class Returned(NamedTuple):
    """A number that a function returns, or something that it is in.

    Attributes:
        place: Which element of the tuple that is returned has it; None for what is no tuple.
    """

    place: int | None


class PassedOn:
    """What becomes of the numbers of one source. What nobody asks for is not looked at."""

    def __init__(self, source: Source) -> None:
        self._source, self._parents = source, source.parents
        self._variables: dict[tuple[ast.AST, str], list[Receiver | Returned]] = {}

    @staticmethod
    @lru_cache(maxsize=32)
    def of(source: Source) -> PassedOn:
        """Returns those of a source."""
        return PassedOn(source)

    def receivers(self, value: ast.expr, place: int | None) -> list[Receiver | Returned]:
        """Returns who gets a number that something gives; none where it may go elsewhere.

        The place is which element of the tuple that it gives has the number; None where it gives none.
        """
        parent = self._parents[value]
        targets = parent.targets if isinstance(parent, ast.Assign) else []
        if place is not None and len(targets) == 1 and isinstance(targets[0], ast.Tuple):
            names = targets[0].elts
            alone = all(isinstance(name, ast.Name) for name in names) and place < len(names)
            return self._receivers_of_variable(names[place]) if alone else []  # type: ignore[arg-type]
        if isinstance(parent, ast.Return):
            return [Returned(place)]
        return self._receivers(value)

    def only_adds(self, code: CodeType, name: str) -> bool:
        """Tells whether a function does nothing with attributes of a name but adding to them."""
        function = self._source.function(code)
        inside = ast.walk(function) if function is not None else ()
        uses = [node for node in inside if isinstance(node, ast.Attribute) and node.attr == name]
        return bool(uses) and all(self._sum_of(node) is not None for node in uses)

    def _sum_of(self, node: ast.AST) -> ast.AST | None:
        """Returns what is added to an attribute, if that is what a line does: `x.n += 1`, or `x.n = x.n + 1`."""
        parent = self._parents[node]
        if isinstance(parent, ast.BinOp) and parent.left is node:
            parent = self._parents[parent]
        if isinstance(parent, ast.AugAssign):
            return parent.value if _adds(parent) and parent.target is node else None
        if not isinstance(parent, ast.Assign) or len(parent.targets) != 1 or not isinstance(parent.value, ast.BinOp):
            return None
        (target,), value = parent.targets, parent.value
        same = isinstance(target, ast.Attribute) and _receiver(target) == _receiver(value.left) != []
        return value.right if same and isinstance(value.op, ast.Add) else None

    def _receivers(self, node: ast.AST) -> list[Receiver | Returned]:
        parent = self._parents[node]
        if isinstance(parent, ast.keyword):
            node, parent = parent, self._parents[parent]
        if isinstance(parent, ast.Call):
            if path_of(parent.func) in _CONVERSIONS and parent.args == [node]:
                return self._receivers(parent)
            return [] if node is parent.func else [*_receiver(parent.func)]
        if isinstance(parent, ast.Return):
            return [Returned(None)]
        if isinstance(parent, ast.Tuple) and isinstance(self._parents[parent], ast.Return):
            starred = any(isinstance(item, ast.Starred) for item in parent.elts)
            return [] if starred else [Returned(parent.elts.index(node))]  # type: ignore[arg-type]
        if isinstance(parent, ast.AugAssign) and isinstance(parent.target, (ast.Attribute, ast.Subscript)):
            return [*_receiver(parent.target, ADDED)] if _adds(parent) else []
        if isinstance(parent, ast.AugAssign) and isinstance(parent.target, ast.Name):
            return self._receivers_of_variable(parent.target) if _computes(parent, node) else []
        if isinstance(parent, ast.Assign) and len(parent.targets) == 1:
            return self._receivers_of_target(parent.targets[0])
        if isinstance(parent, ast.BinOp) and node is self._sum_of(parent.left):
            return [*_receiver(parent.left, ADDED)]
        if isinstance(parent, ast.Attribute):
            return self._receivers_of_elements(parent)
        return self._receivers(parent) if _passes_on(parent, node) else []

    def _receivers_of_target(self, target: ast.expr) -> list[Receiver | Returned]:
        """Returns who gets what is put into a variable, or under a key into a dictionary that the function has made."""
        if isinstance(target, ast.Name):
            return self._receivers_of_variable(target)
        if not isinstance(target, ast.Subscript) or not isinstance(target.value, ast.Name):
            return []
        function, name = self._source.function_of(target), target.value.id
        if function is None or name in _arguments(function):
            return []
        stores = [node for node in scope_of(function)[0] if node.id == name and isinstance(node.ctx, ast.Store)]
        made = all(isinstance(getattr(self._parents[node], "value", None), (ast.Dict, ast.DictComp)) for node in stores)
        return self._receivers_of_variable(target.value) if made and stores else []

    def _receivers_of_elements(self, method: ast.Attribute) -> list[Receiver | Returned]:
        """Returns who gets the values of a dictionary that a loop goes through: `for name, value in found.items():`."""
        call = self._parents[method]
        loop = self._parents.get(call)
        if not isinstance(call, ast.Call) or call.func is not method or call.args or call.keywords:
            return []
        if not isinstance(loop, (ast.For, ast.comprehension)) or loop.iter is not call:
            return []
        target = loop.target
        if method.attr == "items" and isinstance(target, ast.Tuple) and len(target.elts) == 2:
            target = target.elts[1]
        elif method.attr != "values":
            return []
        return self._receivers_of_variable(target) if isinstance(target, ast.Name) else []

    def _receivers_of_variable(self, variable: ast.Name) -> list[Receiver | Returned]:
        """Returns who gets the values of a function's variable, if all that is done with it is to pass them on."""
        function = self._source.function_of(variable)
        if function is None:
            return []
        key = function, variable.id
        if key not in self._variables:
            self._variables[key] = []  # of one that goes in a circle
            self._variables[key] = self._receivers_of_name(function, variable.id)
        return self._variables[key]

    def _receivers_of_name(self, function: ast.AST, name: str) -> list[Receiver | Returned]:
        named = self._source.uses(function, name)
        if named is None:
            return []
        uses = [(node, self._parents[node]) for node in named]
        if not all(_computes(parent, node) for node, parent in uses if _is_changed(node, parent)):
            return []
        loads = [node for node, parent in uses if isinstance(node.ctx, ast.Load) and not _is_put_into(node, parent)]
        found = [self._receivers(node) for node in loads]
        return list(dict.fromkeys(chain.from_iterable(found))) if all(found) else []


def _arguments(function: ast.AST) -> set[str]:
    return {node.arg for node in ast.walk(getattr(function, "args", function)) if isinstance(node, ast.arg)}


def _is_put_into(node: ast.AST, parent: ast.AST) -> bool:
    """Tells whether something is put under a key into what a variable holds."""
    return isinstance(parent, ast.Subscript) and parent.value is node and isinstance(parent.ctx, ast.Store)


def _is_changed(node: ast.AST, parent: ast.AST) -> bool:
    return isinstance(parent, ast.AugAssign) and parent.target is node


def _adds(node: ast.AST) -> bool:
    return isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Add)


def _computes(parent: ast.AST, node: ast.AST) -> bool:
    """Tells whether an operation gives a number that is computed with a value; a divisor is an error where it is 0."""
    is_divisor = isinstance(parent, ast.BinOp) and node is parent.right
    is_divisor = is_divisor or (isinstance(parent, ast.AugAssign) and node is parent.value)
    operation = getattr(parent, "op", None)
    return isinstance(operation, _ARITHMETIC) and not (is_divisor and isinstance(operation, ast.Div))


def _passes_on(parent: ast.AST, node: ast.AST) -> bool:
    """Tells whether an expression gives a value as it is, in a container, or a number that is computed with it."""
    if isinstance(parent, ast.BinOp):
        return _computes(parent, node)
    if isinstance(parent, ast.Dict):
        return node in parent.values
    if isinstance(parent, ast.DictComp):
        return node is parent.value
    if isinstance(parent, ast.ListComp):
        return node is parent.elt
    if isinstance(parent, ast.IfExp):
        return node is not parent.test
    if isinstance(parent, ast.Subscript):
        return node is parent.value and isinstance(parent.ctx, ast.Load)
    return isinstance(parent, (ast.List, ast.Tuple)) or (
        isinstance(parent, ast.UnaryOp) and isinstance(parent.op, ast.USub)
    )


def _receiver(node: ast.AST, how: str | None = None) -> list[Receiver]:
    """Returns an attribute as a receiver, or what one has in a dictionary; none for what is none of a variable's."""
    if how is None:
        if not isinstance(node, ast.Attribute):
            return []
        how, node = node.attr, node.value
    if not isinstance(node, ast.Subscript):
        path = path_of(node)
        return [Receiver(path, how)] if len(path) > (how == ADDED) else []
    path, item = path_of(node.value), node.slice
    return [Receiver(path, how, item)] if path and isinstance(item, (ast.Constant, ast.Name)) else []
