"""Python state that a step may read or write: a fingerprint of it, to compare before and after a step.

A program has every Python value of the recorded steps as a constant. So a step that changes such a value makes no
program, and a value that changes between sinks makes the programs before it stale. Looked at are the attributes of a
module, of its submodules and of the optimizers, hooks among them.
"""

from __future__ import annotations

import weakref
from collections import OrderedDict
from collections.abc import Collection, Hashable, Iterable
from functools import lru_cache
from operator import is_
from typing import Any

from torch import Tensor, nn

from lightning_sink.engine.private import names_within, own_buffers, own_modules, own_parameters, tensor_hooks
from lightning_sink.engine.state.attribute_watch import AttributeWatch
from lightning_sink.engine.state.attributes import (
    CONTAINERS,
    DEEPEST_SLOTS,
    MOST_ABOVE_SLOTS,
    SCALARS,
    WITH_SLOTS,
    Same,
    fingerprint,
    own_attributes,
)
from lightning_sink.engine.state.slots import Parts
from lightning_sink.held import ABSENT
from lightning_sink.whose import is_library, module_of

_OF_EVERY_MODULE = frozenset(vars(nn.Module()))
"""Attributes of torch's own: nobody puts attributes on the ordered dictionaries of hooks that these hold."""


class Seen:
    """What objects held when they were last looked at: what cannot have changed since is not looked at again.

    Of a hundred attributes of a small module, all but a few are numbers, or containers with nothing in them.
    """

    def __init__(self) -> None:
        self._holders: dict[int, _Held] = {}

    def attributes(
        self, prefix: str, holder: Any, left_out: Collection[str], known: Collection[int]
    ) -> dict[str, Hashable]:
        """Returns the fingerprints of what an object holds, by names that begin with `prefix`."""
        seen, held = self._holders.get(id(holder)), vars(holder)
        if seen is None or seen.left_out != left_out or not seen.is_still(prefix, holder, held):
            seen = self._holders[id(holder)] = _Held(prefix, holder, left_out)
        state = seen.fixed.copy()
        for name in seen.open:
            state[prefix + name] = fingerprint(held[name], DEEPEST_SLOTS, known)
        return state

    def keep(self, holders: Collection[int]) -> None:
        """Forgets all objects but these, by identity."""
        if len(self._holders) > len(holders):
            self._holders = {key: seen for key, seen in self._holders.items() if key in holders}


class _Held:
    """What one object holds. It keeps neither the object alive nor anything that is large.

    Attributes:
        fixed: Fingerprints of what stays as it is while it is the same object, by name.
        open: Names of everything else.
    """

    def __init__(self, prefix: str, holder: Any, left_out: Collection[str]) -> None:
        self.fixed: dict[str, Hashable] = {}
        self.open: list[str] = []
        self.left_out = left_out
        self._prefix, self._holder, self._names = prefix, weakref.ref(holder), tuple(vars(holder))
        self._empty: list[Any] = []
        self._values: dict[str, Any] = {}
        for name, value in vars(holder).items():
            if name in left_out:
                continue
            if is_empty := _is_empty(name, value):
                self._empty.append(value)
            if is_empty or type(value) in SCALARS:
                self._values[name] = value
                self.fixed[prefix + name] = fingerprint(value, DEEPEST_SLOTS)
            else:
                self.open.append(name)

    def is_still(self, prefix: str, holder: Any, held: dict[str, Any]) -> bool:
        """Tells whether it has the same names and, under the fixed ones, the same objects, as empty as they were."""
        if self._holder() is not holder or self._prefix != prefix or tuple(held) != self._names:
            return False
        same = map(is_, map(held.get, self._values), self._values.values())
        return all(same) and not any(self._empty)


def _is_empty(name: str, value: Any) -> bool:
    kind = type(value)
    return kind in CONTAINERS and not value and (kind is not OrderedDict or name in _OF_EVERY_MODULE)


def python_state(parts: Parts, seen: Seen | None = None) -> dict[str, Hashable]:
    """Returns a fingerprint of all about a training that is no tensor.

    `seen` is what was seen in other looks at the same training; None where there are none.
    """
    apart = [(path, module) for path, module in parts.module.named_modules() if parts.is_apart(module)]
    state: dict[str, Hashable] = {f"{path}.__class__": Same(module) for path, module in apart}
    held = list(parts.holders())
    holders = {id(holder) for _, holder in held}
    known = holders | {id(item) for item in (*parts.optimizers, *parts.schedulers())}
    known |= {id(submodule) for _, module in apart for submodule in module.modules()}
    seen = seen or Seen()
    for kind in users_classes(holder for _, holder in held):
        state |= class_state(kind, known)
    state |= parts.collected.state() | parts.carried.state(known)
    for prefix, holder in held:
        state[f"{prefix}__class__"] = Same(holder), type(holder)
        if isinstance(holder, nn.Module):  # which is a holder by one of its names
            children = tuple([id(child) for _, child in own_modules(holder)])
            state[f"what is in {prefix[:-1] or 'the module'}"] = children, names_within(holder)
        left_out = parts.left_out(holder)
        if parts.collected.places:
            tables = parts.collected.tables(holder)
            left_out = left_out | parts.collected.names(holder) | tables.keys()
            state |= {prefix + name: fingerprint(table, DEEPEST_SLOTS - 1, known) for name, table in tables.items()}
        if carried := parts.carried.names(holder):
            left_out = left_out | carried
        state |= seen.attributes(prefix, holder, left_out, known)
        if isinstance(holder, nn.Module):
            for name, parameter in own_parameters(holder):
                if any(hooks := tensor_hooks(parameter)):
                    state[f"hooks of {prefix}{name}"] = fingerprint(hooks, known=known)
            for name, tensor in (*own_parameters(holder), *own_buffers(holder)):
                if own := own_attributes(tensor):
                    state[f"attributes of {prefix}{name}"] = fingerprint(own, known=known)
    seen.keep(holders)
    state["containers in two places"] = _in_two_places(parts, held)
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


def _in_two_places(parts: Parts, held: Iterable[tuple[str, Any]]) -> Hashable:
    """Returns which places have one list or dictionary in common: what a step puts into it is in all of them."""
    places: dict[int, list[str]] = {}

    def look(value: Any, name: str, deep: int) -> None:
        kind = type(value)
        if kind is list or kind is dict:
            places.setdefault(id(value), []).append(name)
        elif kind is not tuple:
            return
        if deep and len(value) <= MOST_ABOVE_SLOTS:
            for key, item in enumerate(value.values() if kind is dict else value):
                look(item, f"{name} {key}", deep - 1)

    for prefix, holder in held:
        left_out = parts.left_out(holder) | parts.collected.names(holder)
        for name, value in vars(holder).items():
            if type(value) in WITH_SLOTS and name not in left_out:
                look(value, prefix + name, DEEPEST_SLOTS - 1)
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
