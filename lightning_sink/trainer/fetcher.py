"""Lightning's data fetcher with the queue behind it.

`SinkFetcher` takes the place of the fetcher that `setup_data` made and keeps using it, on whichever thread the queue
fetches: what Lightning knows about lengths and last batches stays Lightning's. To the loops it looks like any fetcher
whose `fetched` and `done` speak of the batches that were taken.

Private names of Lightning (2.6): `_DataFetcher`, which has no public counterpart; `fit_loop.epoch_loop` asks for its
attributes `fetched`, `done`, `length` and the two profiler functions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, cast

from lightning.pytorch.loops.fetchers import _DataFetcher, _profile_nothing

from lightning_sink.data.gathered import Gathered
from lightning_sink.data.private import worker_processes
from lightning_sink.data.queue import BatchQueue
from lightning_sink.data.run import Part
from lightning_sink.data.source import Source
from lightning_sink.data.traversals import LazyPlace, Place, name_of, place_of
from lightning_sink.trainer.loaders import TrainingLoaders


class _Note(NamedTuple):
    """What goes with a batch: Lightning's indices, whether it is known to be the last, and the place behind it."""

    batch_idx: int
    dataloader_idx: int
    done: bool
    lazy_place: LazyPlace

    @property
    def place(self) -> Place:
        """The place behind the batch."""
        return place_of(self.lazy_place)


class LoaderBatches(Source):
    """The batches of the training loaders, through Lightning's own fetcher."""

    def __init__(self, fetcher: _DataFetcher, loaders: TrainingLoaders) -> None:
        self.fetcher, self.loaders = fetcher, loaders

    @property
    def begin_due(self) -> bool:  # type: ignore[override]
        """Whether another traversal has to begin."""
        return self.loaders.traversals.begin_due

    @property
    def draws_nothing(self) -> bool:  # type: ignore[override]
        """Whether every loader is known to give its batches without a draw."""
        return all(road.draws_nothing for road in self.loaders.traversals.roads)

    @property
    def gives_copies(self) -> bool:  # type: ignore[override]
        """Whether every loader's batches are gathered; nothing is known before there are any."""
        roads = self.loaders.traversals.roads
        return bool(roads) and all(road.fast is not None for road in roads)

    @property
    def stacks(self) -> bool:  # type: ignore[override]
        """Whether every loader does."""
        return all(road.fast is not None or road.stacks for road in self.loaders.traversals.roads)

    @property
    def reads_further(self) -> bool:  # type: ignore[override]
        """Whether Lightning's fetcher does, as it does for data without a length."""
        return not (self.loaders.traversals.endless or self.fetcher.length)

    @property
    def restarts_midway(self) -> bool:  # type: ignore[override]
        """Whether the shorter of several loaders are begun again."""
        return self.loaders.cycles

    def begin(self) -> None:
        """Begins it."""
        self.loaders.traversals.begin()

    def fetch(self, in_turn: bool) -> tuple[Any, _Note]:
        """Returns the next batch and its note."""
        traversals = self.loaders.traversals
        traversals.in_turn = in_turn
        # The fetcher stops at the end of an epoch, which is no end where traversals are endless.
        batch, batch_idx, dataloader_idx = traversals.next() if traversals.endless else next(self.fetcher)
        # Data of unknown length is fetched one batch further than it is given: its place is the oldest, not the last.
        place = traversals.places.popleft()
        return batch, _Note(batch_idx, dataloader_idx, self.fetcher.done, (place, place.batch))

    def row(self, most: int, together: bool) -> Iterator[tuple[Any, _Note | list[_Note]]]:
        """Gives the next batches of the traversal, with their notes."""
        fetcher, traversals = self.fetcher, self.loaders.traversals
        if traversals.keeps_states or self.reads_further:
            yield from super().row(most, together)  # where there is no length, the fetcher is one batch further
            return
        if not traversals.endless:
            most = min(most, cast(int, fetcher.length) - fetcher.fetched)
        new = tuple.__new__  # what a named tuple's own does in three times the time
        for (batch, batch_idx, dataloader_idx), place in traversals.row(most, together):
            is_many = type(batch) is Gathered
            count = len(batch) if is_many else 1
            if not traversals.endless:
                fetcher.fetched += count
                fetcher.done = fetcher.fetched == fetcher.length
            last = new(_Note, (batch_idx + count - 1, dataloader_idx, fetcher.done, place))
            if not is_many:
                yield batch, last
                continue
            begin, end = place
            before = enumerate(range(end - count + 1, end), start=batch_idx)
            yield batch, [*(new(_Note, (index, dataloader_idx, False, (begin, n))) for index, n in before), last]

    def describe(self) -> str:
        """Names the next batch."""
        return self.loaders.traversals.describe()

    def name(self, note: _Note) -> str:
        """Names the batch that a note goes with."""
        return name_of(note.lazy_place)

    def retry(self) -> bool:
        """Gives the rows of a failed fetch back to the loader, if there is one only and it reads rows."""
        return self.loaders.traversals.retry()

    def abort(self) -> bool:
        """Ends the workers, which a fetch may wait for."""
        iterators = getattr(self.loaders._iterator, "iterators", [])
        processes = [process for iterator in iterators for process in worker_processes(iterator)]
        for process in processes:
            process.terminate()
        return bool(processes)


class SinkFetcher(_DataFetcher):
    """Gives the loops batches out of a queue.

    Args:
        inner: The fetcher that Lightning chose, with its iterator made.
        loaders: The training loaders.
        queue: The queue; its source is the inner fetcher.

    Attributes:
        before_wait: Called when no batch lies ready; may raise. None for nothing.
    """

    def __init__(self, inner: _DataFetcher, loaders: TrainingLoaders, queue: BatchQueue) -> None:
        self._inner = inner
        super().__init__()
        self._loaders, self.queue = loaders, queue
        self.before_wait: Callable[[], None] | None = None
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
        self._begin_epoch()
        return self

    def __next__(self) -> tuple[Any, int, int]:
        """Returns the next batch and its indices."""
        self._start_profiler()
        try:
            if self.before_wait is not None and not self.queue.ready:
                self.before_wait()
            batch, note = self.queue.take()
        except StopIteration:
            self.done = True
            raise
        finally:
            self._stop_profiler()
        self._taken += 1
        self.done = note.done if self.length is None else self._taken >= self.length
        self._loaders.taken_before, self._loaders.taken = self._loaders.taken, note.place
        return batch, note.batch_idx, note.dataloader_idx

    def ahead(self, most: int, behind: int = 0) -> Part | None:
        """Returns batches that come next and are alike, at most so many, none of which is the epoch's last.

        They stay in the queue, and nothing that Lightning looks at has moved on.

        Args:
            most: How many at most.
            behind: How many batches are left out that come before them and were returned before.
        """
        if self._start_profiler is not _profile_nothing:
            return None
        if self.length is not None:
            return self.queue.look_ahead(min(most, self.length - self._taken - behind - 1), behind)
        found = self.queue.look_ahead(most, behind)
        if found is not None and found.notes[-1].done:
            found = found.cut(len(found) - 1)
        return found or None

    def skip(self, count: int) -> Any:
        """Takes the first of the batches that `ahead` returned, which have been trained; returns the last of these."""
        batch, notes = self.queue.skip(count)
        places = [self._loaders.taken, *(note.place for note in notes[-2:])]
        self._taken += count
        self._loaders.taken_before, self._loaders.taken = places[-2:]
        return batch

    def profile_nothing(self) -> None:
        """Leaves out the profiler, a microsecond a batch."""
        self._start_profiler = self._stop_profiler = _profile_nothing

    def reset(self) -> None:
        """Forgets what was fetched of the epoch."""
        self._inner.reset()
        self._begin_epoch()

    def _begin_epoch(self) -> None:
        self._taken = 0
        self.length, self.done = self._inner.length, self._inner.length == 0

    def teardown(self) -> None:
        """Ends the queue's thread, then the workers."""
        self.queue.close()
        self._inner.teardown()
        self._begin_epoch()
