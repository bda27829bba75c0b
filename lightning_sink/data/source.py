"""What a queue fetches from: traversals of loaders, each batch with the place behind it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from lightning_sink.data.gathered import Gathered
from lightning_sink.data.private import worker_processes
from lightning_sink.data.traversals import LazyPlace, Traversals, name_of


class Source:
    """Gives a queue the batches of traversals; the note of each is the place behind it. For one thread at a time."""

    reads_further = False
    """Whether a fetch reads one batch beyond the one that it gives, to know whether that is the last."""

    restarts_midway = False
    """Whether a fetch in the middle of a traversal may begin a part of the data again, and draw."""

    def __init__(self, traversals: Traversals) -> None:
        self.traversals = traversals

    @property
    def begin_due(self) -> bool:
        """Whether a traversal has to begin before the next fetch."""
        return self.traversals.begin_due

    @property
    def draws_nothing(self) -> bool:
        """Whether a fetch is known not to draw from the process's generators, unless it begins a traversal."""
        return all(road.draws_nothing for road in self.traversals.roads)

    @property
    def gives_copies(self) -> bool:
        """Whether each batch is known to lie in memory of its own, in which nothing is written anew."""
        roads = self.traversals.roads  # none before the first traversal, when nothing is known
        return bool(roads) and all(road.fast is not None for road in roads)

    @property
    def stacks(self) -> bool:
        """Whether torch's own code makes each batch of samples: it allocates it, unless code of theirs interferes."""
        return all(road.fast is not None or road.stacks for road in self.traversals.roads)

    def begin(self) -> None:
        """Begins the traversal that is due; called on the trainer's thread."""
        self.traversals.begin()

    def fetch(self, in_turn: bool) -> tuple[Any, LazyPlace]:
        """Returns the next batch and its place.

        Args:
            in_turn: Whether the training has used every batch before and waits for this one.

        Raises:
            NotYet: When a traversal would begin and it is not in turn. Nothing has been fetched then.
            StopIteration: When there is no batch left.
        """
        self.traversals.in_turn = in_turn
        batch = self.traversals.next()
        place = self.traversals.places.popleft()
        return batch, (place, place.batch)

    def row(self, most: int, together: bool) -> Iterator[tuple[Any, LazyPlace | list[LazyPlace]]]:
        """Gives batches with their places, none of them in turn, until a traversal has to begin or no batch is left.

        With `together`, several may be given as one `Gathered`, with a list of their places.
        """
        for batch, (begin, end) in self.traversals.row(most, together):
            many = type(batch) is Gathered
            yield batch, [(begin, n) for n in range(end - len(batch) + 1, end + 1)] if many else (begin, end)

    def retry(self) -> bool:
        """Lets the next fetch make again the one that has just failed; tells whether that can be done."""
        return self.traversals.retry()

    def describe(self) -> str:
        """Names the next batch for people: "batch 3 of traversal 0"."""
        return self.traversals.describe()

    def name(self, note: LazyPlace) -> str:
        """Names the batch that a place is behind, likewise."""
        return name_of(note)

    def abort(self) -> bool:
        """Ends, from another thread, the workers that a fetch may wait for; tells whether there are some."""
        processes = [process for iterator in self._iterators() for process in worker_processes(iterator)]
        for process in processes:
            process.terminate()
        return bool(processes)

    def _iterators(self) -> list[Any]:
        """Returns the loaders' iterators."""
        return [self.traversals.iterator]
