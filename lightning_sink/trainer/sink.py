"""One sink inside a Trainer: its steps, and Lightning's own order of events around each of them.

`TrainerSink` owns the counters while a sink runs. `run`, with `plain_step.py`, is `_TrainingEpochLoop.advance` of
Lightning 2.6 cut into pieces: the same events in the same order, but that the callbacks' `on_train_batch_start` and
`on_train_batch_end` are called for the first and the last batch only. `account` does for a step that a program ran what
is left of it.

Private names of Lightning (2.6), each because the order of events has no public entry: `batch_progress`,
`_should_accumulate`, `_batches_that_stepped`, `_warning_cache` of `_TrainingEpochLoop`; `_logger_connector` and
`received_sigterm` of `Trainer`; `trainer.call`, which keeps `_current_fx_name` right for `self.log`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterator
from typing import Any, cast

from lightning.pytorch.trainer import call
from lightning.pytorch.utilities.model_helpers import is_overridden
from torch import Tensor

from lightning_sink.data.batch import flatten, values_in
from lightning_sink.engine.history import History
from lightning_sink.engine.interrupt import DeferredInterrupt
from lightning_sink.engine.state.schedulers import may_set
from lightning_sink.engine.step import Result, Sink, Step, Tape
from lightning_sink.trainer.batch_hooks import BatchHooks
from lightning_sink.trainer.counters import Counters
from lightning_sink.trainer.delivery import Delivery
from lightning_sink.trainer.demands import eager_reason
from lightning_sink.trainer.ends import Ends
from lightning_sink.trainer.logging import numbers_in, told_of_logs
from lightning_sink.trainer.note import Note, TurnsNote
from lightning_sink.trainer.plain_step import PlainStep, keep_results
from lightning_sink.trainer.progress import SinkProgress
from lightning_sink.trainer.schedules import (
    schedulers_of,
    step_by_hand,
    step_schedulers,
    stepped_behind_steps,
    steps_by_users_code,
)
from lightning_sink.trainer.transfer import PresentBatch, Transfer
from lightning_sink.trainer.turns import Turn

Kind = tuple[bool, bool, Hashable]
"""Of a step: whether gradients are cleared before it, whether the optimizer steps, and the options of the Trainer."""


class TrainerSink(Sink):
    """The next `length` steps of a Trainer.

    Args:
        length: Steps, at most; the sink ends early with the data, with a trigger by the clock, or on a signal.
    """

    def __init__(self, loop: Any, fetcher: Any, length: int, interrupt: DeferredInterrupt) -> None:
        super().__init__()
        self.history = History()
        self.exhausted = False
        self.skip_epoch = False
        self._loop = loop
        self._trainer = loop.trainer
        self._module = self._trainer.lightning_module
        self._fetcher = fetcher
        self.progress = SinkProgress(loop, fetcher.queue, self.history)
        self._length, self._interrupt = length, interrupt
        self.eager_reason = eager_reason(self._trainer)
        self._transfer = Transfer(self._trainer, done=fetcher.queue.prepares)
        self.logs = Delivery(self._trainer, self._catch_up)
        self._counters = Counters(loop)
        self._ends = Ends(self._trainer, self._counters, interrupt)
        self._hooks = BatchHooks(self._trainer, length == 1, loop.many, loop.compared)
        self._automatic = self._module.automatic_optimization
        # The module's `on_train_batch_end` comes behind the callbacks', and a program has both parts of a step in one.
        has_end = is_overridden("on_train_batch_end", self._module)
        self._meets_end = (has_end and self._hooks.are_met) or self._hooks.ends_inside
        self._index = 0
        self._first = self._last = True
        self._starts_inside = False  # whether callbacks on the host see the present step begin in its midst
        self._is_here = False  # whether the present batch came as the step sees it
        self._batch = PresentBatch(self._trainer, self._transfer)
        self._trained: tuple[Step, Callable[[], Result]] | None = None  # the last one, and what makes its result
        fetcher.queue.looked.see(loop.batch_reads.parts(self._trainer))
        self._look_at_schedules()

    def _look_at_schedules(self) -> None:
        """Sees what is stepped between steps, again wherever the user's code has run: it may change that."""
        self._by_step = bool(stepped_behind_steps(self._trainer))  # asked for at each row of steps
        # A fetch from loaders that hold the training may change what steps take for granted, too.
        runs = steps_by_users_code(self._trainer) or self._trainer.fit_loop.holding.found
        self.disturbed = runs or not self._transfer.is_plain or self._hooks.shows_users

    @property
    def owns_batch(self) -> bool:
        """Whether the queue has made the batch, or torch's own code has for it, and no hook has seen it since."""
        return self._transfer.is_plain and bool(self._fetcher.queue.gives_own)

    @property
    def shows_batch(self) -> bool:
        """Whether a callback looks at the batch that it is shown."""
        return self._hooks.look_at_batch

    # -- the steps --------------------------------------------------------------------------------------------------

    def steps(self) -> Iterator[Step]:
        """Yields each step with its counters and events up to the user's code done."""
        progress, interrupt = self._loop.batch_progress, self._interrupt
        while self._index < self._length and self._next():
            raw = self._batch.yielded
            self._index += 1
            progress.is_last_batch = self._fetcher.done
            self._last = self._index == self._length or progress.is_last_batch or self._ends.is_asked_for
            self.progress.tell()
            self._is_here = self._transfer.is_identity(raw)
            inner = not self._first and not self._last and self._is_here
            batch = raw
            if not inner:
                with self.logs.users_turn():
                    batch = self._batch.get()
            self._counters.ready()
            if not inner:
                self._last = self._last or self._ends.plan_changed
                self._batch.announce()
            if batch is None:
                self._pass_over()
            else:
                self._starts_inside = False
                if self._first or self._hooks.is_start_seen():
                    self._see_start(batch)
                leaves, signature = flatten(batch, self._fetcher.queue.looked)
                kind = self._kind()
                is_met = self._meets_end and (self._last or self._ends.may_be_due())
                is_met = is_met or self._starts_inside
                # What the step's last hook sees is behind the schedule there, and a program has one rate of each.
                is_met = is_met or (progress.is_last_batch and self._ends_otherwise())
                yield Step(batch, leaves, signature, kind, is_met)
                self._first = False
            if self._last or self.skip_epoch or interrupt.requested:
                self.logs.all()
                return

    def _see_start(self, batch: Any) -> None:
        """Calls the callbacks on the host that see the step begin, unless that is to be done in its midst."""
        self._starts_inside = self._hooks.starts_inside(self._first)
        if self._starts_inside:
            return
        if not self._first:
            self._catch_up()
            self.logs.before_step()
        self._start(batch)
        if self._first:
            self._last = self._last or self._ends.plan_changed
            self._look_at_schedules()

    def _start(self, batch: Any, inside: PlainStep | None = None) -> None:
        """Calls the callbacks that see a step begin; `inside` of one, those that belong to it too, in their turn."""
        for turn, callbacks in self._hooks.starts(self._first):
            if turn is not Turn.STEP:
                self._hooks.start(turn, callbacks, batch, self._loop.batch_idx)
            elif inside is not None:
                inside.begin_callbacks(callbacks)

    def _ends_otherwise(self) -> bool:
        """Tells whether code of the user's that ends the epoch's last step may see another rate there."""
        return self._hooks.end_steps and any(each.interval == "epoch" for each in self._trainer.lr_scheduler_configs)

    def _next(self) -> bool:
        """Fetches a batch, if there is one. Ctrl-C takes effect here at once; elsewhere when the step has ended."""
        self._interrupt.held = False
        try:
            with self.logs.users_turn():
                if not self._fetcher.queue.ready:
                    self._interrupt.raise_for_children()
                batch, _, _ = next(self._fetcher)
        except StopIteration:
            self.exhausted = True
            self._end_without_batch(announced=0)
            return False
        except KeyboardInterrupt as error:
            self._interrupt.raised = error
            self._end_without_batch(announced=0)
            return False
        except Exception:
            self._end_without_batch(announced=0)
            raise
        finally:
            self._interrupt.held = True
        self._batch.take(batch)
        return True

    def close(self, failed: bool) -> None:
        """Delivers what was logged before an error; a sink that ended by itself has nothing left."""
        self.progress.end(self.ran_seconds)
        try:
            self._catch_up()
        finally:
            if failed:
                self.logs.before_step()
            self.logs.buffer.deliver()
            # Who keeps the sink, as an error's traceback does, would keep programs, weights and a device's memory.
            self._trained = None
            self._batch.take(None)

    def _catch_up(self) -> None:
        """Sees to what steps left for later: nothing here."""

    def place(self) -> str:
        """Names the present batch, for an error."""
        return f"batch {self._loop.batch_idx} of epoch {self._trainer.current_epoch}"

    def values(self, step: Step) -> dict[str, Hashable]:
        """Returns what a step's batch holds besides tensors."""
        return dict(values_in(step.batch, self._fetcher.queue.looked))

    def schedules(self, note: Note | TurnsNote) -> bool:
        """Tells whether schedulers are stepped between two steps, by Lightning or by the step itself."""
        by_hand = any(of.schedulers or of.late_schedulers for of in note.turns)
        return bool(self._by_step or by_hand)

    def sets_any(self, names: Collection[str], note: Note | TurnsNote | None) -> bool:
        """Tells whether a scheduler between steps may set these options; a step that is skipped has no note."""
        is_any = bool(names) and note is not None and self.schedules(note)
        return is_any and may_set(names, schedulers_of(self._trainer))

    def _kind(self) -> Kind:
        accumulate, options = self._trainer.accumulate_grad_batches, self._options()
        if accumulate == 1:
            return self._automatic, True, options
        return self._loop.batch_idx % accumulate == 0, not self._loop._should_accumulate(), options

    @property
    def _selects(self) -> int:
        """How many optimizer steps there are for each row of the loggers'; 0 where no logger gets any."""
        return self._trainer.log_every_n_steps if self._trainer.loggers else 0

    def _options(self) -> Hashable:
        trainer = self._trainer
        return trainer.accumulate_grad_batches, trainer.gradient_clip_val, trainer.gradient_clip_algorithm

    # -- the plain way ----------------------------------------------------------------------------------------------

    def run(self, step: Step, tape: Tape) -> Result:
        """Runs a step the plain way, in Lightning's own order."""
        self._catch_up()
        self.logs.before_step()
        self._batch.announce()
        loop = self._loop
        batch, batch_idx = self._batch.get(), loop.batch_idx
        # What hooks of the user's give may be anything that is there.
        tape.gets(batch, self._batch.yielded if self._transfer.is_plain else batch)
        counted, plain = self._counters.optimization, PlainStep(loop, self._hooks, tape, batch)
        forget_log = keep_results(loop) if is_overridden("on_train_batch_start", self._module) else lambda: None
        if self._starts_inside:
            self._start(batch, plain)
            tape.is_no_example()  # others of its kind are not met there
        output = plain.train()
        if output is None:
            tape.is_no_example()
            self._skip(forget_log)
            return Result(None, [])
        if not output and self._automatic:
            tape.hazard("the step returned no loss")
        self._processed()
        loss = output.get("loss") if isinstance(output, dict) else None
        result = Result(output, [], loss=loss)
        self._trained = step, lambda: result
        cleared, made = (now - then for now, then in zip(self._counters.optimization, counted, strict=True))
        self._ends.learn(made)
        self._last = self._last or self._ends.is_due(made)
        noted = len(plain.log.calls)
        self.history.add(loss, numbers_in(plain.log.calls, plain.log.values))
        self.progress.trained(step)
        if self._ends.plan_changed:  # whose turn it is may have been changed in the step
            self._hooks = BatchHooks(self._trainer, self._length == 1, self._loop.many, self._loop.compared)
            self._last = True
        for turn, callbacks in self._hooks.ends(self._last):
            if turn is Turn.STEP:
                plain.end_callbacks(callbacks, output)
            else:
                self._hooks.end(turn, callbacks, output, batch, batch_idx)
        if self._ends.plan_changed and not self._last:  # by one of these
            self._last = True
            self._hooks.end_on_host(output, batch, batch_idx)
        early = len(plain.log.calls)
        plain.end(output)
        if self._ends.plan_changed and not self._last:
            # A hook stopped the training, or planned it otherwise, after the callbacks' turn.
            self._last = True
            self._hooks.end_on_host(output, batch, batch_idx, late=True)
        log = plain.log
        for hazard in log.hazards:
            tape.hazard(hazard)
        self._completed()
        self.history.note(numbers_in(log.calls[noted:], log.values[noted:]))
        result.logged = log.computed
        stepped = tuple(plain.schedulers), tuple(plain.late_schedulers)
        result.note = Note(tuple(log.calls), tuple(log.metrics.calls), early, cleared, made, *stepped)
        return result

    def begun(self, step: Step) -> None:
        """Counts what Lightning has counted by the time at which the module's own code fails."""
        self._counters.begun(self._automatic and cast(Kind, step.kind)[1])

    # -- around a step ----------------------------------------------------------------------------------------------

    def account(
        self, step: Step, result: Callable[[], Result], loss: Tensor | None, logged: list[Tensor], note: Note
    ) -> None:
        """Does Lightning's part of a step that a program ran, in the order of Lightning's own.

        1. It is counted, and schedulers step that the step itself has stepped.
        2. Its calls of metrics are made, and what it logged before its last hook is kept (`early`). Where the user's
           code looks at metrics from here on, that is delivered first.
        3. Lightning steps the schedulers. Whatever fails before this ends, the step counts.
        4. Callbacks see it that are shown each batch, and behind it the sink may have to end.
        5. What its last hook logged is kept (`late`); of the sink's last step behind the callbacks' turn, and then all
           is delivered.
        """
        loop, calls = self._loop, note.calls
        steps, number = cast(Kind, step.kind)[1], loop._batches_that_stepped
        self._counters.trained(note.clearings, note.optimizer_steps)
        self._ends.learn(note.optimizer_steps)
        step_by_hand(note.schedulers)
        self._catch_up()
        try:
            values = note.values(logged)
            # Before a scheduler of the user's looks at it, or one fails; a logger gets it with what comes late.
            self.logs.begin(calls[: note.early], values[: note.early], number)
        finally:  # a metric may refuse what it gets: the step counts nevertheless
            if self._trainer.lr_scheduler_configs:
                with self.logs.users_turn():
                    step_schedulers(loop)
        if not self._last and self._hooks.shown:
            self._batch.announce()
            with self.logs.users_turn(), told_of_logs(self._module, self.logs.all):
                self._hooks.end_on_host(result().output, self._batch.get(), loop.batch_idx, last=False)
        if not self._last and self._ends.is_due(note.optimizer_steps):
            # A hook on the host stopped the training or planned it otherwise, or something waits for a step by hand.
            self._batch.announce()
            self._last = True
        if self._last:
            self.logs.before_step()
        self.logs.finish()
        late = calls[note.early :], values[note.early :]
        if not self._last:
            # Of batches that only add to gradients Lightning logs no row, unless the module has its steps by hand.
            self.logs.add(*late, number, self._selects if steps or not self._automatic else 0)
            if self.logs.buffer.is_full:
                self.logs.all()
        self.history.add(loss, numbers_in(calls, values) if calls else [])
        self.progress.trained(step)
        self._trained = step, result
        if not self._last:
            step_by_hand(note.late_schedulers)
            self._counters.completed()
            loop._batches_that_stepped += steps
            return
        self.logs.all()
        self._hooks.end_on_host(result().output, self._batch.get(), loop.batch_idx)
        step_by_hand(note.late_schedulers)
        self.logs.add(*late, number)
        self.logs.all()
        self._completed()

    def _processed(self) -> None:
        self._loop.batch_progress.increment_processed()
        step_schedulers(self._loop)

    def _completed(self) -> None:
        """Ends a batch; what follows the sink's last batch is Lightning's `on_advance_end`."""
        loop, connector = self._loop, self._trainer._logger_connector
        connector.on_batch_end()
        loop.batch_progress.increment_completed()
        connector.update_train_step_metrics()
        if not self._last:
            loop.end_inner_step()
            self._look_at_schedules()

    def _pass_over(self) -> None:
        """A batch of None: plain Lightning warns and counts it."""
        loop = self._loop
        loop._warning_cache.warn("train_dataloader yielded None. If this was on purpose, ignore this warning...")
        self.logs.all()
        self._processed()
        self.history.add(None, [])
        for turn, callbacks in self._hooks.ends(self._last):
            self._hooks.end(turn, callbacks, None, None, loop.batch_idx)
        call._call_lightning_module_hook(self._trainer, "on_train_batch_end", None, None, loop.batch_idx)
        self._completed()

    def _skip(self, forget_log: Callable[[], None]) -> None:
        """Ends the epoch with the batch before: callbacks see what that logged, and not what the skipped one did."""
        self.skip_epoch = self._last = True
        restore = keep_results(self._loop)
        forget_log()
        self._end_without_batch(announced=1)
        restore()
        self._loop.batch_progress.increment_by(0, is_last_batch=True)
        self._processed()

    def _end_without_batch(self, announced: int) -> None:
        """No further batch is trained where more were announced: the one before was the last, its callbacks are due.

        `announced` batches came and are not trained.
        """
        self.logs.all()
        if self._trained is None:
            return
        loop, (step, result) = self._loop, self._trained
        stepped = cast(Kind, step.kind)[1]
        loop._batches_that_stepped -= stepped
        with self._counters.as_before(announced):
            self._trainer._logger_connector.on_batch_end()
            self._hooks.end_on_host(result().output, step.batch, loop.batch_idx, late=True)
        loop._batches_that_stepped += stepped
