"""Batches in order, fetched ahead of the training where that is faster, one at a time where it is not.

`BatchQueue` is the trainer's side: it decides for each batch who fetches it, moves it through a slot of the device,
keeps time, and hands errors to the training in their place. A batch is fetched

* in step, on the trainer's thread, at the moment plain training would fetch it: the first of each traversal, and all of
  them where that is faster or nothing may run ahead;
* ahead, on the producer's thread, within the batches that the present sink will take: what callbacks change between two
  sinks is seen by the next sink's first batch.
"""

from __future__ import annotations

import time
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any

from lightning_sink.data.batch import nbytes
from lightning_sink.data.device import Device, HostDevice, Slot
from lightning_sink.data.options import QueueOptions
from lightning_sink.data.pace import Pace
from lightning_sink.data.producer import Abandoned, Item, Producer
from lightning_sink.data.report import QueueReport, Telemetry
from lightning_sink.data.source import NotYet, Source
from lightning_sink.data.turn import keep_states
from lightning_sink.errors import DataTimeoutError

_PROBES = 2
"""Fetches on the queue's thread that the training waits for before any is made beside it: do they work, and draw?"""

_DRAWN_IN_A_ROW = 3
"""Fetches in a row that waited for their turn, though the probes did not, after which no more are made ahead."""

_ENDLESS = 1 << 62


class BatchQueue:
    """Gives the batches of a source in order.

    Args:
        source: Where the batches come from.
        options: How far ahead, and how long to wait.
        device: Where the batches go.
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
        self._source, self._options, self._prepare, self._say = source, options, prepare, say
        self._telemetry = Telemetry()
        self._pace = Pace()
        if options.buffer_size == 0:
            in_step_because = in_step_because or "`buffer_size` is 0"
        if in_step_because:
            self._stay_in_step(in_step_because)
        device = device or HostDevice()
        self._free: deque[Slot] = deque(device.slot() for _ in range(options.buffer_size + 2))
        self._held: Slot | None = None
        self._producer = Producer(options.buffer_size, options.buffer_bytes, self._telemetry)
        self._ahead = _ahead(weakref.ref(self))
        self._close = weakref.finalize(self, self._producer.close, 0.0)
        self._stage = "the loader"
        self._since = 0.0
        self._last_take = 0.0
        self._drawn = 0
        self._probes = _PROBES

    def __repr__(self) -> str:
        way = "ahead" if self._pace.ahead else "in step"
        return f"BatchQueue({self._options.changed()}): {self._telemetry.batches_consumed} batches taken, {way}"

    @property
    def ready(self) -> int:
        """Batches that can be taken without waiting."""
        return self._producer.ready

    @property
    def prepares(self) -> bool:
        """Whether batches are prepared where they are fetched."""
        return self._prepare is not None

    def horizon(self) -> int:
        """Returns how many batches, the one being fetched included, the present sink still needs."""
        if self._options.buffer_size == 0:
            return 1
        most = self._options.buffer_size if self._options.early_preload else self._producer.wanted + 1
        return max(1, most)

    def report(self) -> QueueReport:
        """Returns what the queue did so far."""
        return self._telemetry.report()

    # -- between sinks ----------------------------------------------------------------------------------------------

    def expect(self, batches: int) -> None:
        """A sink begins that will take at most so many batches."""
        producer = self._producer
        producer.wanted = _ENDLESS if self._options.early_preload else max(0, batches - producer.pending)
        if not self._options.early_preload:
            self._last_take = 0.0  # what callbacks took between two sinks says nothing of the way
        if self._runs_ahead:
            producer.run(self._ahead, producer.wanted)

    def rest(self, wait: bool = True) -> None:
        """The sink has ended: nothing is fetched until the next one, unless `early_preload` allows it."""
        self._release()
        if not self._options.early_preload:
            self.pause(wait)

    def pause(self, wait: bool = True) -> None:
        """Lets nothing be fetched, whatever the options say; with `wait`, returns when no fetch is running."""
        if not self._producer.pause(wait, self._options.timeout):
            raise DataTimeoutError(self._lateness(0))

    def restart(self, source: Source | None = None) -> None:
        """Forgets what was fetched: the source begins something new, or another takes its place."""
        self._release()
        dropped = self._producer.empty(self._options.timeout)
        if dropped is None:
            raise DataTimeoutError(self._lateness(0))
        for item in dropped:
            if item.error is None:
                self._held = item.value[0]
                self._held.take()
                self._release()
        self._source = source or self._source

    def close(self) -> None:
        """Ends the thread; one that hangs in somebody else's code is left to end with it, and that is said."""
        self._release()
        self._pace.stay_in_step()
        if self._close.detach() is None or self._producer.close(_PATIENCE):
            return
        if not (self._source.abort() and self._producer.close(_PATIENCE_FOR_WORKERS)):
            self._say(
                f"{self._stage} does not return; the thread that it runs on ends when it does, or with the process"
            )

    # -- one batch --------------------------------------------------------------------------------------------------

    def take(self) -> tuple[Any, Any]:
        """Returns the next batch, on the device, and its note; the batch before may be overwritten from now on.

        Raises:
            StopIteration: When there is no batch left.
            DataTimeoutError: When none came within `timeout` seconds.
            Exception: What the loader or a hook raised, with the batch's place added.
        """
        began, producer, telemetry = time.perf_counter(), self._producer, self._telemetry
        self._release()
        depth = 0
        try:
            if self._is_in_step():
                slot, note, size = self._fetch_in_step()
            else:
                depth = producer.ready
                slot, note, size = self._from_producer(depth)
        except (StopIteration, KeyboardInterrupt):
            raise
        except BaseException as error:
            self._note_place(error)
            raise
        batch, self._held = slot.take(), slot
        now = time.perf_counter()
        telemetry.taken(now - began, size, depth)
        if self._last_take:
            self._pace.note(now - began, now - self._last_take)
        self._last_take = now
        return batch, note

    def _is_in_step(self) -> bool:
        """Decides who fetches the next batch."""
        producer = self._producer
        if not self._runs_ahead:
            producer.running = False
        elif not producer.running:
            producer.run(self._ahead, producer.wanted)
        return self._options.timeout is None and self._is_due() and not self._pace.ahead

    @property
    def _runs_ahead(self) -> bool:
        return self._pace.ahead and not self._probes

    def _is_due(self) -> bool:
        """Whether nobody else will fetch the next batch; a sink that takes more than it said goes on in step."""
        producer = self._producer
        return not (self._runs_ahead and producer.wanted > 0) and not producer.pending

    def _fetch_in_step(self) -> tuple[Slot, Any, int]:
        began = time.perf_counter()
        self._producer.wanted -= 1
        found = self._fetch(True)
        self._telemetry.fetched(time.perf_counter() - began, found[2])
        return found

    def _from_producer(self, depth: int) -> tuple[Slot, Any, int]:
        if not self._is_due():
            return self._from_ahead(depth)
        if self._pace.ahead and self._probes:
            return self._probe(depth)
        if self._pace.ahead and self._options.timeout is None:
            return self._fetch_in_step()  # the sink takes more than it said
        return self._demand(depth)

    def _from_ahead(self, depth: int) -> tuple[Slot, Any, int]:
        """Takes what the thread has fetched by itself."""
        item = self._get(depth)
        self._note_draws(item)
        if not isinstance(item.error, NotYet):
            return self._value(item, _AHEAD)
        self._producer.wanted += 1
        if self._options.timeout is not None:
            return self._demand(depth)
        found = self._fetch_in_step()
        self._producer.run(self._ahead, self._producer.wanted)
        return found

    def _demand(self, depth: int) -> tuple[Slot, Any, int]:
        """Lets the thread fetch one batch while the training waits for it."""
        if self._source.begin_due:
            self._source.begin()
        self._producer.demand(self._ahead)
        return self._value(self._get(depth), _AHEAD)

    def _probe(self, depth: int) -> tuple[Slot, Any, int]:
        """The same, watched: what draws in each fetch, or is bound to the trainer's thread, is found out here."""
        restore = keep_states()
        self._producer.demand(self._ahead, watch=True)
        item = self._get(depth)
        if isinstance(item.error, NotYet):
            self._producer.wanted += 1
            return self._fetch_in_step() if self._options.timeout is None else self._demand(depth)
        self._probes -= 1
        if item.drew:
            self._stay_in_step(f"each fetch touches {item.drew}, which belongs to the whole process")
            self._say(_DRAWS.format(item.drew))
        if isinstance(item.error, Exception) and not isinstance(item.error, StopIteration) and self._source.retry():
            restore()
            self._producer.wanted += 1
            found = self._fetch_in_step()
            self._stay_in_step(f"on another thread a fetch failed ({type(item.error).__name__}: {item.error})")
            self._say(_BOUND.format(type(item.error).__name__, item.error))
            return found
        return self._value(item, _AHEAD)

    def _get(self, depth: int) -> Item:
        item = self._producer.get(self._options.timeout)
        if item is None:
            raise DataTimeoutError(self._lateness(depth))
        return item

    def _value(self, item: Item, way: str) -> tuple[Slot, Any, int]:
        if item.error is not None:
            self._note_place(item.error, way)
            raise item.error
        return item.value  # type: ignore[no-any-return]

    def _fetch(self, in_turn: bool) -> tuple[Slot, Any, int]:
        """Fetches one batch, on whichever thread, into a slot; returns that, the batch's note and its bytes."""
        slot = self._free.popleft()
        try:
            batch, note = self._source.fetch(in_turn)
            size = nbytes(batch)
            if self._prepare is not None:
                self._stage = "one of the batch-transfer hooks"
                batch = self._prepare(batch)
            slot.fill(batch)
        except BaseException:
            self._free.append(slot)
            raise
        return slot, note, size

    def _work(self, in_turn: bool) -> Item:
        """What the producer does for one batch."""
        self._stage, began = "the loader", time.perf_counter()
        self._since = began
        try:
            found = self._fetch(in_turn)
        except Abandoned:
            raise
        except BaseException as error:
            return Item(error=error, is_last=True)
        self._telemetry.fetched(time.perf_counter() - began, found[2])
        return Item(found, size=found[2])

    def _release(self) -> None:
        if self._held is not None:
            self._held.release()
            self._free.append(self._held)
            self._held = None

    def _note_draws(self, item: Item) -> None:
        if isinstance(item.error, NotYet):
            return
        self._telemetry.batches_ahead += item.error is None
        self._drawn = self._drawn + 1 if item.drew else 0
        if self._drawn == _DRAWN_IN_A_ROW:
            self._stay_in_step(f"each fetch touches {item.drew}, which belongs to the whole process")
            self._producer.running = False
            self._say(_DRAWS.format(item.drew))

    def _stay_in_step(self, because: str) -> None:
        self._pace.stay_in_step()
        self._telemetry.in_step_because = because

    # -- what goes wrong --------------------------------------------------------------------------------------------

    def _note_place(self, error: BaseException, way: str = "") -> None:
        known = any(note.startswith(_NOTE) for note in getattr(error, "__notes__", []))
        if not known and not isinstance(error, (StopIteration, KeyboardInterrupt)):
            add_note(error, f"{_NOTE} while fetching {self._source.describe()}{way}")

    def _lateness(self, depth: int) -> str:
        telemetry, timeout = self._telemetry, self._options.timeout
        count = telemetry.batches_produced
        mean = telemetry.fetch_seconds / max(1, count)
        slowest = f", the slowest {telemetry.slowest_fetch_seconds:.3f} s (fetch {telemetry.slowest_fetch_batch})"
        return (
            f"No batch came for {timeout:g} s. Late is {self._stage}, at {self._source.describe()},"
            f" since {time.perf_counter() - self._since:.1f} s. Before it {count} batches were fetched,"
            f" {mean:.3f} s each on average{slowest if count else ''}; the last takes found"
            f" {[*telemetry.last_depths, depth]} batches ready, of at most {self._options.buffer_size}. If one sample"
            " takes that long, raise `SinkDataModule(timeout=...)` or make it cheaper; if all do, use more workers"
            " (`DataLoader(num_workers=...)`); if a worker hangs, look for locks and open files that it shares with"
            " the process that forked it, or try `SinkStrategy(dataset_sink_mode=False)`."
        )


def _ahead(reference: weakref.ref[BatchQueue]) -> Callable[[bool], Item]:
    """What the producer does for one batch; its thread keeps no queue alive that nobody else holds."""

    def work(in_turn: bool) -> Item:
        queue = reference()
        if queue is None:
            raise Abandoned
        return queue._work(in_turn)

    return work


_DRAWS = (
    "batches are fetched when they are due and not ahead: each fetch touches {}, and its draws keep plain Lightning's"
    " order. Workers (`num_workers=1` or more) draw from generators of their own."
)
_BOUND = (
    "batches are fetched when they are due and not ahead: on another thread one could not be fetched ({}: {})."
    " `SinkDataModule(..., buffer_size=0)` does not try."
)
_NOTE = "[lightning_sink]"
_AHEAD = ", on the queue's thread (`SinkDataModule(..., buffer_size=0)` fetches on the trainer's)"

_PATIENCE = 1.0
"""Seconds to wait for the thread's end before what it waits for is ended."""

_PATIENCE_FOR_WORKERS = 8.0
"""Seconds to wait for it then; torch's DataLoader looks after its workers every five."""


def add_note(error: BaseException, text: str) -> None:
    """Adds a line to an error; Python 3.10 keeps it where later versions and test runners look for it."""
    error.__notes__ = [*getattr(error, "__notes__", []), text]
