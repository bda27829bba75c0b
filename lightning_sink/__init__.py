"""Sink and loop-sink training for PyTorch Lightning.

The names below are loaded when they are first used, so that `lightning_sink.engine` and `lightning_sink.data` work
where Lightning is not installed. Where it is, importing this package registers `strategy="sink"`.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from lightning_sink.__about__ import __version__

if TYPE_CHECKING:
    from lightning_sink.callbacks import LossMonitor, SinkProgressBar, SinkRichProgressBar, TimeMonitor
    from lightning_sink.data.report import QueueReport
    from lightning_sink.datamodule import SinkDataModule
    from lightning_sink.errors import (
        CompileError,
        DataTimeoutError,
        EmptyDatasetError,
        SinkError,
        SinkWarning,
        UnsupportedError,
        VerificationError,
    )
    from lightning_sink.functional.data_sink import DataSink, data_sink
    from lightning_sink.functional.helper import DatasetHelper, connect_network_with_dataset
    from lightning_sink.strategy import SinkStrategy
    from lightning_sink.trainer.progress import SinkReport
    from lightning_sink.trainer.step_callback import StepCallback

_HOMES = {
    "CompileError": "errors",
    "DataSink": "functional.data_sink",
    "DataTimeoutError": "errors",
    "DatasetHelper": "functional.helper",
    "EmptyDatasetError": "errors",
    "LossMonitor": "callbacks",
    "QueueReport": "data.report",
    "SinkDataModule": "datamodule",
    "SinkError": "errors",
    "SinkProgressBar": "callbacks",
    "SinkReport": "trainer.progress",
    "SinkRichProgressBar": "callbacks",
    "SinkStrategy": "strategy",
    "SinkWarning": "errors",
    "StepCallback": "trainer.step_callback",
    "TimeMonitor": "callbacks",
    "UnsupportedError": "errors",
    "VerificationError": "errors",
    "connect_network_with_dataset": "functional.helper",
    "data_sink": "functional.data_sink",
}

__all__ = [
    "CompileError",
    "DataSink",
    "DataTimeoutError",
    "DatasetHelper",
    "EmptyDatasetError",
    "LossMonitor",
    "QueueReport",
    "SinkDataModule",
    "SinkError",
    "SinkProgressBar",
    "SinkReport",
    "SinkRichProgressBar",
    "SinkStrategy",
    "SinkWarning",
    "StepCallback",
    "TimeMonitor",
    "UnsupportedError",
    "VerificationError",
    "__version__",
    "connect_network_with_dataset",
    "data_sink",
]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(f"lightning_sink.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__


def _register() -> None:
    """Makes `Trainer(strategy="sink")` work; the strategy itself is loaded when it is asked for."""
    try:
        from lightning.pytorch.strategies import StrategyRegistry
    except ModuleNotFoundError:
        return
    StrategyRegistry.register(
        "sink",
        lambda **options: __getattr__("SinkStrategy")(**options),
        description="Trains in sinks of many compiled steps between two visits to the host",
        override=True,
    )


_register()
