"""Which parts of a batch the step looks at, as its source has it.

A batch may hold what no step looks at: names of files, ids. That is told by the source of `training_step` and of what
it hands the batch to, all of which has to be understood: a batch that is unpacked into variables, or asked for what it
has under a constant (`batch["image"]`), and methods and functions of the user's that do no more. Anything else that is
done with the batch, or with a part of it, counts as a look at all of that.
"""

from __future__ import annotations

import ast
import builtins
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from types import FunctionType
from typing import Any

from lightning.pytorch import LightningModule, Trainer

from lightning_sink.data.listed_texts import Parts, Path
from lightning_sink.engine.source import SHOW_VARIABLES, scope_of
from lightning_sink.held import ABSENT
from lightning_sink.trainer.sources import arguments_of, source_of, variable
from lightning_sink.trainer.turns import is_of_step

ALL = Parts(frozenset([()]))
"""That a step may look at anything."""

_HOOKS = {"training_step": 1, "on_train_batch_start": 1, "on_train_batch_end": 2}
"""Methods that are given the batch in each step, and where."""

_OF_STRUCTURE = frozenset(["len", "isinstance", "type"])
"""Functions that look at no more of a container than its type and its length."""


_DEEPEST, _MOST = 4, 500
"""Parts of parts that are told apart, and parts in all: of a variable that is given parts of itself there would be ever
deeper ones, and ever more."""


class BatchReads:
    """What is known of the step of the module that was asked about last."""

    def __init__(self) -> None:
        self._module: LightningModule | None = None
        self._parts = ALL
        self._found: list[tuple[Callable[[], Any], Any, Any]] = []

    def parts(self, trainer: Trainer) -> Parts:
        """Returns what the step looks at."""
        callbacks: Iterable[Any] = trainer.callbacks  # type: ignore[attr-defined]
        if any(map(is_of_step, callbacks)):
            return ALL
        module = trainer.lightning_module
        if self._module is not module or any(_with_code(find()) != (known, code) for find, known, code in self._found):
            reader = _Reader(module)
            self._module, self._parts, self._found = module, reader.read(), reader.found
        return self._parts


def _with_code(function: Any) -> tuple[Any, Any]:
    return function, getattr(function, "__code__", None)


class _Reader:
    """Reads the source of a module's step.

    Attributes:
        lengths: What is asked for its length, or for a part.
        found: What finds a function behind names, that, and its code: as long as it does, what was read is right.
    """

    def __init__(self, module: LightningModule) -> None:
        self._module = module
        self._paths: set[Path] = set()
        self._read: set[tuple[Any, ...]] = set()
        self.lengths: set[Path] = set()
        self.found: list[tuple[Callable[[], Any], Any, Any]] = []

    def read(self) -> Parts:
        """Returns what the step looks at."""
        for name, position in _HOOKS.items():
            function = self.find(partial(_method, self._module, name))
            if function is not getattr(LightningModule, name):
                self.follow(function, position, ())
        return Parts(frozenset(self._paths), frozenset(self.lengths))

    def find(self, find: Callable[[], Any]) -> Any:
        """Returns what is found, and remembers how."""
        known, code = _with_code(find())
        self.found.append((find, known, code))
        return known

    def follow(self, function: Any, argument: int | str, path: Path) -> None:
        """Takes note of what a function looks at in an argument, which is what the path leads to."""
        key = function, argument, path
        if key in self._read:
            return  # it calls itself
        if len(path) > _DEEPEST:  # with a part of what it was given
            self._paths.add(path)
            return
        self._read.add(key)
        source = source_of(function) if isinstance(function, FunctionType) else None
        names = arguments_of(source) if source is not None else []
        name = argument if isinstance(argument, str) else names[argument] if argument < len(names) else ""
        if source is None or name not in names:
            self._paths.add(path)
            return
        self._paths |= _Body(self, self._module, function, source).looks(name, path)


class _Body:
    """One function; what it looks at in a variable, and in others that it gives parts of that to."""

    def __init__(
        self, reader: _Reader, module: LightningModule, function: FunctionType, source: ast.FunctionDef
    ) -> None:
        self._reader, self._module, self._function, self._source = reader, module, function, source
        self._parents = {child: node for node in ast.walk(source) for child in ast.iter_child_nodes(node)}
        self._own, self._inner = scope_of(source)
        self._holds: dict[str, set[Path]] = defaultdict(set)

    def looks(self, name: str, path: Path) -> set[Path]:
        """Returns what it looks at, if the variable is what a path leads to."""
        if SHOW_VARIABLES & {node.id for node in self._own}:
            return {path}
        self._holds[name].add(path)
        found = {*self._bind_all(path)}
        for name in self._inner & self._holds.keys():
            found |= self._holds[name]
        for node in self._own:
            if self._holds[node.id]:
                found |= {*self._seen_at(node)}
        return found

    def _bind_all(self, whole: Path) -> Iterator[Path]:
        """Gives variables what they are assigned, as long as that are more; yields what goes elsewhere.

        That is `whole`, which has all of it, where there is no end of parts.
        """
        assigned = [node for node in ast.walk(self._source) if isinstance(node, (ast.Assign, ast.AnnAssign))]
        count = -1
        while count != (count := sum(map(len, self._holds.values()))):
            if count > _MOST:
                yield whole
                return
            for node in assigned:
                for path in [*self._paths_of(node.value)] if node.value is not None else ():
                    if len(path) > _DEEPEST:  # `batch = batch[0]`
                        yield path
                        continue
                    for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                        yield from self._bind(target, path)

    def _bind(self, target: ast.expr, path: Path) -> Iterator[Path]:
        if isinstance(target, ast.Name):
            self._holds[target.id].add(path)
        elif isinstance(target, (ast.Tuple, ast.List)) and not any(isinstance(t, ast.Starred) for t in target.elts):
            self._reader.lengths.add(path)
            for number, part in enumerate(target.elts):
                yield from self._bind(part, (*path, number))
        else:
            yield path

    def _paths_of(self, node: ast.AST) -> set[Path]:
        """Returns what leads to what an expression gives; nothing for one that is no part of the batch as it is."""
        if isinstance(node, ast.Name):
            return self._holds[node.id]
        of, key = _asked(node)
        return set() if of is None else {(*path, key) for path in self._paths_of(of)}

    def _seen_at(self, node: ast.expr) -> Iterator[Path]:
        """Yields what is looked at where a variable is named."""
        if not isinstance(node.ctx, ast.Load):  # type: ignore[attr-defined]
            if isinstance(self._parents[node], (ast.AugAssign, ast.For, ast.comprehension, ast.withitem)):
                yield from self._paths_of(node)
            return
        while (outer := self._outer(node)) is not None:
            self._reader.lengths |= self._paths_of(node)
            node = outer
        paths, parent = self._paths_of(node), self._parents[node]
        if isinstance(parent, (ast.Expr, ast.Assign, ast.AnnAssign)):
            return
        if isinstance(parent, ast.Compare) and _is_of_structure(parent, node):
            yield from (path for path in paths if path and not isinstance(parent.ops[0], (ast.Is, ast.IsNot)))
        elif isinstance(parent, (ast.Call, ast.keyword)):
            call = parent if isinstance(parent, ast.Call) else self._parents[parent]
            yield from self._seen_in_call(call, node, paths)
        else:
            yield from paths

    def _outer(self, node: ast.expr) -> ast.expr | None:
        """Returns the expression around one that gives a part of it."""
        parent = self._parents[node]
        if isinstance(parent, ast.Attribute) and isinstance(self._parents[parent], ast.Call):
            parent = self._parents[parent]  # `batch.get`
        return parent if _asked(parent)[0] is node else None  # type: ignore[return-value]

    def _seen_in_call(self, call: ast.AST, node: ast.expr, paths: set[Path]) -> Iterator[Path]:
        if not isinstance(call, ast.Call) or any(isinstance(each, ast.Starred) for each in call.args):
            yield from paths
            return
        if isinstance(call.func, ast.Name) and self._is_of_structure(call.func.id) and not call.keywords:
            self._reader.lengths |= paths
            return
        function, offset = self._called(call.func)
        argument: int | str = ""
        if node in call.args:
            argument = call.args.index(node) + offset
        else:
            argument = next((each.arg or "" for each in call.keywords if each.value is node), "")
        for path in paths if argument != "" and function is not ABSENT else ():
            self._reader.follow(function, argument, path)
        if argument == "" or function is ABSENT:
            yield from paths

    def _is_of_structure(self, name: str) -> bool:
        return name in _OF_STRUCTURE and self._global(name) is getattr(builtins, name)

    def _called(self, func: ast.expr) -> tuple[Any, int]:
        """Returns the function that is called, and how many arguments it is given before those in the call."""
        if isinstance(func, ast.Name):
            return self._global(func.id), 0
        arguments, module = arguments_of(self._source), self._module
        if not isinstance(func, ast.Attribute) or not arguments:
            return ABSENT, 0
        name, of = func.attr, func.value
        if not _is_method_of(self._function, module):
            return ABSENT, 0
        if isinstance(of, ast.Name) and of.id == arguments[0] and not _stores(self._own, of.id):
            return self._reader.find(partial(_method, module, name)), 1
        if isinstance(of, ast.Call) and isinstance(of.func, ast.Name) and of.func.id == "super" and not of.args:
            cells = dict(zip(self._function.__code__.co_freevars, self._function.__closure__ or (), strict=True))
            if "__class__" in cells:
                return self._reader.find(partial(_method, module, name, cells["__class__"].cell_contents)), 1
        return ABSENT, 0

    def _global(self, name: str) -> Any:
        if _stores(self._own, name) or name in arguments_of(self._source):
            return ABSENT
        return self._reader.find(partial(variable, self._function, name))


def _asked(node: ast.AST) -> tuple[ast.expr | None, Any]:
    """Returns what an expression asks for a part, and by which constant: `of[key]`, `of.get(key)`; None for others."""
    of: ast.expr | None = None
    key: ast.expr | None = None
    if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load):
        of, key = node.value, node.slice
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and len(node.args) == 1:
        of, key = (None if node.keywords or node.func.attr != "get" else node.func.value), node.args[0]
    return (of, key.value) if isinstance(key, ast.Constant) and isinstance(key.value, (str, int)) else (None, None)


def _is_of_structure(compared: ast.Compare, node: ast.expr) -> bool:
    """Tells whether it is asked whether something is None, or has a key."""
    with_constant = isinstance(compared.left, ast.Constant) or isinstance(compared.comparators[-1], ast.Constant)
    if len(compared.ops) == 1 and isinstance(compared.ops[0], (ast.Is, ast.IsNot)):
        return with_constant
    is_key = isinstance(compared.left, ast.Constant) and compared.comparators == [node]
    return is_key and isinstance(compared.ops[0], (ast.In, ast.NotIn))


def _stores(names: Iterable[ast.Name], name: str) -> bool:
    return any(node.id == name and not isinstance(node.ctx, ast.Load) for node in names)


def _is_method_of(function: FunctionType, module: LightningModule) -> bool:
    """Tells whether a function is a method of the module's class: its first argument is the module then."""
    return any(vars(kind).get(function.__name__) is function for kind in type(module).__mro__)


def _method(module: LightningModule, name: str, behind: type | None = None) -> Any:
    """Returns the function that a module has as a method; that of the classes behind one, if it is given."""
    if behind is None and name in vars(module):
        return ABSENT
    mro = type(module).__mro__
    kinds = mro if behind is None else mro[mro.index(behind) + 1 :] if behind in mro else ()
    return next((vars(kind)[name] for kind in kinds if name in vars(kind)), ABSENT)
