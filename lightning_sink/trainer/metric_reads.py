"""Reads of `trainer.callback_metrics` and its like between compiled steps, of which not all is delivered yet.

A scheduler of the user's, a transfer hook or a dataset may look at what the step before it logged. Values wait in a
sink's `LogBuffer`, so the sink is told of such a read, and hands them over first.

Private names of Lightning (2.6): `_LoggerConnector`, behind those properties of `Trainer`, and its
`_progress_bar_metrics`, `_callback_metrics` and `_logged_metrics`, where they are kept.
"""

from __future__ import annotations

from typing import Any

from lightning.pytorch import Trainer
from lightning.pytorch.trainer.connectors.logger_connector.logger_connector import _LoggerConnector


class SinkLoggerConnector(_LoggerConnector):
    """Lightning's logger connector, whose metrics are those of the last step whenever the user's code may ask."""

    sink_strategy: Any

    def _tell(self) -> None:
        sink = self.sink_strategy.present_sink
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


def tell_of_reads(trainer: Trainer, strategy: Any) -> None:
    """Has a trainer's sinks told of reads; they are those of a `SinkStrategy`, which this room may not import."""
    connector: Any = trainer._logger_connector
    connector.__class__, connector.sink_strategy = SinkLoggerConnector, strategy
