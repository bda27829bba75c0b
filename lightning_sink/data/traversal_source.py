"""Traversals as a queue fetches from them: each batch with the place behind it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from lightning_sink.data.gathered import Gathered
from lightning_sink.data.private import worker_processes
from lightning_sink.data.source import Source
from lightning_sink.data.traversals import LazyPlace, Traversals, name_of


class TraversalSource(Source):
    """Gives a queue the batches of traversals; the note of each is the place behind it."""

    def __init__(self, traversals: Traversals) -> None:
        self.traversals = traversals

    @property
    def begin_due(self) -> bool:  # type: ignore[override]
        """Whether another traversal has to begin."""
        return self.traversals.begin_due

    @property
    def draws_nothing(self) -> bool:  # type: ignore[override]
        """Whether every loader is known to give its batches without a draw."""
        return all(road.draws_nothing for road in self.traversals.roads)

    @property
    def gives_copies(self) -> bool:  # type: ignore[override]
        """Whether every loader's batches are gathered; nothing is known before there are any."""
        roads = self.traversals.roads
        return bool(roads) and all(road.fast is not None for road in roads)

    @property
    def stacks(self) -> bool:  # type: ignore[override]
        """Whether every loader does."""
        return all(road.fast is not None or road.stacks for road in self.traversals.roads)

    def begin(self) -> None:
        """Begins it."""
        self.traversals.begin()

    def fetch(self, in_turn: bool) -> tuple[Any, LazyPlace]:
        """Returns the next batch and its place."""
        self.traversals.in_turn = in_turn
        batch = self.traversals.next()
        place = self.traversals.places.popleft()
        return batch, (place, place.batch)

    def row(self, most: int, together: bool) -> Iterator[tuple[Any, LazyPlace | list[LazyPlace]]]:
        """Gives the next batches of the traversal, with their places."""
        for batch, (begin, end) in self.traversals.row(most, together):
            many = type(batch) is Gathered
            yield batch, [(begin, n) for n in range(end - len(batch) + 1, end + 1)] if many else (begin, end)

    def describe(self) -> str:
        """Names the next batch."""
        return self.traversals.describe()

    def name(self, note: LazyPlace) -> str:
        """Names the batch that a place is behind."""
        return name_of(note)

    def retry(self) -> bool:
        """Gives the rows of a failed fetch back to the loader, if there is one only and it reads rows."""
        return self.traversals.retry()

    def abort(self) -> bool:
        """Ends the workers, which a fetch may wait for."""
        processes = [process for iterator in self._iterators() for process in worker_processes(iterator)]
        for process in processes:
            process.terminate()
        return bool(processes)

    def _iterators(self) -> list[Any]:
        """Returns the loaders' iterators."""
        return [self.traversals.iterator]
