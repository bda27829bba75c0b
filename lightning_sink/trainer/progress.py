"""How far a sink is: what its report says, and who is told while it runs.

`SinkProgress` counts and keeps the time of one sink. Callbacks that show progress, `SinkListener`s, are told between
two calls of the engine, a few thousand times a second at most, and look at the clock themselves; they read counters of
the host, no tensor, because the next steps may be running already.

Private names of Lightning (2.6): `_RICH_AVAILABLE`, by which a Trainer chooses its bar; `batch_progress` of
`_TrainingEpochLoop`.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any, NamedTuple

from lightning.pytorch import Callback, Trainer
from lightning.pytorch.callbacks import ProgressBar, RichProgressBar, TQDMProgressBar
from lightning.pytorch.utilities.imports import _RICH_AVAILABLE
from torch import Tensor

from lightning_sink.data.queue import BatchQueue
from lightning_sink.engine.history import History
from lightning_sink.engine.step import Step


@dataclass(frozen=True, kw_only=True)
class SinkReport:
    """What a sink did so far.

    Attributes:
        batches: Batches trained, those passed over because the loader gave None among them.
        items: Items in them: the lengths of each batch's first tensor added up; 0 where it has none.
        seconds: Time since the sink began, its first fetch included.
        data_seconds: Time of it in which batches were fetched or waited for, at most as much as no step ran. Some of it
            may have passed beside steps, so it is what faster data could save at most.
        invalid_from: The batches of the sink, counted from 0, at which the loss became NaN or infinite.
    """

    batches: int = 0
    items: int = 0
    seconds: float = 0.0
    data_seconds: float = 0.0
    invalid_from: tuple[int, ...] = ()


class SinkRecord(NamedTuple):
    """What is kept of a sink: numbers, and nothing of what made them; as in `SinkReport`, with its values."""

    history: History
    items: int
    seconds: float
    data_seconds: float

    def report(self) -> SinkReport:
        """Returns the counts."""
        return SinkReport(
            batches=len(self.history),
            items=self.items,
            seconds=self.seconds,
            data_seconds=self.data_seconds,
            invalid_from=self.history.invalid_from(),
        )


class SinkListener(Callback):
    """A callback that is told how far a sink is while it runs."""

    def on_sink_progress(self, trained: int, queued: int) -> None:
        """Some steps have been trained. Nothing that belongs to the training may be read or changed.

        Args:
            trained: Batches of the epoch so far.
            queued: Batches that lie ready in the queue.
        """


class SinkProgress:
    """Counts what a sink does."""

    def __init__(self, loop: Any, queue: BatchQueue, history: History) -> None:
        self._progress, self._queue, self._history = loop.batch_progress, queue, history
        self._listeners = [item for item in loop.trainer.callbacks if isinstance(item, SinkListener)]
        self._items = 0
        self._began = time.perf_counter()
        self._whole: tuple[float, float] | None = None

    def trained(self, step: Step, steps: int = 1) -> None:
        """Steps have been trained, on batches like the one of `step`."""
        self._items += steps * items_in(step.leaves)

    def tell(self, waiting: int = 0) -> None:
        """Tells the listeners how far the sink is; so many steps are counted and have not ended."""
        for listener in self._listeners:
            listener.on_sink_progress(self._progress.current.ready - waiting, self._queue.ready)

    def end(self, ran_seconds: float) -> None:
        """The sink is over, and its steps ran this long: its time stands still from now on."""
        self._whole = self._times(ran_seconds)

    def _times(self, ran_seconds: float) -> tuple[float, float]:
        return time.perf_counter() - self._began, self._queue.lost_seconds(ran_seconds)

    def record(self, ran_seconds: float) -> SinkRecord:
        """Returns what is known so far, where its steps ran this long."""
        return SinkRecord(self._history, self._items, *(self._whole or self._times(ran_seconds)))


def items_in(leaves: list[Tensor]) -> int:
    """Returns the items of a batch with these tensors."""
    return leaves[0].size(0) if leaves and leaves[0].dim() else 0


def sink_report(trainer: Trainer) -> SinkReport | None:
    """Returns the report of a trainer's present sink, or of its last one; None where it trains without sinks."""
    strategy: Any = trainer.strategy
    report: SinkReport | None = strategy.sink_report() if hasattr(strategy, "sink_report") else None
    return report if report is not None and report.batches else None


def default_bar(trainer: Trainer) -> ProgressBar | None:
    """Returns the bar that Lightning gave this trainer by itself; None where there is none, or the user chose one.

    One that the user made with the default options cannot be told from it.
    """
    callbacks = trainer.callbacks  # type: ignore[attr-defined]
    bars = [item for item in callbacks if isinstance(item, ProgressBar)]
    made_by_trainer = RichProgressBar if _RICH_AVAILABLE else TQDMProgressBar
    if [type(bar) for bar in bars] != [made_by_trainer]:
        return None
    (bar,) = bars
    present = vars(bar)  # Lightning has added `log` and `log_dict` by now
    return bar if all(present[name] == value for name, value in vars(made_by_trainer()).items()) else None
