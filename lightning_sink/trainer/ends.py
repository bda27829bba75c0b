"""What ends a sink before it has its length.

Somebody asks for the host, a number of optimizer steps is reached, or the user's code has changed what the sink was
planned by.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from lightning_sink.engine.interrupt import DeferredInterrupt
from lightning_sink.trainer.counters import Counters
from lightning_sink.trainer.demands import awaited, deadline


class Ends:
    """Tells behind which steps the host has to be there."""

    def __init__(self, trainer: Any, counters: Counters, interrupt: DeferredInterrupt) -> None:
        self._trainer, self._counters, self._interrupt = trainer, counters, interrupt
        self._deadline, self._awaited = deadline(trainer), awaited(trainer)
        self._seen, self._plan = {1}, self._planned_by()

    def _planned_by(self) -> tuple[Any, ...]:
        trainer = self._trainer
        numbers = trainer.log_every_n_steps, trainer.val_check_batch, trainer.accumulate_grad_batches
        lengths = trainer.max_steps, trainer.num_training_batches
        return *numbers, *lengths, *map(id, (*trainer.callbacks, *trainer.optimizers))

    @property
    def is_asked_for(self) -> bool:
        """Whether it has to be as soon as may be: on a signal, by the clock, or since the training is to stop."""
        trainer = self._trainer
        if self._interrupt.requested or trainer.received_sigterm or trainer.should_stop:
            return True
        return time.monotonic() >= self._deadline

    def learn(self, made: int) -> None:
        """Takes note that a batch has made so many optimizer steps."""
        self._seen.add(made)

    def is_due(self, made: int) -> bool:
        """Tells whether it has to be behind the present batch, which has made so many."""
        if self._awaited is not None and self._awaited.is_met(self._counters.optimization[1], made):
            return True
        return self.plan_changed

    @property
    def plan_changed(self) -> bool:
        """Whether the user's code has just stopped the training, or planned it otherwise."""
        return bool(self._trainer.should_stop) or self._planned_by() != self._plan

    def may_be_due(self) -> bool:
        """Tells whether it has to be behind the next batch, if that makes as many as one before."""
        awaited, made = self._awaited, self._counters.optimization[1]
        return awaited is not None and any(awaited.is_met(made + by, by) for by in self._seen)

    def rounds_before(self, each: Sequence[int], rounds: int) -> float:
        """Returns how many rounds of batches there are before one behind which it may have to be; infinity for any.

        The batches of a round make `each`, in order. So many rounds behind what is counted (below zero: before it) is
        where they begin.
        """
        if self._awaited is None:
            return float("inf")
        return self._awaited.rounds_before(self._counters.optimization[1] + rounds * sum(each), each)
