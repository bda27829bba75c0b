"""What a Trainer and its module ask of a sink: where it must end, when, whether it may be compiled, and run at all.

Private names of Lightning (2.6), without public getters: `_every_n_train_steps`, `_train_time_interval`,
`_last_global_step_saved` and `_last_time_checked` of `ModelCheckpoint`, `_interval` of `Timer`,
`_val_check_time_interval` and `_last_val_time` of `Trainer`, `_LRCallback` (the learning-rate finder, which counts
steps), `_skip_backward` of the optimization loop (stochastic weight averaging sets it), `_MockOptimizer`, which stands
for "no optimizer" once Lightning has read what `configure_optimizers` gave.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator
from copy import copy
from typing import Any

import torch
from lightning.pytorch import LightningDataModule, LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint, Timer
from lightning.pytorch.core.optimizer import _MockOptimizer
from lightning.pytorch.tuner.lr_finder import _LRCallback
from lightning.pytorch.utilities.model_helpers import is_overridden
from lightning.pytorch.utilities.signature_utils import is_param_in_hook_signature
from torch.optim import Optimizer

from lightning_sink.data.holding_training import Holding
from lightning_sink.data.shared_draws import drawn_from, methods_of
from lightning_sink.engine.watch import Hazard, first_line
from lightning_sink.errors import UnsupportedError
from lightning_sink.plan import Awaited, Limits
from lightning_sink.trainer.transfer import HOOKS
from lightning_sink.trainer.turns import START, Turns, in_step


def limits(trainer: Trainer, sink_size: int) -> Limits:
    """Returns what may end a sink of this trainer by count."""
    length = trainer.num_training_batches
    validate_every = None
    if trainer.enable_validation and isinstance(trainer.val_check_batch, int):
        validate_every = trainer.val_check_batch
    elif trainer.enable_validation and trainer.val_check_batch == math.inf:
        # Lightning validates after every `limit_train_batches` batches of data without a length.
        limit = trainer.limit_train_batches
        validate_every = limit if isinstance(limit, int) and not isinstance(limit, bool) else None
    callbacks = trainer.callbacks  # type: ignore[attr-defined]
    automatic = trainer.lightning_module.automatic_optimization
    finds_rate = any(isinstance(callback, _LRCallback) for callback in callbacks)
    return Limits(
        sink_size=1 if finds_rate else sink_size,
        epoch_batches=None if length == math.inf else int(length),
        accumulate=trainer.accumulate_grad_batches,
        max_steps=trainer.max_steps if automatic else -1,
        validate_every=validate_every,
        validate_over_epochs=trainer.check_val_every_n_epoch is None,
        save_every=_save_every(trainer) if automatic else (),
        judge_every=_save_every(trainer, judged=True) if automatic else (),
    )


def awaited(trainer: Trainer) -> Awaited | None:
    """Returns the numbers of optimizer steps at which a sink must end; None where there are none, or the plan has them.

    With manual optimization, nobody knows beforehand which batches make them.
    """
    found = Awaited(
        max_steps=trainer.max_steps, save_every=_save_every(trainer), judge_every=_save_every(trainer, judged=True)
    )
    return None if trainer.lightning_module.automatic_optimization or found == Awaited() else found


def _may_save_again(save: ModelCheckpoint, trainer: Trainer) -> bool:
    """Tells whether it may save at a batch without a step: where a metric decides, or it has not saved there yet."""
    return save.monitor is not None or save._last_global_step_saved != trainer.global_step


def _save_every(trainer: Trainer, *, judged: bool = False) -> tuple[int, ...]:
    """Returns the optimizer steps between two checkpoints, for each callback that counts them.

    `judged` leaves out those that save only at a batch that makes a step.
    """
    callbacks = trainer.callbacks  # type: ignore[attr-defined]
    saves = [callback for callback in callbacks if isinstance(callback, ModelCheckpoint)]
    counted = (save._every_n_train_steps for save in saves if not judged or _may_save_again(save, trainer))
    return tuple(every for every in counted if every >= 1)


def deadline(trainer: Any) -> float:
    """Returns the `time.monotonic()` at which the next trigger by the clock is due; infinity for none."""
    now = time.monotonic()
    times = [math.inf]
    if trainer._val_check_time_interval is not None:
        times.append(trainer._last_val_time + trainer._val_check_time_interval)
    for callback in trainer.callbacks:
        if isinstance(callback, Timer) and callback._interval == "step":
            remaining = callback.time_remaining()
            times.append(math.inf if remaining is None else now + remaining)
        if isinstance(callback, ModelCheckpoint) and callback._train_time_interval is not None:
            checked = callback._last_time_checked
            times.append((now if checked is None else checked) + callback._train_time_interval.total_seconds())
    return min(times)


def refuse_step_that_fetches(module: LightningModule) -> None:
    """Refuses a step that takes the loader's iterator: how many batches it takes is known only afterwards.

    Raises:
        UnsupportedError: Names the step and the way out.
    """
    if is_param_in_hook_signature(module.training_step, "dataloader_iter", explicit=True):
        raise UnsupportedError(
            f"`{type(module).__name__}.training_step` takes `dataloader_iter` ({first_line(module.training_step)}) and"
            " fetches its own batches; a sink hands each step one batch. Take `batch, batch_idx` instead, or train with"
            " `SinkStrategy(dataset_sink_mode=False)`."
        )


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


def in_step_reason(trainer: Any) -> str:
    """Returns why no batch may be fetched before a step of this trainer that is due, whatever the data; "" for none."""
    before = torch.get_default_dtype()
    with copy(trainer.precision_plugin).forward_context():  # one of the user's may count how often it is entered
        changed = torch.get_default_dtype()
    if changed != before:
        return f"`precision={trainer.precision!r}` changes the default dtype of the whole process during a step"
    if is_overridden("on_train_batch_start", trainer.lightning_module):
        return "`on_train_batch_start` of the module may end the epoch, or change the data, which nobody knows before"
    return ""


def have_come_to_hold(holding: Holding, trainer: Any, loaders: Iterable[Any]) -> str:
    """Returns why no batch may be fetched before its step from now on: loaders hold the training; "" for no news."""
    if holding.look(loaders, trainer.lightning_module, _others(trainer), _leads_back):
        return "a dataset, sampler or `collate_fn` holds the module, or something else that each step changes"
    return ""


def _others(trainer: Any) -> Iterator[Any]:
    """Yields what steps change besides the module: the trainer, and generators of the user's own."""
    yield trainer
    data, parts = trainer.datamodule, [*trainer.lightning_module.modules(), *in_step(trainer), *trainer.optimizers]
    transfers = [method for method in methods_of(data) if method.__name__ in HOOKS]
    steps = (method for part in parts for method in methods_of(part) if method.__name__ not in _OF_DATA)
    yield from drawn_from([*transfers, *steps])


_OF_DATA = frozenset(
    ["__init__", "prepare_data", "setup", "train_dataloader", "val_dataloader", "configure_optimizers"]
)
"""Methods of a module that run in no step, and may hand its generators to loaders."""


def _leads_back(item: Any) -> tuple[str, ...]:
    """Lightning gives each datamodule its trainer; that counts where code of the user's that is reached names it."""
    return ("trainer",) if isinstance(item, LightningDataModule) else ()


def eager_reason(trainer: Trainer) -> Hazard | None:
    """Returns why no step of this trainer may be compiled at present, None if steps may."""
    if torch.is_anomaly_enabled():
        return Hazard("`detect_anomaly=True` looks at the values of every step", way_out="train without it")
    for config in trainer.lr_scheduler_configs:
        if config.reduce_on_plateau and config.interval == "step":
            what = f"`{type(config.scheduler).__name__}` with interval 'step' reads a metric after every step"
            return Hazard(what, way_out="use interval 'epoch'")
    turns = Turns(trainer, alone=getattr(trainer.strategy, "sink_size", 0) == 1)
    if turns.see_each_end and is_overridden("on_train_batch_end", trainer.lightning_module):
        return Hazard(
            "`on_train_batch_end` of the module runs behind that of callbacks, which are shown every step",
            first_line(trainer.lightning_module.on_train_batch_end),
        )
    if (found := turns.always_inside()) is not None:
        item, hook = found
        sees, way = ("before", "behind") if hook == START else ("behind", "before")
        what = f"`{type(item).__name__}.{hook}` has its turn {sees} that of callbacks which see every step"
        return Hazard(what, first_line(getattr(item, hook)), f"put it {way} them in the Trainer's `callbacks`")
    if trainer.fit_loop._skip_backward:
        # Stochastic weight averaging updates normalization statistics, behind the training.
        return Hazard("the backward pass is skipped", way_out="")
    return None
