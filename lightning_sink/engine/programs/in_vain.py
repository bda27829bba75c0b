"""Recordings in a row that make no program, all for one reason: how many are enough, and when one tries again.

A recorded step may take ten times as long as a plain one. But what keeps steps from a program may go: where it is
learned how to do without it, which takes a recording or two; behind an epoch that warms up (with a mask); or where what
the step takes for granted changes.
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


class InVain:
    """The last recordings, of steps of any kinds.

    Attributes:
        reason: What all of them had first; None where the last one had nothing.
    """

    def __init__(self) -> None:
        self.reason: Hazard | None = None
        self._many = self._wait = 0
        self._waits = 0
        self._has_waited = False

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
        if self.reason is not None and not self.reason.lasts:
            self._many = 0
