"""How a step comes by its program: what runs the plain way is recorded where that may lead to one, and compiled.

The maker owns what is known of steps without a program, the compiled functions, and the reasons for which steps stay
without one; whoever runs the programs tells it when what it has seen is no longer right.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from time import perf_counter
from weakref import ref

from torch import Tensor

from lightning_sink.engine.compiler.functions import Functions
from lightning_sink.engine.compiler.loop import CompiledStep, Compiler
from lightning_sink.engine.programs.binding import Binding
from lightning_sink.engine.programs.bystanders import Asked
from lightning_sink.engine.programs.candidates import (
    LONG,
    PATIENCE,
    TOO_MANY_KINDS,
    Candidate,
    Candidates,
)
from lightning_sink.engine.programs.economy import Economy
from lightning_sink.engine.programs.in_vain import InVain
from lightning_sink.engine.programs.observation import Observation
from lightning_sink.engine.programs.program import Program
from lightning_sink.engine.programs.registry import Programs
from lightning_sink.engine.shadows import alone
from lightning_sink.engine.state.counts import Counts
from lightning_sink.engine.state.default_generators import Generators
from lightning_sink.engine.state.granted import Granted, State, while_recorded
from lightning_sink.engine.state.hyper import Hyperparameters
from lightning_sink.engine.state.slots import Parts, Snapshot
from lightning_sink.engine.step import Key, Sink, Step, Tape
from lightning_sink.engine.tracing.questions import MOST_ANSWERS, OF_BATCH
from lightning_sink.engine.tracing.record import Recorder
from lightning_sink.engine.watch import CHANGES, Hazard

_MOST_FAILURES = 3
"""How often a kind of step is given up, each time because of a hazard, before nobody tries again."""

_MOST_LOST = 3
"""Programs that are lost since a place has another tensor, before others read anew what is there: it may be replaced
once, or in each epoch."""

_KEEP_ELSEWHERE = "keep it outside of the module, or make it a tensor"
_FLAGS, _LEAVE_FLAGS = ("requires_grad", "training"), "have it the same at the start of each step (`toggle_optimizer`)"

_RESTLESS = "what the step takes as constant, attributes or the optimizer's options, keeps changing"

_TOO_MANY_ANSWERS = f"{OF_BATCH} decides what Python does, and there are {MOST_ANSWERS} programs for different ones"

_LOSING = "each program runs too few steps to be worth recording and compiling it"

_SHORT_LIVED = "tensors that the step takes to stay as they are, or whose values decide what Python does, keep changing"

_ON_BATCH = (
    "the step leaves a gradient, or what asks for one, on a tensor of the batch, and there it is when the batch comes"
    " again; `x = x.detach().requires_grad_()` leaves none"
)

_INTO_BATCH = "the step puts something into its batch, or takes something out (`batch['x'] = ...`, `batch.pop('x')`), "
_COMES_AGAIN = f"{_INTO_BATCH}and there the step finds it when the batch comes again, as it may"
_IS_SHOWN = f"{_INTO_BATCH}and a callback's batch hook looks at its batch"

_ENOUGH = 4
"""Steps that programs run between two replacements of objects, for which making them anew is worth it: more than are
recorded."""

_MOST_NAMES = 3
"""Names of what keeps changing that are said."""


class ProgramMaker:
    """Runs steps the plain way and makes programs of them, for `programs`; arguments as for `CompiledEngine`."""

    def __init__(
        self,
        programs: Programs,
        parts: Parts,
        hyper: Hyperparameters,
        granted: Granted,
        compiler: Compiler,
        *,
        costly: bool,
        fallback: Callable[[Hazard, bool], None],
    ) -> None:
        self._programs, self._parts, self._hyper = programs, parts, hyper
        self._counts, self._granted = Counts(parts.counters), granted
        self._costly, self._fallback = costly, fallback
        self._functions = Functions(compiler, Generators(parts.device))
        self._candidates = Candidates()
        self._failures = Counter[Key]()
        self._in_vain = InVain()
        self._volatile: set[str] = set()
        self._replaced: dict[str, tuple[int, ref[Tensor]]] = {}  # how often places had another tensor, and the last one
        self._cleared: set[str] = set()  # gradients that were there, and that a step has cleared first of all
        self._reported: dict[str, str] = {}  # with what it was said of, where that was all steps
        self._restless = self._short_lives = self._steps_at_loss = 0
        self._steps = 0  # that programs had run when one of them last ran
        self._changed: Sequence[str] = ()
        self._steps_at_change: int | None = None  # that programs had run when they began behind the last change
        self._economy = Economy()
        self._losing = 0  # steps that had no program since none is worth it
        self._too_many = self._looked = self._explained = self._has_recorded = False

    def run(self, sink: Sink, step: Step, number: int, steps: int) -> State | None:
        """Runs a step that has no program, recorded if that may lead to one; by then programs have run so many steps.

        Returns what that one takes for granted, as the step left it, before anything that comes behind it; None if
        there is none.
        """
        self._steps = steps
        candidate = self._candidates.see(step.key, number)
        if candidate is None:
            self._explain(sink, step, too_many=True)
        elif self._restless > PATIENCE:
            self.report(self._why_restless())
        elif self._short_lives > PATIENCE:
            self.report(Hazard(_SHORT_LIVED))
        elif self._failures[step.key] < _MOST_FAILURES:
            never = self._candidates.never_come_again
            waits = never or self._candidates.is_looking or (self._costly and self._candidates.wait_for_long)
            are_many = self._economy.are_many_held_back(self._steps)
            if (waits and not self._programs) or are_many:
                self._explain(sink, step, too_many=never or are_many)
            due = candidate.is_due(not self._programs.count_shapes(step.kind)) and self._is_worth(step, candidate)
            # What keeps changing may be nothing but what steps collect in: a recorded one tells.
            due = due or (self._restless > 1 and not self._has_recorded)
            may = not self._waits() and (due or not (self._costly or candidate.hazard is not None))
            # Where other steps have programs, a step may be seldom no example, and is not to hold up a new way.
            if may and (self._programs.have(step.key) or not candidate.rests()):
                with alone() as is_alone:
                    if is_alone:
                        return self._make_or_learn(sink, step, candidate)
        began = perf_counter()
        sink.run(step, Tape())
        if candidate is not None and candidate.hazard is None:
            seconds = perf_counter() - began
            candidate.missed_seconds += seconds
            self._economy.missed(seconds)
        return None

    def _is_worth(self, step: Step, candidate: Candidate) -> bool:
        """Tells whether another program may be compiled for steps of a kind: those first that missed it most."""
        ways, is_first = self._programs.count(step.key), not self._programs.count_shapes(step.kind)
        if (ways or is_first) and self._economy.is_prompt(ways, self._steps):
            return True
        if not ways and self._economy.is_paid_by(candidate.missed_seconds):
            return True
        if self._economy.is_worth(self._steps) and self._candidates.miss_no_more_than(candidate):
            return True
        why = self._why_losing(step.key) if self._economy.is_losing(self._steps) else None
        if why is None:
            self._economy.held_back += not ways
            return False
        self._losing += 1
        if self._losing > LONG:
            self.report(why)
        return False

    def _why_losing(self, key: Key) -> Hazard | None:
        """Returns why one program after another ran too few steps, as far as that is known."""
        decides = self._programs.deciding(key)
        why = decides or (self._why_restless() if self._changed else None)
        return None if why is None else Hazard(f"{_LOSING}: {why.what}", why.where, why.way_out)

    def _waits(self) -> bool:
        """Tells whether the present step is not recorded since step after step has made no program, for one reason."""
        if self._programs or not self._in_vain.waits:
            return False
        if self._in_vain.has_waited():
            self._candidates.try_again(self._in_vain.reason)
            # Not those that were undone although they had acted: nothing is to act twice again.
            self._failures = Counter({key: many for key, many in self._failures.items() if many >= _MOST_FAILURES})
        return True

    @property
    def has_given_up(self) -> bool:
        """Whether what programs take for granted was found to keep changing: there will be none, for no step."""
        return not self._reported.keys().isdisjoint((_RESTLESS, _SHORT_LIVED))

    def _why_restless(self) -> Hazard:
        if not self._changed:
            return Hazard(_RESTLESS)
        names = ", ".join(f"`{name}`" for name in self._changed[:_MOST_NAMES])
        others = len(self._changed) - _MOST_NAMES
        more = f" and {others} more" if others > 0 else ""
        way_out = _LEAVE_FLAGS if all(name.endswith(_FLAGS) for name in self._changed) else _KEEP_ELSEWHERE
        return Hazard(f"{_RESTLESS}: {names}{more}", way_out=way_out)

    def _explain(self, sink: Sink, step: Step, too_many: bool) -> None:
        """Says once why kinds of steps do not come again: values that change, or else that they are too many."""
        self._too_many = self._too_many or too_many
        if not self._explained and (too_many or not self._looked):
            why = self._candidates.why(sink.values(step))
            self._looked = self._looked or why is not None
            if why is not None and (self._too_many or why is not TOO_MANY_KINDS):
                self._explained = True
                self.report(why)

    def settled(self, steps: int, seconds: float) -> None:
        """Takes note that a program ran, for so long: what it takes for granted may stay as it is for some time.

        By then programs have run so many steps.
        """
        self._economy.ran(seconds)
        self._steps = steps
        if self._steps_at_change is None:
            self._steps_at_change = steps
        if steps - self._steps_at_change >= PATIENCE:
            self._restless = 0

    def lost(self, steps: int, replaced_in: Mapping[str, Tensor]) -> None:
        """Takes note that tensors, or values of theirs, are others than a program takes them to be.

        By then programs have run so many steps. What is replaced in places again and again, by tensors that are there
        now, programs take from there from now on: the steps that do so may be rare, and have not been recorded.
        """
        lived_long = steps - self._steps_at_loss >= PATIENCE
        self._short_lives = 0 if lived_long else self._short_lives + 1
        self._steps_at_loss = steps
        for name, tensor in replaced_in.items():
            many, last = self._replaced.get(name, (0, None))
            if last is None or last() is not tensor:  # several programs may be lost by one
                self._replaced[name] = many + 1, ref(tensor)
        self._take_anew({name for name in replaced_in if self._replaced[name][0] >= _MOST_LOST})

    def forget(self, changed: Sequence[str] = (), granted: State | None = None) -> None:
        """Forgets programs and recordings: what they take for granted has changed; by these names if it has any.

        Where it may come again, that is what was `granted`, and programs wait for it.
        """
        if self._programs or self._candidates:
            # Where programs are not worth it, there are none for long, and what changes may stay as it is then.
            self._restless += not (self._costly and self._economy.is_losing(self._steps))
            self._changed = changed
        self._steps_at_change = None
        # A step that changes what programs take for granted is forgotten before it has been recorded often enough.
        for key, problem in self._candidates.problems():
            if not self._programs.have(key):
                self._fail(key, problem)
        if granted is None:
            self._programs.clear()
        else:
            self._programs.put_aside(granted)
        self._in_vain.changed()
        self._candidates.clear()

    def take_over(self, other: ProgramMaker, replaced: Sequence[str]) -> None:
        """Goes on where another one ends, which had objects of the training's that others have replaced."""
        other.forget(replaced)
        self._functions, other._functions = other._functions, self._functions
        self._reported, self._changed = other._reported, other._changed
        self._economy, self._losing = other._economy, other._losing
        self._economy.begin_again(other._steps)
        self._restless = 0 if other._steps >= _ENOUGH else other._restless

    def close(self) -> None:
        """Lets go of every function, program and recording."""
        self._functions.clear()
        self._programs.clear()
        self._candidates.clear()

    def report(self, hazard: Hazard) -> None:
        """Says why steps run the plain way, if that has not been said."""
        what, _, of = hazard.what.partition(":")
        if what not in self._reported:
            self._reported[what] = of
            partly = (bool(self._programs) or self._programs.only_wait) and not self.has_given_up
            if partly:
                self._reported[what] = ""
            if what != _RESTLESS or not self._is_known():
                self._fallback(hazard, partly)

    def _is_known(self) -> bool:
        """Tells whether it was said of all that keeps changing that the step changes it."""
        told = self._reported.get(CHANGES, "") + self._reported.get(_LOSING, "")
        return bool(self._changed) and all(f"`{name}`" in told for name in self._changed)

    def gives_up(self, key: Key, hazard: Hazard) -> None:
        """Leaves a kind of steps to the plain way, and says why."""
        self._fail(key, hazard, _MOST_FAILURES)

    def _fail(self, key: Key, hazard: Hazard, times: int = 1) -> None:
        self._failures[key] += times
        if self._failures[key] >= _MOST_FAILURES:
            self.report(hazard)

    def _make_or_learn(self, sink: Sink, step: Step, candidate: Candidate) -> State | None:
        """Runs a step recorded, and takes note of what that took."""
        began = perf_counter()
        granted = self._record(sink, step, candidate)
        self._economy.spent(perf_counter() - began)
        if granted is not None:
            self._economy.made(self._steps)
        return granted

    def _record(self, sink: Sink, step: Step, candidate: Candidate) -> State | None:
        self._has_recorded = True
        before = Snapshot(self._parts)
        asked = Asked(before)
        looks: list[State] = []

        def look() -> dict[str, Hashable]:
            looks.append(self._granted.state())
            return looks[-1].python

        recorder = Recorder(self._hyper, self._counts, before, step.leaves, look)
        result = sink.run(step, recorder)
        look()
        self._granted.learn(recorder.ran)
        if sink.sets_any({left.key for left, *_ in self._hyper.set_by_step()}, result.note):
            recorder.hazard("the step sets the optimizer's options, and a schedule does so, too")
        self._check_batch(sink, recorder)
        observation = Observation(recorder, before, Snapshot(self._parts), step, result)
        self._take_anew({slot.name for slot in (*observation.filled, *observation.cleared)})
        first = {slot.name for slot in observation.cleared_first}
        self._cleared |= first.intersection(slot.name for slot in observation.cleared)
        recording = observation.recording
        self._parts.varying.check([hazard.what for hazard in recording.frozen], not recording.hazards)
        bindings = candidate.compare(observation, self._volatile, self._cleared)
        if bindings is not None:
            made = self._make(step.key, candidate, observation, bindings, asked)
            return while_recorded(looks) if made else None
        reason = recording.hazards[0] if recording.hazards else None
        if self._in_vain.add(reason) and reason is not None and not self._programs:
            self._in_vain.begin_wait()
            self.report(reason)
        if candidate.hazard is not None:
            self._fail(step.key, candidate.hazard, _MOST_FAILURES if recording.acts_twice else 1)
            self.report(candidate.hazard)
        elif recording.failed:
            self._fail(step.key, recording.hazards[0])  # also where it comes as another candidate the next time
        if recording.failed_by_raise:
            self.report(recording.hazards[0])  # it may have been the user's own, which is gone now
        return None

    @staticmethod
    def _check_batch(sink: Sink, recorder: Recorder) -> None:
        """Sees whether a step leaves something on its batch, or in it, where somebody finds it."""
        contents, on_tensors = recorder.batch_contents, recorder.batch_gradients.are_left()
        if not (on_tensors or contents.are_changed()):
            return
        into_its = contents.are_left()
        recorder.recording.needs_own_batch = on_tensors or into_its
        is_shown, may_come_again = sink.shows_batch, not sink.owns_batch
        if on_tensors and (is_shown or may_come_again):
            recorder.hazard(_ON_BATCH)
        if contents.are_changed() and (is_shown or (into_its and may_come_again)):
            recorder.hazard(_IS_SHOWN if is_shown else _COMES_AGAIN)

    def _take_anew(self, names: set[str]) -> None:
        if not names <= self._volatile:
            self._volatile |= names
            self._programs.remove_homes(names)

    def _make(
        self,
        key: Key,
        candidate: Candidate,
        observation: Observation,
        bindings: list[Binding],
        asked: Asked,
    ) -> bool:
        recording = observation.recording
        function: CompiledStep | Hazard
        if recording.questions and self._programs.count_answers(key) >= MOST_ANSWERS:
            function = Hazard(_TOO_MANY_ANSWERS, recording.questions[-1].where)
        else:
            function = self._functions.get(recording)
        if isinstance(function, Hazard):
            candidate.give_up(function)
            self.report(function)
            return False
        candidate.found(observation)
        self._failures.pop(key, None)
        if not candidate.last:
            self._candidates.drop(key)
        tensors = [binding.tensor for binding in bindings if binding.tensor is not None]
        parts = self._parts
        knowing = self._counts, parts.carried, parts.drawn, parts.optimizer_counts, self._hyper
        taken = {id(tensor) for tensor in tensors}
        counts = [pair for each in knowing for pair in each.inputs() if id(pair[0]) in taken]
        lifted = [*self._hyper.tensors.values(), *parts.varying.tensors]
        held = [pair for pair in parts.carried.inputs(written=True) if id(pair[0]) in taken]
        known = {slot.name for binding in bindings for slot in binding.slots}
        recorder = observation.recorder
        bystanders = asked.of_others(self._volatile | known, bindings, recorder.ran.values(), recorder.got)
        if self._programs.add(key, Program(observation, bindings, function, bystanders, counts, held, lifted)):
            self.lost(self._steps, {})
        return True
