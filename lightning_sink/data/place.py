"""A place in the traversals of the training data, as a checkpoint keeps it and a training goes on from it."""

from __future__ import annotations

from typing import Any, NamedTuple

from lightning_sink.data.generators import Draws


class Place(NamedTuple):
    """A place in the traversals, behind a batch.

    Attributes:
        traversal: Number of the traversal, from 0.
        batch: Batches of it up to here.
        length: Batches of a whole traversal; None where that is unknown or there are several loaders.
        begin: The generators when the traversal's iterator was made.
        first: The generators when its first batch was fetched.
        states: States of the loaders that have one, behind this batch; None where none has.
        last: Whether it is known that no batch follows.
    """

    traversal: int
    batch: int
    length: int | None
    begin: Draws
    first: Draws
    states: list[Any] | None = None
    last: bool = False

    def saved(self) -> dict[str, Any]:
        """Returns the place as strings and numbers."""
        return {
            "traversal": self.traversal,
            "position": self.batch,
            "length": self.length,
            "draws": [self.begin.saved(), self.first.saved()],
        }


LazyPlace = tuple[Place, int]
"""A place of the traversal, and which of its batches it is to be behind: half a microsecond less than the place."""


def place_of(lazy: LazyPlace) -> Place:
    """Returns the place."""
    return lazy[0]._replace(batch=lazy[1])


class Again(Draws):
    """Generators as a checkpoint had them."""

    def __init__(self, saved: dict[str, Any]) -> None:
        self._saved = saved

    def saved(self) -> dict[str, Any]:
        """Returns them as they were saved."""
        return self._saved
