"""What a step function trains: the modules, optimizers and schedulers that it reaches, or those that are named."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from types import CellType, FunctionType, MethodType
from typing import Any

from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from lightning_sink.engine.state.attributes import TENSOR_HOLDERS, fingerprint
from lightning_sink.engine.state.holders import class_state
from lightning_sink.engine.state.slots import Beside
from lightning_sink.held import held_by
from lightning_sink.names import names_in
from lightning_sink.whose import is_users, module_of

_DEEPEST = 6
"""Functions called by functions, and containers and objects in these, that are looked into."""

_NAMES = nn.ModuleDict()
"""What has the names that no module in such a dictionary may have."""

_LARGE = 256
"""Items of a container from which on it is data."""


@dataclass
class State:
    """What is trained.

    Attributes:
        modules: Modules by name, none of them part of another.
        optimizers: Optimizers, in the order in which they were found.
        schedulers: Schedulers that the function reaches.
    """

    modules: dict[str, nn.Module] = field(default_factory=dict)
    optimizers: list[Optimizer] = field(default_factory=list)
    schedulers: list[LRScheduler] = field(default_factory=list)

    def add(self, name: str, value: Any) -> bool:
        """Takes a module, an optimizer or a scheduler; tells whether it was one."""
        kind = type(value)  # `isinstance` would ask lazy objects for their class
        if issubclass(kind, nn.Module):
            self._add_module(name, value)
        elif issubclass(kind, Optimizer):
            if not any(value is known for known in self.optimizers):
                self.optimizers.append(value)
        elif issubclass(kind, LRScheduler):
            if not any(value is known for known in self.schedulers):
                self.schedulers.append(value)
        else:
            return False
        return True

    def _add_module(self, name: str, module: nn.Module) -> None:
        if any(module is part for known in self.modules.values() for part in known.modules()):
            return
        inside = {id(part) for part in module.modules()}
        self.modules = {key: known for key, known in self.modules.items() if id(known) not in inside}
        key, number = name, 1
        while not key or "." in key or key in self.modules or hasattr(_NAMES, key):
            key, number = f"{name.replace('.', '_') or 'module'}_{number}", number + 1
        self.modules[key] = module

    def identities(self) -> set[int]:
        """Returns the identities of all of it, parts of modules among them."""
        parts = (part for module in self.modules.values() for part in module.modules())
        return {id(item) for item in (*parts, *self.optimizers, *self.schedulers)}


def find_state(function: Callable[..., Any]) -> State:
    """Returns what a function reaches: by closure, globals, attributes of its object, and functions that it calls."""
    state = State()
    _find(state, "", function, set(), _DEEPEST)
    return state


def named_state(given: Any) -> State:
    """Returns the state that a user names: a module, an optimizer, or a sequence or mapping of them.

    Raises:
        TypeError: For anything else.
    """
    state = State()
    items = given.items() if isinstance(given, Mapping) else enumerate(given) if _is_list(given) else [(0, given)]
    for name, value in items:
        if not state.add(name if isinstance(name, str) else type(value).__name__.lower(), value):
            raise TypeError(
                "`data_sink(state=...)` takes modules and optimizers: one, or a sequence or mapping of them; got"
                f" {value!r}."
            )
    return state


def _is_list(value: Any) -> bool:
    return isinstance(value, Iterable) and not isinstance(value, nn.Module)


def bound_state(function: Callable[..., Any], known: Collection[int]) -> dict[str, Hashable]:
    """Returns a fingerprint of what a function is bound to: the object of a method, the arguments of a `partial`.

    What is `known`, by identity, is looked at by itself.
    """
    found: dict[str, Hashable] = {}
    for name, value in _bound(function):
        kind = type(value)
        if id(value) in known or not (is_users(module_of(kind)) and held_by(value)):
            found[name] = fingerprint(value, known=known)
            continue
        for base in kind.__mro__:
            found |= class_state(base) if is_users(module_of(base)) else {}
        found |= {f"{kind.__name__}.{key}": fingerprint(item, known=known) for key, item in held_by(value).items()}
    return found


def beside(function: Callable[..., Any]) -> Beside:
    """Returns what steps of a function may change besides: objects, variables around it and around what it calls."""
    values, cells, names = list[Any](), list[CellType](), list[tuple[dict[str, Any], str]]()
    seen, level = set[int](), [function]
    for _ in range(_DEEPEST):
        level = [item for item in level if id(item) not in seen and not isinstance(item, (nn.Module, Optimizer))]
        seen.update(map(id, level))
        values += (item for item in level if not isinstance(item, (partial, MethodType, FunctionType)))
        functions = (inspect.unwrap(item) for item in level if isinstance(item, FunctionType))
        for each in functions:
            if isinstance(each, FunctionType) and is_users(each.__module__ or ""):
                cells += each.__closure__ or ()
                names += [(each.__globals__, name) for name in names_in(each.__code__)]
        level = [item for value in level for _, item in _within(value)]
    return Beside(values, cells, names)


def _bound(function: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(function, partial):
        yield from ((f"argument {number}", item) for number, item in enumerate(function.args))
        yield from function.keywords.items()
        yield from _bound(function.func)
    elif isinstance(function, MethodType):
        yield "self", function.__self__
    elif not isinstance(function, FunctionType):
        yield "self", function


def _find(state: State, name: str, value: Any, seen: set[int], depth: int) -> None:
    if id(value) in seen or depth < 0:
        return
    seen.add(id(value))
    if state.add(name, value) and not isinstance(value, nn.Module):
        return
    for key, item in _within(value):
        _find(state, key, item, seen, depth - 1)


def _within(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, partial):
        yield from (("", item) for item in (value.func, *value.args))
        yield from value.keywords.items()
    elif isinstance(value, MethodType):
        yield from (("", value.__func__), ("", value.__self__))
    elif isinstance(value, FunctionType):
        if is_users(value.__module__ or ""):
            yield from _variables(inspect.unwrap(value))
    elif isinstance(value, (list, tuple, dict)):
        if len(value) < _LARGE:
            yield from value.items() if isinstance(value, dict) else (("", item) for item in value)
    elif isinstance(value, nn.Module):  # which may hold its optimizer
        yield from ((key, item) for key, item in vars(value).items() if key not in TENSOR_HOLDERS)
    elif is_users(module_of(type(value))):
        yield from held_by(value).items()
        yield "", vars(type(value)).get("__call__")


def _variables(function: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(function, FunctionType):
        names = names_in(function.__code__)
        yield from ((name, value) for name, value in function.__globals__.items() if name in names)
        cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
        yield from ((name, cell.cell_contents) for name, cell in cells if cell != CellType())
        yield from (("", value) for value in function.__defaults__ or ())
        yield from (function.__kwdefaults__ or {}).items()
