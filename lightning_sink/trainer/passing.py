"""Steps that are gone through before they are run: counters and schedulers move on, and can be put back.

A program that takes counters or options as inputs is given those of many steps at once, so what Lightning does between
two steps is done before the first of them is run. Where fewer are run than were gone through, it is undone.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from lightning_sink.trainer.counters import Counters
from lightning_sink.trainer.note import Note
from lightning_sink.trainer.schedules import SchedulerState, step_schedulers


class Passing:
    """Goes through steps.

    Args:
        loop: The epoch loop.
        counters: Its counters.
        schedules: Whether it has schedulers.
    """

    def __init__(self, loop: Any, counters: Counters, schedules: bool) -> None:
        self._loop, self._counters, self._schedules = loop, counters, schedules
        self._before: SchedulerState | None = None
        self._counted: list[dict[str, int]] = []
        self._passed = 0

    def go(self, steps: int, note: Note) -> Generator[None, None, None]:
        """Yields for each step, when it is about to run; one that it is closed at is not run."""
        self._before = SchedulerState(self._loop) if self._schedules else None
        self._counted = self._counters.present()
        for _ in range(steps):
            self._counters.ready()
            self._passed += 1
            try:
                yield
            except GeneratorExit:
                self._counters.ready(-1)
                self._passed -= 1
                raise
            self._counters.trained(note.clearings, note.optimizer_steps)
            if self._schedules:
                step_schedulers(self._loop)
            self._counters.completed()

    def go_again(self, steps: int, note: Note) -> None:
        """Puts everything back, if steps were gone through, and goes through fewer."""
        if not self._passed:
            return
        if self._before is not None:
            self._before.restore()
        self._counters.restore(self._counted)
        self._passed = 0
        for _ in self.go(steps, note):
            pass

    def end(self, steps: int, note: Note) -> None:
        """The steps have been run: those that were not gone through are counted."""
        if not self._passed:
            self._counters.passed(steps, note.clearings, note.optimizer_steps)
        self._passed = 0
