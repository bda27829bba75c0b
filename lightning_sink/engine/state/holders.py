"""Python state that a step may read or write: a fingerprint of it, to compare before and after a step.

A program has every Python value of the recorded steps as a constant. So a step that changes such a value makes no
program, and a value that changes between sinks makes the programs before it stale. Looked at are the attributes of a
module, of its submodules and of the optimizers, hooks among them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Mapping
from functools import lru_cache
from types import SimpleNamespace
from typing import Any, cast

from torch import Tensor, nn

from lightning_sink.engine.private import names_within, own_buffers, own_modules, own_parameters, tensor_hooks
from lightning_sink.engine.state.attribute_watch import AttributeWatch
from lightning_sink.engine.state.attributes import (
    CONTAINERS,
    DEEPEST_SLOTS,
    MOST_ABOVE_SLOTS,
    WITH_SLOTS,
    Same,
    fingerprint,
    own_attributes,
)
from lightning_sink.engine.state.slots import Parts
from lightning_sink.held import ABSENT
from lightning_sink.whose import is_library, is_users, module_of

_OF_EVERY_MODULE, _EMPTY = frozenset(vars(nn.Module())), "empty"
"""Torch's own attributes, and what is said of those that hold nothing, as most do: a fifth of a look's time."""


_CARRIED = "what is carried from step to step"


def python_state(parts: Parts) -> dict[str, Hashable]:
    """Returns a fingerprint of all about a training that is no tensor."""
    apart = [(path, module) for path, module in parts.module.named_modules() if parts.is_apart(module)]
    state: dict[str, Hashable] = {f"{path}.__class__": Same(module) for path, module in apart}
    held = list(parts.holders())
    holders = {id(holder) for _, holder in held}
    known = holders | looked_at_by_themselves(parts)
    known |= {id(submodule) for _, module in apart for submodule in module.modules()}
    for kind in users_classes(holder for _, holder in held):
        state |= class_state(kind, known)
    state |= parts.collected.state() | parts.carried.state(known)
    for prefix, holder in held:
        state[f"{prefix}__class__"] = Same(holder), type(holder)
        if isinstance(holder, nn.Module):  # which is a holder by one of its names
            children = tuple([id(child) for _, child in own_modules(holder)])
            state[f"what is in {prefix[:-1] or 'the module'}"] = children, names_within(holder)
        left_out, known_otherwise = parts.left_out(holder), parts.carried.names(holder)
        if parts.collected.places or parts.carried:
            tables = parts.collected.tables(holder)
            for name, items in parts.carried.items(holder).items():
                tables[name] = {**tables.get(name, vars(holder)[name]), **dict.fromkeys(items, _CARRIED)}
            left_out, known_otherwise = left_out | parts.collected.names(holder), known_otherwise | tables.keys()
            state |= {prefix + name: fingerprint(table, DEEPEST_SLOTS - 1, known) for name, table in tables.items()}
        for name, value in vars(holder).items():
            if name in left_out:
                continue
            if name in _OF_EVERY_MODULE and type(value) in CONTAINERS and not value:
                state[prefix + name] = _EMPTY
            elif name not in known_otherwise:
                state[prefix + name] = fingerprint(value, DEEPEST_SLOTS, known)
        if isinstance(holder, nn.Module):
            for name, parameter in own_parameters(holder):
                if any(hooks := tensor_hooks(parameter)):
                    state[f"hooks of {prefix}{name}"] = fingerprint(hooks, known=known)
            for name, tensor in (*own_parameters(holder), *own_buffers(holder)):
                if own := own_attributes(tensor):
                    state[f"attributes of {prefix}{name}"] = fingerprint(own, known=known)
    state["objects in two places"] = in_two_places(attribute_places(parts))
    state |= parts.optimizer_counts.state()
    for number, optimizer in enumerate(parts.optimizers):
        state[f"optimizer {number}.__class__"] = Same(type(optimizer))
        for name, value in vars(optimizer).items():
            if name not in ("state", "param_groups", *parts.carried.names(optimizer)):
                state[f"optimizer {number}.{name}"] = fingerprint(value, known=known)
        counts = parts.optimizer_counts.names(optimizer)
        for index, (key, kept) in enumerate(optimizer.state.items()):
            if counts and isinstance(kept, dict):
                kept = {key: value for key, value in kept.items() if key not in counts}
            deep = 1 if isinstance(kept, (dict, Tensor)) else 0  # tensors in these have slots
            place = repr(key) if isinstance(key, str) else index
            state[f"optimizer {number} state {place}"] = fingerprint(kept, deep, known)
    return state


def looked_at_by_themselves(parts: Parts) -> set[int]:
    """Returns the identities of optimizers, with their groups of options (`hyper.py`), and of schedulers."""
    groups = (group for optimizer in parts.optimizers for group in optimizer.param_groups)
    return {id(item) for item in (*parts.optimizers, *groups, *parts.schedulers())}


def attribute_places(parts: Parts) -> dict[int, list[str]]:
    """Returns the attributes, of classes too, in which objects are that a step may tell apart or put something into."""
    places: dict[int, list[str]] = {}
    held = [*parts.holders()]
    for prefix, holder in held:
        left_out = parts.left_out(holder)
        if parts.collected.places:
            left_out |= parts.collected.names(holder)
        for name, value in vars(holder).items():
            if has_places(type(value)) and name not in left_out and (name not in _OF_EVERY_MODULE or value):
                find_places(value, prefix + name, places)
    for kind in users_classes(holder for _, holder in held):
        for name, value in vars(kind).items():
            if has_places(type(value)) and not name.startswith("__"):
                find_places(value, f"{kind.__qualname__}.{name}", places)
    return places


def _has_places(kind: type) -> bool:
    """Tells whether it is seen where objects of a class are.

    Of two that are equal in all that is in them, a step may ask which one it is (`self.mode is BUSY`); and what it puts
    into a container is in all places that have it.
    """
    return kind in WITH_SLOTS or kind is SimpleNamespace or is_users(module_of(kind))


has_places = cast("Callable[[type], bool]", lru_cache(maxsize=1024)(_has_places))


def find_places(value: Any, name: str, places: dict[int, list[str]], deep: int = DEEPEST_SLOTS - 1) -> None:
    """Takes note of where an object is, and what is in it if it is a container; its class has places."""
    kind = type(value)
    if kind is not tuple:
        places.setdefault(id(value), []).append(name)
    if kind in WITH_SLOTS and deep and len(value) <= MOST_ABOVE_SLOTS:
        for key, item in enumerate([*value, *value.values()] if kind is dict else value):
            if has_places(type(item)):
                find_places(item, f"{name} {key}", places, deep - 1)


def in_two_places(places: Mapping[int, list[str]]) -> Hashable:
    """Returns the places of what is in several."""
    return "places", tuple(tuple(names) for names in places.values() if len(names) > 1)


def users_classes(holders: Iterable[Any]) -> Collection[type]:
    """Returns the classes of some objects that are no library's of this stack, each once."""
    return dict.fromkeys(kind for holder in holders for kind in _users_classes(type(holder)))  # type: ignore[arg-type]


def class_state(kind: type, known: Collection[int] = ()) -> dict[str, Hashable]:
    """Returns a fingerprint of what a class of the user's holds: methods too, which users replace.

    Objects that are `known`, by identity, are looked at by themselves: a class may keep its instances.
    """
    if is_library(module_of(kind)):
        return {}
    # What watches attributes for the recorded step of another thread is nobody's.
    held = {name: value.own if type(value) is AttributeWatch else value for name, value in vars(kind).items()}
    return {
        f"{kind.__qualname__}.{name}": fingerprint(value, known=known)
        for name, value in held.items()
        if not name.startswith("__") and value is not ABSENT
    }


@lru_cache(maxsize=256)
def _users_classes(kind: type) -> tuple[type, ...]:
    return tuple(base for base in kind.__mro__ if base is not object and not is_library(module_of(base)))
