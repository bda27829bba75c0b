"""Giving everybody who holds a value another one."""

from __future__ import annotations

from collections import deque
from types import CellType
from typing import Any

from lightning_sink.engine.referrers import referrers


def put_in_place_of(held: Any, new: Any) -> None:
    """Puts a value in the place of another one: in objects, closures, containers, tuples in those.

    No closure of this function may hold it: its cell would be among them.
    """
    for holder in referrers(held):
        if type(holder) is tuple:
            put_in_place_of(holder, _with(holder, held, new))
        elif isinstance(holder, CellType):
            holder.cell_contents = new
        elif isinstance(holder, set):
            holder.discard(held)
            holder.add(new)
        else:
            items = holder if isinstance(holder, (dict, list, deque)) else getattr(holder, "__dict__", {})
            for key, item in list(items.items() if isinstance(items, dict) else enumerate(items)):
                if item is held:
                    items[key] = new


def _with(items: tuple[Any, ...], held: Any, new: Any) -> tuple[Any, ...]:
    return tuple(new if item is held else item for item in items)
