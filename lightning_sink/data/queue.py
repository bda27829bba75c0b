"""Batches in order, fetched ahead of the training where that is faster, one at a time where it is not.

`BatchQueue` is the trainer's side: it decides for each batch who makes the fetch (`fetches.py`), takes it out of its
slot, keeps time, and hands errors to the training in their place. A batch is fetched

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
from itertools import islice
from typing import Any

from lightning_sink.data.device import Device, HostDevice, Slot
from lightning_sink.data.fetches import Fetches, Found
from lightning_sink.data.generators import keep_states, present_states
from lightning_sink.data.options import QueueOptions
from lightning_sink.data.pace import Pace
from lightning_sink.data.producer import Item, Producer
from lightning_sink.data.report import QueueReport, Telemetry
from lightning_sink.data.reuse import Reuse
from lightning_sink.data.source import NotYet, Source
from lightning_sink.data.texts import BOUND, DRAWS, HANGS, lateness
from lightning_sink.errors import DataTimeoutError

_PROBES = 2
"""Fetches on the queue's thread that the training waits for before any is made beside it: do they work, and draw?"""

_DRAWN_IN_A_ROW = 3
"""Fetches in a row that waited for their turn, though the probes did not, after which no more are made ahead."""

_QUIET_FOR = 8
"""Fetches in step that are seen to draw nothing before any is made ahead of its step."""

_ENDLESS = 1 << 62

_PATIENCE = 1.0
"""Seconds to wait for the thread's end before what it waits for is ended."""

_PATIENCE_FOR_WORKERS = 8.0
"""Seconds to wait for it then; torch's DataLoader looks after its workers every five."""


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
        self._options, self._say = options, say
        self._telemetry = Telemetry()
        self._pace = Pace()
        if options.buffer_size == 0:
            in_step_because = in_step_because or "`buffer_size` is 0"
        if in_step_because:
            self._stay_in_step(in_step_because)
        self._looks_ahead = not in_step_because and not options.early_preload
        device = device or HostDevice()
        self._free: deque[Slot] = deque(device.slot() for _ in range(options.buffer_size + 2))
        self._held: Slot | None = None
        self._early: deque[tuple[Any, Found]] = deque()
        self._reuse = Reuse(options.buffer_size, options.buffer_bytes)
        self._quiet_for, self._begins, self._draws = 0, True, False
        self._failure: BaseException | None = None
        self._fetches = Fetches(source, self._free, prepare, self._telemetry)
        self._producer = Producer(options.buffer_size, options.buffer_bytes, self._telemetry)
        self._ahead = self._fetches.weakly()
        self._close = weakref.finalize(self, self._producer.close, 0.0)
        self._last_take, self._drawn, self._probes = 0.0, 0, _PROBES

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
        fetched = producer.pending + len(self._early)
        producer.wanted = _ENDLESS if self._options.early_preload else max(0, batches - fetched)
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
            raise self._late()

    def restart(self, source: Source | None = None) -> None:
        """Forgets what was fetched: the source begins something new, or another takes its place."""
        self._release()
        self._failure, self._begins = None, True
        while self._early:
            _, (self._held, _, size) = self._early.popleft()
            self._producer.hold(-1, -size)
            self._release()
        dropped = self._producer.empty(self._options.timeout)
        if dropped is None:
            raise self._late()
        for item in dropped:
            if item.error is None:
                self._held = item.value[0]
                self._held.take()
                self._release()
        self._fetches.source = source or self._fetches.source

    def close(self) -> None:
        """Ends the thread; one that hangs in somebody else's code is left to end with it, and that is said."""
        self._release()
        self._pace.stay_in_step()
        if self._close.detach() is None or self._producer.close(_PATIENCE):
            return
        if not (self._fetches.source.abort() and self._producer.close(_PATIENCE_FOR_WORKERS)):
            self._say(HANGS.format(self._fetches.stage))

    # -- one batch --------------------------------------------------------------------------------------------------

    def take(self) -> tuple[Any, Any]:
        """Returns the next batch, on the device, and its note; the batch before may be overwritten from now on.

        Raises:
            StopIteration: When there is no batch left.
            DataTimeoutError: When none came within `timeout` seconds.
            Exception: What the loader or a hook raised, with the batch's place added.
        """
        if self._early:
            ((batch, note),) = self.look_ahead(1)
            self.skip(1)
            return batch, note
        if self._failure is not None:
            error, self._failure = self._failure, None
            raise error
        began = time.perf_counter()
        self._release()
        depth = self._producer.ready
        slot, note, size = self._watched_next()
        batch, self._held = slot.take(), slot
        now = time.perf_counter()
        self._telemetry.taken(now - began, size, depth)
        if self._last_take:
            self._pace.note(now - began, now - self._last_take)
        self._last_take = now
        self._look_at(batch)
        return batch, note

    def _watched_next(self) -> Found:
        """Gets the next batch; notices whether a fetch in step draws, other than at a traversal's beginning."""
        begins, self._begins = self._begins or self._fetches.source.begin_due, False
        if begins or self._quiet_for >= _QUIET_FOR or self._draws or self._pace.ahead or not self._looks_ahead:
            return self._next()
        before = present_states()
        found = self._next()
        self._draws = present_states() != before
        self._quiet_for += 1
        return found

    def _look_at(self, batch: Any) -> None:
        reuse = self._reuse
        reuse.note(batch)
        if reuse.found and not self._telemetry.in_step_because:
            self._stay_in_step(f"the loader fills the memory of a batch again {reuse.distance} batches later")

    def look_ahead(self, most: int) -> list[tuple[Any, Any]]:
        """Returns batches that come next, at most so many, with their notes; they stay in the queue.

        On the way in step they are fetched here and now, at most `buffer_size`: plain training would do so a few steps
        later. That is another time, but the same batches, unless a fetch draws, as the steps before it may. An error
        waits for its batch's turn.
        """
        if not self._early:
            self._release()
        most = min(most, self._options.buffer_size, self._reuse.distance)
        missing = most - len(self._early)
        if missing > 0 and self._looks_ahead and self._pace.settled and self._failure is None:
            self._look_further(missing)
        return [(batch, note) for batch, (_, note, _) in islice(self._early, max(0, most))]

    def _look_further(self, batches: int) -> None:
        source, producer, room = self._fetches.source, self._producer, self._options.buffer_bytes
        began, last = time.perf_counter(), 0
        is_quiet = source.draws_nothing or (self._quiet_for >= _QUIET_FOR and not self._draws)
        for _ in range(batches):
            ahead = self._pace.ahead or producer.pending > 0
            may_fetch = producer.is_next_good if ahead else is_quiet and not source.begin_due
            if not may_fetch or producer.held_bytes + last > room:
                break
            producer.hold(1, 0)  # before there is room for the thread to fetch another one
            try:
                item = self._from_ahead() if ahead else self._when_due()
                self._early.append((item[0].take(), item))
                self._look_at(self._early[-1][0])
            except BaseException as error:  # in its turn, whatever it is
                producer.hold(-1, 0)
                self._failure = error
                break
            last = item[2]
            producer.hold(0, last)
        self._telemetry.consumer_wait_seconds += time.perf_counter() - began

    def skip(self, count: int) -> list[Any]:
        """Takes the first of the batches that `look_ahead` returned; returns their notes."""
        depth = self.ready
        taken = [self._early.popleft()[1] for _ in range(count)]
        for slot, _, _ in taken:
            self._release()
            self._held = slot
        size = sum(size for _, _, size in taken)
        self._producer.hold(-count, -size)
        self._telemetry.taken(0.0, size, depth, count)
        self._pace.skip(count)
        self._last_take = time.perf_counter()
        return [note for _, note, _ in taken]

    @property
    def _runs_ahead(self) -> bool:
        return self._pace.ahead and not self._probes

    def _next(self) -> Found:
        """Decides who fetches the next batch, and gets it."""
        producer = self._producer
        if not self._runs_ahead:
            producer.running = False
        elif not producer.running:
            producer.run(self._ahead, producer.wanted)
        # In this order: the thread begins a fetch and lowers `wanted` at once.
        if (self._runs_ahead and producer.wanted > 0) or producer.pending:
            return self._from_ahead()
        if self._pace.ahead and self._probes:
            return self._probe()
        return self._when_due()  # also where a sink takes more than it said

    def _from_ahead(self) -> Found:
        """Takes what the thread has fetched by itself."""
        item = self._get()
        self._note_draws(item)
        if not isinstance(item.error, NotYet):
            return _value(item)
        self._producer.wanted += 1
        found = self._when_due()
        if self._options.timeout is None:
            self._producer.run(self._ahead, self._producer.wanted)
        return found

    def _probe(self) -> Found:
        """Lets the thread fetch one, watched: what draws in each fetch, or works on one thread only, is found out."""
        restore = keep_states()
        self._producer.demand(self._ahead, watch=True)
        item = self._get()
        if isinstance(item.error, NotYet):
            self._producer.wanted += 1
            return self._when_due()
        self._probes -= 1
        if item.drew:
            self._say_draws(item)
        if self._fetches.retry(item.error):
            restore()
            self._producer.wanted += 1
            found = self._in_step()
            failed = f"{type(item.error).__name__}: {item.error}"
            self._stay_in_step(f"on another thread a fetch failed ({failed})")
            self._say(BOUND.format(failed))
            return found
        return _value(item)

    def _when_due(self) -> Found:
        """Has the batch fetched that nobody has begun to fetch: here, or on the thread if there is a timeout."""
        return self._in_step() if self._options.timeout is None else self._demand()

    def _in_step(self) -> Found:
        self._producer.wanted -= 1
        return self._fetches.fetch(True)

    def _demand(self) -> Found:
        """Lets the thread fetch one batch while the training waits for it."""
        self._fetches.begin()
        self._producer.demand(self._ahead)
        return _value(self._get())

    def _get(self) -> Item:
        item = self._producer.get(self._options.timeout)
        if item is None:
            raise self._late()
        return item

    # -- what goes with it ------------------------------------------------------------------------------------------

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
            self._producer.running = False
            self._say_draws(item)

    def _say_draws(self, item: Item) -> None:
        self._stay_in_step(f"each fetch touches {item.drew}, which belongs to the whole process")
        self._say(DRAWS.format(item.drew))

    def _stay_in_step(self, because: str) -> None:
        self._pace.stay_in_step()
        self._telemetry.in_step_because = because

    def _late(self) -> DataTimeoutError:
        place, since = self._fetches.source.describe(), self._fetches.since
        return DataTimeoutError(lateness(self._telemetry, self._options, self._fetches.stage, place, since))


def _value(item: Item) -> Found:
    if item.error is not None:
        raise item.error
    return item.value  # type: ignore[no-any-return]
