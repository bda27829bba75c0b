"""Who holds something, and giving all of them something else, by way of the garbage collector."""

from __future__ import annotations

import gc
import sys
from collections import deque
from collections.abc import Iterable
from types import CellType, CodeType, FunctionType
from typing import Any

from lightning_sink.held import slots_of, unfreeze


def referrers(held: list[Any]) -> list[Any]:
    """Returns the objects that hold any of those in a list, but for the list."""
    unfreeze()
    arguments = (*held,)  # they are passed as this very tuple, which Python 3.13.0 finds, too
    return [holder for holder in gc.get_referrers(*arguments) if holder is not held and holder is not arguments]


def functions_of(codes: Iterable[CodeType]) -> list[FunctionType]:
    """Returns the functions that have any of some code, by identity.

    Among half a million objects they are found in 57 ms, as referrers of five pieces of code in 33 and of 176, which is
    what a process's first step runs, in 183.
    """
    unfreeze()
    wanted = set(map(id, codes))
    return [item for item in gc.get_objects() if type(item) is FunctionType and id(item.__code__) in wanted]


def is_held(owner: list[Any]) -> bool:
    """Tells whether anybody holds the value that a list of one holds, besides this list: a search takes 50 ms."""
    return _count(owner) > _ALONE


def _count(owner: list[Any]) -> int:
    return sys.getrefcount(owner[0])


_ALONE = _count([object()])


def put_in_place_of(held: Any, new: Any) -> None:
    """Puts a value in the place of another one: in objects, closures, containers, tuples in those.

    No closure of this function may hold it: its cell would be among them.
    """
    put_in_places_of([held], [new])


def put_in_places_of(held: list[Any], new: list[Any]) -> None:
    """Does so for several at once: a search goes through all objects, and takes as long for one."""
    found = dict(zip(map(id, held), new, strict=True))  # the list keeps them, so nothing else has their identities
    whole: list[Any] = []
    for holder in referrers(held):
        if isinstance(holder, (tuple, frozenset)):
            whole.append(holder)
        elif isinstance(holder, CellType):
            holder.cell_contents = found[id(holder.cell_contents)]
        elif isinstance(holder, set):
            changed = [item for item in holder if id(item) in found]
            holder.difference_update(changed)
            holder.update(found[id(item)] for item in changed)
        else:
            _put_into(holder, found)
    if whole:
        put_in_places_of(whole, [_with(holder, found) for holder in whole])


def _put_into(holder: Any, found: dict[int, Any]) -> None:
    items = holder if isinstance(holder, (dict, list, deque)) else getattr(holder, "__dict__", {})
    if isinstance(items, dict) and any(id(key) in found for key in items):
        content = [*zip(_with([*items], found), items.values(), strict=True)]
        items.clear()
        for key, item in content:  # in the same order; a `Counter` would count the pairs that it is updated with
            items[key] = item
    for key, item in list(items.items() if isinstance(items, dict) else enumerate(items)):
        if id(item) in found:
            _put(items, key, found[id(item)])
    for name, item in slots_of(holder).items():
        if id(item) in found:
            object.__setattr__(holder, name, found[id(item)])


def _put(items: Any, key: Any, new: Any) -> None:
    """Puts a value into a container. What a class has, code that looks it up remembers, and does not hold."""
    owner = _class_with(items, key) if type(items) is dict and "__module__" in items else None
    if owner is None:
        items[key] = new
    else:
        type.__setattr__(owner, key, new)


def _class_with(attributes: dict[Any, Any], name: Any) -> type | None:
    """Returns the class of whose attributes this is the dictionary itself; None where it is no class's."""
    holders = (holder for holder in referrers([attributes]) if isinstance(holder, type))
    return next((kind for kind in holders if vars(kind).get(name) is attributes[name]), None)


def _with(items: Any, found: dict[int, Any]) -> Any:
    changed = [found.get(id(item), item) for item in items]
    return items._make(changed) if hasattr(items, "_make") else type(items)(changed)
