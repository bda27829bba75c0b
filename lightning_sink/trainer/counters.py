"""Lightning's counters while a sink runs: exact after every step, at the cost of a few integer additions.

Private names of Lightning (2.6): the fields of `_BatchProgress`, `_OptimizationProgress`, `_SchedulerProgress` and
`_Progress`. Their own increment methods take as long as the rest of what the host does for a small step.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class Counters:
    """Advances an epoch loop's batch and optimizer progress, and goes back, with that of the schedulers."""

    def __init__(self, loop: Any) -> None:
        progress = loop.batch_progress
        optimizer = loop.automatic_optimization.optim_progress.optimizer
        automatic = loop.trainer.lightning_module.automatic_optimization
        step = optimizer.step if automatic else loop.manual_optimization.optim_step_progress
        self._batch = progress.total, progress.current
        self._zero_grad = optimizer.zero_grad.total, optimizer.zero_grad.current
        self._step = step.total, step.current
        schedulers = loop.scheduler_progress
        self._all = (*self._batch, *self._zero_grad, *self._step, schedulers.total, schedulers.current)

    def ready(self, batches: int = 1) -> None:
        """Batches are there; below zero, they are given back."""
        for tracker in self._batch:
            tracker.ready += batches

    @property
    def optimization(self) -> tuple[int, int]:
        """How often gradients were cleared at Lightning's bidding, and optimizer steps made, since training began."""
        return self._zero_grad[0].completed, self._step[0].completed

    def begun(self, steps: bool) -> None:
        """A program began to train the batch, and did not end; `steps`: Lightning makes an optimizer step in it."""
        for tracker in self._batch:
            tracker.started += 1
        if steps:
            for tracker in self._step:
                tracker.ready += 1

    def trained(self, clearings: int, steps: int) -> None:
        """A program trained the batch, with so many clearings at Lightning's bidding, and optimizer steps."""
        for tracker in self._batch:
            tracker.started += 1
            tracker.processed += 1
        if clearings:
            for tracker in self._zero_grad:
                tracker.ready += clearings
                tracker.started += clearings
                tracker.completed += clearings
        if steps:
            for tracker in self._step:
                tracker.ready += steps
                tracker.completed += steps

    def present(self) -> list[dict[str, int]]:
        """Returns all counts as they are now."""
        return [dict(vars(tracker)) for tracker in self._all]

    def restore(self, counts: list[dict[str, int]]) -> None:
        """Puts back what `present` returned."""
        for tracker, saved in zip(self._all, counts, strict=True):
            vars(tracker).update(saved)

    def passed(self, batches: int, clearings: int, steps: int) -> None:
        """Programs trained batches in a row, from `ready` to `completed`, with so many clearings and steps in all."""
        for trackers, count in (self._batch, batches), (self._zero_grad, clearings), (self._step, steps):
            for tracker in trackers:
                tracker.increment_by(count)

    def completed(self, batches: int = 1) -> None:
        """All that belongs to batches is done; below zero, it is not."""
        for tracker in self._batch:
            tracker.completed += batches

    @contextmanager
    def as_before(self, announced: int) -> Iterator[None]:
        """Counts as at the end of the last batch that was trained, before it was completed; so many have come since."""
        self.ready(-announced)
        self.completed(-1)
        try:
            yield
        finally:
            self.ready(announced)
            self.completed()
