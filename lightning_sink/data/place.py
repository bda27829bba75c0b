"""A place in the traversals of the training data, as a checkpoint keeps it and a training goes on from it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from lightning_sink.data.generators import Saved


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
