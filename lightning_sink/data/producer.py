"""The thread that fetches ahead: when it may, how far, and how it ends.

The producer owns its thread, the line of fetched items and the right to fetch. It fetches only what it is told to, one
item at a time and in order, and it knows nothing of what an item is. `torchdata.nodes.Prefetcher` has such a thread
too, one for each traversal. Written by hand here is what that lacks: one thread for a whole training that stands still
on demand, a bound in bytes, fetches that wait for their turn before they touch what the whole process shares
(`turn.py`), and an end on every way out.
"""

from __future__ import annotations

import contextvars
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

from lightning_sink.data.report import Telemetry
from lightning_sink.data.thread_state import ThreadState
from lightning_sink.data.turn import NumpyTurns, watched


class Abandoned(BaseException):
    """Ends a fetch that waits for its turn when the queue is closed or emptied."""


@dataclass
class Item:
    """What one fetch gave.

    Attributes:
        value: The result; None where there is an error.
        error: What the fetch raised: an error, the end, or that only the owner can go on. Nothing is fetched after it.
        size: Bytes that count against the queue's bound.
        drew: What shared thing the fetch waited for its turn to touch, "" for none.
    """

    value: Any = None
    error: BaseException | None = None
    size: int = 0
    drew: str = ""


Work = Callable[[bool], Item]
"""Fetches one item; told whether it is its turn already. Must not raise."""


class Producer:
    """Fetches items ahead on a thread of its own.

    All methods are for the owner's thread. What both threads write is written with the lock held, but for `wanted`.

    Args:
        telemetry: Takes the time for which there was work and no room.

    Attributes:
        most: Most items fetched and not yet taken. Only the owner writes it.
        wanted: Items still to be fetched before the owner says more. The thread lowers it by one, with the lock held,
            as it begins a fetch. The owner writes it without the lock, where no fetch may begin: nothing is demanded
            and it is not running, or wants nothing more. (Where there is no end to it, a lost step down is none.)
        held_bytes: Bytes of what the owner holds. Only the owner writes it.
        running: Whether the thread may fetch ahead. Only the owner writes it; a fetch that had begun before counts as
            `pending`.
    """

    def __init__(self, most: int, most_bytes: int, telemetry: Telemetry) -> None:
        self.wanted = 0
        self.running = False
        self.most, self._most_bytes, self._telemetry = most, most_bytes, telemetry
        self._changed = threading.Condition()
        self._items: deque[Item] = deque()
        self._bytes = self._last_size = 0
        self._held = self.held_bytes = 0
        self._work: Callable[[], Item] | None = None
        self._busy = self._suspended = self._closing = self._abandon = False
        self._awaited = self._demanded = self._granted = False
        self._watch = False
        self._drew = ""
        self._numpy = NumpyTurns()
        self._thread: threading.Thread | None = None

    @property
    def ready(self) -> int:
        """Items that can be taken at once."""
        return len(self._items)

    @property
    def pending(self) -> int:
        """Items that can be taken, and the one that is being fetched."""
        with self._changed:
            return len(self._items) + self._busy

    @property
    def is_next_good(self) -> bool:
        """Whether there is an item to take, and it is no error."""
        with self._changed:
            return bool(self._items) and self._items[0].error is None

    def hold(self, items: int, size: int) -> None:
        """Counts items as not yet taken that the owner has taken and not yet used; below zero, fewer."""
        self._held += items
        self.held_bytes += size
        if items < 0 and self.running:
            with self._changed:
                self._changed.notify_all()

    def run(self, work: Work, wanted: int) -> None:
        """Lets the thread fetch ahead, `wanted` items in all."""
        with self._changed:
            self._prepare(work)
            self._numpy.install()
            self.wanted, self.running = wanted, True
            self._changed.notify_all()

    def demand(self, work: Work, *, watch: bool = False) -> None:
        """Lets the thread make one fetch, in turn: the owner is about to wait for it.

        With `watch` it is made as if it were not in turn, to see what it touches.
        """
        if watch:
            self._numpy.install()
        with self._changed:
            self._prepare(work)
            self._demanded, self._watch = True, watch
            self._changed.notify_all()

    def _prepare(self, work: Work) -> None:
        self._work = partial(contextvars.copy_context().run, self._fetch, work, ThreadState())
        if self._thread is None:
            self._thread = threading.Thread(target=self._loop, name="lightning_sink queue", daemon=True)
            self._thread.start()

    def get(self, seconds: float | None) -> Item | None:
        """Takes the next item; returns None when it has not come after so many seconds."""
        with self._changed:
            if not self._items:
                self._awaited = True
                self._changed.notify_all()
                try:
                    if not self._changed.wait_for(lambda: bool(self._items), seconds):
                        return None
                finally:
                    self._awaited = False
            item = self._items.popleft()
            self._bytes -= item.size
            if item.error is not None:
                self.running = False
            self._changed.notify_all()
        return item

    def pause(self, wait: bool = True, seconds: float | None = None) -> bool:
        """Lets no fetch begin; with `wait`, waits until the one under way has ended, or waits for its turn.

        False where it still runs after so many seconds; None waits for as long as it takes.
        """
        with self._changed:
            self.running = self._demanded = False
            idle = not wait or self._changed.wait_for(lambda: not self._busy or self._suspended, seconds)
            if not self._busy:
                self._work = None
        return idle

    def empty(self, seconds: float | None = None) -> list[Item] | None:
        """Ends a fetch that waits for its turn; returns what was fetched and not taken.

        None means that a fetch was still under way after so many seconds.
        """
        with self._changed:
            self.running, self._abandon = False, True
            self._changed.notify_all()
            if not self._changed.wait_for(lambda: not self._busy, seconds):
                return None
            self._abandon = False
            dropped = list(self._items)
            self._items.clear()
            self._bytes = self.wanted = 0
        return dropped

    def retire(self) -> None:
        """Ends the thread, if there is one; nothing may be pending. The next work starts another.

        A thread that has computed has helpers of its own, and with more threads than cores libgomp lets those of the
        trainer sleep between two loops in place of spinning: `OMP_WAIT_POLICY` and `GOMP_SPINCOUNT` in its manual.
        """
        if self._thread is not None:
            self.close()
            self._thread, self._closing = None, False

    def close(self, seconds: float | None = None) -> bool:
        """Ends the thread; tells whether it has ended after so many seconds."""
        with self._changed:
            self._closing = True
            self.running = False
            self._items.clear()
            self._work = None
            self._changed.notify_all()
        if self._thread is None or self._thread is threading.current_thread():
            return True
        self._thread.join(seconds)
        with self._changed:
            if not self._busy:  # a fetch that hangs may still draw
                self._numpy.remove()
        return not self._thread.is_alive()

    # -- the thread -------------------------------------------------------------------------------------------------

    def _may_fetch(self) -> bool:
        if self._work is None or (self._items and self._items[-1].error is not None):
            return False
        return self._demanded or (self.running and self.wanted > 0 and self._has_room())

    def _has_room(self) -> bool:
        # A batch is taken to be as large as the one before it.
        fits = self._bytes + self.held_bytes + self._last_size <= self._most_bytes
        fetched = len(self._items) + self._held
        return not fetched or (fetched < self.most and fits)

    def _loop(self) -> None:
        while self._step():
            pass
        self._numpy.give_up()  # where a fetch hung when the queue was closed

    def _step(self) -> bool:
        """Waits until a fetch may begin and makes it; False at the end."""
        with self._changed:
            began, full = time.perf_counter(), self.running and self.wanted > 0 and not self._has_room()
            self._changed.wait_for(lambda: self._closing or self._may_fetch())
            if self._closing:
                return False
            if full:
                self._telemetry.producer_wait_seconds += time.perf_counter() - began
            work = cast(Callable[[], Item], self._work)
            self._granted, self._demanded = self._demanded and not self._watch, False
            self._drew, self._busy = "", True
            self.wanted -= 1
        try:
            item: Item | None = work()
        except Abandoned:
            item = None
        del work
        with self._changed:
            self._busy = False
            if item is not None and not self._closing:
                item.drew = self._drew
                self._items.append(item)
                self._bytes += item.size
                self._last_size = item.size
            self._changed.notify_all()
        return True

    def _fetch(self, work: Work, state: ThreadState) -> Item:
        """Makes a fetch with what torch keeps for each thread as it is on the owner's."""
        with state.here():
            if self._granted:
                return work(True)
            with watched(self._wait_for_turn):
                return work(False)

    def _wait_for_turn(self, what: str) -> None:
        if self._granted:
            return
        with self._changed:
            self._drew, self._suspended = what, True
            self._changed.notify_all()
            try:
                self._changed.wait_for(lambda: self._abandon or self._closing or (self._awaited and not self._items))
            finally:
                self._suspended = False
            if self._abandon or self._closing:
                raise Abandoned
            self._granted = True
