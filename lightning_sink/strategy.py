"""SinkStrategy: the options, their checks, and the wiring of loops and engine into a Trainer."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from functools import partial
from typing import Any, Literal

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.trainer.states import TrainerFn
from lightning.pytorch.utilities import rank_zero_info
from torch import Tensor
from torch.optim import Optimizer

from lightning_sink.callbacks import show_progress
from lightning_sink.checks import boolean, choice, integer
from lightning_sink.data.cuda import sender
from lightning_sink.data.options import QueueOptions
from lightning_sink.data.queue import BatchQueue
from lightning_sink.data.report import QueueReport
from lightning_sink.datamodule import options_of
from lightning_sink.engine.compiled import CompiledEngine
from lightning_sink.engine.make import ENGINES, FALLBACKS, Asked, make_engine
from lightning_sink.engine.numbers.released import as_they_are
from lightning_sink.engine.state.attributes import are_the_same
from lightning_sink.engine.state.slots import Parts, with_inner
from lightning_sink.engine.step import Engine
from lightning_sink.trainer.demands import in_step_reason, refuse_step_that_fetches, require_optimizer
from lightning_sink.trainer.loaders import TrainingLoaders
from lightning_sink.trainer.loop_sink import LoopSink
from lightning_sink.trainer.loops import SinkFitLoop, take_over
from lightning_sink.trainer.metrics import is_metric
from lightning_sink.trainer.one_device import OneDevice
from lightning_sink.trainer.own_objects import own_objects
from lightning_sink.trainer.progress import SinkRecord, SinkReport
from lightning_sink.trainer.reach import parts_of_precision, reached_through
from lightning_sink.trainer.reads import counters, machinery, watched_getters
from lightning_sink.trainer.schedules import schedulers_of
from lightning_sink.trainer.transfer import Transfer
from lightning_sink.trainer.turns import in_step

_CHECKPOINT_KEY = "lightning_sink"


class SinkStrategy(OneDevice):
    """Trains in sinks: many steps between two visits to the host, each step one compiled graph.

    Args:
        sink_size: Batches in a sink. -1: one pass over the dataset, or 10,000 batches of data without a length. A
            positive number: an epoch is one sink of that many batches out of an endless traversal of the dataset; see
            `epoch`.
        dataset_sink_mode: False trains as plain Lightning does; all other options then have no effect.
        epoch: With a positive `sink_size`: "sink" makes an epoch of each sink, "dataset" keeps an epoch one pass over
            the dataset and cuts it into sinks of at most `sink_size` batches.
        engine: What runs the steps. "inductor" compiles them, "eager" runs them as plain Lightning does, "traced" runs
            the compiler's input uncompiled, "cudagraph" has a GPU repeat compiled steps by itself. "auto" is
            "cudagraph" on a GPU, "inductor" on a CPU where a C++ compiler is found, and "eager" elsewhere.
        fallback: What happens where a step cannot be compiled: "warn" runs it eagerly and says so once, "error" raises
            `CompileError`.
        verify: Steps of each new compiled program that are also run eagerly and compared; 0 for none.

    Raises:
        ValueError: For a value that is not among the accepted ones.
        TypeError: For a value of another type.
    """

    strategy_name = "sink"

    def __init__(
        self,
        sink_size: int = -1,
        *,
        dataset_sink_mode: bool = True,
        epoch: Literal["sink", "dataset"] = "sink",
        engine: Literal["auto", "eager", "traced", "inductor", "cudagraph"] = "auto",
        fallback: Literal["warn", "error"] = "warn",
        verify: int = 2,
    ) -> None:
        super().__init__()
        self.sink_size = integer(_named("sink_size"), sink_size, _SINK_SIZES, least=1, besides=-1)
        self.dataset_sink_mode = boolean(_named("dataset_sink_mode"), dataset_sink_mode)
        self.epoch = choice(_named("epoch"), epoch, ("sink", "dataset"))
        self.engine_option = choice(_named("engine"), engine, ENGINES)
        self.fallback = choice(_named("fallback"), fallback, FALLBACKS)
        self.verify = integer(_named("verify"), verify, _VERIFY, least=0)
        self.resume_position: dict[str, Any] | None = None
        self._queue: BatchQueue | None = None
        self._queue_report = QueueReport()
        self._engine: Engine | None = None
        self._engine_parts: list[Any] = []
        self._engine_objects: list[Any] = []
        self._active_engine = "eager"
        self.present_sink: LoopSink | None = None
        self._last: SinkRecord | None = None

    def __repr__(self) -> str:
        # Lightning's error for a strategy of another package shows only this text.
        return (
            f"SinkStrategy(sink_size={self.sink_size}, dataset_sink_mode={self.dataset_sink_mode},"
            f" epoch={self.epoch!r}, engine={self.engine_option!r}, fallback={self.fallback!r}, verify={self.verify})"
            " [for the Trainer of the package `lightning`; for `pytorch_lightning`, call"
            " `lightning_sink.alias_pytorch_lightning()` before it is imported]"
        )

    def __getstate__(self) -> dict[str, Any]:
        """Leaves out what trains at present: one in a module's hyperparameters goes into each checkpoint."""
        told = {"_queue_report": self.queue_report(), "_active_engine": self.active_engine, "_last": self._record}
        training: dict[str, Any] = dict.fromkeys(("_queue", "_engine", "present_sink"))
        training |= {"_engine_parts": [], "_engine_objects": []}
        return {**super().__getstate__(), **told, **training}

    @property
    def _trainer(self) -> Any:
        """The Trainer that it serves; None before `connect`."""
        return None if self.lightning_module is None else self.lightning_module.trainer

    # -- what users look at -----------------------------------------------------------------------------------------

    @property
    def active_engine(self) -> str:
        """The engine that really runs the steps: "eager" where none of them could be compiled."""
        return self._engine.active if self._engine is not None else self._active_engine

    @property
    def history(self) -> dict[str, Tensor]:
        """A sink's values, step by step: name to a tensor of shape `[n]` on the CPU, "loss" always among them.

        The sink is the present one, up to the last step that has been trained, and until one has been the last one of
        the same fit. The loss is the one that `on_train_batch_end` gets, divided by `accumulate_grad_batches`. A name
        that some steps did not log is NaN there, and so is everything at a batch of None, and a loss of more than one
        element. Empty before the first step.
        """
        record = self._record
        return {} if record is None else record.history.tensors()

    def sink_report(self) -> SinkReport:
        """Returns what the present sink did so far, or what the last one did."""
        record = self._record
        return SinkReport() if record is None else record.report()

    @property
    def _record(self) -> SinkRecord | None:
        sink = self.present_sink
        return sink.progress.record(sink.ran_seconds) if sink is not None and len(sink.history) else self._last

    @property
    def is_endless(self) -> bool:
        """Whether an epoch is a sink of an endless traversal."""
        return self.dataset_sink_mode and self.epoch == "sink" and self.sink_size > 0

    def queue_report(self) -> QueueReport:
        """Returns what the queue of the present fit did so far, or that of the last one."""
        return self._queue_report if self._queue is None else self._queue.report()

    # -- what the loops ask for -------------------------------------------------------------------------------------

    @property
    def engine(self) -> Engine:
        """The engine of this fit."""
        if self._engine is None or not self._fits():
            trainer = self._trainer
            module = trainer.lightning_module
            objects = own_objects(module, trainer.callbacks)
            parts = Parts(
                module,
                list(self.optimizers),
                others=[*in_step(trainer), *parts_of_precision(trainer), *objects],
                is_apart=is_metric,
                ignore=machinery(),
                counters=counters(trainer),
                codes=watched_getters(trainer),
                outside=reached_through(trainer),
                schedulers=partial(schedulers_of, trainer),
            )
            engine, before = make_engine(self._asked(module), parts), self._engine
            if isinstance(before, CompiledEngine) and isinstance(engine, CompiledEngine):
                known = {*map(id, self._engine_objects)}
                new = {id(item) for item in objects} - known
                engine.take_over(before, [name for name, value in vars(module).items() if id(value) in new])
            self._close_engine()
            self._engine, self._engine_parts, self._engine_objects = engine, self._parts_of_step(), objects
        return self._engine

    def _parts_of_step(self) -> list[Any]:
        """Returns what an engine is made for beside the module: `trainer.optimizers` may be replaced, say."""
        return [*with_inner(self.optimizers), self.precision_plugin, *in_step(self._trainer)]

    def _fits(self) -> bool:
        """Tells whether these are what they were, and no other has taken the place of an object of the module's."""
        if not isinstance(self._engine, CompiledEngine):
            return True
        held = {*map(id, vars(self.lightning_module).values())}
        are_held = all(id(item) in held for item in self._engine_objects)
        return are_held and are_the_same(self._parts_of_step(), self._engine_parts)

    @property
    def queue_options(self) -> QueueOptions:
        """How batches are fetched ahead: what a `SinkDataModule` says, or the defaults."""
        return options_of(getattr(self._trainer, "datamodule", None)) or QueueOptions()

    def make_queue(self, loaders: TrainingLoaders) -> BatchQueue:
        """Returns the queue of this fit."""
        options, transfer = self.queue_options, Transfer(self._trainer)
        # Hooks of the user's are given what the loader yields; what they return is on the device.
        sends = transfer.is_plain and not options.transfer_ahead
        self._queue = BatchQueue(
            loaders.traversals,
            options,
            device=sender(self.root_device) if sends else None,
            prepare=transfer.ahead if options.transfer_ahead else None,
            in_step_because=in_step_reason(self._trainer),
            say=self.say,
        )
        return self._queue

    def say(self, text: str) -> None:
        """Tells the user a line."""
        rank_zero_info(f"lightning_sink: {text}")

    def finish_sink(self) -> None:
        """Takes note that the present sink has ended."""
        self._last, self.present_sink = self._record, None

    # -- Lightning's side -------------------------------------------------------------------------------------------

    def connect(self, model: LightningModule) -> None:
        """Puts loops with sinks into the Trainer before anything asks it for its data."""
        super().connect(model)
        if self.dataset_sink_mode and model.trainer.state.fn == TrainerFn.FITTING:
            take_over(model.trainer)

    def setup_environment(self) -> None:
        """Shows progress within sinks, now that the module's own callbacks are there too."""
        super().setup_environment()
        if self.dataset_sink_mode and self._trainer is not None:
            show_progress(self._trainer)

    def setup(self, trainer: Trainer) -> None:
        """Sets up as ever, then refuses what cannot be right in a sink."""
        super().setup(trainer)
        if self.dataset_sink_mode and trainer.state.fn == TrainerFn.FITTING:
            self.present_sink = self._last = None
            refuse_step_that_fetches(trainer.lightning_module)
            require_optimizer(self.optimizers, trainer.lightning_module)
            self._close_engine()

    def optimizer_state(self, optimizer: Optimizer) -> dict[str, Any]:
        """Returns an optimizer's state, with the options that the user gave it, in a step too."""
        with nullcontext() if self._engine is None else self._engine.shows_options():
            return super().optimizer_state(optimizer)

    def save_checkpoint(self, checkpoint: dict[str, Any], filepath: Any, storage_options: Any | None = None) -> None:
        """Adds the place in the data; everything else in the file is Lightning's."""
        checkpoint = as_they_are(checkpoint)  # one that a step saves may hold stand-ins for numbers
        loop = getattr(self._trainer, "fit_loop", None)
        place = loop.place() if isinstance(loop, SinkFitLoop) else None
        if place is not None and "loops" in checkpoint:
            checkpoint[_CHECKPOINT_KEY] = place.saved()
        super().save_checkpoint(checkpoint, filepath, storage_options=storage_options)

    def load_checkpoint(self, checkpoint_path: Any, weights_only: bool | None = None) -> dict[str, Any]:
        """Loads a checkpoint and keeps the place in the data for when that is set up."""
        checkpoint = super().load_checkpoint(checkpoint_path, weights_only=weights_only)
        trainer, saved = self._trainer, checkpoint.get(_CHECKPOINT_KEY)
        if isinstance(saved, Mapping) and trainer is not None and trainer.state.fn == TrainerFn.FITTING:
            self.resume_position = dict(saved)
        return checkpoint

    def teardown(self) -> None:
        """Lets go of programs and recordings, and of the queue, which ends with the loops."""
        self._close_engine()
        if self._queue is not None:
            self._queue_report, self._queue = self._queue.report(), None
        super().teardown()

    def _asked(self, module: LightningModule) -> Asked:
        return Asked(
            self.engine_option,
            self.fallback,
            self.verify,
            api="SinkStrategy",
            speed="plain Lightning's",
            step=type(module).training_step,
            say=self.say,
        )

    def _close_engine(self) -> None:
        if self._engine is not None:
            self._active_engine = self.active_engine
            self._engine.close()
            self._engine = None


_SINK_SIZES = "-1 for the whole dataset, or a number of batches from 1 up"
_VERIFY = "a number of steps, 0 for none"


def _named(option: str) -> str:
    return f"SinkStrategy({option}=...)"
