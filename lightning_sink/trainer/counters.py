"""Lightning's counters while a sink runs: exact after every step, at the cost of a few integer additions.

Private names of Lightning (2.6): the fields of `_BatchProgress`, `_OptimizationProgress` and `_Progress`, and
`_TrainingEpochLoop._results`, what `self.log` has gathered. Their own increment
methods take as long as the rest of what the host does for a small step.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class Counters:
    """Advances batch and optimizer progress.

    Args:
        loop: The epoch loop whose progress it is.
    """

    def __init__(self, loop: Any) -> None:
        progress = loop.batch_progress
        optimizer = loop.automatic_optimization.optim_progress.optimizer
        automatic = loop.trainer.lightning_module.automatic_optimization
        step = optimizer.step if automatic else loop.manual_optimization.optim_step_progress
        self._batch = progress.total, progress.current
        self._zero_grad = optimizer.zero_grad.total, optimizer.zero_grad.current
        self._step = step.total, step.current

    def ready(self, batches: int = 1) -> None:
        """Batches are there; below zero, they are given back."""
        total, current = self._batch
        total.ready += batches
        current.ready += batches

    @property
    def optimization(self) -> tuple[int, int]:
        """How often gradients were cleared at Lightning's bidding, and optimizer steps made, since training began."""
        return self._zero_grad[0].completed, self._step[0].completed

    def trained(self, clearings: int, steps: int) -> None:
        """A program trained the batch.

        Args:
            clearings: How often it cleared the gradients at Lightning's bidding.
            steps: Optimizer steps that it made.
        """
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
        return [dict(vars(tracker)) for tracker in (*self._batch, *self._zero_grad, *self._step)]

    def restore(self, counts: list[dict[str, int]]) -> None:
        """Puts back what `present` returned."""
        for tracker, saved in zip((*self._batch, *self._zero_grad, *self._step), counts, strict=True):
            vars(tracker).update(saved)

    def passed(self, batches: int, clearings: int, steps: int) -> None:
        """A program trained batches in a row, from `ready` to `completed`.

        Args:
            batches: How many.
            clearings: How often it cleared the gradients in each.
            steps: Optimizer steps that it made in each.
        """
        for tracker in self._batch:
            tracker.ready += batches
            tracker.started += batches
            tracker.processed += batches
            tracker.completed += batches
        for tracker in self._zero_grad:
            tracker.ready += clearings * batches
            tracker.started += clearings * batches
            tracker.completed += clearings * batches
        for tracker in self._step:
            tracker.ready += steps * batches
            tracker.completed += steps * batches

    def completed(self) -> None:
        """All that belongs to the batch is done."""
        total, current = self._batch
        total.completed += 1
        current.completed += 1

    @contextmanager
    def as_before(self, announced: int) -> Iterator[None]:
        """Counts as at the end of the last batch that was trained, before it was completed.

        Args:
            announced: Batches that came since.
        """
        for tracker in self._batch:
            tracker.ready -= announced
            tracker.completed -= 1
        try:
            yield
        finally:
            for tracker in self._batch:
                tracker.ready += announced
                tracker.completed += 1


def save_counts(loop: Any) -> Any:
    """Returns what a step that is about to be recorded counts and logs, as it is before the step."""
    optimization = [progress.state_dict() for progress in _optimization(loop)]
    results = {key: dict(vars(metric)) for key, metric in loop._results.items()}
    return optimization, loop.batch_progress.state_dict(), results


def _optimization(loop: Any) -> tuple[Any, Any]:
    return loop.automatic_optimization.optim_progress, loop.manual_optimization.optim_step_progress


def load_counts(loop: Any, saved: Any) -> None:
    """Puts back what `save_counts` returned, for a step whose recording failed and that runs again."""
    optimization, progress, results = saved
    for present, state in zip(_optimization(loop), optimization, strict=True):
        present.load_state_dict(state)
    loop.batch_progress.load_state_dict(progress)
    for key in list(loop._results):
        if key in results:
            vars(loop._results[key]).update(results[key])
        else:
            del loop._results[key]
