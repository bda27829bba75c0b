"""A place in the traversals of the training data, as a checkpoint keeps it and a training goes on from it.

`look_at` knows whether a saved place can be gone on from when the data is there again, and how surely.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from lightning_sink.data.generators import Saved
from lightning_sink.data.order import is_repeatable, is_sequential
from lightning_sink.data.road import Road


class Place(NamedTuple):
    """A place in the traversals, behind a batch.

    Attributes:
        traversal: Number of the traversal, from 0.
        batch: Batches of it up to here.
        length: Batches of a whole traversal; None where that is unknown or there are several loaders.
        begin: Returns the generators as they were when the traversal's iterator was made.
        first: Returns the generators as they were when its first batch was fetched.
        states: States of the loaders that have one, behind this batch; None where none has.
        last: Whether it is known that no batch follows.
    """

    traversal: int
    batch: int
    length: int | None
    begin: Callable[[], Saved]
    first: Callable[[], Saved]
    states: list[Any] | None = None
    last: bool = False

    def saved(self) -> dict[str, Any]:
        """Returns the place as strings and numbers."""
        return {
            "traversal": self.traversal,
            "position": self.batch,
            "length": self.length,
            "draws": [self.begin(), self.first()],
        }


LazyPlace = tuple[Place, int]
"""The traversal's place, and which of its batches it is to be behind: half a microsecond less than its own place."""


def place_of(lazy: LazyPlace) -> Place:
    """Returns the place."""
    return lazy[0]._replace(batch=lazy[1])


def look_at(saved: dict[str, Any], roads: list[Road]) -> tuple[int, str]:
    """Returns the batches to pass over, and what may be wrong with going on behind them.

    That is a text for the user, "" where the next batch is certainly the one that would have followed. `saved` is what
    `Place.saved` returned.
    """
    position, length = int(saved["position"]), length_of(roads)
    finds = [road.finds_its_place for road in roads]
    if all(finds) or not position:
        return position, ""
    where = f"batch {position} of traversal {saved['traversal']}"
    if length is not None and position > length:
        return 0, (
            f"The place to go on from, {where}, lies behind the end of the data, which has {length} batches now: the"
            " traversal begins again."
        )
    same = saved.get("length") in (None, length)
    sequential = all(is_sequential(road.loader) for road in roads)
    repeatable = len(roads) == 1 and is_repeatable(roads[0].loader) and bool(saved.get("draws"))
    if same and not any(finds) and (sequential or repeatable):
        return position, ""
    names = ", ".join(f"`{road.name}`" for road in roads)
    return position, (
        f"The data goes on at {where}: as many batches of what {names} gives were passed over. Whether these are the"
        " ones that were trained before is not certain. The order of torch's own samplers is had again exactly, of one"
        " loader with the batches that it had; a `StatefulDataLoader` of torchdata keeps its own place."
    )


def length_of(roads: list[Road]) -> int | None:
    """Returns the batches of a traversal; None where that is unknown, and for several loaders."""
    try:
        return len(roads[0]) if len(roads) == 1 else None
    except (TypeError, NotImplementedError):
        return None
