"""Lightning's data fetcher with the queue behind it.

`SinkFetcher` takes the place of the fetcher that `setup_data` made and keeps using it, on whichever thread the queue
fetches: what Lightning knows about lengths and last batches stays Lightning's. To the loops it looks like any fetcher
whose `fetched` and `done` speak of the batches that were taken.

Private names of Lightning (2.6): `_DataFetcher`, which has no public counterpart; `fit_loop.epoch_loop` asks for its
attributes `fetched`, `done`, `length` and the two profiler functions.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

from lightning.pytorch.loops.fetchers import _DataFetcher, _profile_nothing

from lightning_sink.data.gathered import Gathered
from lightning_sink.data.queue import BatchQueue
from lightning_sink.data.run import Part
from lightning_sink.data.source import Source
from lightning_sink.data.traversals import LazyPlace, NotYet, place_of
from lightning_sink.trainer.loaders import TrainingLoaders


class LoaderBatches(Source):
    """The batches of the training loaders, through Lightning's own fetcher."""

    def __init__(self, fetcher: _DataFetcher, loaders: TrainingLoaders) -> None:
        super().__init__(loaders.traversals)
        self.fetcher, self.loaders = fetcher, loaders

    @property
    def reads_further(self) -> bool:  # type: ignore[override]
        """Whether Lightning's fetcher does, as it does for data without a length."""
        return not (self.traversals.endless or self.fetcher.length)

    @property
    def restarts_midway(self) -> bool:  # type: ignore[override]
        """Whether the shorter of several loaders are begun again."""
        return self.loaders.cycles

    def fetch(self, in_turn: bool) -> tuple[Any, LazyPlace]:
        """Returns the next batch and its place."""
        if self.traversals.endless:  # the fetcher stops at the end of an epoch, which is no end then
            return super().fetch(in_turn)
        self.traversals.in_turn = in_turn
        batch, _, _ = next(self.fetcher)
        # Data of unknown length is fetched one batch further than it is given: its place is the oldest, not the last.
        place = self.traversals.places.popleft()
        if self.reads_further:
            place = place._replace(last=self.fetcher.done)
        return batch, (place, place.batch)

    def row(self, most: int, together: bool) -> Iterator[tuple[Any, LazyPlace | list[LazyPlace]]]:
        """Gives the next batches of the traversal, with their places."""
        fetcher, endless = self.fetcher, self.traversals.endless
        if self.traversals.keeps_states or self.reads_further:
            yield from self._one_by_one(most)  # where there is no length, the fetcher is one batch further
            return
        if not endless:
            most = min(most, cast(int, fetcher.length) - fetcher.fetched)
        for batch, note in super().row(most, together):
            if not endless:
                fetcher.fetched += len(batch) if type(batch) is Gathered else 1
                fetcher.done = fetcher.fetched == fetcher.length
            yield batch, note

    def _one_by_one(self, most: int) -> Iterator[tuple[Any, LazyPlace]]:
        for _ in range(most):
            try:
                found = self.fetch(False)
            except (NotYet, StopIteration):
                return
            yield found

    def _iterators(self) -> list[Any]:
        return getattr(self.loaders._iterator, "iterators", [])


class SinkFetcher(_DataFetcher):
    """Gives the loops batches out of a queue.

    Args:
        inner: The fetcher that Lightning chose, with its iterator made.
        queue: The queue; its source is the inner fetcher.

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
