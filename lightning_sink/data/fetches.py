"""One fetch, on whichever thread: a batch out of the source, through the transfer hooks, on its way to the device.

`Fetches` owns the source, and knows what the fetch under way on the queue's thread is at, for whoever waits for it.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Iterator
from typing import Any

from lightning_sink.data.batch import nbytes
from lightning_sink.data.device import Device
from lightning_sink.data.gathered import Gathered
from lightning_sink.data.producer import Abandoned, Item
from lightning_sink.data.report import Telemetry
from lightning_sink.data.run import Found, count_of
from lightning_sink.data.texts import note_place
from lightning_sink.data.traversals import NotYet, Traversals

_NO_ERRORS = (StopIteration, KeyboardInterrupt, NotYet, Abandoned, GeneratorExit)
"""What leaves a fetch that did not fail."""


class Fetches:
    """Fetches batches, one at a time.

    Args:
        prepare: Applied to each batch; None for nothing.

    Attributes:
        source: Where they come from.
        device: Sends batches where they go; None for the host.
        telemetry: Counts the batches.
        prepares: Whether batches are prepared where they are fetched.
        stage: Who is late where a fetch on the queue's thread does not return.
        since: When the last one there began, on the clock of `time.perf_counter`.
        sending_seconds: What it took to send the last batch to a device, if `fetch` did that on the trainer's thread.
    """

    def __init__(self, source: Traversals, device: Device | None, prepare: Callable[[Any], Any] | None) -> None:
        self.source, self.device, self.prepares = source, device, prepare is not None
        self.telemetry = Telemetry()
        self.stage, self.since, self.sending_seconds = _LOADER, 0.0, 0.0
        self._prepare = prepare

    def begin(self) -> None:
        """Begins the source's next traversal, if one is due."""
        if self.source.begin_due:
            try:
                self.source.begin()
            except BaseException as error:
                self.note_place(error)
                raise

    def fetch(self, in_turn: bool, *, on_thread: bool = False) -> Found:
        """Fetches a batch; adds its place to an error.

        `in_turn`: the training has used every batch before and waits for this one. `on_thread`: on the queue's.
        """
        began, note = time.perf_counter(), None
        try:
            batch, note = self.source.fetch(in_turn)
            size = nbytes(batch)
            if self._prepare is not None:
                self.stage = _HOOKS
                batch = self._prepare(batch)
            if self.device is not None:
                sending = time.perf_counter()
                batch = self.device.send(batch)
                if not on_thread:
                    self.sending_seconds = time.perf_counter() - sending
        except BaseException as error:
            self.note_place(error, note, on_thread)
            raise
        self.telemetry.fetched(time.perf_counter() - began, size)
        return batch, note, size

    def row(self, most: int, pack: Callable[[Any, Any], int | None], until: float) -> Iterator[Found]:
        """Fetches the next batches of the traversal, before their turn; gives those that are not packed here.

        Args:
            most: How many at most.
            pack: Takes a batch with its note and returns its bytes, where it is one of those that are being packed.
            until: When to fetch no more, on the clock of `time.perf_counter`.
        """
        prepare, fetched, clock = self._prepare, self.telemetry.fetched, time.perf_counter
        began, note = clock(), None
        try:
            for batch, note in self.source.row(most, together=prepare is None):
                size = pack(batch, note) if prepare is None else None
                if size is not None:
                    now = clock()
                    fetched(now - began, size)
                    if now > until:
                        return
                    began, note = now, None
                    continue
                size = batch.nbytes if type(batch) is Gathered else nbytes(batch)
                found = (batch if prepare is None else prepare(batch)), note, size
                fetched(clock() - began, size, count_of(found))
                yield found
                began, note = clock(), None
        except BaseException as error:
            self.note_place(error, note)
            raise

    def retry(self, error: BaseException | None) -> bool:
        """Lets the next fetch make again the one that has just ended so, if it failed; tells whether it will."""
        return isinstance(error, Exception) and not isinstance(error, StopIteration) and self.source.retry()

    def weakly(self) -> Callable[[bool], Item]:
        """Returns `work` for a thread that is to keep nothing alive between two fetches."""
        reference = weakref.ref(self)

        def work(in_turn: bool) -> Item:
            fetches = reference()
            if fetches is None:
                raise Abandoned
            return fetches.work(in_turn)

        return work

    def work(self, in_turn: bool) -> Item:
        """What the producer does for one batch, on the queue's thread."""
        self.stage, self.since = _LOADER, time.perf_counter()
        try:
            found = self.fetch(in_turn, on_thread=True)
        except Abandoned:
            raise
        except BaseException as error:
            return Item(error=error)
        return Item(found, size=found[2])

    def note_place(self, error: BaseException, note: Any = None, on_thread: bool = False) -> None:
        """Adds to an error which batch it is of; its note is None where the source has not given it."""
        if not isinstance(error, _NO_ERRORS):
            place = self.source.describe() if note is None else self.source.name(note)
            note_place(error, place, on_thread)


_LOADER, _HOOKS = "the loader", "one of the batch-transfer hooks"
