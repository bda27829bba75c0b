"""A sink inside a Trainer of which many steps may run in one call: Lightning's part of steps in a row.

Steps that nobody on the host has to see are found ahead of time; the counters, schedulers and logged values of all of
them are seen to at once, behind them, as if each had been met.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from typing import Any

from torch import Tensor

from lightning_sink.data.batch import flatten
from lightning_sink.engine.step import Result, Step
from lightning_sink.trainer.note import Note
from lightning_sink.trainer.passing import Passing
from lightning_sink.trainer.sink import TrainerSink


class LoopSink(TrainerSink):
    """The next steps of a Trainer, of which the engine may run many in one call. Arguments as `TrainerSink`."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._passing = Passing(self._loop, self._counters)

    def ahead(self, step: Step, note: Note, most: int, behind: int = 0) -> list[Step]:
        """Returns steps between this one and the sink's last that nobody on the host has to see."""
        if self._is_attended(note):
            return []
        if self._logs.is_full:
            if behind:
                return []  # loggers are not to be called while steps run
            self._logs.deliver()
        room = self._length - self._index - 1 - behind  # the last one is met by callbacks
        number = self._loop._batches_that_stepped + behind
        if self._hooks.monitors and self._selects:
            room = min(room, self._selects - 1 - number % self._selects)
        if room < 1:
            return []
        self.progress.tell(self._passing.waiting)
        steps: list[Step] = []
        self._interrupt.held = False
        try:
            batches = self._fetcher.ahead(min(most, room), behind)
        finally:
            self._interrupt.held = True
        # Batches of the same signature lie in the same place.
        if batches and self._transfer.is_identity(batches[0]):
            for raw in batches:
                leaves, signature = flatten(raw)
                if signature != step.signature:
                    break
                steps.append(Step(raw, leaves, signature, step.kind, step.clears))
        return steps

    def _is_attended(self, note: Note) -> bool:
        """Tells whether the host has something to do after every step."""
        trainer = self._trainer
        if self._last or self.disturbed or self._kind_of_all is None or note.metrics:
            return True
        if self._hooks.shows or self._ends_at is not None or self._interrupt.requested:
            return True
        return bool(trainer.received_sigterm or trainer.should_stop or time.monotonic() >= self._deadline)

    def passing(self, steps: int, note: Note) -> Generator[None, None, None]:
        """Counts steps between the first and the last one, and steps the schedulers behind each."""
        return self._passing.go(steps, note)

    def pass_again(self, steps: int, note: Note) -> None:
        """Puts back what `passing` did to counters, schedulers and options, but for the first steps."""
        self._passing.go_again(steps, note)

    def account_chunk(
        self, steps: list[Step], result: Callable[[], Result], loss: Tensor | None, logged: list[Tensor], note: Note
    ) -> None:
        """Does Lightning's part of steps that a program ran in a row."""
        count, loop = len(steps), self._loop
        self._fetcher.skip(count)
        self._passing.end(count, note)
        number = loop._batches_that_stepped
        loop._batches_that_stepped += count
        self._index += count
        self._logs.add_chunk(note.calls, logged, range(number, number + count), self._selects)
        self.history.add(loss, [(entry.name, value) for entry, value in zip(note.calls, logged, strict=True)], count)
        self.progress.trained(steps[-1], count)
        self._result, self._trained = result, steps[-1]
        self._batch.take(steps[-1].batch)
