"""Recordings in a row that make no program: how many are enough, and when one tries again.

A recorded step may take ten times as long as a plain one. But what keeps steps from a program may go: where it is
learned how to do without it, which takes a recording or two; behind an epoch that warms up (with a mask); or where what
the step takes for granted changes. Where all are for one reason, steps wait for some time; where steps of other kinds,
or other reasons, come between, recordings that tell nothing new take a share of the time at most.
"""

from __future__ import annotations

from lightning_sink.engine.programs.candidates import MAX_RECORDINGS
from lightning_sink.engine.watch import Hazard

_FIRST_WAIT = {False: 64, True: 8}
"""Steps that are not recorded behind enough of them, by whether their reason lasts; twice as many each time. One that
does is met again by the first recording, and may be that of a first few steps."""

_ENOUGH = {False: MAX_RECORDINGS, True: 3}
_ENOUGH_AGAIN = {False: 2, True: 1}
"""Recordings that are enough, at first and where steps have waited for the same reason; by whether it lasts."""


_KNOWN_AGAIN = 5
"""Recordings for reasons that others had before, with no new one among them, that may take any time."""

_SHARE = 4
"""How many times as long as further ones steps run plainly: recording one may take as long as a hundred."""


_CHANGES = 2
"""Changes of what steps take for granted behind which recordings may take any time again; more may be at each epoch."""


class InVain:
    """The last recordings, of steps of any kinds.

    Attributes:
        reason: What all of them had first; None where the last one had nothing.
        known: The last one that any had.
    """

    def __init__(self) -> None:
        self.reason: Hazard | None = None
        self._many = self._wait = 0
        self._waits = 0
        self._has_waited = False
        self.known: Hazard | None = None
        self._reasons = set[str]()
        self._changes = 0
        self._begin_anew()

    def _begin_anew(self) -> None:
        self._again, self._spent, self._plain = 0, 0.0, 0.0

    def add(self, reason: Hazard | None) -> bool:
        """Takes note of a recording that made no program; tells whether there are enough of them for now."""
        if reason != self.reason:
            self.reason, self._many, self._has_waited = reason, 0, False
        self._many += 1
        return reason is not None and self._many >= (_ENOUGH_AGAIN if self._has_waited else _ENOUGH)[reason.lasts]

    def begin_wait(self) -> None:
        """The next steps are not recorded."""
        self._wait = _FIRST_WAIT[self.reason is not None and self.reason.lasts] << self._waits
        self._many, self._has_waited, self._waits = 0, True, self._waits + 1

    def learned(self, reason: Hazard) -> None:
        """Takes note of why there is no program, also where two recordings have to be compared to know."""
        self.known = reason
        if reason.what not in self._reasons:
            self._reasons.add(reason.what)
            self._begin_anew()
        else:
            self._again += 1

    def spent(self, seconds: float, is_made: bool) -> None:
        """Takes note of what a recording took, and whether there is a program."""
        self._spent += seconds
        if is_made:
            self._changes = 0
            self._begin_anew()

    def ran_plainly(self, seconds: float) -> None:
        """Takes note of a step that was not recorded."""
        self._plain += seconds

    @property
    def is_dear(self) -> bool:
        """Whether one more recording that tells nothing new would take too much of the time."""
        return self._again >= _KNOWN_AGAIN and self._spent * _SHARE > self._plain

    @property
    def waits(self) -> bool:
        """Whether the present step is not recorded."""
        return self._wait > 0

    def has_waited(self) -> bool:
        """Takes note of a step that was not recorded; tells whether it was the last of them."""
        self._wait -= 1
        return self._wait == 0

    def changed(self) -> None:
        """What steps take for granted has changed, so that the next one is recorded, and the reason may be gone."""
        self._wait = 0
        self._changes += 1
        if self._changes <= _CHANGES:
            self._begin_anew()
        if self.reason is not None and not self.reason.lasts:
            self._many = 0
