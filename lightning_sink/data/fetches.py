"""One fetch, on whichever thread: a batch out of the source, through the transfer hooks, on its way to the device.

`Fetches` owns the source, and knows what the fetch under way on the queue's thread is at, for whoever waits for it.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

from lightning_sink.data.batch import nbytes
from lightning_sink.data.device import Device
from lightning_sink.data.gathered import Gathered
from lightning_sink.data.producer import Abandoned, Item
from lightning_sink.data.report import Telemetry
from lightning_sink.data.run import Found, count_of
from lightning_sink.data.several import Several, bunch_of
from lightning_sink.data.source import NotYet, Source
from lightning_sink.data.texts import note_place

_NO_ERRORS = (StopIteration, KeyboardInterrupt, NotYet, Abandoned, GeneratorExit)
"""What leaves a fetch that did not fail."""

_SECONDS, _BYTES, _MOST = 2e-3, 1 << 20, 64
"""Seconds and bytes that batches fetched in one go may take, and how many they may be. Small ones come and go faster
than Python asks what each of them is; what is asked once for so many is nothing to any."""


class Fetches:
    """Fetches batches, one at a time.

    Args:
        source: Where they come from.
        device: Sends batches where they go; None for the host.
        prepare: Applied to each batch; None for nothing.
        telemetry: Counts the batches.

    Attributes:
        source: Where they come from.
        prepares: Whether batches are prepared where they are fetched.
        stage: Who is late where a fetch on the queue's thread does not return.
        since: When the last one there began, on the clock of `time.perf_counter`.
        sending_seconds: What it took to send the batch that `fetch` has just returned on the trainer's thread.
    """

    def __init__(
        self, source: Source, device: Device | None, prepare: Callable[[Any], Any] | None, telemetry: Telemetry
    ) -> None:
        self.source, self.prepares = source, prepare is not None
        self.stage, self.since, self.sending_seconds = _LOADER, 0.0, 0.0
        self._device, self._prepare, self._telemetry = device, prepare, telemetry
        self._met: BaseException | None = None  # behind batches that were given
        self._count = 1  # how many are fetched in one go

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

        Args:
            in_turn: Whether the training has used every batch before and waits for this one.
            on_thread: Whether this is the queue's thread.
        """
        self._raise_met()
        began, note = time.perf_counter(), None
        try:
            batch, note = self.source.fetch(in_turn)
            if self._prepare is not None:
                self.stage = _HOOKS
                batch = self._prepare(batch)
            size = nbytes(batch)
            if self._device is not None:
                sending = time.perf_counter()
                batch = self._device.send(batch)
                if not on_thread:
                    self.sending_seconds = time.perf_counter() - sending
        except BaseException as error:
            self.note_place(error, note, on_thread)
            raise
        self._telemetry.fetched(time.perf_counter() - began, size)
        return batch, note, size

    def row(self, most: int, at_once: int) -> Iterator[list[Found]]:
        """Fetches the next batches of the traversal, before their turn, and leaves them for the queue to send.

        Several are fetched before the first of them is given where the ones before took little time and memory. An
        error among them is raised by what is fetched next: no batch that was fetched is lost.

        Args:
            most: How many at most.
            at_once: How many may be held at once: memory of those before may be filled again then.
        """
        prepare, clock = self._prepare, time.perf_counter
        rows = self.source.row(most, together=prepare is None)
        while True:
            self._raise_met()
            began, note = clock(), None
            batches, notes = list[Any](), list[Any]()
            try:
                for batch, note in islice(rows, max(1, min(self._count, at_once))):
                    batches.append(batch if prepare is None else prepare(batch))
                    notes.append(note)
                    note = None
            except BaseException as error:
                self.note_place(error, note)
                if not batches:
                    raise
                self._met = error
            if not batches:
                return
            found, seconds = _found(batches, notes), clock() - began
            count, size = sum(map(count_of, found)), sum(size for _, _, size in found)
            self._telemetry.fetched(seconds, size, count)
            much = max(seconds / _SECONDS, size / _BYTES, count / _MOST)
            self._count = 1 if isinstance(batches[0], Gathered) else max(1, int(min(2 * self._count, count / much)))
            yield found

    def forget(self) -> None:
        """Forgets an error that nobody was told of: something new begins."""
        self._met = None

    def _raise_met(self) -> None:
        error, self._met = self._met, None
        if error is not None:
            raise error

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
        """Adds to an error which batch it is of.

        Args:
            error: The error.
            note: The batch's; None where the source has not given it.
            on_thread: Whether this is the queue's thread.
        """
        if not isinstance(error, _NO_ERRORS):
            place = self.source.describe() if note is None else self.source.name(note)
            note_place(error, place, on_thread)


def _found(batches: list[Any], notes: list[Any]) -> list[Found]:
    """Returns batches that were fetched in one go, as one if they are alike."""
    if len(batches) > 1 and (bunch := bunch_of(batches)) is not None:
        return [(bunch, notes, bunch.nbytes)]
    sizes = [batch.nbytes if isinstance(batch, Several) else nbytes(batch) for batch in batches]
    return [*zip(batches, notes, sizes, strict=True)]


_LOADER, _HOOKS = "the loader", "one of the batch-transfer hooks"
