"""Steps in a row: what needs nothing but a program, or several in turns, runs in one call, many steps at a time.

`Rows` owns what runs them and how it has ended: with a step that fails, or goes another way, as the next one's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from lightning_sink.engine.compiler.loop import CompiledStep, TurnTaking
from lightning_sink.engine.compiler.row import Repeated
from lightning_sink.engine.failures import AssumptionFailedError
from lightning_sink.engine.programs.chunks import Call, Numbers, most, pass_through
from lightning_sink.engine.programs.program import Program
from lightning_sink.engine.programs.registry import Programs
from lightning_sink.engine.programs.window import Window, Windows
from lightning_sink.engine.state.hyper import Hyperparameters
from lightning_sink.engine.step import Result, Sink, Step

_SHORT = 1e-3
"""Seconds of a step that is long beside what it takes to begin a thread for each sink, 0.2 ms. The memory that such
steps need is theirs no longer than the sink lasts; that of shorter ones is little, and stays until the end."""


class Rows:
    """Runs the steps that come behind one that a program has run.

    Args:
        forget: Lets go of all programs, whose options are others now.

    Attributes:
        steps: How many have been run.
        error: Of the step at which a row has ended, which is the next one's.
        otherwise: The program than which the next step goes another way.
    """

    def __init__(self, programs: Programs, hyper: Hyperparameters, forget: Callable[[], None]) -> None:
        self._programs, self._hyper, self._forget = programs, hyper, forget
        self._windows = Windows()
        self._runner: CompiledStep | TurnTaking | None = None
        self.steps = 0
        self.error: Exception | None = None
        self.otherwise: Program | None = None

    def follow(self, sink: Sink, step: Step, program: Program, outputs: tuple[Any, ...] | None) -> None:
        """Runs, many in one call, the steps that come next and need nothing but this program, or it and others.

        Args:
            sink: Whose steps they are.
            step: The last one.
            program: Has run it.
            outputs: What it gave; None where no row may follow.
        """
        # A window may be longer than what waits in line, or is left of the sink.
        for each in self._repeating(sink, step, program, outputs):
            if not self._programs.have(step.key) or self._ran_ahead(sink, step, each):
                return

    def interrupt(self) -> None:
        """A step has been run otherwise: what followed one another does not any more."""
        self._windows.forget()

    def forget(self) -> None:
        """The programs are gone."""
        self._windows = Windows()

    def end_sink(self) -> None:
        """What a row has ended with is of a step that the sink had no turn for."""
        self.error = self.otherwise = None

    def rest(self) -> None:
        """Ends the thread beside which rows are prepared, and gives back the memory of its steps."""
        if self._runner is not None:
            self._runner.rest()
            self._runner = None

    def _repeating(
        self, sink: Sink, step: Step, program: Program, outputs: tuple[Any, ...] | None
    ) -> list[Program | Window]:
        """Returns what may run the steps that come next; best first."""
        if outputs is None:
            self._windows.forget()
            return []
        turns = sink.turns()
        self._windows.add(step.key, program, outputs)
        window = self._windows.find(sink, turns) if turns else None
        alone = turns == 1 and program.may_repeat(outputs)
        return [*([] if window is None else [window]), *([program] if alone else [])]

    def _ran_ahead(self, sink: Sink, step: Step, program: Program | Window) -> bool:
        """Runs the steps that come next, if they need nothing but the program; tells whether there were any."""
        if self._runner is not program.function:
            self.rest()
            self._runner = program.function
        try:
            first = call = self._prepare(sink, step, program, most(program))
            if call is not None:
                call.launch()
            while call is not None:
                call = self._finish(sink, step, program, call)
        except BaseException:
            sink.pass_again(0, program.note)
            self.rest()
            raise
        if program.seconds > _SHORT:
            self.rest()
        return first is not None

    def _prepare(self, sink: Sink, step: Step, program: Program | Window, steps: int, behind: int = 0) -> Call | None:
        if any(each.needs_own_batch for each in program.turns) and not sink.owns_batch:
            return None
        batches = sink.ahead(step, program.note, steps, behind)
        if batches is None:
            return None
        columns = batches.columns()
        leading = program.leading(columns, len(batches))
        if not leading:
            return None
        numbers = pass_through(sink, program, self._hyper, leading, behind)
        if numbers.stale:
            self._forget()
            if behind:
                sink.pass_again(behind, program.note)
                return None
        is_whole = numbers.steps == len(batches)
        return Call(sink, program, columns, numbers, is_whole) if numbers.steps else None

    def _finish(self, sink: Sink, step: Step, program: Program | Window, call: Call) -> Call | None:
        """Waits for a call and accounts for it; returns the next one, launched.

        Where steps run beside this thread, the next call is prepared meanwhile and waits for its turn. It is not run,
        and not accounted for, where the present one fails.
        """
        following, waits = None, program.function.waits
        try:
            if program.function.overlaps and call.is_whole and not call.failed:
                following = self._prepare(sink, step, program, most(program, call.steps), behind=call.steps)
                if following is not None and not waits:
                    following.launch()
        except BaseException:
            # What was launched counts, whatever became of the batches behind it.
            self._account(sink, program, call.numbers, call.wait())
            raise
        ended = None
        try:
            ended = call.wait()
            self._account(sink, program, call.numbers, ended)
        except BaseException:
            if following is not None and not waits:
                last = following.wait()  # before its inputs are somebody else's
                if ended is not None:
                    with suppress(Exception):  # steps that have run count; the owner's first error is the one raised
                        self._account(sink, program, following.numbers, last)
            raise
        if not call.is_whole or ended.done < call.steps:
            return None  # the next step needs another program, or is the one that failed
        if following is not None and not waits:
            return following
        if following is None and self._programs.have(step.key):  # it may have been forgotten meanwhile
            following = self._prepare(sink, step, program, most(program, call.steps))
        if following is not None:
            following.launch()
        return following

    def _account(self, sink: Sink, program: Program | Window, numbers: Numbers, ended: Repeated) -> None:
        done = ended.done
        if isinstance(ended.error, AssumptionFailedError):
            self.otherwise = program.turns[done % len(program.turns)]
        else:
            self.error = ended.error
        if done:
            losses, logged, collected = program.taken_apart(ended.kept)
            left = [] if ended.outputs is None else program.left(ended.outputs, done)
            for each in program.turns:
                each.steps += done // len(program.turns)
            for which, outputs in left:
                which.store(outputs)
            self.steps += done
            numbers.carry(done)
            self._windows.add_row(program, done)
            program.appends.append_row(collected, done)
            result = partial(_last_result, left)  # asked for behind the last call only, which has it
            sink.account_chunk(done, result, losses, logged, program.note)


def _last_result(left: Sequence[tuple[Program, tuple[Any, ...]]]) -> Result:
    program, outputs = left[-1]
    return program.result(outputs)
