"""Lightning's fit and epoch loops with sinks in place of single batches.

`SinkEpochLoop.advance` runs one sink where Lightning's runs one batch; everything else of an epoch (validation,
restarts, epoch ends, checkpoints) is inherited. `SinkFitLoop` turns the training data into one endless traversal where
an epoch is a sink. Both take over the attributes of the loops they replace, under the same names, so checkpoints are
Lightning's own in both directions.

Private names of Lightning (2.6): the classes `_FitLoop` and `_TrainingEpochLoop`, which have no public seam for what
happens between two batches; `_should_check_val_fx`, `_skip_next_val`, `_save_loggers_on_train_batch_end`,
`_should_accumulate` and `_batches_that_stepped`, which `advance` and `on_advance_end` use; `_parse_num_batches`, so
that `limit_train_batches` means the same number of batches.
"""

from __future__ import annotations

import math
from typing import Any, Protocol

from lightning.fabric.utilities.data import sized_len
from lightning.pytorch import Trainer
from lightning.pytorch.loops.fit_loop import _FitLoop
from lightning.pytorch.loops.training_epoch_loop import _TrainingEpochLoop
from lightning.pytorch.trainer.connectors.data_connector import _parse_num_batches
from lightning.pytorch.trainer.states import RunningStage

from lightning_sink.data.endless import EndlessLoader
from lightning_sink.engine.step import Engine
from lightning_sink.errors import EmptyDatasetError, UnsupportedError
from lightning_sink.plan import Position, next_sink
from lightning_sink.trainer import demands
from lightning_sink.trainer.interrupt import DeferredInterrupt
from lightning_sink.trainer.sink import TrainerSink

_CHECK = "Sinks need at least one batch; check the dataset's length and `batch_size` with `drop_last=True`."


class SinkOwner(Protocol):
    """What the loops need from the strategy.

    Attributes:
        sink_size: Most batches in a sink; -1 for the whole epoch.
        resume_position: Traversal and batch to go on from, taken by the data that is set up next.
    """

    sink_size: int
    resume_position: tuple[int, int] | None

    @property
    def is_endless(self) -> bool:
        """Whether an epoch is a sink of an endless traversal."""

    @property
    def engine(self) -> Engine:
        """What runs the steps."""

    def finish_sink(self, sink: TrainerSink) -> None:
        """Takes note of a sink that has ended."""


def take_over(trainer: Trainer, strategy: SinkOwner) -> None:
    """Puts loops with sinks in place of a trainer's fit loop and epoch loop; does nothing the second time."""
    if isinstance(trainer.fit_loop, SinkFitLoop):
        return
    epoch_loop = object.__new__(SinkEpochLoop)
    epoch_loop.__dict__.update(trainer.fit_loop.epoch_loop.__dict__)
    fit_loop = object.__new__(SinkFitLoop)
    fit_loop.__dict__.update(trainer.fit_loop.__dict__, epoch_loop=epoch_loop)
    epoch_loop.sink_strategy = fit_loop.sink_strategy = strategy
    fit_loop.preparing = False
    fit_loop.endless = []
    trainer.fit_loop = fit_loop


class SinkFitLoop(_FitLoop):
    """Lightning's fit loop over data that may be one endless traversal."""

    sink_strategy: SinkOwner
    preparing: bool
    endless: list[EndlessLoader]

    def setup_data(self) -> None:
        """Prepares the training data; with an endless traversal, limits apply to the traversal and not the epoch."""
        trainer = self.trainer
        limit = trainer.limit_train_batches
        if self.sink_strategy.is_endless and limit != 0:
            self.preparing, present = True, self.endless
            self.endless = []
            try:
                super().setup_data()
            finally:
                self.preparing, self.endless = False, self.endless or present
                trainer.limit_train_batches = limit
        else:
            super().setup_data()
        if self.max_batches == 0 and limit != 0:
            raise EmptyDatasetError(f"The training data has no batch: its loader has length 0. {_CHECK}")

    def wrap(self, loader: Any) -> Any:
        """Returns one endless traversal of a training loader, called while `setup_data` prepares it.

        Raises:
            UnsupportedError: When the training data comes from several loaders.
        """
        trainer, strategy = self.trainer, self.sink_strategy
        known = sized_len(loader)
        length = math.inf if known is None else float(known)
        limited = _parse_num_batches(RunningStage.TRAINING, length, trainer.limit_train_batches)
        # From here on Lightning must not apply the limit again, to the epoch; `setup_data` puts it back.
        trainer.limit_train_batches = 1.0
        if length == 0:
            return loader
        if self.endless:
            raise UnsupportedError(
                "`epoch='sink'` with a `sink_size` traverses one training loader; got several, in a `CombinedLoader`,"
                " list or dict. Use `SinkStrategy(epoch='dataset')`, which takes any."
            )
        endless = EndlessLoader(loader, strategy.sink_size, None if limited == math.inf else int(limited))
        if strategy.resume_position is not None:
            endless.resume_at(*strategy.resume_position)
            strategy.resume_position = None
        self.endless.append(endless)
        return endless


class SinkEpochLoop(_TrainingEpochLoop):
    """Lightning's epoch loop, a sink at a time."""

    sink_strategy: SinkOwner

    def advance(self, data_fetcher: Any) -> None:
        """Runs one sink.

        Raises:
            StopIteration: When the epoch is over before its announced end.
            EmptyDatasetError: When data of unknown length turns out to have no batch at all.
        """
        if self.restarting and self._should_check_val_fx(data_fetcher):
            # A checkpoint saved around a validation run: Lightning's own decisions, in its own order.
            if self.val_loop.restarted_mid_evaluation:
                return
            if self.restarted_on_last:
                self._skip_next_val = True
                return
            self.val_loop.increment_progress_to_evaluation_end()
        self.val_loop.restarting = False

        trainer, strategy = self.trainer, self.sink_strategy
        limits = demands.limits(trainer, strategy.sink_size)
        position = Position(
            epoch_batches=self.batch_progress.current.ready,
            total_batches=self.batch_progress.total.ready,
            optimizer_steps=self.global_step,
        )
        with DeferredInterrupt() as interrupt:
            sink = TrainerSink(
                self,
                data_fetcher,
                1 if trainer.should_stop else next_sink(limits, position),
                demands.deadline(trainer),
                demands.eager_reason(trainer),
                interrupt,
            )
            try:
                strategy.engine.run(sink)
            finally:
                sink.close()
                strategy.finish_sink(sink)
        if sink.exhausted and self.batch_progress.total.ready == 0:
            raise EmptyDatasetError(f"The training data gave no batch: its first traversal ended at once. {_CHECK}")
        if sink.exhausted or sink.skip_epoch:
            raise StopIteration

    def end_inner_step(self) -> None:
        """What Lightning's `on_advance_end` does after a batch that no validation follows."""
        self.update_lr_schedulers("step", update_plateau_schedulers=True)
        if not self._should_accumulate():
            self._batches_that_stepped += 1
        self._save_loggers_on_train_batch_end()


def wrap_training_data(trainer: Trainer, loader: Any) -> Any:
    """Returns an endless traversal of a loader that Lightning prepares for training; any other loader as it is."""
    loop = trainer.fit_loop
    return loop.wrap(loader) if isinstance(loop, SinkFitLoop) and loop.preparing else loader


def data_position(trainer: Trainer) -> tuple[int, int] | None:
    """Returns traversal and batch of an endless traversal, None where there is none."""
    loop = trainer.fit_loop
    endless = loop.endless if isinstance(loop, SinkFitLoop) else []
    return (endless[0].traversal, endless[0].position) if endless else None
