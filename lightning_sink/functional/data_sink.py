"""`data_sink`: a step function and a dataset, bound into one function that trains many steps in a call."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Literal

from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from lightning_sink.checks import choice, integer, wrong
from lightning_sink.data.gather import gathered
from lightning_sink.data.holding_training import Holding
from lightning_sink.data.options import QueueOptions
from lightning_sink.data.queue import BatchQueue
from lightning_sink.data.report import QueueReport
from lightning_sink.data.road import Road
from lightning_sink.data.shared_draws import drawn_from
from lightning_sink.data.traversals import Traversals
from lightning_sink.engine.interrupt import DeferredInterrupt
from lightning_sink.engine.make import ENGINES, FALLBACKS, Asked, make_engine
from lightning_sink.engine.state.slots import Parts, with_inner
from lightning_sink.engine.step import Engine
from lightning_sink.errors import UnsupportedError
from lightning_sink.functional.batches import Signature
from lightning_sink.functional.outputs import Outputs
from lightning_sink.functional.sink import FunctionSink
from lightning_sink.functional.state import State, beside, bound_state, find_state, named_state

_BY_HAND = "scheduler.step()"
"""What a step that steps a scheduler is told to leave to `schedulers=...`."""

_log = logging.getLogger("lightning_sink")


class DataSink:
    """What `data_sink` returns; each call runs the next `sink_size` steps and returns the last one's output.

    To be closed, or used in a `with` statement, where the queue's thread and the dataset's workers shall end before
    the object does.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        dataset: Any,
        sink_size: int,
        asked: Asked,
        signature: Signature | None,
        state: State | None,
        schedulers: Sequence[Any],
        options: QueueOptions,
    ) -> None:
        self.sink_size = sink_size
        self._function, self._dataset, self._asked = function, dataset, asked
        self._signature, self._named, self._schedulers, self._options = signature, state, schedulers, options
        self._trained = State(), list[Optimizer]()
        self._engine: Engine | None = None
        self._active_engine = "eager"
        self._queue: BatchQueue | None = None
        self._traversals: Traversals | None = None
        self._holding = Holding()
        self._report = QueueReport()
        self._outputs = Outputs()
        self._history: dict[str, Any] | None = None
        self._is_running = False
        self.steps = 0

    def __repr__(self) -> str:
        name = getattr(self._function, "__qualname__", type(self._function).__name__)
        engine = self.active_engine if self.steps else self._asked.engine
        return f"<DataSink of {name}: sink_size={self.sink_size}, engine={engine!r}, {self.steps} steps>"

    def __call__(self) -> Any:
        """Runs the next `sink_size` steps.

        Returns:
            What the last of them returned, its tensors detached.

        Raises:
            ValueError: A batch is not what `input_signature` says.
            EmptyDatasetError: The dataset gives no batch.
            UnsupportedError: The sink is running already: in another thread, or this is its own step.
            Exception: What the step or the dataset raises. The steps before have been run; a compiled one that fails
                may have changed weights, and says so. The next call goes on behind the batch that failed.
        """
        if self._is_running:  # what is to begin would train with the same queue and program
            raise UnsupportedError(
                f"{self!r} is running: it was called from its own step, or from another thread meanwhile. Call it when"
                " it has returned, or bind another sink."
            )
        self._is_running = True
        try:
            return self._run(*self._begin())
        finally:
            self._is_running = False

    def _run(self, engine: Engine, queue: BatchQueue, state: State) -> Any:
        with DeferredInterrupt() as interrupt:
            sink = FunctionSink(
                self._function,
                queue,
                self.sink_size,
                state,
                self._schedulers,
                self._signature,
                interrupt,
                self._holding.found,
            )
            try:
                queue.expect(self.sink_size)
                engine.run(sink)
            finally:
                self._outputs, self._history = sink.outputs, None
                self.steps += sink.done
                queue.rest(ran=sink.ran_seconds)
        return sink.output

    def __enter__(self) -> DataSink:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    @property
    def active_engine(self) -> str:
        """The engine that really runs the steps: "eager" where none of them could be compiled."""
        return self._engine.active if self._engine is not None else self._active_engine

    @property
    def history(self) -> dict[str, Any]:
        """What each step of the last call returned: name to a tensor of shape `[steps, ...]` on the CPU, or `[steps]`.

        The latter is that of outputs of one element.
        "loss" is the output itself, the first of several, or the one of that name, if it has one element. Others go by
        their place ("1", "2"), by their key in a dictionary, or by "output" if there is but one. Outputs of different
        shapes are a list of tensors. Empty before the first call.
        """
        if self._history is None:
            self._history = self._outputs.tensors()
        return self._history

    def queue_report(self) -> QueueReport:
        """Returns what the queue did so far."""
        return self._report if self._queue is None else self._queue.report()

    def pause(self) -> None:
        """Lets nothing be fetched until the next call; returns when no fetch is running."""
        if self._queue is not None:
            self._queue.pause()

    def close(self) -> None:
        """Ends the queue's thread and the dataset's workers; a later call begins with the dataset's next traversal."""
        if self._queue is not None and self._traversals is not None:
            self._report = self._queue.report()
            self._queue.close()
            self._traversals.close()
            self._queue = self._traversals = None
        self._close_engine()

    def _close_engine(self) -> None:
        if self._engine is not None:
            self._active_engine = self._engine.active
            self._engine.close()
            self._engine = None

    def _begin(self) -> tuple[Engine, BatchQueue, State]:
        state = self._named or find_state(self._function)
        module = nn.ModuleDict(state.modules)
        trained = state, with_inner(state.optimizers)
        if trained != self._trained:  # a name stands for another module or optimizer than at the last call
            self._close_engine()
            self._trained = trained
        if self._engine is None:
            codes = {kind.step.__code__: _BY_HAND for kind in (LRScheduler, ReduceLROnPlateau)}
            known = state.identities() | set(map(id, self._schedulers))
            bound, changes = partial(bound_state, self._function, known), partial(beside, self._function)
            parts = Parts(module, state.optimizers, codes=codes, outside=lambda _: bound, beside=changes)
            self._engine = make_engine(self._asked, parts)
        if self._queue is None:
            road = Road(self._dataset, gathered(self._dataset, lambda: self._queue.horizon() if self._queue else 1))
            self._traversals = Traversals([road], lambda: iter(road), endless=True)
            self._queue, self._holding = BatchQueue(self._traversals, self._options, say=self._asked.say), Holding()
        if self._holding.look([self._dataset], module, drawn_from([self._function])):
            self._queue.fetch_when_due("the dataset holds the module, or something else that each step changes")
        return self._engine, self._queue, state


def data_sink(
    fn: Callable[..., Any],
    dataset: Any,
    sink_size: int = 1,
    *,
    engine: Literal["auto", "eager", "traced", "inductor", "cudagraph"] = "auto",
    fallback: Literal["warn", "error"] = "warn",
    verify: int = 2,
    input_signature: Any = None,
    state: Any = None,
    schedulers: Any = (),
    buffer_size: int | None = None,
    timeout: float | None = None,
) -> DataSink:
    """Binds a training step and a dataset into a function that trains `sink_size` steps in each call.

    Args:
        fn: The step, called with the parts of a batch: forward pass, `loss.backward()`, `optimizer.step()`. What it
            returns is what a call of the sink returns.
        dataset: Any iterable of batches that can be traversed again: a `DataLoader`, a list. A batch that is a tuple
            or a list is spread over the step's arguments. Calls go on where the last one stopped, over any number of
            traversals.
        sink_size: Steps in a call.
        engine: As for `SinkStrategy`.
        fallback: As for `SinkStrategy`.
        verify: As for `SinkStrategy`.
        input_signature: For each argument of `fn` a tensor, or a pair of its shape and dtype, that every batch is
            compared with; None in a shape for any length. None compares nothing.
        state: The modules and optimizers that `fn` trains, one or a sequence or mapping of them. None finds them, at
            each call, in its closure, its globals, the attributes of its object, and the functions that it calls.
        schedulers: Learning-rate schedulers to be stepped behind each step. A step that steps one itself runs eagerly.
        buffer_size: Most batches fetched ahead, as for `SinkDataModule`.
        timeout: Seconds to wait for a batch, as for `SinkDataModule`.

    Returns:
        The function, with the last call's `history`.

    Raises:
        TypeError: For a value of another type.
        ValueError: For a value that is not among the accepted ones.
    """
    if not callable(fn):
        raise TypeError(wrong("data_sink(fn=...)", fn, "a function that is called with a batch"))
    if not (hasattr(dataset, "__iter__") or hasattr(dataset, "__getitem__")):
        raise TypeError(wrong("data_sink(dataset=...)", dataset, "an iterable of batches"))
    steppers = [schedulers] if hasattr(schedulers, "step") else list(schedulers)
    for scheduler in steppers:
        if not isinstance(scheduler, LRScheduler) or isinstance(scheduler, ReduceLROnPlateau):
            raise TypeError(wrong("data_sink(schedulers=...)", scheduler, "schedulers that need no metric"))
    size = integer("data_sink(sink_size=...)", sink_size, "a number of steps from 1 up", least=1)
    asked = Asked(
        choice("data_sink(engine=...)", engine, ENGINES),
        choice("data_sink(fallback=...)", fallback, FALLBACKS),
        integer("data_sink(verify=...)", verify, "a number of steps, 0 for none", least=0),
        api="data_sink",
        speed="a plain loop's",
        step=fn,
        say=lambda text: _log.info("lightning_sink: %s", text),
    )
    signature = None if input_signature is None else Signature(input_signature, fn)
    named = None if state is None else named_state(state)
    options = QueueOptions(buffer_size=buffer_size, timeout=timeout)
    return DataSink(fn, dataset, size, asked, signature, named, steppers, options)
