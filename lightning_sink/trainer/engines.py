"""What an engine has to know of a Trainer."""

from __future__ import annotations

from typing import Any

from torch.optim import Optimizer

from lightning_sink.engine.make import Asked, make_engine
from lightning_sink.engine.slots import Parts
from lightning_sink.engine.step import Engine
from lightning_sink.trainer.batch_hooks import in_step
from lightning_sink.trainer.metrics import is_metric
from lightning_sink.trainer.reach import reached_through
from lightning_sink.trainer.reads import counters, machinery, watched_getters


def engine_of(trainer: Any, optimizers: list[Optimizer], asked: Asked) -> Engine:
    """Returns the engine of a fit.

    Args:
        trainer: The trainer, its module connected.
        optimizers: The optimizers.
        asked: What the user asked for.

    Raises:
        CompileError: There is no compiler, one is needed, and `fallback` is "error".
    """
    return make_engine(
        asked,
        Parts(trainer.lightning_module, in_step(trainer), is_metric),
        optimizers,
        counters=counters(trainer),
        codes=watched_getters(trainer),
        ignore=machinery(),
        outside=reached_through(trainer),
    )
