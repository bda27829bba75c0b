"""Which engine runs the steps of a training, and what it says where it cannot."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.optim import Optimizer

from lightning_sink.engine.compiled import CompiledEngine
from lightning_sink.engine.eager import EagerEngine
from lightning_sink.engine.inductor import compile_inductor, compile_traced, missing_compiler, timed
from lightning_sink.engine.slots import Parts
from lightning_sink.engine.step import Engine
from lightning_sink.engine.watch import Hazard, first_line
from lightning_sink.errors import CompileError, warn_at
from lightning_sink.trainer.batch_hooks import in_step
from lightning_sink.trainer.metrics import is_metric
from lightning_sink.trainer.reach import reached_through
from lightning_sink.trainer.reads import counters, machinery, watched_getters

ENGINES = ("auto", "eager", "traced", "inductor")
FALLBACKS = ("warn", "error")


def make_engine(
    name: str, trainer: Any, optimizers: list[Optimizer], verify: int, fallback: str, say: Callable[[str], None]
) -> Engine:
    """Returns the engine of a fit.

    Args:
        name: One of `ENGINES`.
        trainer: The trainer, its module connected.
        optimizers: The optimizers.
        verify: Steps of each new program that are also run eagerly.
        fallback: One of `FALLBACKS`.
        say: Tells the user a line.

    Raises:
        CompileError: There is no compiler, one is needed, and `fallback` is "error".
    """
    module = trainer.lightning_module

    def fall_back(hazard: Hazard) -> None:
        where = hazard.where or first_line(type(module).training_step)
        text = (
            f"The training step runs eagerly, at plain Lightning's speed: {hazard.what} ({where}). To compile it, move"
            ' that out of the step; to run eagerly without this warning, use `SinkStrategy(engine="eager")`.'
        )
        if fallback == "error":
            raise CompileError(text)
        warn_at(text, where)

    if name in ("auto", "inductor") and (missing := missing_compiler()) is not None:
        fall_back(Hazard(f"no working C++ compiler was found ({missing}); {_GET_A_COMPILER}"))
        name = "eager"
    if name == "eager":
        return EagerEngine()
    traced = name == "traced"
    return CompiledEngine(
        "traced" if traced else "inductor",
        Parts(module, in_step(trainer), is_metric),
        optimizers,
        compile_traced if traced else timed(compile_inductor, say),
        costly=not traced,
        verify=verify,
        fallback=fall_back,
        counters=counters(trainer),
        codes=watched_getters(trainer),
        ignore=machinery(),
        outside=reached_through(trainer),
    )


_GET_A_COMPILER = "install one (`apt install g++`, `xcode-select --install`) or name it in the variable `CXX`"
