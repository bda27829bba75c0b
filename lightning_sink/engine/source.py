"""The source of files that code comes from: what an instruction is in it, and what is said of a variable's name.

A `Source` is of a text, and is known only as long as its code is what runs. Positions within a line are known from
Python 3.11 on; before that no instruction is found.
"""

from __future__ import annotations

import ast
import dis
import linecache
import threading
from collections.abc import Iterable, Iterator
from functools import lru_cache
from itertools import islice
from types import CodeType, FrameType
from typing import Any

from lightning_sink.engine.watch import unwatched

_Span = tuple[int | None, int | None, int | None, int | None]

_PARSES = threading.Lock()
"""Python 3.11 parses for one thread at a time, and fails in another one."""

_VALUES = (ast.Call, ast.Attribute, ast.BinOp, ast.UnaryOp)
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
_NAMED = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.ExceptHandler, ast.MatchAs, ast.MatchStar)
SHOW_VARIABLES = frozenset(["locals", "vars", "eval", "exec", "dir"])


def operation_at(frame: FrameType) -> str:
    """Returns the name of the operation that a frame is at."""
    operations, at = frame.f_code.co_code, frame.f_lasti
    while dis.opname[operations[at]] == "CACHE":  # behind a call, in Python 3.11 and 3.12
        at -= 2
    return dis.opname[operations[at]]


def is_in_place(frame: FrameType) -> bool:
    """Tells whether a frame is at arithmetic that may change what is on its left: `x *= y`."""
    found = (each for each in dis.get_instructions(frame.f_code) if each.offset == frame.f_lasti)
    return any(each.opname.startswith("INPLACE") or each.argrepr.endswith("=") for each in found)


@lru_cache(maxsize=256)
def source_of(codes: tuple[CodeType, ...], file: str) -> Source | None:
    """Returns the source of a file; None if some code is not what it has: it may be another one by now.

    Code is equal to code of another file, with other code around it.
    """
    with unwatched():
        source = _parsed("".join(linecache.getlines(file)))
    return source if source is not None and source.codes.issuperset(codes) else None


@lru_cache(maxsize=32)
def _parsed(text: str) -> Source | None:
    try:
        with _PARSES:
            return Source(_with_full_names(ast.parse(text)), compile(text, "", "exec", dont_inherit=True))
    except (SyntaxError, ValueError, RecursionError):
        return None


def _with_full_names(tree: ast.Module) -> ast.Module:
    """Makes private names of classes what they are where the code runs: `self.__n` is `self._Net__n` there."""
    left: list[tuple[ast.AST, str]] = [(tree, "")]
    while left:
        node, kind = left.pop()
        if isinstance(node, ast.ClassDef):
            kind = node.name.lstrip("_")
        elif isinstance(node, ast.Attribute) and kind and node.attr.startswith("__") and not node.attr.endswith("__"):
            node.attr = f"_{kind}{node.attr}"
        left += [(child, kind) for child in ast.iter_child_nodes(node)]
    return tree


class Source:
    """A text: its nodes, and what they stand in.

    Attributes:
        codes: All of its code.
        parents: What each node stands in.
        values: The calls, the attributes and the arithmetic, by where they stand.
        augmented: Assignments with arithmetic (`x += 1`), likewise.
    """

    def __init__(self, tree: ast.Module, code: CodeType) -> None:
        self.codes = frozenset(codes_in(code))
        self.parents = {child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}
        self.values = {_span(node): node for node in self.parents if isinstance(node, _VALUES)}
        self.augmented = {_span(node): node for node in self.parents if isinstance(node, ast.AugAssign)}
        functions = [node for node in self.parents if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))]
        self._functions = {_place(function): function for function in functions}

    def function(self, code: CodeType) -> ast.FunctionDef | ast.AsyncFunctionDef | None:
        """Returns the function with some code of the text."""
        return self._functions.get((code.co_name, code.co_firstlineno))

    def function_of(self, node: ast.AST) -> ast.AST | None:
        """Returns the function that a node stands in; None where it stands in none."""
        found: ast.AST | None = node
        while found is not None and not isinstance(found, _FUNCTIONS):
            found = self.parents.get(found)
        return found

    def uses(self, function: ast.AST, name: str) -> list[ast.Name] | None:
        """Returns where a function names a variable; None where others may see the variable, too."""
        own, inner = scope_of(function)
        if name in inner or SHOW_VARIABLES & {node.id for node in own}:
            return None
        return [node for node in own if node.id == name]


def instruction_at(frames: list[FrameType]) -> tuple[Source | None, Any]:
    """Returns the source of some frames of one file, and where in it the last one's instruction stands."""
    positions = getattr(frames[-1].f_code, "co_positions", None)
    if positions is None:
        return None, None
    source = source_of(tuple(each.f_code for each in frames), frames[-1].f_code.co_filename)
    return source, next(islice(positions(), frames[-1].f_lasti // 2, None))


def line_that_sets(name: str, codes: Iterable[CodeType]) -> str:
    """Returns file and line of what sets an attribute of this name in some code; "" unless that is one line."""
    found = {
        line_at(code, each.offset)
        for code in codes
        if name in code.co_names
        for each in dis.get_instructions(code)
        if each.opname == "STORE_ATTR" and each.argval == name
    }
    return found.pop() if len(found) == 1 else ""


def line_at(code: CodeType, offset: int) -> str:
    """Returns file and line of an instruction; "" where it has none."""
    lines = (line for begin, end, line in code.co_lines() if begin <= offset < end and line is not None)
    return next((f"{code.co_filename}:{line}" for line in lines), "")


@lru_cache(maxsize=256)
def scope_of(function: ast.AST) -> tuple[tuple[ast.Name, ...], frozenset[str]]:
    """Returns the names in a function, and which of them other scopes have too: functions in it, and around it.

    One recording asks it of one long function hundreds of times, and nodes stay as they are.
    """
    with unwatched():
        return _scope_of(function)


def _scope_of(function: ast.AST) -> tuple[tuple[ast.Name, ...], frozenset[str]]:
    own: list[ast.Name] = []
    inner: set[str] = set()
    nodes = [*ast.iter_child_nodes(function)]
    while nodes:
        node = nodes.pop()
        if isinstance(node, (*_FUNCTIONS, ast.ClassDef)):
            inner |= {use.id for use in ast.walk(node) if isinstance(use, ast.Name)}
        elif isinstance(node, (ast.Global, ast.Nonlocal)):
            inner |= {*node.names}
        else:
            own += [node] if isinstance(node, ast.Name) else []
            nodes += ast.iter_child_nodes(node)
    return tuple(own), frozenset(inner)


@lru_cache(maxsize=256)
def bound_in(function: ast.AST) -> frozenset[str]:
    """Returns the variables that a function sets, in any way, itself or in what is within it; see `scope_of`."""
    with unwatched():
        return _bound_in(function)


def _bound_in(function: ast.AST) -> frozenset[str]:
    found = {each.id for each in scope_of(function)[0] if not isinstance(each.ctx, ast.Load)}
    for node in ast.walk(function):
        if isinstance(node, ast.alias):
            found.add((node.asname or node.name).partition(".")[0])
        elif isinstance(node, ast.MatchMapping):
            found.add(node.rest or "")
        elif isinstance(node, _NAMED) and node is not function:
            found.add(node.name or "")
    return frozenset(found)


def path_of(node: ast.AST) -> tuple[str, ...]:
    """Returns a variable's name, or its and those of attributes; nothing for anything else."""
    names = []
    while isinstance(node, ast.Attribute):
        names.append(node.attr)
        node = node.value
    return (node.id, *reversed(names)) if isinstance(node, ast.Name) else ()


def _place(function: ast.FunctionDef | ast.AsyncFunctionDef) -> tuple[str, int]:
    return function.name, min(node.lineno for node in (function, *function.decorator_list))


def _span(node: ast.expr | ast.AugAssign) -> _Span:
    return node.lineno, node.end_lineno, node.col_offset, node.end_col_offset


def codes_in(code: CodeType) -> Iterator[CodeType]:
    """Yields some code, and that of the functions in it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from codes_in(constant)
