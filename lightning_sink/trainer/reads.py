"""Lightning's counters as a step may read them: each read makes the step depend on where training stands.

The code objects are those of Lightning 2.6's property getters; nothing is patched, a profile hook compares them.
"""

from __future__ import annotations

from types import CodeType
from typing import Any

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.loops.fit_loop import _FitLoop
from lightning.pytorch.loops.training_epoch_loop import _TrainingEpochLoop

_GETTERS: dict[type, tuple[str, ...]] = {
    LightningModule: ("global_step", "current_epoch"),
    Trainer: ("global_step", "current_epoch", "is_last_batch", "callback_metrics", "logged_metrics"),
    _FitLoop: ("batch_idx", "total_batch_idx"),
    _TrainingEpochLoop: ("batch_idx", "total_batch_idx", "global_step"),
}


def counter_getters() -> dict[CodeType, str]:
    """Returns the code objects of the getters, with the names that users know them by."""
    codes: dict[CodeType, str] = {}
    for owner, names in _GETTERS.items():
        for name in names:
            getter: Any = getattr(owner, name)
            codes[getter.fget.__code__] = name
    return codes


def machinery() -> frozenset[str]:
    """Returns the attributes of a LightningModule that are Lightning's own and say nothing about a step."""
    return frozenset(vars(LightningModule()))
