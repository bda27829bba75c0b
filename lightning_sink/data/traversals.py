"""The traversals of the training data, one after another, and the place in them. A queue fetches from these.

`Traversals` owns the number of the traversal and the batches of it that were given; fetching, workers and shuffling
stay with the loaders. It can be one traversal at a time, begun by its owner, or endless: then a traversal that ends is
followed by the next, always in turn (`NotYet`), since beginning one draws from the process's generators and may start
workers.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import islice, repeat
from typing import Any, cast

from lightning_sink.data.gather import GatherIterator
from lightning_sink.data.gathered import Gathered
from lightning_sink.data.generators import Draws, Saved, drawing_from
from lightning_sink.data.order import set_epoch
from lightning_sink.data.place import LazyPlace, Place, length_of, look_at
from lightning_sink.data.private import worker_processes
from lightning_sink.data.road import Road, pass_over
from lightning_sink.data.texts import EMPTY, ONCE
from lightning_sink.errors import EmptyDatasetError


class NotYet(Exception):
    """The next fetch begins a traversal, which is made in step."""


class Traversals:
    """Gives the batches of loaders, traversal by traversal; to one thread at a time.

    Args:
        iterate: Makes the iterator of one traversal over all of them.
        states: Returns the states of the loaders that have one.
        tells_last: Whether a place says if its batch is the last; of data without a length, one batch more is read for
            that.

    Attributes:
        traversal: Number of the present traversal, from 0.
        batch: Batches of it that were given.
        limit: Batches of a traversal, which ends behind them even if there are more; infinity where nobody knows.
        keeps_states: Whether some loader has a state.
        on_restart: Called when a traversal that follows another had workers to start, with the seconds that it took.
        changes: How often the batches began to be had in another way, so that what was known of them is not.
        doubt: Why what follows a resumed place may not be what would have followed; "" where it certainly is.
        resumed_at: Batches of the present traversal that were trained before it was resumed.
        iterator: What gives the batches of the present traversal; None before the first.
    """

    restarts_midway = False
    """Whether a fetch in the middle of a traversal may begin a part of the data again, and draw."""

    def __init__(
        self,
        roads: list[Road],
        iterate: Callable[[], Iterator[Any]],
        *,
        endless: bool,
        states: Callable[[], list[Any]] = list,
        tells_last: bool = False,
    ) -> None:
        self.roads, self.endless = roads, endless
        self.traversal, self.batch = -1, 0
        self.keeps_states = False
        self.on_restart: Callable[[float], None] = lambda seconds: None
        self.changes = 0
        self.resumed_at, self.doubt = 0, ""
        self.limit = float("inf")
        self.iterator: Iterator[Any] | None = None
        self._iterate, self._states, self._tells_last = iterate, states, tells_last
        self._further: tuple[Any, LazyPlace] | None = None  # what was read beyond the batch that was given
        self._fresh = self._ended = False
        self._place = Place(-1, 0, None, dict, dict)  # the present traversal's
        self._resumed: dict[str, Any] | None = None

    def __repr__(self) -> str:
        kind = "endless, " if self.endless else ""
        return f"Traversals({kind}traversal {max(0, self.traversal)}, batch {self.batch})"

    @property
    def _loaders(self) -> list[Any]:
        return [road.loader for road in self.roads]

    @property
    def begin_due(self) -> bool:
        """Whether another traversal has to begin before the next batch."""
        return self.endless and (self.iterator is None or self._ended or self.batch >= self.limit)

    @property
    def reads_further(self) -> bool:
        """Whether a fetch reads one batch beyond the one that it gives, to know whether that is the last."""
        return self._tells_last and self.limit == float("inf")

    @property
    def draws_nothing(self) -> bool:
        """Whether a fetch is known not to draw from the process's generators, unless it begins a traversal."""
        return all(road.draws_nothing for road in self.roads)

    @property
    def gives_copies(self) -> bool:
        """Whether each batch is known to lie in memory of its own, in which nothing is written anew."""
        # Nothing is known before the first traversal, when there are no roads.
        return bool(self.roads) and all(road.fast is not None for road in self.roads)

    @property
    def stacks(self) -> bool:
        """Whether torch's own code makes each batch of samples: it allocates it, unless code of theirs interferes."""
        return all(road.stacks for road in self.roads)

    @property
    def makes_own(self) -> bool:
        """Whether each batch is made for who takes it, and is nobody else's."""
        return all(road.makes_own for road in self.roads)

    @property
    def makes_graphs(self) -> bool:
        """Whether torch_geometric makes each batch, of which `is_made_anew` tells whether it is nobody else's."""
        return len(self.roads) == 1 and self.roads[0].makes_graphs

    def resume(self, saved: dict[str, Any]) -> None:
        """Lets the first traversal be the one of a saved place, begun again and entered behind that place's batch."""
        self._resumed = saved

    def resumed_place(self) -> Place | None:
        """Returns the place that the present traversal was resumed at; None where it was begun."""
        return self._place._replace(batch=self.resumed_at) if self.resumed_at else None

    def describe(self) -> str:
        """Names the next batch for people: "batch 3 of traversal 0"."""
        if self.begin_due:
            return f"batch 0 of traversal {self.traversal + 1}"
        return f"batch {self.batch} of traversal {self.traversal}"

    @staticmethod
    def name(lazy: LazyPlace) -> str:
        """Names the batch that a place is behind, likewise."""
        return f"batch {lazy[1] - 1} of traversal {lazy[0].traversal}"

    def begin(self) -> None:
        """Begins the next traversal, on the trainer's thread; one that fails to begin is begun anew."""
        before = self.traversal, self._resumed
        self.iterator = self._further = None
        try:
            self._begin_next()
        except BaseException:
            (self.traversal, self._resumed), self.iterator = before, None
            raise

    def _begin_next(self) -> None:
        saved, self._resumed = self._resumed, None
        self.resumed_at, self.doubt = look_at(saved, self.roads) if saved is not None else (0, "")
        follows, began = self.traversal >= 0, time.perf_counter()
        if follows and any([road.look_again() for road in self.roads]):
            self.changes += 1
        self.traversal = saved["traversal"] if saved is not None else self.traversal + 1
        self.batch, self._fresh, self._ended = self.resumed_at, True, False
        if self.endless:
            for road in self.roads:
                set_epoch(road.loader, self.traversal)
        if self.resumed_at and saved is not None and not all(road.finds_its_place for road in self.roads):
            begin, first = self._begin_again(saved)
        else:
            begin = first = Draws(self._loaders).saved
            self.iterator = self._iterate()
        self._place = Place(self.traversal, 0, length_of(self.roads), begin, first)
        if follows and self.endless and any(road.restarts_workers for road in self.roads):
            self.on_restart(time.perf_counter() - began)

    def _begin_again(self, saved: dict[str, Any]) -> tuple[Callable[[], Saved], Callable[[], Saved]]:
        begin, first = saved.get("draws", [{}, {}])
        alone = len(self.roads) == 1
        if alone:
            self.roads[0].resume(self.batch, first, begin=begin, follows=self.traversal > 0)
        with drawing_from(begin, self._loaders):
            self.iterator = self._iterate()
        if not alone:
            with drawing_from(first, self._loaders):
                pass_over(self.iterator, self.batch)
        return lambda: begin, lambda: first

    def fetch(self, in_turn: bool) -> tuple[Any, LazyPlace]:
        """Returns the next batch and the place behind it.

        `in_turn`: the training has used every batch before and waits for this one.

        Raises:
            NotYet: When it begins a traversal and it is not in turn. Nothing has been fetched then.
            StopIteration: At the end of a traversal, if they are not endless.
            EmptyDatasetError: When an endless traversal gives no batch.
        """
        if not self.reads_further:
            return self._read(in_turn)
        # Kept until the one behind it has been read: where that fails, and is made again, none is lost.
        batch, (place, number) = self._further = self._further or self._read(in_turn)
        is_last = not self.read_further(in_turn)
        if is_last and self.keeps_states:
            place = place._replace(states=self._states())  # of loaders that know that they have ended
        return batch, (place._replace(last=is_last), number)

    def read_further(self, in_turn: bool = True) -> bool:
        """Reads one batch beyond the one that is given, as plain training does; tells whether there is one."""
        try:
            self._further = self._read(in_turn)
        except StopIteration:
            self._further = None
        return self._further is not None

    def _read(self, in_turn: bool) -> tuple[Any, LazyPlace]:
        due = self.begin_due
        if not self.endless and (self._ended or self.batch >= self.limit):
            # Behind the end some iterators begin again, and a `RandomSampler` draws: plain training does not go there.
            raise StopIteration
        if due or self._fresh:
            if not in_turn:
                raise NotYet
            while due:
                self.begin()
                due = self.begin_due and self.batch > 0  # a place saved at a traversal's end is behind it
            if self.batch == 0:
                self._place = self._place._replace(first=Draws(self._loaders).saved)
            self._fresh = False
        try:
            batch = next(self.iterator)  # type: ignore[arg-type]
        except StopIteration:
            self._ended = True
            if not self.endless:
                raise
            if self.batch == 0:
                raise EmptyDatasetError(ONCE.format(self.traversal) if self.traversal else EMPTY) from None
            return self._read(in_turn)
        self.batch += 1
        place = self._place._replace(states=self._states()) if self.keeps_states else self._place
        return batch, (place, self.batch)

    def row(self, most: int, together: bool = False) -> Iterator[tuple[Any, LazyPlace | list[LazyPlace]]]:
        """Gives the next batches of the traversal, and the place behind each; not the first one, which is in turn.

        With `together`, several may be given as one `Gathered`, with a list of their places.
        """
        if self.begin_due or self._fresh or self._ended:
            return
        if self.keeps_states or self.reads_further:
            with suppress(NotYet, StopIteration):
                for _ in range(most):
                    yield self.fetch(False)
            return
        place, end = self._place, int(min(self.batch + max(0, most), self.limit))
        found: Iterator[tuple[Any, int]] = zip(islice(cast(Iterator[Any], self.iterator), end - self.batch), repeat(1))
        if together and isinstance(self.iterator, GatherIterator):
            found = self.iterator.row(end - self.batch)
        for batch, count in found:
            self.batch = last = self.batch + count
            several = type(batch) is Gathered
            yield batch, [(place, number) for number in range(last - count + 1, last + 1)] if several else (place, last)
        self._ended = self.batch < end

    def retry(self) -> bool:
        """Lets the next batch be the one that has just failed; tells whether that can be done."""
        return len(self.roads) == 1 and self.roads[0].retry()

    def abort(self) -> bool:
        """Ends, from another thread, the workers that a fetch may wait for; tells whether there are some."""
        processes = [process for iterator in self._iterators() for process in worker_processes(iterator)]
        for process in processes:
            process.terminate()
        return bool(processes)

    def _iterators(self) -> list[Any]:
        """Returns the loaders' iterators."""
        return [self.iterator]

    def close(self) -> None:
        """Lets go of the iterator."""
        self.iterator = self._further = None
