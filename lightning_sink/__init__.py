"""Sink and loop-sink training for PyTorch Lightning.

The names below are loaded when they are first used, so that `lightning_sink.engine` and `lightning_sink.data` work
where Lightning is not installed. Where it is, importing this package registers `strategy="sink"`.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from lightning_sink.__about__ import __version__

if TYPE_CHECKING:
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
    from lightning_sink.strategy import SinkStrategy
    from lightning_sink.trainer.step_callback import StepCallback

_HOMES = {
    "CompileError": "errors",
    "DataTimeoutError": "errors",
    "EmptyDatasetError": "errors",
    "QueueReport": "data.report",
    "SinkDataModule": "datamodule",
    "SinkError": "errors",
    "SinkStrategy": "strategy",
    "SinkWarning": "errors",
    "StepCallback": "trainer.step_callback",
    "UnsupportedError": "errors",
    "VerificationError": "errors",
}

__all__ = [
    "CompileError",
    "DataTimeoutError",
    "EmptyDatasetError",
    "QueueReport",
    "SinkDataModule",
    "SinkError",
    "SinkStrategy",
    "SinkWarning",
    "StepCallback",
    "UnsupportedError",
    "VerificationError",
    "__version__",
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
