"""Lightning's fit and epoch loops with sinks in place of single batches.

`SinkEpochLoop.advance` runs one sink where Lightning's runs one batch; everything else of an epoch (validation,
restarts, epoch ends, checkpoints) is inherited. `SinkFitLoop` puts a queue between the loaders and the training.
Lightning's own loops become these, with all that they hold, so checkpoints are Lightning's in both directions.

Private names of Lightning (2.6): the classes `_FitLoop` and `_TrainingEpochLoop`, which have no public seam for what
happens between two batches; `_should_check_val_fx`, `_skip_next_val`, `_save_loggers_on_train_batch_end`,
`_should_accumulate` and `_batches_that_stepped`, which `advance` and what is done behind it use; `_combined_loader`,
`_data_source`, `_data_fetcher` and `_num_ready_batches_reached`, where the data comes from and where it ends.
"""

from __future__ import annotations

from copy import copy
from typing import Any, cast

from lightning.pytorch import Trainer
from lightning.pytorch.loops.fit_loop import _FitLoop
from lightning.pytorch.loops.training_epoch_loop import _TrainingEpochLoop
from lightning.pytorch.profilers import PassThroughProfiler

from lightning_sink.data.holding_training import Holding
from lightning_sink.data.place import Place
from lightning_sink.data.queue import BatchQueue
from lightning_sink.engine.interrupt import DeferredInterrupt
from lightning_sink.engine.watch import user_line
from lightning_sink.errors import EmptyDatasetError, warn_at
from lightning_sink.plan import Position, next_sink
from lightning_sink.trainer import demands
from lightning_sink.trainer.batch_hooks import Compared
from lightning_sink.trainer.batch_reads import BatchReads
from lightning_sink.trainer.delivery import SinkLoggerConnector
from lightning_sink.trainer.fetcher import SinkFetcher
from lightning_sink.trainer.loaders import TrainingLoaders
from lightning_sink.trainer.loop_sink import LoopSink

_CHECK = "Sinks need at least one batch; check the dataset's length and `batch_size` with `drop_last=True`."


def take_over(trainer: Trainer) -> None:
    """Makes a trainer's fit loop and epoch loop loops with sinks; does nothing the second time."""
    if isinstance(trainer.fit_loop, SinkFitLoop):
        return
    fit_loop: Any = trainer.fit_loop
    fit_loop.__class__, fit_loop.epoch_loop.__class__ = SinkFitLoop, SinkEpochLoop
    fit_loop.epoch_loop.compared, fit_loop.epoch_loop.batch_reads = Compared(), BatchReads()
    trainer._logger_connector.__class__ = SinkLoggerConnector


class SinkFitLoop(_FitLoop):
    """Lightning's fit loop over data that comes through a queue and may be one endless traversal."""

    loaders: TrainingLoaders | None = None
    queue: BatchQueue | None = None
    holding: Holding
    said_restart = False
    is_over = False  # whether the epoch is, for Lightning, by its end or before
    last_place: Place | None = None

    @property
    def _strategy(self) -> Any:
        """The trainer's `SinkStrategy`, which this room may not import."""
        return self.trainer.strategy

    def setup_data(self) -> None:
        """Prepares the training data; the queue takes the place of Lightning's fetcher."""
        present, source = self._combined_loader, self._data_source
        adopting: Any = copy(source)
        adopting.dataloader = lambda: self._adopt(source.dataloader())
        self._data_source = adopting
        try:
            super().setup_data()
        finally:
            self._data_source = source
        loaders = self._combined_loader
        if loaders is present:
            return
        if self.max_batches == 0:
            raise EmptyDatasetError(f"The training data has no batch: its loader has length 0. {_CHECK}")
        self._put_queue(cast(TrainingLoaders, loaders))

    def _put_queue(self, loaders: TrainingLoaders) -> None:
        before, self.loaders = self.loaders, loaders
        if self.queue is None:
            self.queue, self.holding = self._strategy.make_queue(loaders), Holding()
        else:
            self.queue.restart(loaders.traversals)
        if before is not None:
            before.let_go()
        self.see_loaders()
        self._data_fetcher = SinkFetcher(loaders, self.queue)
        loaders.traversals.on_restart = self._say_restart
        if loaders.traversals.doubt:
            warn_at(loaders.traversals.doubt, user_line())

    def see_loaders(self) -> None:
        """Has batches fetched no earlier than they are due where the loaders hold the training, if only since now."""
        queue, loaders = cast(BatchQueue, self.queue), cast(TrainingLoaders, self.loaders)
        if because := demands.have_come_to_hold(self.holding, self.trainer, loaders.flattened):
            queue.fetch_when_due(because)

    def _say_restart(self, seconds: float) -> None:
        if not self.said_restart:
            self.said_restart = True
            self._strategy.say(
                f"each traversal of the training data starts the loader's workers anew, {seconds:.2f} s this time, in"
                " which the training stands still; `DataLoader(persistent_workers=True)` keeps them."
            )

    def _adopt(self, loader: Any) -> TrainingLoaders:
        strategy = self._strategy
        loaders = TrainingLoaders(
            loader,
            strategy.sink_size if strategy.is_endless else None,
            strategy.queue_options,
            self._horizon,
            strategy.root_device,
            self._place_taken,
            self.loaders,
        )
        if strategy.resume_position is not None:
            loaders.traversals.resume(strategy.resume_position)
            self.is_over = False  # in a second fit, too
            strategy.resume_position = None
        return loaders

    def _horizon(self) -> int:
        """Returns how many batches may be read at once."""
        return 1 if self.queue is None else self.queue.horizon()

    def on_advance_start(self) -> None:
        """Begins an epoch; samplers are told of traversals where these are endless, and of epochs elsewhere."""
        self.setup_data()
        loaders = self.loaders
        assert loaders is not None  # noqa: S101 - setup_data has run
        with loaders.shown_as([] if loaders.traversals.endless else loaders.flattened):
            super().on_advance_start()
        self.is_over = False

    def on_advance_end(self) -> None:
        """Ends an epoch, whatever it was ended by: its data, `max_steps`, a hook, or early stopping."""
        self.is_over = True
        super().on_advance_end()

    def place(self) -> Place | None:
        """Returns the place that a training would go on from; None where that is the beginning of a traversal."""
        loaders = self.loaders
        if loaders is None or self._data_fetcher is None:
            return self.last_place
        if not loaders.traversals.endless and (self.is_over or self.epoch_loop._num_ready_batches_reached()):
            return None  # the next epoch begins a traversal of its own
        return self._place_taken()

    def _place_taken(self) -> Place | None:
        """Returns the place behind the last batch that was trained: the last one taken, or the one before."""
        loaders, fetcher = self.loaders, self._data_fetcher
        if loaders is None or fetcher is None:
            return None
        trained: int = cast(Any, self.epoch_loop.batch_progress.current).processed
        return loaders.taken if fetcher.fetched <= trained else loaders.taken_before

    def teardown(self) -> None:
        """Ends the queue."""
        self.last_place = self.place()
        super().teardown()
        if self.queue is not None:
            self.queue.close()
            self.queue = None
        self.epoch_loop.compared, self.epoch_loop.many = Compared(), False
        self.epoch_loop.batch_reads = BatchReads()


class SinkEpochLoop(_TrainingEpochLoop):
    """Lightning's epoch loop, a sink at a time."""

    compared: Compared
    many = False  # whether the last sink was of many steps

    def reset(self) -> None:
        """Resets for an epoch; Lightning's warning that data cannot be resumed is for data that was not."""
        loaders = self.trainer.fit_loop.loaders
        with loaders.shown_as([] if loaders.traversals.resumed_at else loaders.flattened):
            super().reset()

    def on_run_start(self, data_fetcher: Any) -> None:
        """Begins an epoch; a profiler that keeps nothing is not called for every batch."""
        super().on_run_start(data_fetcher)
        if type(self.trainer.profiler) is PassThroughProfiler:
            data_fetcher.profile_nothing()

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

        trainer: Any = self.trainer
        strategy = trainer.strategy
        limits = demands.limits(trainer, strategy.sink_size)
        position = Position(
            epoch_batches=self.batch_progress.current.ready,
            total_batches=self.batch_progress.total.ready,
            optimizer_steps=self.global_step,
        )
        length = 1 if trainer.should_stop else next_sink(limits, position)
        with DeferredInterrupt() as interrupt:
            trainer.fit_loop.see_loaders()
            data_fetcher.queue.expect(length)
            sink = strategy.present_sink = LoopSink(self, data_fetcher, length, interrupt)
            failed = True  # `sys.exc_info` would tell of an error around the whole training, too
            try:
                strategy.engine.run(sink)
                failed = False
            finally:
                try:
                    sink.close(failed)
                finally:
                    strategy.finish_sink()
                    self.many = length > 1
                    # A fetch may take long; at the end of the training nobody wants it.
                    interrupt.held = False
                    ends = interrupt.requested or interrupt.raised or trainer.should_stop or failed
                    data_fetcher.queue.rest(wait=not ends, ran=sink.ran_seconds)
        if sink.exhausted and self.batch_progress.total.ready == 0:
            raise EmptyDatasetError(f"The training data gave no batch: its first traversal ended at once. {_CHECK}")
        if sink.exhausted or sink.skip_epoch:
            raise StopIteration

    def _should_check_val_fx(self, data_fetcher: Any) -> bool:
        """Lets nothing be fetched where Lightning is going to validate; asked again, the clock may say otherwise."""
        validates: bool = super()._should_check_val_fx(data_fetcher)
        if validates:
            data_fetcher.queue.pause()
        return validates

    def end_inner_step(self) -> None:
        """What Lightning's `on_advance_end` does after a batch that no validation follows."""
        self.update_lr_schedulers("step", update_plateau_schedulers=True)
        if not self._should_accumulate():
            self._batches_that_stepped += 1
        self._save_loggers_on_train_batch_end()
