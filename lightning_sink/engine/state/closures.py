"""What the functions of a step see besides their arguments: closed-over variables and globals.

A program has their values as constants, like attributes (see `attributes.py`). Which functions belong to a step is
known once it has been recorded: `watch_reads` collects the code that ran, and the garbage collector knows the
functions of that code.
"""

from __future__ import annotations

import gc
import sys
from collections import Counter
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping
from functools import lru_cache
from types import CellType, CodeType, FunctionType, ModuleType
from typing import Any

from torch import nn

from lightning_sink.engine.private import own_tensors
from lightning_sink.engine.state.attributes import Same, fingerprint, is_a, with_bases
from lightning_sink.engine.state.holders import (
    attribute_places,
    class_state,
    find_places,
    has_places,
    in_two_places,
    looked_at_by_themselves,
    python_state,
)
from lightning_sink.engine.state.insides import CACHED, function_in, put_on_function
from lightning_sink.engine.state.referrers import functions_of
from lightning_sink.engine.state.slots import Parts
from lightning_sink.names import names_in
from lightning_sink.whose import is_pythons, is_users


def find_functions(codes: Collection[CodeType]) -> list[FunctionType]:
    """Returns the user's functions that are alive now and have one of these codes.

    A search among all objects takes 50 ms, and most are where their names say.
    """
    users = [code for code in codes if not is_pythons(code) and not _is_named_tuples(code)]
    found = _by_name(users)
    others = [code for code in users if id(code) not in found]
    functions = [*found.values(), *(functions_of(others) if others else ())]
    return [function for function in functions if is_users(function.__module__ or "")]


def _is_named_tuples(code: CodeType) -> bool:
    """Tells whether some code is of the function by which a `namedtuple` is made, which sees nothing else."""
    return code.co_filename == "<string>" and code.co_names == ("_tuple_new",)


def _by_name(codes: Collection[CodeType]) -> dict[int, FunctionType]:
    """Returns functions that modules have under the names in their code, by the identity of that.

    Left out are those that may have siblings of the same code with values of their own, as a `def` in a loop makes.
    """
    found: dict[int, FunctionType] = {}
    for code in codes:
        path = getattr(code, "co_qualname", "").split(".")  # from Python 3.11 on
        for scope in _scopes_of(code.co_filename):
            function = _under(scope, path)
            if is_a(function, FunctionType) and function.__code__ is code and _has_no_values(function):
                found[id(code)] = function
    return found


def _scopes_of(file: str) -> list[dict[str, Any]]:
    """Returns the globals of modules of a file; not of one that took another's place since the last new import."""
    modules = [sys.modules.get(name) for name in _names_by_file(len(sys.modules)).get(file, ())]
    return [vars(module) for module in modules if is_a(module, ModuleType)]


@lru_cache(maxsize=1)
def _names_by_file(_many: int) -> Mapping[str, list[str]]:
    """Returns the names of the modules of each file; there are thousands, and the same as long as they are as many."""
    names: dict[str, list[str]] = {}
    for name, module in [*sys.modules.items()]:
        path = vars(module).get("__file__") if is_a(module, ModuleType) else None
        if type(path) is str:
            names.setdefault(path, []).append(name)
    return names


def _under(scope: Mapping[str, Any], path: Iterable[str]) -> Any:
    value: Any = None
    for name in path:
        value = scope.get(name)
        scope = vars(value) if is_a(value, type) else {}
    return function_in(value)


def _has_no_values(function: FunctionType) -> bool:
    has_defaults = function.__defaults__ or function.__kwdefaults__
    return not has_defaults and not vars(function) and {*function.__code__.co_freevars} <= {"__class__"}


def kept_results(functions: Collection[FunctionType], classes: Iterable[type]) -> list[FunctionType]:
    """Returns the user's functions behind an `lru_cache`: those that were called before the first step ran in none.

    They are found where these functions may call them, or are methods of these classes.
    """
    values = [value for kind in classes for value in vars(kind).values()]
    values += [value for function in functions for _, value in _variables(function)]
    found: list[FunctionType] = []
    for value in map(function_in, values):  # grows
        wrapped = value.__wrapped__ if is_a(value, CACHED) else None
        if not isinstance(wrapped, FunctionType) or wrapped in functions or wrapped in found:
            continue
        if is_users(wrapped.__module__ or ""):
            found.append(wrapped)
            values += [value for _, value in _variables(wrapped)]
    return found


def outside_state(functions: Iterable[FunctionType], parts: Parts) -> dict[str, Hashable]:
    """Returns a fingerprint of what the functions take from outside, tensors by identity.

    What is one of the parts is looked at by itself.
    """
    known = set(parts.module.modules())
    identities = {id(item) for item in (*known, *parts.others)} | looked_at_by_themselves(parts)

    def look(value: Any) -> Hashable:
        if is_a(value, nn.Module):
            return None if value in known else _module(value)
        if is_a(value, type):
            return tuple(item for base in with_bases(value) for item in class_state(base, identities).items())
        return fingerprint(value, known=identities)

    in_attributes: dict[int, list[str]] | None = None
    state: dict[str, tuple[Hashable, ...]] = {}
    looked, met = dict[int, tuple[Any, Hashable]](), Counter[str]()
    for function in functions:
        where = function.__qualname__
        met[where] += 1
        if met[where] > 1:  # as of two lambdas: one that is met later on is no change of the other
            where = f"{where} {met[where]}"
        places: dict[int, list[str]] = {}
        for name, value in _variables(function):
            if has_places(type(value)):
                find_places(value, name, places)
            if id(value) not in looked:  # many functions lead to one object, which may be large
                looked[id(value)] = value, look(value)
            found = looked[id(value)][1]
            key = f"{name} in {where}"
            state[key] = (*state.get(key, ()), found)
        if places and in_attributes is None:
            in_attributes = attribute_places(parts)
        for identity, names in places.items():
            names += (in_attributes or {}).get(identity, [])
        if any(len(names) > 1 for names in places.values()):
            state[f"objects in two places in {where}"] = (in_two_places(places),)
    return dict(state)


class Variables:
    """Where the variables outside some functions are, to be looked at once more in little time."""

    def __init__(self, functions: Collection[FunctionType] = ()) -> None:
        self._functions = [*functions]
        self._cells = [cell for function in functions for cell in function.__closure__ or ()]
        named = [(scope, key) for function in functions for _, scope, key in _scopes(function)]
        self._named = list({(id(scope), key): (scope, key) for scope, key in named}.values())
        self.attributes = [vars(function) for function in functions]

    def values(self) -> list[Any]:
        """Returns what they hold now."""
        held = [scope.get(key) for scope, key in self._named]
        held += gc.get_referents(*self._cells)  # an empty one would raise an error
        for function in self._functions:
            held += function.__code__, function.__defaults__, function.__kwdefaults__
        return held


def _module(module: nn.Module) -> Hashable:
    tensors = own_tensors(module.modules())  # by each of its names: one tensor may have two
    asks = tuple(tensor.requires_grad for tensor in tensors)
    return tuple(python_state(Parts(module)).items()), asks, fingerprint(tensors)


def _variables(function: FunctionType) -> Iterable[tuple[str, Any]]:
    code = function.__code__
    yield "code", Same(code)
    yield "defaults", (function.__defaults__, function.__kwdefaults__)
    yield "attributes", put_on_function(function)
    cells = zip(code.co_freevars, function.__closure__ or (), strict=False)
    yield from ((name, cell.cell_contents) for name, cell in cells if cell != CellType())  # or nothing is in it yet
    for name, scope, key in _scopes(function):
        value = scope.get(key)
        if name == key and is_a(value, ModuleType):
            continue  # what is named behind it comes by itself
        if name == key and is_a(value, FunctionType) and not _is_decorators(value):
            yield name, (Same(value), put_on_function(value))
        else:
            yield name, value


def _scopes(function: FunctionType) -> Iterator[tuple[str, dict[str, Any], str]]:
    """Yields the names of globals in a function, and those behind modules of the user's, with where their values are.

    Each is what users call it, the dictionary that has the value, and its key there.
    """
    names = sorted(names_in(function.__code__))
    for name in names:
        scope = function.__globals__
        value = scope.get(name)
        if value is None and name in sys.modules:
            scope, value = sys.modules, sys.modules[name]  # imported in the function
        yield name, scope, name
        if is_a(value, ModuleType) and is_users(value.__name__):
            held = vars(value)
            yield from ((f"{name}.{key}", held, key) for key in names if key in held)


def _is_decorators(function: FunctionType) -> bool:
    """Tells whether a function is what a library's decorator made: its closure holds what the decorator was given.

    Those of the user's run in the step, and are found as the others are.
    """
    return function.__closure__ is not None and not is_users(function.__globals__.get("__name__", ""))
