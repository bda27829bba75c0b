"""Batches in order, fetched ahead of the training where that is faster, one at a time where it is not.

`BatchQueue` is the trainer's side: it hands out the batches, on their device, keeps time, lets batches be looked at
before they are taken, and hands errors to the training in their place. Who makes a fetch is decided in `supply.py`. A
batch is fetched

* in step, on the trainer's thread, at the moment plain training would fetch it: the first of each traversal, and all of
  them where that is faster or nothing may run ahead;
* ahead, on the producer's thread, within the batches that the present sink will take: what callbacks change between two
  sinks is seen by the next sink's first batch.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

from lightning_sink.data.device import Arriving, Device
from lightning_sink.data.fetches import Fetches
from lightning_sink.data.load import Load
from lightning_sink.data.options import QueueOptions
from lightning_sink.data.report import QueueReport, Telemetry
from lightning_sink.data.reuse import Reuse, copied
from lightning_sink.data.run import Early, Found, Part
from lightning_sink.data.source import Source
from lightning_sink.data.supply import Supply

_ENDLESS = 1 << 62

_COPY = 16 << 20
"""Bytes that are sent to a device by one copy: so many are pinned before it is known how many batches there will be."""

_SECONDS = 0.05
"""What batches that are looked at in one go may take to fetch: Ctrl-C takes effect between two goes."""


class BatchQueue:
    """Gives the batches of a source in order.

    Args:
        source: Where the batches come from.
        options: How far ahead, and how long to wait.
        device: Sends the batches where they go; None for the host.
        prepare: Applied to each batch where it is fetched; None for nothing.
        in_step_because: Why nothing may be fetched ahead; "" where it may.
        say: Told once what costs speed.
    """

    def __init__(
        self,
        source: Source,
        options: QueueOptions,
        *,
        device: Device | None = None,
        prepare: Callable[[Any], Any] | None = None,
        in_step_because: str = "",
        say: Callable[[str], None] = lambda text: None,
    ) -> None:
        self._options, self._most = options, options.in_a_row(sent=device is not None)
        self._telemetry = Telemetry()
        if options.batches == 0:
            in_step_because = in_step_because or "`buffer_size` is 0"
        self._device = device
        self._sent = False  # whether the last batch was, so that its memory may be filled again
        self._reuse = self._new_reuse()
        self._failure: BaseException | None = None
        self._fetches = Fetches(source, device, prepare, self._telemetry)
        self._supply = Supply(self._fetches, options, self._telemetry, in_step_because, say)
        self._producer, self._pace = self._supply.producer, self._supply.pace
        self._early = Early(lambda count, size: self._producer.hold(-count, -size))
        self._last_take = self._began = self._waited = 0.0
        self._allow()

    def _new_reuse(self) -> Reuse:
        # As many lie in the queue, or in two rows of steps; where data has no length, one more has been read.
        return Reuse(2 * self._options.batches + 1, self._options.buffer_bytes)

    def __repr__(self) -> str:
        way = "ahead" if self._pace.ahead else "in step"
        return f"BatchQueue({self._options.changed()}): {self._telemetry.batches_consumed} batches taken, {way}"

    @property
    def ready(self) -> int:
        """Batches that can be taken without waiting."""
        return len(self._early) + self._producer.ready

    @property
    def prepares(self) -> bool:
        """Whether batches are prepared where they are fetched."""
        return self._fetches.prepares

    def horizon(self) -> int:
        """Returns how many batches, the one being fetched included, the present sink still needs."""
        if self._options.batches == 0:
            return 1
        most = self._options.batches if self._options.early_preload else self._producer.wanted + 1
        return max(1, most)

    def report(self) -> QueueReport:
        """Returns what the queue did so far."""
        return self._telemetry.report()

    # -- between sinks ----------------------------------------------------------------------------------------------

    def expect(self, batches: int) -> None:
        """A sink begins that will take at most so many batches."""
        early_preload = self._options.early_preload
        self._began, self._waited = time.perf_counter(), self._telemetry.consumer_wait_seconds
        if not early_preload:
            self._last_take = 0.0  # what callbacks took between two sinks says nothing of the way
        fetched = self._producer.pending + len(self._early)
        self._supply.expect(_ENDLESS if early_preload else max(0, batches - fetched))

    def lost_seconds(self, ran: float) -> float:
        """Returns the time of the present sink that batches were fetched or waited for, at most as much as no step ran.

        Args:
            ran: Time of it in which steps ran beside the trainer's thread.
        """
        waited = self._telemetry.consumer_wait_seconds - self._waited
        return min(waited, max(0.0, time.perf_counter() - self._began - ran))

    def rest(self, wait: bool = True, ran: float = 0.0) -> None:
        """The sink has ended: nothing is fetched until the next one, unless `early_preload` allows it.

        Args:
            wait: Whether to wait for a fetch under way.
            ran: As for `lost_seconds`.
        """
        self._telemetry.consumer_wait_seconds = self._waited + self.lost_seconds(ran)
        if not self._options.early_preload:
            self.pause(wait)

    def pause(self, wait: bool = True) -> None:
        """Lets nothing be fetched, whatever the options say; with `wait`, returns when no fetch is running."""
        self._supply.pause(wait)

    def restart(self, source: Source | None = None) -> None:
        """Forgets what was fetched: the source begins something new, or another takes its place."""
        self._failure = None
        self._early.clear()
        self._supply.empty()
        if source is not None:
            self._fetches.source, self._reuse, self._sent = source, self._new_reuse(), False
            self._allow()

    def close(self) -> None:
        """Ends the thread; one that hangs in somebody else's code is left to end with it, and that is said."""
        self._supply.close()

    # -- one batch --------------------------------------------------------------------------------------------------

    def take(self) -> tuple[Any, Any]:
        """Returns the next batch, on the device, and its note.

        Raises:
            StopIteration: When there is no batch left.
            DataTimeoutError: When none came within `timeout` seconds.
            Exception: What the loader or a hook raised, with the batch's place added.
        """
        if self._early:
            batch, (note,) = self.skip(1)
            return batch, note
        if self._failure is not None:
            error, self._failure = self._failure, None
            raise error
        began = time.perf_counter()
        depth = self._producer.ready
        self._reuse.trained()
        item, note, size = self._supply.next()
        batch = _arrived(item)
        now, watching = time.perf_counter(), self._supply.watching_seconds
        self._telemetry.taken(now - began, size, depth)
        if self._last_take and (self._supply.sure or not self._pace.ahead):
            self._pace.note(now - began - watching, now - self._last_take - watching)
        self._last_take = now
        self._look_at(batch, sent=batch is not item)
        return batch, note

    def _look_at(self, batch: Any, sent: bool) -> None:
        """Finds out whether the next one may be fetched before this one has been trained."""
        reuse, self._sent = self._reuse, sent
        if not (sent or reuse.ended or self._gives_copies):
            reuse.note(batch)
            if reuse.found and not self._telemetry.in_step_because:
                self._supply.stay_in_step("the loader fills the memory of a batch again for a later one")
            if reuse.found and reuse.written:  # by the step, perhaps: a copy would keep that from the loader
                self._supply.look_ahead_no_more()
        self._allow()

    def _allow(self) -> None:
        """Lets the thread fetch as far ahead as is known to do no harm."""
        apart = self._apart
        self._supply.sure = apart > 0
        self._producer.most = max(1, min(self._options.batches, apart - 1))  # one of them is being trained

    def look_ahead(self, most: int, behind: int = 0) -> Part | None:
        """Returns batches that come next and are alike, at most so many; they stay in the queue. None if there is none.

        On the way in step they are fetched here and now: plain training would do so a few steps later. That is another
        time, but the same batches, unless a fetch draws, as the steps before it may. A traversal begins, and draws,
        only where all batches before it have been trained, or are being trained by steps whose own draws have been
        made. An error waits for its batch's turn.

        Args:
            most: How many at most.
            behind: How many of those that were returned before are left out: they are being trained.
        """
        most = min(most, self._most, self._apart - behind)
        missing = behind + most - len(self._early)
        if missing > 0 and self._failure is None:
            self._look_further(missing, due=behind == len(self._early))
        return self._early.part(behind, most)

    def _look_further(self, batches: int, due: bool) -> None:
        began, held = time.perf_counter(), len(self._early)
        if self._supply.has_early():
            if due and self._supply.begins_here:
                self._look_while_there_is_room(1, iter(self._supply.begin, None))
                batches -= 1
            if self._failure is None:
                with self._supply.early() as founds:
                    self._look_while_there_is_room(batches, founds)
        seconds = time.perf_counter() - began
        self._telemetry.consumer_wait_seconds += seconds
        self._pace.skip(len(self._early) - held, seconds)

    def _look_while_there_is_room(self, batches: int, founds: Iterator[Found]) -> None:
        room, until = self._options.buffer_bytes, time.perf_counter() + _SECONDS
        _, last = self._early.last
        load: Load | None = None
        for number in range(batches):
            if self._producer.held_bytes + last > room or (number and time.perf_counter() > until):
                break
            found = None
            try:
                found = next(founds, None)
                if found is None:
                    break
                last = found[2]
                if load is None or not load.add(found):
                    full, load = load, None
                    self._send(full)
                    load = self._load(found, batches - number)
                    if load is None and not self._hold(found):
                        break
            except BaseException as error:  # in its turn, whatever it is
                self._failure = error
                last_note, _ = (self._early if load is None else load).last
                if found is not None and found[1] is not last_note:  # it has not been kept
                    self._producer.hold(-1, -found[2])
                break
        try:
            self._send(load)
        except BaseException as error:
            error.__context__ = self._failure  # which would have come behind it
            self._failure = error

    def _hold(self, found: Found) -> bool:
        """Keeps a batch as it is, or a copy; tells whether another may be fetched, which may fill its memory again."""
        item, note, size = found
        self._sent = type(item) is Arriving
        batch = _arrived(item)
        own = copied(batch) if self._reuse.found and not self._sent else None
        self._early.hold((batch if own is None else own, note, size))
        if self._reuse.found and not self._sent and own is None:
            self._supply.look_ahead_no_more()
            return False
        return len(self._early) < self._apart

    @property
    def _apart(self) -> int:
        """How many batches in a row may be held, as far as is known; 0 where each has to be trained first."""
        reuse = self._reuse
        if self._sent or reuse.found or self._gives_copies:
            return _ENDLESS
        return reuse.seen - self._fetches.source.reads_further if reuse.ended else 0

    @property
    def _gives_copies(self) -> bool:
        return self._fetches.source.gives_copies and not self.prepares

    def _load(self, found: Found, batches: int) -> Load | None:
        if self._device is None or type(found[0]) is Arriving:
            return None
        try:
            return self._device.load(found, batches, min(self._options.buffer_bytes, _COPY))
        except BaseException as error:
            self._fetches.note_place(error, found[1])
            raise

    def _send(self, load: Load | None) -> None:
        """Sends what was loaded; where that fails, it is lost, and the error is raised in the turn of its first."""
        if load is None:
            return
        try:
            load.send()
        except BaseException as error:
            (first,) = load.notes(0, 1)
            self._fetches.note_place(error, first)
            self._producer.hold(-len(load), -load.take(len(load)))
            raise
        self._early.append(load)

    def skip(self, count: int) -> tuple[Any, list[Any]]:
        """Takes the first of what `look_ahead` returned; returns the last of these batches, and the notes of all."""
        depth, held = self.ready, self._producer.held_bytes
        taken = self._early.take(count)
        self._telemetry.taken(0.0, held - self._producer.held_bytes, depth, count)
        self._last_take = time.perf_counter()
        return taken


def _arrived(item: Any) -> Any:
    return item.take() if type(item) is Arriving else item
