"""Writes down every hook that a Trainer calls, with the counters that it could see then.

A trace hook sees the calls, so no class is changed: whether a hook is overridden decides what Lightning does. (A
profile hook would also be told of each return and of each call of C, which took more time than the trainings.)
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import CodeType
from typing import Any

import lightning as L
from lightning.pytorch.core.hooks import CheckpointHooks, DataHooks, ModelHooks

from lightning_sink.callbacks import SinkProgressBar, SinkRichProgressBar

_STEPS = ["training_step", "validation_step", "test_step", "predict_step", "configure_optimizers"]
_STEPS += ["configure_gradient_clipping", "optimizer_step", "optimizer_zero_grad", "backward", "lr_scheduler_step"]
_STEPS += ["configure_callbacks"]


def _hooks(*kinds: type) -> list[str]:
    return [name for kind in kinds for name in vars(kind) if not name.startswith("_") and callable(getattr(kind, name))]


_OF_MODULES = [*_hooks(ModelHooks, DataHooks, CheckpointHooks), *_STEPS]
_STANDS_FOR = {SinkProgressBar: "TQDMProgressBar", SinkRichProgressBar: "RichProgressBar"}
"""Bars that the strategy puts in the place of Lightning's own: they are to be called as those are."""
_OF_CALLBACKS = [name for name in _hooks(L.Callback) if name not in ("state_dict", "load_state_dict", "state_key")]


def counters(trainer: L.Trainer) -> tuple[Any, ...]:
    """Returns what a hook can read of where the training stands."""
    loop = trainer.fit_loop.epoch_loop
    optimizers = trainer.strategy._optimizers
    rates = [group["lr"] for optimizer in optimizers for group in optimizer.param_groups]
    return (
        trainer.global_step,
        trainer.current_epoch,
        trainer.fit_loop.batch_idx,
        trainer.fit_loop.total_batch_idx,
        trainer.is_last_batch,
        trainer.should_stop,
        str(trainer.state.fn),
        str(trainer.state.stage),
        rates,
        {name: float(value) for name, value in trainer.callback_metrics.items()},
        repr(loop.batch_progress),
        repr(loop.automatic_optimization.optim_progress),
    )


@contextmanager
def recorded(trainer: L.Trainer, module: L.LightningModule, calls: list[Any]) -> Iterator[None]:
    """Takes down calls of hooks of the module, the trainer's callbacks and its datamodule, in their order."""
    # By identity: hashing code takes longer than the rest of a call.
    names: dict[int, str] = {}
    held: list[CodeType] = []
    for owner in (module, L.LightningDataModule, *trainer.callbacks):
        kind = owner if isinstance(owner, type) else type(owner)
        for name in _OF_CALLBACKS if isinstance(owner, L.Callback) else _OF_MODULES:
            code = getattr(getattr(kind, name, None), "__code__", None)
            if code is not None:
                names[id(code)] = name
                held.append(code)

    def note(frame: Any, event: str, _: Any) -> None:  # a call; as None is returned, nothing more of the frame is told
        name = names.get(id(frame.f_code))
        if name is not None:
            owner = type(frame.f_locals.get("self"))
            calls.append((_STANDS_FOR.get(owner, owner.__name__), name, counters(trainer)))

    before = sys.gettrace()  # a debugger's, or that of a measurement of coverage
    sys.settrace(note)
    try:
        yield
    finally:
        sys.settrace(before)
