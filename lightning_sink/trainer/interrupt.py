"""Ctrl-C during a sink: the sink ends at the next step boundary, with everything consistent, and then it is raised."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import Any


class DeferredInterrupt:
    """Holds back the first Ctrl-C until the `with` block ends; a second one is not held back.

    On threads other than the main one, where Python allows no signal handlers, it does nothing.
    """

    def __init__(self) -> None:
        self.requested = False
        self._previous: Any = None

    def __enter__(self) -> DeferredInterrupt:
        self.requested = False
        if threading.current_thread() is threading.main_thread() and callable(signal.getsignal(signal.SIGINT)):
            self._previous = signal.signal(signal.SIGINT, self._handle)
        return self

    def _handle(self, signum: int, frame: FrameType | None) -> None:
        if self.requested:
            self._restore()(signum, frame)
        self.requested = True

    def _restore(self) -> Any:
        previous, self._previous = self._previous, None
        if previous is not None:
            signal.signal(signal.SIGINT, previous)
        return previous or signal.default_int_handler

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        previous = self._restore()
        if self.requested and error is None:
            previous(signal.SIGINT, None)
