"""Whether batches are fetched ahead or when they are due: measured, both ways, and the faster one kept.

Fetching ahead costs two thread switches and a watched fetch a batch. It pays where a fetch waits for something (a disk,
a worker, a sleep) or computes without the interpreter's lock; for a list of batches it is a loss many times over, and
for a dataset in plain Python the two threads only take turns. No rule by kind of loader gets all of these right, a
clock does. What is trained is the same either way.

To send a batch to a device by itself takes a hundred microseconds alone. Where steps run in a row, which shows behind
the first trial, many are sent at once: what it takes by themselves counts only where no rows are seen.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

_CHEAP = 100e-6
"""Seconds of a fetch below which two thread switches cannot pay."""

_WARM_UP = 3
"""Batches after a change of ways that are not measured: the queue fills or empties."""

_TRIAL = 10
"""Batches measured on each way."""

_FIRST_STAY = 48
"""Batches between the first trial and the second; four times as many from trial to trial."""


class Pace:
    """Chooses between fetching in step and fetching ahead.

    First a trial in step, then, if a fetch takes long enough to be worth it, one ahead; the faster way is kept until
    the next trial. That one is left out where fetches in step are known to take too little by then.

    Attributes:
        ahead: Whether to fetch ahead now.
        settled: Whether no trial is under way.
    """

    def __init__(self) -> None:
        self.ahead = self.settled = False
        self._in_rows = True  # until it is known; and whether rows came since the last trial
        self._rows = False
        self._count = 0
        self._stay = _FIRST_STAY
        self._trial: list[tuple[float, float]] = []
        self._in_step = 0.0
        self._seen, self._seen_seconds = 0, 0.0

    def stay_in_step(self) -> None:
        """Fetches in step from now on, whatever the clock says."""
        self.ahead, self._stay = False, sys.maxsize
        self._settle()

    def skip(self, batches: int, seconds: float) -> None:
        """Takes note of batches, between two trials, that were fetched while steps ran, in so many seconds.

        They may show that a trial would change nothing. One that is due begins with a batch that is noted by itself.
        """
        if self.settled:
            self._rows = self._rows or batches > 0
            self._see(batches, seconds)
            if self._count >= self._stay and self._is_cheap():
                self._stay *= 4
                self._settle()

    def note(self, fetch: float, whole: float, sending: float = 0.0) -> None:
        """Takes note of a batch.

        Args:
            fetch: Seconds that the training stood still for it.
            whole: Seconds from the take before it, in the same sink, to this one.
            sending: What of both it took to send the batch to a device.
        """
        if self.settled:
            self._see(1, fetch - sending if self._rows else fetch)
            if self._count >= self._stay:
                self._stay *= 4
                if self._is_cheap():
                    self._settle()
                else:
                    self._in_rows = self._rows
                    self._measure(ahead=False)
            return
        if self._in_rows:
            fetch, whole = fetch - sending, whole - sending
        self._count += 1
        if self._count > _WARM_UP:
            self._trial.append((fetch, whole))
            if len(self._trial) == _TRIAL:
                self._decide(*map(_typical, zip(*self._trial, strict=True)))

    def _see(self, batches: int, seconds: float) -> None:
        """Adds up what the batches of a stay's second half took: a loader that has become slow is to be noticed."""
        half, before = self._stay // 2, self._count
        self._count += batches
        if before < half <= self._count:
            self._seen, self._seen_seconds = 0, 0.0
        self._seen += batches
        self._seen_seconds += seconds

    def _is_cheap(self) -> bool:
        """Tells whether fetches in step take so little that a trial would change nothing."""
        return not self.ahead and self._seen_seconds < _CHEAP * self._seen

    def _measure(self, ahead: bool) -> None:
        self.ahead, self.settled, self._count, self._trial = ahead, False, 0, []

    def _decide(self, fetch: float, whole: float) -> None:
        if self.ahead:
            self.ahead = whole < self._in_step
        elif fetch >= _CHEAP:
            self._in_step = whole
            self._measure(ahead=True)
            return
        self._settle()

    def _settle(self) -> None:
        self.settled, self._rows, self._count = True, False, 0
        self._seen, self._seen_seconds = 0, 0.0


def _typical(seconds: Sequence[float]) -> float:
    """The mean but for the largest two: a step that is compiled says nothing about the way."""
    return sum(sorted(seconds)[:-2]) / (len(seconds) - 2)
