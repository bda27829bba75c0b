"""When Lightning is handed what steps logged: before anybody looks at it, and before a step that may fail.

`Delivery` owns the buffer of what a sink's steps logged. A program's step logs before its last hook and in it; where
the step is under way in between, the first part is not to be handed over with what steps before it logged.

Between two steps a scheduler of the user's, a transfer hook or a dataset may look at `trainer.callback_metrics` and its
like. `SinkLoggerConnector` tells the sink of such a read, which hands over first what waits.

Private names of Lightning (2.6): `_LoggerConnector`, behind those properties of `Trainer`, and its
`_progress_bar_metrics`, `_callback_metrics` and `_logged_metrics`, where they are kept.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from lightning.pytorch.trainer.connectors.logger_connector.logger_connector import _LoggerConnector

from lightning_sink.trainer.log_buffer import LogBuffer
from lightning_sink.trainer.logged_turns import LoggedTurns
from lightning_sink.trainer.logging import Entry


class Delivery:
    """What steps of a sink logged, on its way to Lightning.

    Args:
        catch_up: Sees to what steps left for later, before all is delivered.

    Attributes:
        buffer: What is not delivered yet.
    """

    def __init__(self, trainer: Any, catch_up: Callable[[], None]) -> None:
        self.buffer = LogBuffer(trainer)
        self._trainer, self._catch_up = trainer, catch_up
        self._under_way = 0  # rows of the step that is
        self._asks: int | None = None  # the thread on which the user's code may run between two steps now

    def add(self, calls: tuple[Entry, ...], values: list[Any], number: int, selects: int = 0) -> None:
        """Takes what a step logged, whose number for loggers it is; they get each that `selects` selects."""
        self.buffer.add([LoggedTurns(calls, values)], number, 1, selects)

    def begin(self, calls: tuple[Entry, ...], values: list[Any], number: int) -> None:
        """Takes what a step logged before its last hook: it is under way until `finish`."""
        self.add(calls, values, number)
        self._under_way = bool(calls)

    def finish(self) -> None:
        """The step is no longer under way."""
        self._under_way = 0

    def all(self) -> None:
        """Hands to Lightning what steps logged."""
        self._catch_up()
        self.buffer.deliver()

    def before_step(self) -> None:
        """Hands over what programs' steps logged before one that may fail: metrics are taken over then or never."""
        if len(self.buffer) > self._under_way:
            self.buffer.deliver(self._under_way)
            self._trainer._logger_connector.take_over()

    @contextmanager
    def users_turn(self) -> Iterator[None]:
        """Between two steps, while code of the user's may look at what they logged."""
        self._asks = threading.get_ident()
        try:
            yield
        finally:
            self._asks = None

    def is_read(self) -> None:
        """Delivers what steps logged before the user's code looks at it. At other times nobody waits for it."""
        if self._asks == threading.get_ident():
            self.all()


class SinkLoggerConnector(_LoggerConnector):
    """Lightning's logger connector, whose metrics are those of the last step whenever the user's code may ask."""

    def _tell(self) -> None:
        strategy: Any = self.trainer.strategy
        sink = strategy.present_sink
        if sink is not None:
            sink.logs.is_read()

    def take_over(self) -> None:
        """Keeps the metrics as they are now, as `on_batch_end` does, without an end of the batch."""
        metrics: Any = self.metrics
        self._progress_bar_metrics.update(metrics["pbar"])
        self._callback_metrics.update(metrics["callback"])
        self._logged_metrics.update(metrics["log"])

    @property
    def callback_metrics(self) -> Any:
        """The metrics for callbacks."""
        self._tell()
        return super().callback_metrics

    @property
    def logged_metrics(self) -> Any:
        """The metrics that were sent to loggers."""
        self._tell()
        return super().logged_metrics

    @property
    def progress_bar_metrics(self) -> Any:
        """The metrics for progress bars."""
        self._tell()
        return super().progress_bar_metrics
