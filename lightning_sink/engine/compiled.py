"""The engine that runs programs in the place of steps.

Decides, step by step: run the program that fits, or let the maker run the step, recorded because there may be one.
Programs are found by what must be equal for them to be right: the kind of the step and the batch's signature, the
branches that numbers decide, and `_state`, looked at when a sink begins.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

from torch import Tensor

from lightning_sink.engine.compiler.loop import Compiler
from lightning_sink.engine.eager import EagerEngine
from lightning_sink.engine.failures import AssumptionFailedError, note_step, with_type
from lightning_sink.engine.programs.candidates import PATIENCE
from lightning_sink.engine.programs.maker import ProgramMaker
from lightning_sink.engine.programs.patience import Patience
from lightning_sink.engine.programs.program import Program
from lightning_sink.engine.programs.registry import Programs
from lightning_sink.engine.programs.verify import verify_step
from lightning_sink.engine.rows import Rows
from lightning_sink.engine.shadows import alone
from lightning_sink.engine.state.default_generators import Generators
from lightning_sink.engine.state.granted import Glance, Granted, State, agree
from lightning_sink.engine.state.hyper import Hyperparameters
from lightning_sink.engine.state.slots import Parts
from lightning_sink.engine.step import Engine, Key, Sink, Step, Tape
from lightning_sink.engine.watch import Hazard

_MOST_FAILING = 1 / 3
"""How many steps may go another way for each that a program runs. Their time is lost, which of large ones is as much as
that of the plain way; of small ones it is next to nothing."""

_FREE_SECONDS, _MOST_LOOKING = 0.2, 0.05
"""What looking at all that is Python may take while no step has a program: so long, and this part of the time."""

_SOUGHT = 2
"""Steps at the begin of a sink before which programs that wait are looked for, however long it takes: one is recorded
else, which takes longer."""


class CompiledEngine(Engine):
    """Records steps and runs programs.

    Args:
        costly: Whether compiling takes long enough to wait until a kind of step comes again.
        verify: How many steps of each new program are compared with eager ones.
        fallback: Told once of each reason why steps run the plain way, and whether others have programs; may raise.
    """

    def __init__(
        self,
        name: str,
        parts: Parts,
        compiler: Compiler,
        *,
        costly: bool,
        verify: int,
        fallback: Callable[[Hazard, bool], None],
    ) -> None:
        self.name, self._verify, self._parts = name, verify, parts
        self._hyper = Hyperparameters(parts.optimizers)
        self._granted = Granted(parts, self._hyper)
        self._generators = Generators(parts.device)
        self._glance: Glance = [], []
        self._programs = Programs()
        self._patience = Patience(self._programs, costly=costly, fallback=fallback)
        self._maker = ProgramMaker(self._programs, self._patience, parts, self._hyper, self._granted, compiler)
        self._verified: dict[str, int] = {}
        self._state: State | None = None
        self._sinks = 0
        # How often the user's code has run, or may have: programs that were last used before take their tensors anew.
        self._generation = 0
        self._parted = -1  # the generation in which tensors that steps move were last given memory of their own
        self._held = set[int]()  # those of them that could not be
        self._began, self._looking_seconds = time.perf_counter(), 0.0
        self._is_checked = False  # whether what programs take for granted has been looked at since
        self._let_go = Counter[Key]()  # kinds of steps that had programs which often failed
        self._outputs: tuple[Any, ...] | None = None  # what a program gave that steps in a row may follow
        self._ran: Program | None = None
        self._rows = Rows(self._programs, self._hyper, self._forget)
        self._single_steps = 0

    @property
    def active(self) -> str:
        """What steps really run on: this engine's name, or "eager" where no step could be compiled."""
        return "eager" if self._sinks and not self._verified and not self.compiled_steps else self.name

    @property
    def compiled_steps(self) -> int:
        """How many steps programs have run."""
        return self._single_steps + self._rows.steps

    def shows_options(self) -> AbstractContextManager[None]:
        """Takes what a recording has put into the optimizers' options out of them for a while."""
        return self._hyper.shown()

    def take_over(self, other: CompiledEngine, replaced: Sequence[str]) -> None:
        """Takes what another engine has compiled, and said, that ran the steps of the same training before it.

        Objects that steps work with have been put in the place of others since, under these names.
        """
        self._maker.take_over(other._maker, replaced)
        self._verified = other._verified.copy()

    def close(self) -> None:
        """Lets go of every program and recording."""
        self._rows.rest()
        self._maker.close()
        self._verified.clear()
        self._ran = None
        self._rows.forget()
        self._granted.forget()
        self._state = None

    def run(self, sink: Sink) -> None:
        """Runs all steps of a sink."""
        self._sinks += 1
        if sink.eager_reason is not None and sink.eager_reason.way_out:
            self._patience.report(sink.eager_reason)
        if sink.eager_reason is not None or self._patience.has_given_up:
            EagerEngine().run(sink)
            return
        begun, sought = False, 0
        try:
            for step in sink.steps():
                if self._rows.error is not None:  # of this step, when it was run ahead: now is its turn
                    raise self._failed(sink, step, self._rows.error)
                if not begun:  # not before callbacks have seen the first batch, and changed what they change
                    begun = True
                    self._begin(sink)
                self._parts.drawn.forget()
                if self._hyper.update():
                    self._forget()
                if sink.disturbed and not self._patience.has_given_up and (self._programs or self._may_look()):
                    self._look(sink)
                key = step.key
                if self._rows.otherwise is not None:  # a row has ended at it
                    ended, self._rows.otherwise = self._rows.otherwise, None
                    self._goes_otherwise(key, ended)
                    sink.run(step, Tape())
                    continue
                if step.is_met and self._programs.have(key):
                    self._leave_programs()
                    sink.run(step, Tape())
                    continue
                if not self._is_checked and self._programs.have(key) and self._is_worth_a_look(step):
                    self._begin(sink)
                elif self._programs.only_wait and not self._is_checked and sought < _SOUGHT:
                    sought += 1
                    self._look_for_those_that_wait(sink)
                program = self._programs.find(step, self._generation)
                if program is None:
                    self._run_plain(sink, step)
                elif not self._run(sink, step, program):
                    self._programs.remove(key, program)
                    self._run_plain(sink, step)
                else:
                    self._rows.follow(sink, step, program, self._outputs)
        finally:
            self._outputs = None
            self._rows.end_sink()

    def _forget(self, changed: Sequence[str] = (), granted: State | None = None) -> None:
        """Lets go of the programs, and of the windows of such: what they take for granted has changed."""
        self._maker.forget(changed, granted)
        self._rows.forget()

    # -- one step ---------------------------------------------------------------------------------------------------

    def _run_plain(self, sink: Sink, step: Step) -> None:
        self._leave_programs()
        recorded = self._maker.run(sink, step, self._sinks, self.compiled_steps)
        learned = self._granted.take_learned()
        if self._state is not None:
            self._state = self._state.knowing(learned)
        if recorded is not None:
            # Attributes that the first steps set are there now; what was looked at when the sink began is not. What has
            # been set behind the step, by a scheduler say, is a change, and is seen before the next one.
            state = recorded.knowing(learned)
            if sink.disturbed:
                self._granted.find_containers()
            if self._granted.changed_in(state, self._state) is not None:
                self._programs.keep_last(step.key)  # steps of other kinds found something else when they were recorded
            self._state = state

    def _leave_programs(self) -> None:
        self._users_code_ran()
        self._ran = None
        self._rows.interrupt()

    def _users_code_ran(self) -> None:
        """It may have changed what programs take for granted, and put others in the place of tensors."""
        self._generation += 1
        self._is_checked = False

    def _run(self, sink: Sink, step: Step, program: Program) -> bool:
        if program.needs_own_batch and not sink.owns_batch:
            return False
        if program.generation != self._generation:
            if self._parted != self._generation:
                self._held = self._programs.part_memory()
                self._parted = self._generation
            if any(id(tensor) in self._held for tensor in program.moved) or not program.refresh():
                self._maker.lost(self.compiled_steps, program.replaced_in())
                return False
            program.generation = self._generation
        for tensor, get in program.counts:
            tensor.fill_(get())
        program.fill()
        self._outputs, verified = None, self._verified.get(program.text, 0)
        arguments = program.arguments(step.leaves)
        if arguments is None:
            return False
        if verified < self._verify:
            with alone() as is_alone:
                if is_alone:
                    self._compare(sink, step, program, arguments, verified)
                else:
                    self._leave_programs()
                    sink.run(step, Tape())
            return True
        began = time.perf_counter()
        try:
            outputs = program(arguments)
        except AssumptionFailedError:
            self._goes_otherwise(step.key, program)
            sink.run(step, Tape())
            return True
        except Exception as error:
            named = self._failed(sink, step, with_type(error))
            if named is error:
                raise
            raise named from error
        program.seconds = time.perf_counter() - began
        program.store(outputs)
        self._outputs = None if sink.disturbed else outputs
        self._single_steps += 1
        program.steps += 1
        if self._ran is not program:
            self._ran = program
            self._programs.look_again(program)
        self._patience.settled(self.compiled_steps, program.seconds)
        program.carry()
        logged = list(outputs[program.num_outputs : program.num_results])
        loss = None if program.loss is None else outputs[program.loss]
        program.collect(outputs, late=False)
        sink.account(step, partial(program.result, outputs), loss, logged, program.note)
        program.collect(outputs, late=True)
        return True

    def _compare(self, sink: Sink, step: Step, program: Program, arguments: list[Tensor], verified: int) -> None:
        agrees = verify_step(sink, step, program, arguments, verified, self._generators)
        if isinstance(agrees, Hazard):
            self._leave_programs()
            self._programs.remove(step.key, program)
            self._patience.gives_up(step.key, agrees)
        elif agrees:
            self._users_code_ran()
            self._verified[program.text] = verified + 1
        else:
            self._goes_otherwise(step.key, program)

    def _goes_otherwise(self, key: Key, program: Program) -> None:
        """Takes note of a step that goes another way than the program for it, which is let go of if that is often."""
        self._leave_programs()
        program.failed += 1
        if not program.assumed or program.failed <= max(PATIENCE, _MOST_FAILING * program.steps):
            return
        self._programs.remove(key, program)
        self._let_go[key] += 1
        # It may have been made of the first steps, which went a way that later ones do not; the next one was not.
        if self._let_go[key] > 1:
            assumed = program.assumed[0]
            self._patience.gives_up(key, Hazard(assumed.what, assumed.where, assumed.way_out))

    @staticmethod
    def _failed(sink: Sink, step: Step, error: Exception) -> Exception:
        sink.begun(step)
        note_step(error, sink.place())
        return error

    # -- between steps -----------------------------------------------------------------------------------------------

    def _look(self, sink: Sink) -> None:
        """Sees whether the user's code changed something since the step before."""
        self._parts.varying.update()
        began = time.perf_counter()
        glance = self._granted.glance(self._programs.replaced())
        self._looking_seconds += time.perf_counter() - began
        if not agree(glance, self._glance):
            self._glance = glance
            self._begin(sink)
            return
        # Programs take their tensors anew: that is cheap, and what is in them may decide something.
        self._generation += 1

    def _begin(self, sink: Sink) -> None:
        """Looks at what programs take for granted and forgets those that are no longer right."""
        if self._hyper.refresh() or self._hyper.update():
            self._forget()
        self._parts.varying.update()
        if self._programs or self._may_look():
            began = time.perf_counter()
            state = self._present_state(sink)
            changed = self._granted.changed_in(state, self._state)
            if changed is not None:
                self._forget(changed, self._state)
                self._programs.take_again(lambda granted: self._granted.is_again(state, granted))
                self._parts.varying.suspect(changed)
            self._state = state
            self._looking_seconds += time.perf_counter() - began
        self._generation += 1
        self._is_checked = True

    def _look_for_those_that_wait(self, sink: Sink) -> None:
        """Sees whether programs are right again: a step may have left in attributes what the one before had changed."""
        self._parts.varying.update()
        began = time.perf_counter()
        state = self._present_state(sink)
        if self._programs.take_again(lambda granted: self._granted.is_again(state, granted)):
            self._state = state
            self._generation += 1
            self._is_checked = True
        self._looking_seconds += time.perf_counter() - began

    def _may_look(self) -> bool:
        """Tells whether there is time for a look where no step has a program: it tells only whether to try again."""
        present = time.perf_counter() - self._began
        return self._looking_seconds < _FREE_SECONDS + _MOST_LOOKING * present

    def _is_worth_a_look(self, step: Step) -> bool:
        """Tells whether to see what programs take for granted before a step: where none is for it, while there is time.

        An epoch's steps may go a way of their own, for which no program is worth its compiling.
        """
        return self._programs.find(step, self._generation) is not None or self._may_look()

    def _present_state(self, sink: Sink) -> State:
        if sink.disturbed:
            self._granted.find_containers()
        return self._granted.state()
