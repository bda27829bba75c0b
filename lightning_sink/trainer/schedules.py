"""A Trainer's schedulers in the middle of a sink: their steps, their state, and whether the user's code runs there."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from lightning.pytorch import LightningModule
from torch.optim import Optimizer

from lightning_sink.engine.state.arithmetic import only_reads
from lightning_sink.engine.state.schedulers import (
    functions_of,
    is_torchs,
    keep_schedulers,
    only_computes,
    options_set_by,
    schedulers_in,
    with_inner,
)

_MOST_NUMBERS = 1_000
"""Of a table that is gone through."""

_STEPS = ("step", "step_update")
"""Methods of schedulers, torch's and timm's, that an `lr_scheduler_step` calls."""


def schedulers_of(trainer: Any) -> list[Any]:
    """Returns the schedulers that Lightning knows, and those of its optimizers that the module has as attributes."""
    optimizers = {id(optimizer) for optimizer in trainer.optimizers}
    held = (item for value in vars(trainer.lightning_module).values() for item in schedulers_in(value))
    own = [item for item in held if id(vars(item).get("optimizer")) in optimizers]
    known = [config.scheduler for config in trainer.lr_scheduler_configs]
    return [*{id(scheduler): scheduler for scheduler in (*known, *own)}.values()]


def keep_schedules(trainer: Any, in_row: bool = False) -> Callable[[], None]:
    """Returns what puts back those that may be stepped in a recording or in a row, and the optimizers' options.

    In a row, options that steps set are theirs to put; a recording that fails leaves none.
    """
    module = trainer.lightning_module
    schedulers = schedulers_of(trainer)
    kept = [scheduler for scheduler in schedulers if only_computes(scheduler, module)]
    return keep_schedulers(kept, trainer.optimizers, options_set_by(schedulers) if in_row else None)


def step_schedulers(loop: Any) -> None:
    """Steps the schedulers that are due between two training steps.

    Private names of Lightning (2.6): `_TrainingEpochLoop.update_lr_schedulers` and `_num_ready_batches_reached`.
    """
    loop.update_lr_schedulers("step", update_plateau_schedulers=False)
    if loop._num_ready_batches_reached():
        loop.update_lr_schedulers("epoch", update_plateau_schedulers=False)


def stepped_behind_steps(trainer: Any) -> list[Any]:
    """Returns the schedulers that Lightning may step behind each training step, before its `on_train_batch_end`."""
    is_automatic = trainer.lightning_module.automatic_optimization
    return [each.scheduler for each in trainer.lr_scheduler_configs if is_automatic and each.interval == "step"]


def may_change_more(trainer: Any) -> bool:
    """Tells whether code of the user's that Lightning steps a schedule by may change more than the schedule.

    An `lr_scheduler_step` that sets nothing hands on what it asks for; a scheduler that holds nothing but numbers and
    its optimizer (timm's) has nothing else to change.
    """
    module = trainer.lightning_module
    ways = [names.get("lr_scheduler_step") for names in (vars(module), *map(vars, type(module).__mro__))]
    others = [way for way in ways if way not in (None, LightningModule.lr_scheduler_step)]
    if not all(only_reads(way, module, calls=_STEPS) for way in others):
        return True
    inner = (each for scheduler in stepped_behind_steps(trainer) for each in with_inner(scheduler))
    return not all(_asks_only(each, module) for each in inner)


def _asks_only(scheduler: Any, module: Any) -> bool:
    """Tells whether a scheduler has nothing to change but itself, or is torch's, by functions that set nothing."""
    by_functions = is_torchs(scheduler) and all(only_reads(function, module) for function in functions_of(scheduler))
    return by_functions or only_computes(scheduler, module) or _holds_numbers(scheduler)


def _holds_numbers(scheduler: Any) -> bool:
    """Tells whether a scheduler has nothing but numbers, texts and its optimizer."""
    held = getattr(scheduler, "__dict__", None)
    return held is not None and all(_is_table_of_numbers(value) for value in held.values())


def _is_table_of_numbers(value: Any, depth: int = 3) -> bool:
    """Tells whether a value is a number, a text, an optimizer, or a short table of some."""
    if isinstance(value, (list, tuple, dict)):
        items = value.values() if isinstance(value, dict) else value
        return (
            depth > 0 and len(items) <= _MOST_NUMBERS and all(_is_table_of_numbers(item, depth - 1) for item in items)
        )
    return value is None or isinstance(value, (int, float, str, Optimizer))


def step_by_hand(schedulers: Iterable[Any]) -> None:
    """Steps schedulers as the user's step did where it was recorded."""
    for scheduler in schedulers:
        scheduler.step()


def step_in_row(loop: Any) -> Callable[[], None]:
    """Returns what steps the schedulers that are due behind a step in a row, none of which is an epoch's last.

    What Lightning does around a step of a scheduler takes three times as long as that, and has no effect where nothing
    is profiled and `steps_by_users_code` is false, as it is where steps are run in a row. What is found here holds
    until the user's code runs again, which may change all of it.

    Private name of Lightning (2.6): `_TrainingEpochLoop.scheduler_progress`, which counts their steps.
    """
    trainer, progress = loop.trainer, loop.scheduler_progress
    configs = trainer.lr_scheduler_configs if trainer.lightning_module.automatic_optimization else []
    due = [config for config in configs if config.interval == "step" and not config.reduce_on_plateau]

    def step() -> None:
        number = loop.batch_idx + 1
        for config in due:
            if number % config.frequency == 0:
                progress.increment_ready()
                config.scheduler.step()
                progress.increment_completed()

    return step


def steps_by_users_code(trainer: Any) -> bool:
    """Tells whether any scheduler that steps between two training steps runs code that may look further."""
    module = trainer.lightning_module
    # One that wraps Lightning's, by `functools.wraps`, is the user's too.
    is_lightnings = getattr(module.lr_scheduler_step, "__func__", None) is LightningModule.lr_scheduler_step
    return not all(is_lightnings and only_computes(each, module) for each in stepped_behind_steps(trainer))
