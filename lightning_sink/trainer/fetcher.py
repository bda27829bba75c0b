"""Lightning's data fetcher with the queue behind it.

`SinkFetcher` takes the place of the fetcher that `setup_data` made and keeps using it, on whichever thread the queue
fetches: what Lightning knows about lengths and last batches stays Lightning's. To the loops it looks like any fetcher
whose `fetched` and `done` speak of the batches that were taken.

Private names of Lightning (2.6): `_DataFetcher`, which has no public counterpart; `fit_loop.epoch_loop` asks for its
attributes `fetched`, `done`, `length` and the two profiler functions.
"""

from __future__ import annotations

from typing import Any

from lightning.pytorch.loops.fetchers import _DataFetcher, _profile_nothing

from lightning_sink.data.place import place_of
from lightning_sink.data.queue import BatchQueue
from lightning_sink.data.run import Part
from lightning_sink.trainer.loaders import TrainingLoaders


class SinkFetcher(_DataFetcher):
    """Gives the loops batches out of a queue.

    Args:
        inner: The fetcher that Lightning chose, with its iterator made.
        queue: The queue, which fetches through it.

    Attributes:
        changes: Whether a fetch may change what the steps take for granted.
    """

    def __init__(self, inner: _DataFetcher, loaders: TrainingLoaders, queue: BatchQueue, changes: bool) -> None:
        self._inner, self.changes = inner, changes
        super().__init__()
        self._loaders, self.queue = loaders, queue
        self._combined_loader = loaders
        self.length, self.done = inner.length, inner.done

    @property
    def fetched(self) -> int:
        """Batches of the epoch that were taken."""
        return self._taken

    @fetched.setter
    def fetched(self, count: int) -> None:
        # The epoch loop adds the batches that were trained before a restart.
        self._inner.fetched += count - getattr(self, "_taken", count)
        self._taken = count

    def __iter__(self) -> SinkFetcher:
        """Begins an epoch."""
        traversals = self._loaders.traversals
        if not traversals.endless:
            self.queue.restart()
            traversals.places.clear()
            traversals.in_turn = True
            iter(self._inner)
        self.reset()
        return self

    def __next__(self) -> tuple[Any, int, int]:
        """Returns the next batch, its index in the epoch and that of its loader, as Lightning's fetchers do."""
        self._start_profiler()
        try:
            batch, note = self.queue.take()
        except StopIteration:
            self.done = True
            raise
        finally:
            self._stop_profiler()
        self._taken += 1
        place = place_of(note)
        self.done = place.last if self.length is None else self._taken >= self.length
        self._loaders.taken_before, self._loaders.taken = self._loaders.taken, place
        return batch, self._taken - 1, 0

    def ahead(self, most: int, behind: int = 0) -> Part | None:
        """Returns batches that come next and are alike, at most so many, none of which is the epoch's last.

        They stay in the queue, and nothing that Lightning looks at has moved on. Those `behind` which they come were
        returned before.
        """
        if self._start_profiler is not _profile_nothing:
            return None
        if self.length is not None:
            return self.queue.look_ahead(min(most, self.length - self._taken - behind - 1), behind)
        found = self.queue.look_ahead(most, behind)
        if found is not None and found.notes[-1][0].last:
            found = found.cut(len(found) - 1)
        return found or None

    def skip(self, count: int) -> Any:
        """Takes the first of the batches that `ahead` returned, which have been trained; returns the last of these."""
        batch, notes = self.queue.skip(count)
        places = [self._loaders.taken, *map(place_of, notes[-2:])]
        self._taken += count
        self._loaders.taken_before, self._loaders.taken = places[-2:]
        return batch

    def profile_nothing(self) -> None:
        """Leaves out the profiler, a microsecond a batch."""
        self._start_profiler = self._stop_profiler = _profile_nothing

    def reset(self) -> None:
        """Begins to count an epoch's batches."""
        self._taken = 0
        self.length, self.done = self._inner.length, self._inner.length == 0

    def teardown(self) -> None:
        """Ends the queue's thread, then the workers."""
        self.queue.close()
        self._inner.teardown()
        self.reset()
