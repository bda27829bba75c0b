"""Checks on what `configure_optimizers` gave.

Private name of Lightning (2.6): `_MockOptimizer`, which stands for "no optimizer" once Lightning has read the answer.
"""

from __future__ import annotations

from lightning.pytorch import LightningModule
from lightning.pytorch.core.optimizer import _MockOptimizer
from torch.optim import Optimizer

from lightning_sink.engine.watch import first_line
from lightning_sink.errors import UnsupportedError


def require_optimizer(optimizers: list[Optimizer], module: LightningModule) -> None:
    """Refuses training without an optimizer.

    Raises:
        UnsupportedError: When `configure_optimizers` returned None and optimization is automatic.
    """
    if module.automatic_optimization and any(isinstance(item, _MockOptimizer) for item in optimizers):
        raise UnsupportedError(
            f"`{type(module).__name__}.configure_optimizers` returned None ({first_line(module.configure_optimizers)}),"
            " so there is no optimizer and a sink would train nothing. Return an optimizer, or train with"
            " `SinkStrategy(dataset_sink_mode=False)`."
        )
