"""Batches in order, fetched ahead of the training where that is faster, one at a time where it is not.

`BatchQueue` is the trainer's side: it hands out the batches, on their device, keeps time, lets batches be looked at
before they are taken, and hands errors to the training in their place. Who makes a fetch is decided in `supply.py`; how
far before their turn batches may be fetched, in `lending.py`. A batch is fetched

* in step, on the trainer's thread, at the moment plain training would fetch it: the first of each traversal, and all of
  them where that is faster or nothing may run ahead;
* ahead, on the producer's thread, within the batches that the present sink will take: what callbacks change between two
  sinks is seen by the next sink's first batch.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from lightning_sink.data.device import Device
from lightning_sink.data.fetches import Fetches
from lightning_sink.data.lending import Lending
from lightning_sink.data.listed_texts import Looked
from lightning_sink.data.lookahead import LookAhead
from lightning_sink.data.options import QueueOptions
from lightning_sink.data.report import QueueReport
from lightning_sink.data.run import Part
from lightning_sink.data.streams import Arriving
from lightning_sink.data.supply import Supply
from lightning_sink.data.traversals import Traversals

_ENDLESS = 1 << 62


class BatchQueue:
    """Gives the batches of a source in order.

    Args:
        options: How far ahead, and how long to wait.
        device: Sends the batches where they go; None for the host.
        prepare: Applied to each batch where it is fetched; None for nothing.
        in_step_because: Why nothing may be fetched ahead; "" where it may.
        say: Told once what costs speed.

    Attributes:
        prepares: Whether batches are prepared where they are fetched.
        looked: The lists of texts at which steps look.
    """

    def __init__(
        self,
        source: Traversals,
        options: QueueOptions,
        *,
        device: Device | None = None,
        prepare: Callable[[Any], Any] | None = None,
        in_step_because: str = "",
        say: Callable[[str], None] = lambda text: None,
    ) -> None:
        self._options, self.prepares = options, prepare is not None
        if options.batches == 0:
            in_step_because = in_step_because or "`buffer_size` is 0"
        self._fetches = Fetches(source, device, prepare)
        self._supply = Supply(self._fetches, options, in_step_because, say)
        self._telemetry, self._producer, self._pace = self._fetches.telemetry, self._supply.producer, self._supply.pace
        self._lending = Lending(self._supply)
        self.looked = Looked()
        self._early = LookAhead(self._supply, self._lending, self.looked)
        self._last_take = self._began = self._waited = 0.0

    def __repr__(self) -> str:
        way = "ahead" if self._pace.ahead else "in step"
        return f"BatchQueue({self._options.changed()}): {self._telemetry.batches_consumed} batches taken, {way}"

    @property
    def ready(self) -> int:
        """Batches that can be taken without waiting."""
        return len(self._early) + self._producer.ready

    @property
    def gives_own(self) -> bool:
        """Whether the last batch is known to lie in memory of its own, which nobody else holds."""
        return self._lending.gives_own

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

        `ran`: time of it in which steps ran beside the trainer's thread.
        """
        waited = self._telemetry.consumer_wait_seconds - self._waited
        return min(waited, max(0.0, time.perf_counter() - self._began - ran))

    def rest(self, wait: bool = True, ran: float = 0.0) -> None:
        """The sink has ended: nothing is fetched until the next one, unless `early_preload` allows it.

        With `wait` a fetch under way is waited for; `ran` as for `lost_seconds`.
        """
        self._telemetry.consumer_wait_seconds = self._waited + self.lost_seconds(ran)
        if not self._options.early_preload:
            self.pause(wait)

    def pause(self, wait: bool = True) -> None:
        """Lets nothing be fetched, whatever the options say; with `wait`, returns when no fetch is running."""
        self._supply.pause(wait)

    def fetch_when_due(self, because: str) -> None:
        """Fetches nothing ahead from now on."""
        self._supply.fetch_when_due(because)

    def restart(self, source: Traversals | None = None) -> None:
        """Forgets what was fetched: the source begins something new, or another takes its place."""
        self._early.clear()
        self._supply.empty()
        if source is not None:
            self._fetches.source = source
            self._supply.look_again()
            self._lending.restart()

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
        if (error := self._early.failure()) is not None:
            raise error
        began = time.perf_counter()
        depth = self._producer.ready
        self._lending.trained()
        item, note, size = self._supply.next()
        self._early.size = size
        batch = item.take() if type(item) is Arriving else item
        now = time.perf_counter()
        self._telemetry.taken(now - began, size, depth)
        if self._last_take and (self._supply.sure or not self._pace.ahead):
            self._pace.note(now - began, now - self._last_take, self._fetches.sending_seconds)
        self._last_take = now
        self._lending.look_at(batch, size, sent=batch is not item)
        return batch, note

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
        return self._early.part(most, behind)

    def skip(self, count: int) -> tuple[Any, list[Any]]:
        """Takes the first of what `look_ahead` returned; returns the last of these, and the notes of the last two."""
        depth, held = self.ready, self._producer.held_bytes
        taken = self._early.take(count)
        self._telemetry.taken(0.0, held - self._producer.held_bytes, depth, count)
        self._last_take = time.perf_counter()
        return taken
