"""Who fetches the next batch: the trainer's thread when it is due, or the queue's, ahead of it.

`Supply` owns the queue's thread and what is known of the fetches: which way is faster (`pace.py`), whether they may be
made on another thread at all (the first two there are probes that the training waits for), and whether they draw.
`lookahead.py` has them fetched before they are due.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable

from lightning_sink.data.fetches import Fetches
from lightning_sink.data.generators import keep_states, watch_states
from lightning_sink.data.options import QueueOptions
from lightning_sink.data.pace import Pace
from lightning_sink.data.producer import Item, Producer
from lightning_sink.data.run import Found
from lightning_sink.data.texts import BOUND, DRAWS, HANGS, lateness
from lightning_sink.data.traversals import NotYet
from lightning_sink.errors import DataTimeoutError

_PROBES = 2
"""Fetches on the queue's thread that the training waits for before any is made beside it: do they work, and draw?"""

_DRAWN_IN_A_ROW = 3
"""Fetches in a row that waited for their turn, though the probes did not, after which no more are made ahead."""

_QUIET_FOR = 8
"""Fetches in step that are seen to draw nothing before any is made ahead of its step."""

_PATIENCE = 1.0
"""Seconds to wait for the thread's end before what it waits for is ended."""

_PATIENCE_FOR_WORKERS = 8.0
"""Seconds to wait for it then; torch's DataLoader looks after its workers every five."""


class Supply:
    """Has batches fetched, one after the other.

    Args:
        in_step_because: Why nothing may be fetched before it is due; "" where it may.

    Attributes:
        sure: Whether a batch may be fetched while another is held: no memory is filled again, as far as is known.
    """

    def __init__(
        self, fetches: Fetches, options: QueueOptions, in_step_because: str, say: Callable[[str], None]
    ) -> None:
        self.fetches, self.options, self._telemetry, self._say = fetches, options, fetches.telemetry, say
        self.producer = Producer(options.batches, options.buffer_bytes, self._telemetry)
        self.pace = Pace()
        self._ahead = fetches.weakly()
        self._begins = True
        self._looks_ahead = not options.early_preload
        self.look_again()
        if in_step_because:
            self.fetch_when_due(in_step_because)
        self._close = weakref.finalize(self, self.producer.close, 0.0)

    @property
    def runs_ahead(self) -> bool:
        """Whether the thread fetches by itself now."""
        return self.pace.ahead and self.sure and not self._probes

    @property
    def looks_ahead(self) -> bool:
        """Whether batches may be fetched before their turn, beside steps, now."""
        return self._looks_ahead and self.pace.settled

    @property
    def is_quiet(self) -> bool:
        """Whether enough fetches in step were seen, and none of them drew."""
        return self._watched >= _QUIET_FOR and not self.draws

    @property
    def stays_in_step(self) -> bool:
        """Whether there is a reason for which the thread fetches no more."""
        return bool(self._telemetry.in_step_because)

    # -- between sinks ----------------------------------------------------------------------------------------------

    def expect(self, batches: int) -> None:
        """Allows the thread to fetch so many, if it fetches by itself."""
        self.producer.wanted = batches
        if self.runs_ahead:
            self.producer.run(self._ahead, batches)

    def pause(self, wait: bool) -> None:
        """Lets nothing be fetched; with `wait`, returns when no fetch is running."""
        if not self.producer.pause(wait, self.options.timeout):
            raise self._late()

    def empty(self) -> None:
        """Forgets what was fetched and not taken; the next fetch begins something new."""
        self._begins = True
        if self.producer.empty(self.options.timeout) is None:
            raise self._late()

    def look_again(self) -> None:
        """What is known of the fetches is not any more: another source has begun, or another way of it."""
        self._as_of, self.sure, self.draws = self.fetches.source.changes, False, False
        self._probes, self._drawn, self._watched = _PROBES, 0, 0

    def stay_in_step(self, because: str) -> None:
        """Lets the thread fetch no more."""
        self.pace.stay_in_step()
        self._telemetry.in_step_because = because

    def fetch_when_due(self, because: str) -> None:
        """Has each batch fetched when it is due from now on."""
        self.stay_in_step(because)
        self.look_ahead_no_more()

    def look_ahead_no_more(self) -> None:
        """Has no batch fetched beside steps from now on."""
        self._looks_ahead = False

    def close(self) -> None:
        """Ends the thread; one that hangs in somebody else's code is left to end with it, and that is said."""
        self.pace.stay_in_step()
        if self._close.detach() is None or self.producer.close(_PATIENCE):
            return
        if not (self.fetches.source.abort() and self.producer.close(_PATIENCE_FOR_WORKERS)):
            self._say(HANGS.format(self.fetches.stage))

    # -- one fetch --------------------------------------------------------------------------------------------------

    def next(self) -> Found:
        """Returns the next batch, whose turn it is; notices whether a fetch in step draws, but a traversal's first."""
        self.fetches.sending_seconds = 0.0
        begins, self._begins = self._begins or self.fetches.source.begin_due, False
        if begins or self.pace.ahead or self._watched >= _QUIET_FOR or self.draws or not self._looks_ahead:
            return self._next()
        has_drawn = watch_states()
        found = self._next()
        self.draws = has_drawn()
        self._watched += 1
        return found

    def is_from_ahead(self) -> bool:
        """Tells whether the next batch comes from the thread."""
        if not self.runs_ahead:
            self.producer.running = False  # before `pending` asks, with the lock held: the thread begins no fetch then
        return self.pace.ahead or self.producer.pending > 0

    def _next(self) -> Found:
        """Decides who fetches the next batch, and gets it.

        The thread, by itself, where that is faster, safe and tried (`runs_ahead`); the thread, waited for, while that
        is tried (`_probe`) or where there is a timeout; this one otherwise. What the thread has begun is taken first.
        """
        producer = self.producer
        if not self.runs_ahead:
            producer.running = False
            if not (self.pace.ahead or producer.pending or self.options.timeout):
                producer.retire()
        elif not producer.running:
            producer.run(self._ahead, producer.wanted)
        # In this order: the thread begins a fetch and lowers `wanted` at once.
        if (self.runs_ahead and producer.wanted > 0) or producer.pending:
            return self.from_ahead()
        if self.pace.ahead and self._probes:
            return self._probe()
        return self._when_due()  # also where a sink takes more than it said

    def from_ahead(self) -> Found:
        """Takes what the thread has fetched by itself."""
        item = self._get()
        if not isinstance(item.error, NotYet):
            self._telemetry.batches_ahead += item.error is None
            self._drawn = self._drawn + 1 if item.drew else 0
            if self._drawn == _DRAWN_IN_A_ROW:
                self.producer.running = False
                self._say_draws(item)
            return _value(item)
        found = self._when_due()
        if self.options.timeout is None and self.runs_ahead:
            self.producer.run(self._ahead, self.producer.wanted)
        return found

    def _probe(self) -> Found:
        """Lets the thread fetch one, watched: what draws in each fetch, or works on one thread only, is found out."""
        restore = keep_states()
        self.producer.demand(self._ahead, watch=True)
        item = self._get()
        if isinstance(item.error, NotYet):
            return self._when_due()
        self._probes -= 1
        if item.drew:
            self._say_draws(item)
        if self.fetches.retry(item.error):
            restore()
            self.producer.wanted += 1
            found = self._in_step()
            failed = f"{type(item.error).__name__}: {item.error}"
            self.stay_in_step(f"on another thread a fetch failed ({failed})")
            self._say(BOUND.format(failed))
            return found
        return _value(item)

    def _when_due(self) -> Found:
        """Has the batch fetched that nobody has begun to fetch: here, or on the thread if there is a timeout.

        Where another way to fetch begins with it, it is not known any more whether batches may be fetched ahead.
        """
        try:
            return self._in_step() if self.options.timeout is None else self.demand()
        finally:
            if self._as_of != self.fetches.source.changes:
                self.look_again()

    def _in_step(self) -> Found:
        self.producer.wanted -= 1
        try:
            return self.fetches.fetch(True)
        except NotYet:
            self.producer.wanted += 1
            raise

    def demand(self, in_turn: bool = True) -> Found:
        """Lets the thread fetch one batch while the training waits for it."""
        self.fetches.begin()
        self.producer.demand(self._ahead, watch=not in_turn)
        return _value(self._get())

    def _get(self) -> Item:
        item = self.producer.get(self.options.timeout)
        if item is None:
            raise self._late()
        if isinstance(item.error, NotYet):
            self.producer.wanted += 1
        return item

    # -- what goes with it ------------------------------------------------------------------------------------------

    def _say_draws(self, item: Item) -> None:
        self.draws = True
        self.stay_in_step(f"each fetch touches {item.drew}, which belongs to the whole process")
        self._say(DRAWS.format(item.drew))

    def _late(self) -> DataTimeoutError:
        place, since = self.fetches.source.describe(), self.fetches.since
        return DataTimeoutError(lateness(self._telemetry, self.options, self.fetches.stage, place, since))


def _value(item: Item) -> Found:
    if item.error is not None:
        raise item.error
    return item.value  # type: ignore[no-any-return]
