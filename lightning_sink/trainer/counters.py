"""Lightning's counters while a sink runs: exact after every step, at the cost of a few integer additions.

Private names of Lightning (2.6): the fields of `_BatchProgress` and `_OptimizationProgress`, and
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
        self._batch = progress.total, progress.current
        self._zero_grad = optimizer.zero_grad.total, optimizer.zero_grad.current
        self._step = optimizer.step.total, optimizer.step.current

    def ready(self) -> None:
        """A batch is there."""
        total, current = self._batch
        total.ready += 1
        current.ready += 1

    def trained(self, clears: bool, steps: bool) -> None:
        """A program trained the batch.

        Args:
            clears: Whether it cleared the gradients.
            steps: Whether it made an optimizer step.
        """
        for tracker in self._batch:
            tracker.started += 1
            tracker.processed += 1
        if clears:
            for tracker in self._zero_grad:
                tracker.ready += 1
                tracker.started += 1
                tracker.completed += 1
        if steps:
            for tracker in self._step:
                tracker.ready += 1
                tracker.completed += 1

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
    optimization = loop.automatic_optimization.optim_progress.state_dict()
    results = {key: dict(vars(metric)) for key, metric in loop._results.items()}
    return optimization, loop.batch_progress.state_dict(), results


def load_counts(loop: Any, saved: Any) -> None:
    """Puts back what `save_counts` returned, for a step whose recording failed and that runs again."""
    optimization, progress, results = saved
    loop.automatic_optimization.optim_progress.load_state_dict(optimization)
    loop.batch_progress.load_state_dict(progress)
    for key in list(loop._results):
        if key in results:
            vars(loop._results[key]).update(results[key])
        else:
            del loop._results[key]
