"""What a step did besides its tensors: noted when it is recorded, done again for each step of a program."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from lightning_sink.trainer.logging import LogCall
from lightning_sink.trainer.metrics import MetricCall, repeat


@dataclass(frozen=True)
class Note:
    """The same for every step that a program stands for.

    Attributes:
        calls: Its calls of `self.log`.
        metrics: Its calls of metrics.
        clearings: How often it cleared the gradients at Lightning's bidding.
        optimizer_steps: Optimizer steps that it made.
        schedulers: Schedulers that it stepped by hand, in order.
        late_schedulers: Those that `on_train_batch_end` stepped.
    """

    calls: tuple[LogCall, ...]
    metrics: tuple[MetricCall, ...]
    clearings: int
    optimizer_steps: int
    schedulers: tuple[Any, ...] = ()
    late_schedulers: tuple[Any, ...] = ()

    def values(self, logged: list[Tensor]) -> list[Any]:
        """Makes the step's calls of metrics; returns the values of what it logged.

        Args:
            logged: What a program put out for these: values that it computed, then what the metrics are called with.
        """
        if not self.metrics and len(logged) == len(self.calls):
            return logged
        own = sum(entry.source is None for entry in self.calls)
        computed = iter(logged[:own])
        hosted = repeat(self.metrics, logged[own:], [entry.source for entry in self.calls])
        pairs = zip(self.calls, hosted, strict=True)
        return [next(computed) if entry.source is None else value for entry, value in pairs]
