"""Sink and loop-sink training for PyTorch Lightning.

The names below are loaded when they are first used, so that `lightning_sink.engine` and `lightning_sink.data` work
where Lightning is not installed. Where it is, importing this package registers `strategy="sink"`.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from lightning_sink.__about__ import __version__

if TYPE_CHECKING:
    from lightning_sink.aliases import alias_pytorch_lightning
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
    "aliases": ["alias_pytorch_lightning"],
    "callbacks": ["LossMonitor", "SinkProgressBar", "SinkRichProgressBar", "TimeMonitor"],
    "data.report": ["QueueReport"],
    "datamodule": ["SinkDataModule"],
    "errors": ["CompileError", "DataTimeoutError", "EmptyDatasetError", "SinkError", "SinkWarning"],
    "functional.data_sink": ["DataSink", "data_sink"],
    "functional.helper": ["DatasetHelper", "connect_network_with_dataset"],
    "strategy": ["SinkStrategy"],
    "trainer.progress": ["SinkReport"],
    "trainer.step_callback": ["StepCallback"],
}
_HOMES["errors"] += ["UnsupportedError", "VerificationError"]

__all__ = ["CompileError", "DataSink", "DataTimeoutError", "DatasetHelper", "EmptyDatasetError", "LossMonitor"]
__all__ += ["QueueReport", "SinkDataModule", "SinkError", "SinkProgressBar", "SinkReport", "SinkRichProgressBar"]
__all__ += ["SinkStrategy", "SinkWarning", "StepCallback", "TimeMonitor", "UnsupportedError", "VerificationError"]
__all__ += ["__version__", "alias_pytorch_lightning", "connect_network_with_dataset", "data_sink"]


def __getattr__(name: str) -> Any:
    home = next((home for home, names in _HOMES.items() if name in names), None)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"lightning_sink.{home}"), name)


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
