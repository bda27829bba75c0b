"""Signals during a sink: nothing is interrupted in the middle of a step.

Ctrl-C ends the sink at the next step boundary, with everything consistent, and is raised then. A worker of a loader
that has died makes torch raise from a signal too; that waits until the batches that are there have been trained. While
a batch is fetched the training stands at a boundary, and signals act at once.
"""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import Any

_SIGNALS = [signal.SIGINT, *([signal.SIGCHLD] if hasattr(signal, "SIGCHLD") else [])]


class DeferredInterrupt:
    """Holds back the first Ctrl-C until the `with` block ends, and what torch does when a child process ends.

    A second Ctrl-C is not held back. On threads other than the main one, where Python allows no signal handlers, it
    does nothing.

    Attributes:
        requested: Whether Ctrl-C was pressed.
        held: Whether signals are held back now.
        raised: What Ctrl-C raised while nothing was held back, to be raised when the `with` block ends.
    """

    def __init__(self) -> None:
        self.requested = False
        self.held = True
        self.raised: KeyboardInterrupt | None = None
        self._child_ended = False
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> DeferredInterrupt:
        if threading.current_thread() is threading.main_thread():
            for number in _SIGNALS:
                if callable(signal.getsignal(number)):
                    self._previous[number] = signal.signal(number, self._handle)
        return self

    def raise_for_children(self) -> None:
        """Does what was held back when a child process ended; torch raises if it was a worker and died."""
        if self._child_ended:
            self._child_ended = False
            self._previous[signal.SIGCHLD](signal.SIGCHLD, None)

    def _handle(self, signum: int, frame: FrameType | None) -> None:
        if signum == signal.SIGINT:
            if not self.held:
                self._previous[signum](signum, frame)
            elif self.requested:
                self._restore(signum)(signum, frame)
            else:
                self.requested = True
            return
        self._child_ended = True
        if not self.held:
            self.raise_for_children()

    def _restore(self, number: int) -> Any:
        previous = self._previous.pop(number, None)
        if previous is not None:
            signal.signal(number, previous)
        return previous or signal.default_int_handler

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        previous = {number: self._restore(number) for number in _SIGNALS}
        if error is not None:
            return
        if self.raised is not None:
            raise self.raised
        if self.requested:
            previous[signal.SIGINT](signal.SIGINT, None)
        elif self._child_ended:
            previous[signal.SIGCHLD](signal.SIGCHLD, None)
