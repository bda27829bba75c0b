"""What the benchmarks share around `Trainer.fit`: batches in memory, a Trainer with nothing turned on, the clock."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import lightning as L
from job import Clock
from nets import Batch

OFF = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False}


class Cycle:
    """`length` batches of a list, over and over; a traversal goes on where the one before it ended.

    (Lightning would take a bare list for a list of loaders.)
    """

    def __init__(self, batches: list[Batch], length: int) -> None:
        self.batches = batches
        self.length = length
        self.first = 0

    def __len__(self) -> int:
        return self.length

    def __iter__(self) -> Iterator[Batch]:
        # From the first `next` on: Lightning also makes an iterator only to see that it can.
        first, n = self.first, len(self.batches)
        self.first = (first + self.length) % n
        for i in range(first, first + self.length):
            yield self.batches[i % n]


class StepClock(L.Callback):
    """Tells the clock how many optimizer steps are done, and keeps the loss at its marks."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.loss = float("nan")

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self.clock.begin()

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Batch, batch_idx: int
    ) -> None:
        if self.clock.due(trainer.global_step):
            self.clock.reached(trainer.global_step)
            self.loss = float(outputs["loss"])
