"""A Trainer's schedulers in the middle of a sink: their steps, their state, and whether the user's code runs there."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from lightning.pytorch import LightningModule

from lightning_sink.engine.state.schedulers import keep_schedulers, only_computes, schedulers_in


def schedulers_of(trainer: Any) -> list[Any]:
    """Returns the schedulers that Lightning knows, and those of its optimizers that the module has as attributes."""
    optimizers = {id(optimizer) for optimizer in trainer.optimizers}
    held = (item for value in vars(trainer.lightning_module).values() for item in schedulers_in(value))
    own = [item for item in held if id(vars(item).get("optimizer")) in optimizers]
    known = [config.scheduler for config in trainer.lr_scheduler_configs]
    return [*{id(scheduler): scheduler for scheduler in (*known, *own)}.values()]


def keep_schedules(trainer: Any) -> Callable[[], None]:
    """Returns what puts back those that may be stepped in a recording or in a row, and the optimizers' options."""
    module = trainer.lightning_module
    kept = [scheduler for scheduler in schedulers_of(trainer) if only_computes(scheduler, module)]
    return keep_schedulers(kept, trainer.optimizers)


def step_schedulers(loop: Any) -> None:
    """Steps the schedulers that are due between two training steps.

    Private names of Lightning (2.6): `_TrainingEpochLoop.update_lr_schedulers` and `_num_ready_batches_reached`.
    """
    loop.update_lr_schedulers("step", update_plateau_schedulers=False)
    if loop._num_ready_batches_reached():
        loop.update_lr_schedulers("epoch", update_plateau_schedulers=False)


def schedules_by_step(trainer: Any) -> bool:
    """Tells whether Lightning may step schedulers behind each training step, before its `on_train_batch_end`."""
    is_automatic = trainer.lightning_module.automatic_optimization
    return is_automatic and any(config.interval == "step" for config in trainer.lr_scheduler_configs)


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
    if not trainer.lr_scheduler_configs:
        return False
    step = trainer.lightning_module.lr_scheduler_step
    if getattr(step, "__func__", None) is not LightningModule.lr_scheduler_step:  # also behind `functools.wraps`
        return True
    inner = [config.scheduler for config in trainer.lr_scheduler_configs if config.interval == "step"]
    return not all(only_computes(scheduler, trainer.lightning_module) for scheduler in inner)
