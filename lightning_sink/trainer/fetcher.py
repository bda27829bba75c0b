"""The queue, as Lightning's loops see it: a data fetcher.

`SinkFetcher` takes the place of the fetcher that Lightning's `setup_data` made, which has begun the first traversal.
Its `fetched` and `done` speak of the batches that were taken, and not of those that were fetched ahead.

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
        loaders: The loaders, of which a traversal has begun.
        queue: The queue, which fetches from them.

    Attributes:
        fetched: Batches of the epoch that were taken. Lightning adds those that were trained before a restart.
    """

    def __init__(self, loaders: TrainingLoaders, queue: BatchQueue) -> None:
        super().__init__()
        self._loaders, self.queue = loaders, queue
        self.setup(loaders)
        self._begin()

    def __iter__(self) -> SinkFetcher:
        """Begins an epoch."""
        if not self._loaders.traversals.endless:
            self.queue.restart()
            iter(self._loaders)
        self._begin()
        return self

    def _begin(self) -> None:
        self.reset()
        traversals = self._loaders.traversals
        if traversals.reads_further:  # in the same place among other draws as Lightning's fetchers do
            self.done = not traversals.read_further()

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
        self.fetched += 1
        place = place_of(note)
        self.done = place.last if self.length is None else self.fetched >= self.length
        self._loaders.taken_before, self._loaders.taken = self._loaders.taken, place
        return batch, self.fetched - 1, 0

    def ahead(self, most: int, behind: int = 0) -> Part | None:
        """Returns batches that come next and are alike, at most so many, none of which is the epoch's last.

        They stay in the queue, and nothing that Lightning looks at has moved on. Those `behind` which they come were
        returned before.
        """
        if self._start_profiler is not _profile_nothing:
            return None
        if self.length is not None:
            return self.queue.look_ahead(min(most, self.length - self.fetched - behind - 1), behind)
        found = self.queue.look_ahead(most, behind)
        if found is not None and found.notes[-1][0].last:
            found = found.cut(len(found) - 1)
        return found or None

    def skip(self, count: int) -> Any:
        """Takes the first of the batches that `ahead` returned, which have been trained; returns the last of these."""
        batch, notes = self.queue.skip(count)
        places = [self._loaders.taken, *map(place_of, notes[-2:])]
        self.fetched += count
        self._loaders.taken_before, self._loaders.taken = places[-2:]
        return batch

    def profile_nothing(self) -> None:
        """Leaves out the profiler, a microsecond a batch."""
        self._start_profiler = self._stop_profiler = _profile_nothing

    def teardown(self) -> None:
        """Ends the queue's thread, then the workers."""
        self.queue.close()
        super().teardown()
