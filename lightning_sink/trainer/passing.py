"""Steps that are gone through before they are run: counters and schedulers move on, and can be put back.

A program that takes counters or options as inputs is given those of many steps at once, so what Lightning does between
two steps is done before the first of them is run. Where fewer are run than were gone through, it is undone.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any

from lightning_sink.engine.passages import Passages
from lightning_sink.trainer.counters import Counters
from lightning_sink.trainer.note import Note
from lightning_sink.trainer.option_hooks import OptionHooks
from lightning_sink.trainer.schedules import saved_schedulers, step_by_hand, step_in_row


class Passing:
    """Goes through steps.

    Args:
        loop: The epoch loop.
        counters: Its counters.
        options: The module's hooks that only set the optimizers' options.
    """

    def __init__(self, loop: Any, counters: Counters, options: OptionHooks) -> None:
        self._loop, self._counters, self._options = loop, counters, options
        self._passages = Passages()

    @property
    def waiting(self) -> int:
        """How many steps were gone through and have not ended."""
        return self._passages.steps

    def _saved(self) -> Callable[[], None]:
        """Returns what puts counters and schedulers back as they are now."""
        counted = self._counters.present()
        trainer = self._loop.trainer
        scheduled = saved_schedulers(trainer) if trainer.lr_scheduler_configs or self._options else None

        def restore() -> None:
            if scheduled is not None:
                scheduled.restore()
            self._counters.restore(counted)

        return restore

    def go(self, steps: int, note: Note, seen: Callable[[], None] = lambda: None) -> Generator[None, None, None]:
        """Yields for each step, when it is about to run; one that it is closed at is not run."""
        step_schedulers = step_in_row(self._loop)

        def end() -> None:
            self._counters.trained(note.clearings, note.optimizer_steps)
            step_by_hand(note.schedulers)
            step_schedulers()
            step_by_hand(note.late_schedulers)
            self._options.set_behind(self._loop.batch_idx)
            self._counters.completed()

        def begin() -> Callable[[], None] | None:
            if self._options.sets:
                return self._options.set(self._loop.batch_idx, note.optimizer_steps > 0, seen)
            seen()
            return None

        return self._passages.go(steps, self._saved(), end, self._counters.ready, begin)

    def go_again(self, steps: int, note: Note) -> None:
        """Puts back all steps that were gone through and have not ended, but for the first ones."""
        for _ in self.go(self._passages.take_back(steps), note):
            pass

    def end(self, steps: int, note: Note) -> None:
        """The steps of a call have been run: those that were not gone through are counted."""
        if not self._passages.end():
            self._counters.passed(steps, note.clearings, note.optimizer_steps)
