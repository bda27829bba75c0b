"""What a step may read of where the training stands, and what it gets in its place while it is recorded.

The counters that Lightning hands to users, as arguments or as properties, become stand-ins that stay inputs of the
program (`engine/counts.py`). Lightning computes with the same counters on its own account, so only a read from a line
of the user's gets one. Other reads that depend on the step, and calls that reach a logger or the terminal, are
reported.

The getters are those of Lightning 2.6's classes; no public seam gives a step other counters than the loops keep.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from types import CodeType
from typing import Any

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.loops.fit_loop import _FitLoop
from lightning.pytorch.loops.training_epoch_loop import _TrainingEpochLoop
from torch import Tensor

from lightning_sink.engine.numbers import Number, released
from lightning_sink.engine.step import Tape
from lightning_sink.engine.watch import is_user_frame

_COUNTERS: dict[type, tuple[str, ...]] = {
    LightningModule: ("global_step", "current_epoch"),
    Trainer: ("global_step", "current_epoch"),
    _FitLoop: ("batch_idx", "total_batch_idx"),
    _TrainingEpochLoop: ("batch_idx", "total_batch_idx", "global_step"),
}

_WATCHED: dict[type, tuple[str, ...]] = {
    LightningModule: ("logger", "loggers"),
    Trainer: ("is_last_batch", "callback_metrics", "logged_metrics", "progress_bar_metrics", "logger", "loggers"),
}

_COUNTED = ("optimizer_step", "optimizer_zero_grad")
"""Hooks that Lightning calls with the epoch and the batch index."""


def counters(trainer: Any) -> Mapping[str, Callable[[], int]]:
    """Returns what gives each counter, by the name that users know it by."""
    loop = trainer.fit_loop.epoch_loop
    return {
        "batch_idx": lambda: loop.batch_idx,
        "total_batch_idx": lambda: loop.total_batch_idx,
        "global_step": lambda: loop.global_step,
        "current_epoch": lambda: trainer.current_epoch,
    }


def watched_getters(trainer: Any) -> dict[CodeType, str]:
    """Returns the code objects of what no program may repeat or depend on, with the names that users know them by."""
    codes: dict[CodeType, str] = {}
    for owner, names in _WATCHED.items():
        for name in names:
            getter: Any = getattr(owner, name)
            codes[getter.fget.__code__] = name
    # Called past `self.log`, or from a `log` of the user's own: then nobody knows what a step that is replayed logs.
    codes[LightningModule.log.__code__] = "LightningModule.log()"
    codes[LightningModule.print.__code__] = "LightningModule.print()"
    for config in trainer.lr_scheduler_configs:
        codes[type(config.scheduler).step.__code__] = f"{type(config.scheduler).__name__}.step()"
    return codes


def machinery() -> frozenset[str]:
    """Returns the attributes of a LightningModule that are Lightning's own and say nothing about a step."""
    return frozenset(vars(LightningModule()))


@contextmanager
def lifted_counters(trainer: Any, tape: Tape) -> Iterator[None]:
    """Gives stand-ins for the counters to the user's part of a step, where they are read and where they are passed."""
    module = trainer.lightning_module
    owners = {id(item) for item in (module, trainer, trainer.fit_loop, trainer.fit_loop.epoch_loop)}
    with ExitStack() as stack:
        for kind, names in _COUNTERS.items():
            for name in names:
                stack.enter_context(_lifted(kind, name, owners, tape))
        stack.enter_context(_lifted_arguments(module, tape))
        for config in trainer.lr_scheduler_configs:
            stack.enter_context(_lifted_rates(config.scheduler))
        yield


@contextmanager
def _lifted(kind: type, name: str, owners: set[int], tape: Tape) -> Iterator[None]:
    present: Any = vars(kind)[name]
    thread = threading.get_ident()

    def get(self: Any) -> Any:
        value = present.fget(self)
        asked = threading.get_ident() == thread and id(self) in owners and is_user_frame(sys._getframe(1))
        return tape.watched(name, value) if asked else value

    setattr(kind, name, property(get, present.fset, present.fdel, present.__doc__))
    try:
        yield
    finally:
        setattr(kind, name, present)


@contextmanager
def _lifted_rates(scheduler: Any) -> Iterator[None]:
    """Lets `scheduler.get_last_lr()` give the optimizer's rates, stand-ins by now, where it tells the same."""
    told = vars(scheduler).get("_last_lr")
    rates = [group["lr"] for group in scheduler.optimizer.param_groups] if hasattr(scheduler, "optimizer") else []
    plain = [rate.value if type(rate) is Number else rate for rate in rates]
    numbers = isinstance(told, list) and not any(isinstance(rate, Tensor) for rate in told)
    if not numbers or told != plain:  # tensors would be compared by an operation, which would be recorded
        yield
        return
    scheduler._last_lr = rates
    try:
        yield
    finally:
        if scheduler._last_lr is rates:
            scheduler._last_lr = told
        released(vars(scheduler))  # stepped by hand, it keeps the rates that it has seen


@contextmanager
def _lifted_arguments(module: LightningModule, tape: Tape) -> Iterator[None]:
    shadows: dict[str, Callable[..., Any]] = {}
    for name in _COUNTED:
        hook = getattr(module, name)
        if getattr(hook, "__func__", hook) is not getattr(LightningModule, name):
            shadows[name] = partial(_call_lifted, hook, tape)
    present = {name: vars(module)[name] for name in shadows if name in vars(module)}
    vars(module).update(shadows)
    try:
        yield
    finally:
        for name in shadows:
            del vars(module)[name]
        vars(module).update(present)


def _call_lifted(hook: Callable[..., Any], tape: Tape, epoch: int, batch_idx: int, *rest: Any) -> Any:
    return hook(tape.watched("current_epoch", epoch), tape.watched("batch_idx", batch_idx), *rest)
