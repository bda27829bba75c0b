"""One step run the plain way: the user's part of it, in Lightning's own order.

`PlainStep` owns what the step logs until the sink takes it. `train` and `end` are the parts of
`_TrainingEpochLoop.advance` of Lightning 2.6 in which the user's code runs; both are spans of a tape, which may record
them or run them again.

Private names of Lightning (2.6), each because the order of events has no public entry: `automatic_optimization`,
`manual_optimization`, `_build_kwargs` and `_results`, what `self.log` has gathered, of `_TrainingEpochLoop`;
`trainer.call`, which keeps `_current_fx_name` right for `self.log`.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import Any

from lightning.pytorch.trainer import call

from lightning_sink.engine.step import Tape
from lightning_sink.trainer.batch_hooks import BatchHooks
from lightning_sink.trainer.counters import Counters
from lightning_sink.trainer.logger_watch import LoggerWatch
from lightning_sink.trainer.logging import StepLog, captured
from lightning_sink.trainer.metric_watch import keep_metrics, noted
from lightning_sink.trainer.reads import lifted_counters
from lightning_sink.trainer.schedules import keep_schedules, may_change_more, stepped_behind_steps
from lightning_sink.trainer.turns import Turn, outputs_are_seen

_IN_BETWEEN = (
    "code of yours that steps a schedule (`lr_scheduler_step`, a `LambdaLR`) may change what `on_train_batch_end` sees"
    " behind it"
)


def keep_results(loop: Any) -> Callable[[], None]:
    """Returns what puts back what `self.log` has gathered by now."""
    results = loop._results
    gathered = [(key, result, dict(vars(result))) for key, result in results.items()]

    def restore() -> None:
        results.clear()
        for key, result, held in gathered:
            vars(result).update(held)
            results[key] = result

    return restore


class PlainStep:
    """The user's part of a step.

    Args:
        tape: Runs the parts, and may record them.
        batch: The batch as the user's hooks see it.

    Attributes:
        schedulers: Schedulers that it stepped by hand and that only compute, where it is recorded.
        late_schedulers: Those that `on_train_batch_end` stepped.
    """

    def __init__(self, loop: Any, hooks: BatchHooks, tape: Tape, batch: Any) -> None:
        self.log = StepLog()
        self.schedulers: list[Any] = []
        self.late_schedulers: list[Any] = []
        self._loop = loop
        self._trainer = loop.trainer
        self._hooks, self._tape = hooks, tape
        self._batch = batch
        self._batch_idx = loop.batch_idx
        self._has_begun = False

    def begin_callbacks(self, callbacks: list[Any]) -> None:
        """Calls the `on_train_batch_start` of callbacks that belong to the step, as otherwise `train` does."""
        self._has_begun = True
        self._span(self.schedulers, partial(self._hooks.start, Turn.STEP, callbacks, self._batch))

    def train(self) -> Any:
        """Trains the batch; returns what the step put out, None where `on_train_batch_start` ends the epoch."""
        return self._span(self.schedulers, self._train)

    def end_callbacks(self, callbacks: list[Any], output: Any) -> None:
        """Calls the `on_train_batch_end` of callbacks that belong to the step."""
        self._see_schedules()
        self._span(self.late_schedulers, partial(self._hooks.end, Turn.STEP, callbacks, output, self._batch))

    def end(self, output: Any) -> None:
        """Calls the module's `on_train_batch_end`."""
        self._see_schedules()
        hook = partial(call._call_lightning_module_hook, self._trainer, "on_train_batch_end", output, self._batch)
        self._span(self.late_schedulers, hook)

    def _see_schedules(self) -> None:
        """Schedules have been stepped since the step trained."""
        if self._tape.records and stepped_behind_steps(self._trainer):
            self._tape.options_may_be_others()
            if self._hooks.end_steps and may_change_more(self._trainer):
                self._tape.hazard(_IN_BETWEEN)

    def _train(self, batch_idx: Any) -> Any:
        loop, trainer, batch = self._loop, self._trainer, self._batch
        if not self._has_begun:
            self._hooks.start_step(batch, batch_idx)
        if call._call_lightning_module_hook(trainer, "on_train_batch_start", batch, batch_idx) == -1:
            return None
        call._call_strategy_hook(trainer, "on_train_batch_start", batch, self._batch_idx)
        loop.batch_progress.increment_started()
        if self._tape.records and not outputs_are_seen(trainer):
            self._tape.puts_out(trainer.lightning_module.training_step)
        kwargs = loop._build_kwargs(OrderedDict(), batch, batch_idx)
        with trainer.profiler.profile("run_training_batch"):
            if trainer.lightning_module.automatic_optimization:
                return loop.automatic_optimization.run(trainer.optimizers[0], self._batch_idx, kwargs)
            return loop.manual_optimization.run(kwargs)

    def _span(self, stepped: list[Any], part: Callable[[Any], Any]) -> Any:
        """Runs a part of the step, given the batch's index as the user's code sees it.

        What is logged and which counters are read is noted; `stepped` takes the schedulers that are stepped by hand.
        """
        trainer, tape = self._trainer, self._tape

        def watched() -> Any:
            with ExitStack() as stack:
                stack.enter_context(captured(trainer, self.log, tape))
                if type(tape) is not Tape:  # also where a step is compared with a program's
                    log = self.log
                    stack.enter_context(noted(log.metrics, trainer.lightning_module, tape))
                    stack.enter_context(LoggerWatch(trainer, log.calls, log.values, log.due, tape).watching())
                batch_idx = tape.watched("batch_idx", self._batch_idx)
                if tape.records:
                    stack.enter_context(lifted_counters(trainer, tape, stepped))
                return part(batch_idx)

        try:
            return tape.span(watched, self._rewind(stepped))
        finally:
            self.log.due.make()

    def _rewind(self, stepped: list[Any]) -> Callable[[], None]:
        """Returns what goes back to here, for a span that has to be run once more."""
        if not self._tape.records:
            return lambda: None
        loop, log, counters = self._loop, self.log, Counters(self._loop)
        counted = counters.present()
        logged = log.copy()
        kept = keep_results(loop), keep_metrics(loop.trainer.lightning_module), keep_schedules(loop.trainer)

        def rewind() -> None:
            self.log = logged
            counters.restore(counted)
            for restore in kept:
                restore()
            stepped.clear()

        return rewind
