"""A sink inside a Trainer of which many steps may run in one call: Lightning's part of steps in a row.

Steps that nobody on the host has to see are found ahead of time; the counters, schedulers and logged values of all of
them are seen to at once, behind them, as if each had been met. A program that takes counters or options as inputs is
given those of many steps at once, so what Lightning does between two steps is done before the first of them is run;
where fewer are run than were gone through, it is undone.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from dataclasses import replace
from typing import cast

from torch import Tensor

from lightning_sink.data.batch import flatten
from lightning_sink.data.run import Part
from lightning_sink.engine.step import Result, Step
from lightning_sink.trainer.note import Note
from lightning_sink.trainer.schedules import saved_schedulers, step_by_hand, step_in_row
from lightning_sink.trainer.sink import TrainerSink


class LoopSink(TrainerSink):
    """The next steps of a Trainer, of which the engine may run many in one call. Arguments as `TrainerSink`."""

    def ahead(self, step: Step, note: Note, most: int, behind: int = 0) -> Part | None:
        """Returns the batches of steps between this one and the sink's last that nobody on the host has to see."""
        if self._is_attended(note) or not self._is_here:
            return None  # batches like this one are transferred in their turn
        if self._logs.is_full:
            if behind:
                return None  # loggers are not to be called while steps run
            self._logs.deliver()
        room = self._length - self._index - 1 - behind  # the last one is met by callbacks
        number = self._loop._batches_that_stepped + behind
        if self._hooks.monitors and self._selects:
            room = min(room, self._selects - 1 - number % self._selects)
        if room < 1:
            return None
        self.progress.tell(self.passages.steps)
        self._interrupt.held = False
        try:
            batches = self._fetcher.ahead(min(most, room), behind)
        finally:
            self._interrupt.held = True
        if batches is None:
            return None
        # Batches of the same signature lie in the same place.
        return batches if flatten(batches.batch(0))[1] == step.signature else None

    def _is_attended(self, note: Note) -> bool:
        """Tells whether the host has something to do after every step."""
        trainer = self._trainer
        if self._last or self.disturbed or self._kind_of_all is None or note.metrics:
            return True
        if self._hooks.shows or self._ends_at is not None or self._interrupt.requested:
            return True
        return bool(trainer.received_sigterm or trainer.should_stop or time.monotonic() >= self._deadline)

    def passing(self, steps: int, note: Note, seen: Callable[[], None]) -> Generator[None, None, None]:
        """Counts steps between the first and the last one, and steps the schedulers behind each."""
        loop, trainer, counters, options = self._loop, self._trainer, self._counters, self._option_hooks
        step_schedulers, counted = step_in_row(loop), counters.present()
        scheduled = saved_schedulers(trainer) if trainer.lr_scheduler_configs or options else None

        def restore() -> None:
            if scheduled is not None:
                scheduled.restore()
            counters.restore(counted)

        def begin() -> Callable[[], None] | None:
            if options.sets:
                return options.set(loop.batch_idx, note.optimizer_steps > 0, seen)
            seen()
            return None

        def end() -> None:
            counters.trained(note.clearings, note.optimizer_steps)
            step_by_hand(note.schedulers)
            step_schedulers()
            step_by_hand(note.late_schedulers)
            options.set_behind(loop.batch_idx)
            counters.completed()

        return self.passages.go(steps, restore, end, counters.ready, begin)

    def account_chunk(
        self, steps: int, result: Callable[[], Result], loss: Tensor | None, logged: list[Tensor], note: Note
    ) -> None:
        """Does Lightning's part of steps that a program ran in a row."""
        loop, before = self._loop, cast(Step, self._trained)
        batch = self._fetcher.skip(steps)
        if not self.passages.end():
            self._counters.passed(steps, note.clearings, note.optimizer_steps)
        number = loop._batches_that_stepped
        loop._batches_that_stepped += steps
        self._index += steps
        self._logs.add(note.calls, logged, range(number, number + steps), self._selects)
        self.history.add(loss, [(entry.name, value) for entry, value in zip(note.calls, logged, strict=True)], steps)
        self._result, self._trained = result, replace(before, batch=batch, leaves=flatten(batch)[0])
        self.progress.trained(self._trained, steps)
        self._batch.take(batch)
