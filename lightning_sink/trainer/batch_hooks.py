"""The callbacks' batch hooks: once for a sink, with what that changes kept from being silent.

A callback that changes weights or an optimizer's options in such a hook would do so after every step of plain training;
in a sink it does so once, and is told about it. `LearningRateMonitor` only looks, so it is shown every step that it
would log.

Private names of Lightning (2.6): `trainer.call` (see `sink.py`), `_TrainingEpochLoop._batches_that_stepped` (the number
of the step that loggers see).
"""

from __future__ import annotations

from typing import Any

from lightning.pytorch.callbacks import LearningRateMonitor
from lightning.pytorch.trainer import call

from lightning_sink.engine.private import version
from lightning_sink.engine.watch import first_line
from lightning_sink.errors import warn_at


class BatchHooks:
    """Calls `on_train_batch_start` and `on_train_batch_end` of a Trainer's callbacks.

    Args:
        trainer: The trainer.
        alone: Whether the sink is a single step, where the hooks see every step.
    """

    def __init__(self, trainer: Any, alone: bool) -> None:
        self._trainer = trainer
        self._alone = alone
        self._selects = trainer.log_every_n_steps if trainer.loggers else 0
        monitors = (item for item in trainer.callbacks if isinstance(item, LearningRateMonitor))
        self._monitors = [item for item in monitors if item.logging_interval != "epoch"]

    def start(self, batch: Any, batch_idx: int) -> None:
        """The first batch of the sink is about to be trained."""
        self._call("on_train_batch_start", batch, batch_idx)

    def end(self, output: Any, batch: Any, batch_idx: int) -> None:
        """The last batch of the sink has been trained."""
        self._call("on_train_batch_end", output, batch, batch_idx)

    def is_monitored(self) -> bool:
        """Tells whether a monitor would log the next step although it does not begin the sink."""
        number = self._trainer.fit_loop.epoch_loop._batches_that_stepped
        return bool(self._monitors) and self._selects > 0 and (number + 1) % self._selects == 0

    def monitor(self, batch: Any, batch_idx: int) -> None:
        """Shows a step to the monitors."""
        for monitor in self._monitors:
            monitor.on_train_batch_start(self._trainer, self._trainer.lightning_module, batch, batch_idx)

    def _call(self, hook: str, *arguments: Any) -> None:
        before = None if self._alone else self._state()
        call._call_callback_hooks(self._trainer, hook, *arguments)
        if before is not None and before != self._state():
            self._warn(hook)

    def _state(self) -> Any:
        groups = [group for optimizer in self._trainer.optimizers for group in optimizer.param_groups]
        options = [{key: value for key, value in group.items() if key != "params"} for group in groups]
        return options, [version(parameter) for group in groups for parameter in group["params"]]

    def _warn(self, hook: str) -> None:
        text = (
            f"A callback changes weights or the optimizer's options in `{hook}`, which a sink calls once, not for every"
            " step: the training differs from plain Lightning's. Move that into the LightningModule's hook of the same"
            " name, or train with `SinkStrategy(sink_size=1, epoch='dataset')`."
        )
        users = [item for item in self._trainer.callbacks if not type(item).__module__.startswith("lightning.")]
        warn_at(text, next((first_line(getattr(item, hook)) for item in users if hook in vars(type(item))), ""))
