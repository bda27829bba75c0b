"""Whether a line of the user's asks a logger for nothing but to write numbers, as its source says.

A stand-in for a logger is none to who asks for its type, compares it, keeps it or hands it on. So a line gets one only
where it calls a method that writes, in a statement of its own, which no `try` may catch: by the logger itself, by its
`experiment`, by local variables that are used so, in a loop over the loggers; or where it asks whether there is one.
From Python 3.11 on, where positions in a line are known.
"""

from __future__ import annotations

import ast
from types import FrameType

from lightning_sink.engine.numbers.flows import gives_later, value_at
from lightning_sink.engine.source import Source, path_of
from lightning_sink.engine.watch import callers_in_step

LOGGERS, LOGGER, WRITER = "loggers", "logger", "experiment"

METHODS = {
    LOGGER: frozenset(["log_metrics"]),
    WRITER: frozenset(["add_scalar", "add_scalars", "log"]),
    LOGGERS: frozenset[str](),
}
"""What is called of each to write numbers."""


def only_writes(frame: FrameType, name: str) -> bool:
    """Tells whether what a frame asks for by a name is used so."""
    source, value = value_at([frame])
    if source is None or value is None or gives_later(frame.f_code):
        return False
    return _Uses(source).are_fine(value, name) and not _may_be_caught(frame)


def is_statement(frame: FrameType) -> bool:
    """Tells whether a frame's call is a statement of its own, outside of what catches errors."""
    source, value = value_at([frame])
    is_one = source is not None and isinstance(value, ast.Call) and _stands_alone(source, value)
    return is_one and not _may_be_caught(frame)


def _may_be_caught(frame: FrameType) -> bool:
    """Tells whether the user's lines that lead to a frame may catch what it raises."""
    lines = map(value_at, ([caller] for caller in callers_in_step(frame)))
    return any(source is None or value is None or _is_guarded(source, value) for source, value in lines)


class _Uses:
    def __init__(self, source: Source) -> None:
        self._source, self._met = source, set[tuple[ast.AST, str]]()

    def are_fine(self, node: ast.expr, what: str) -> bool:
        """Tells whether a node that gives a logger, its writer or the loggers is part of a line that may have it."""
        parent = self._source.parents[node]
        if isinstance(parent, ast.Attribute):
            return self._is_attribute_fine(parent, what)
        if isinstance(parent, ast.Compare) and parent.left is node:
            ends = parent.comparators[0]
            is_none = isinstance(ends, ast.Constant) and ends.value is None
            return is_none and len(parent.ops) == 1 and isinstance(parent.ops[0], (ast.Is, ast.IsNot))
        if isinstance(parent, ast.Call) and what == LOGGER:
            return path_of(parent.func) == ("isinstance",) and parent.args[:1] == [node]
        if isinstance(parent, ast.Assign) and len(parent.targets) == 1:
            return self._is_variable_fine(parent.targets[0], what)
        if isinstance(parent, ast.For) and parent.iter is node and what == LOGGERS:
            return self._is_variable_fine(parent.target, LOGGER)
        if isinstance(parent, ast.Subscript) and parent.value is node and what == LOGGERS:
            return isinstance(parent.slice, ast.Constant) and self.are_fine(parent, LOGGER)
        return False

    def _is_attribute_fine(self, node: ast.Attribute, what: str) -> bool:
        call = self._source.parents[node]
        if node.attr in METHODS[what]:
            return isinstance(call, ast.Call) and call.func is node and _stands_alone(self._source, call)
        return what == LOGGER and node.attr == WRITER and self.are_fine(node, WRITER)

    def _is_variable_fine(self, target: ast.expr, what: str) -> bool:
        function = self._source.function_of(target)
        if function is None or not isinstance(target, ast.Name):
            return False
        key = function, target.id
        if key in self._met:
            return True
        self._met.add(key)
        uses = self._source.uses(function, target.id)
        if uses is None or any(isinstance(self._source.parents[use], ast.AugAssign) for use in uses):
            return False
        return all(self.are_fine(use, what) for use in uses if isinstance(use.ctx, ast.Load))


def _stands_alone(source: Source, call: ast.Call) -> bool:
    return isinstance(source.parents[call], ast.Expr) and not _is_guarded(source, call)


def _is_guarded(source: Source, node: ast.AST) -> bool:
    """Tells whether a node of a function stands in what may catch errors."""
    while not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.Module)):
        node = source.parents[node]
        if isinstance(node, ast.Try) or type(node).__name__ == "TryStar":
            return True
        if isinstance(node, (ast.With, ast.AsyncWith)) and not all(map(_is_torchs, node.items)):
            return True
    return False


def _is_torchs(item: ast.withitem) -> bool:
    """Tells whether what a block is entered with is torch's, which catches no error."""
    entered = item.context_expr
    return path_of(entered.func if isinstance(entered, ast.Call) else entered)[:1] == ("torch",)
