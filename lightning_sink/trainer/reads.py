"""Lightning's counters as a step may read them: each read makes the step depend on where training stands.

The code objects are those of Lightning 2.6's property getters; nothing is patched, a profile hook compares them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from types import CodeType
from typing import Any

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.loops.fit_loop import _FitLoop
from lightning.pytorch.loops.training_epoch_loop import _TrainingEpochLoop

from lightning_sink.engine.step import Tape

_GETTERS: dict[type, tuple[str, ...]] = {
    LightningModule: ("global_step", "current_epoch"),
    Trainer: ("global_step", "current_epoch", "is_last_batch", "callback_metrics", "logged_metrics"),
    _FitLoop: ("batch_idx", "total_batch_idx"),
    _TrainingEpochLoop: ("batch_idx", "total_batch_idx", "global_step"),
}

_COUNTED = ("optimizer_step", "optimizer_zero_grad")
"""Hooks that Lightning calls with the epoch and the batch index."""


def counter_getters() -> dict[CodeType, str]:
    """Returns the code objects of the getters, with the names that users know them by."""
    codes: dict[CodeType, str] = {}
    for owner, names in _GETTERS.items():
        for name in names:
            getter: Any = getattr(owner, name)
            codes[getter.fget.__code__] = name
    # Called past `self.log`, or from a `log` of the user's own: then nobody knows what a step that is replayed logs.
    codes[LightningModule.log.__code__] = "LightningModule.log"
    return codes


def machinery() -> frozenset[str]:
    """Returns the attributes of a LightningModule that are Lightning's own and say nothing about a step."""
    return frozenset(vars(LightningModule()))


@contextmanager
def watched_counters(module: LightningModule, tape: Tape) -> Iterator[None]:
    """Tells the tape when a hook that the user overrode uses the epoch or the batch index that it is called with.

    Lightning computes with the same numbers on its own account, so they are replaced at the hook's door.
    """
    shadows: dict[str, Callable[..., Any]] = {}
    for name in _COUNTED:
        hook = getattr(module, name)
        if getattr(hook, "__func__", hook) is not getattr(LightningModule, name):
            shadows[name] = partial(_call_watched, hook, tape)
    present = {name: vars(module)[name] for name in shadows if name in vars(module)}
    vars(module).update(shadows)
    try:
        yield
    finally:
        for name in shadows:
            del vars(module)[name]
        vars(module).update(present)


def _call_watched(hook: Callable[..., Any], tape: Tape, epoch: int, batch_idx: int, *rest: Any) -> Any:
    return hook(tape.watched("current_epoch", epoch), tape.watched("batch_idx", batch_idx), *rest)
