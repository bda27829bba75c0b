"""Schedulers in the middle of a sink: their steps, their state, and whether code of the user's runs in them.

Such code may look at tensors that the step before it left, and may change what programs take for granted. Schedulers of
torch's that only compute do neither, and a function of the step's number alone (`lambda step: step / warmup`) does not
either.
"""

from __future__ import annotations

import math
import types
from functools import partial
from typing import Any

from lightning.pytorch.utilities.model_helpers import is_overridden

_SCALARS = (bool, int, float, complex, str, type(None))
_FUNCTIONS = ("lr_lambdas", "_scale_fn_ref", "_anneal_func")
_INNER = "_schedulers"


class SchedulerState:
    """Schedulers, their progress, and the optimizers' options as they are now.

    Private name of Lightning (2.6): `_TrainingEpochLoop.scheduler_progress`, which counts their steps.

    Args:
        loop: The epoch loop.
    """

    def __init__(self, loop: Any) -> None:
        self._progress = loop.scheduler_progress
        self._counts = self._progress.state_dict()
        schedulers = [config.scheduler for config in loop.trainer.lr_scheduler_configs]
        self._schedulers = [(scheduler, dict(scheduler.state_dict())) for scheduler in schedulers]
        groups = [group for optimizer in loop.trainer.optimizers for group in optimizer.param_groups]
        self._options = [(group, dict(group)) for group in groups]

    def restore(self) -> None:
        """Puts them back."""
        self._progress.load_state_dict(self._counts)
        for scheduler, state in self._schedulers:
            scheduler.load_state_dict(state)
        for group, options in self._options:
            group.update(options)


def step_schedulers(loop: Any) -> None:
    """Steps the schedulers that are due between two training steps.

    Private names of Lightning (2.6): `_TrainingEpochLoop.update_lr_schedulers` and `_num_ready_batches_reached`.

    Args:
        loop: The epoch loop.
    """
    loop.update_lr_schedulers("step", update_plateau_schedulers=False)
    if loop._num_ready_batches_reached():
        loop.update_lr_schedulers("epoch", update_plateau_schedulers=False)


def steps_by_users_code(trainer: Any) -> bool:
    """Tells whether any scheduler that steps between two training steps runs code that may look further."""
    if not trainer.lr_scheduler_configs:
        return False
    if is_overridden("lr_scheduler_step", trainer.lightning_module):
        return True
    inner = [config.scheduler for config in trainer.lr_scheduler_configs if config.interval == "step"]
    return not all(map(_only_computes, inner))


def _only_computes(scheduler: Any) -> bool:
    if not type(scheduler).__module__.startswith("torch.optim"):
        return False
    functions: list[Any] = []
    for name in _FUNCTIONS:
        held = vars(scheduler).get(name)
        functions += held if isinstance(held, list) else [held]
    inner = vars(scheduler).get(_INNER, [])
    return all(map(_is_pure, functions)) and all(map(_only_computes, inner))


def _only_computes_numbers(item: Any) -> bool:
    """Tells whether a function is one of C's that draws and reads nothing."""
    return isinstance(item, types.BuiltinFunctionType) and item.__module__ in ("builtins", "math")


def _is_pure(function: Any) -> bool:
    """Tells whether a function knows nothing but numbers besides its arguments."""
    if isinstance(function, partial):
        given = (*function.args, *function.keywords.values())
        return all(isinstance(item, _SCALARS) for item in given) and _is_pure(function.func)
    if not isinstance(function, types.FunctionType):
        return function is None or getattr(type(function), "__module__", "") == "builtins"
    cells = [cell.cell_contents for cell in function.__closure__ or ()]
    names = (function.__globals__.get(name) for name in function.__code__.co_names)
    known = all(isinstance(item, (*_SCALARS, type)) or item is math or _only_computes_numbers(item) for item in names)
    return known and all(isinstance(item, _SCALARS) for item in cells)
