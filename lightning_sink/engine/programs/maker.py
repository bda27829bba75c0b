"""How a step comes by its program: what runs the plain way is recorded where that may lead to one, and compiled.

The maker owns the compiled functions, and what is known of the places that steps fill; whoever runs the programs tells
it when what it has seen is no longer right. Which steps are recorded is for `patience.py`.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from time import perf_counter
from weakref import ref

from torch import Tensor

from lightning_sink.engine.compiler.functions import Functions
from lightning_sink.engine.compiler.loop import CompiledStep, Compiler
from lightning_sink.engine.programs.binding import Binding
from lightning_sink.engine.programs.bystanders import Asked
from lightning_sink.engine.programs.candidates import Candidate
from lightning_sink.engine.programs.observation import Observation
from lightning_sink.engine.programs.patience import Patience
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
from lightning_sink.engine.watch import Hazard

_MOST_LOST = 3
"""Programs that are lost since a place has another tensor, before others read anew what is there: it may be replaced
once, or in each epoch."""

_TOO_MANY_ANSWERS = f"{OF_BATCH} decides what Python does, and there are {MOST_ANSWERS} programs for different ones"

_ON_BATCH = (
    "the step leaves a gradient, or what asks for one, on a tensor of the batch, and there it is when the batch comes"
    " again; `x = x.detach().requires_grad_()` leaves none"
)

_INTO_BATCH = "the step puts something into its batch, or takes something out (`batch['x'] = ...`, `batch.pop('x')`), "
_COMES_AGAIN = f"{_INTO_BATCH}and there the step finds it when the batch comes again, as it may"
_IS_SHOWN = f"{_INTO_BATCH}and a callback's batch hook looks at its batch"


class ProgramMaker:
    """Runs steps the plain way and makes programs of them, for `programs`, where `patience` has them recorded."""

    def __init__(
        self,
        programs: Programs,
        patience: Patience,
        parts: Parts,
        hyper: Hyperparameters,
        granted: Granted,
        compiler: Compiler,
    ) -> None:
        self._programs, self._patience, self._parts, self._hyper = programs, patience, parts, hyper
        self._counts, self._granted = Counts(parts.counters), granted
        self._functions = Functions(compiler, Generators(parts.device))
        self._volatile: set[str] = set()
        self._replaced: dict[str, tuple[int, ref[Tensor]]] = {}  # how often places had another tensor, and the last one
        self._cleared: set[str] = set()  # gradients that were there, and that a step has cleared first of all

    def run(self, sink: Sink, step: Step, number: int, steps: int) -> State | None:
        """Runs a step that has no program, recorded if that may lead to one; by then programs have run so many steps.

        Returns what that one takes for granted, as the step left it, before anything that comes behind it; None if
        there is none.
        """
        candidate, is_due = self._patience.see(sink, step, number, steps)
        if candidate is not None and is_due:
            with alone() as is_alone:
                if is_alone:
                    return self._make_or_learn(sink, step, candidate)
        began = perf_counter()
        sink.run(step, Tape())
        self._patience.ran_plainly(candidate, perf_counter() - began)
        return None

    def lost(self, steps: int, replaced_in: Mapping[str, Tensor]) -> None:
        """Takes note that tensors, or values of theirs, are others than a program takes them to be.

        By then programs have run so many steps. What is replaced in places again and again, by tensors that are there
        now, programs take from there from now on: the steps that do so may be rare, and have not been recorded.
        """
        self._patience.lost(steps)
        for name, tensor in replaced_in.items():
            many, last = self._replaced.get(name, (0, None))
            if last is None or last() is not tensor:  # several programs may be lost by one
                self._replaced[name] = many + 1, ref(tensor)
        self._take_anew({name for name in replaced_in if self._replaced[name][0] >= _MOST_LOST})

    def forget(self, changed: Sequence[str] = (), granted: State | None = None) -> None:
        """Forgets programs and recordings: what they take for granted has changed; by these names if it has any.

        Where it may come again, that is what was `granted`, and programs wait for it.
        """
        self._patience.changed(changed)
        if granted is None:
            self._programs.clear()
        else:
            self._programs.put_aside(granted)

    def take_over(self, other: ProgramMaker, replaced: Sequence[str]) -> None:
        """Goes on where another one ends, which had objects of the training's that others have replaced."""
        other.forget(replaced)
        self._functions, other._functions = other._functions, self._functions
        self._patience.take_over(other._patience)

    def close(self) -> None:
        """Lets go of every function, program and recording."""
        self._functions.clear()
        self._programs.clear()
        self._patience.candidates.clear()

    def _make_or_learn(self, sink: Sink, step: Step, candidate: Candidate) -> State | None:
        """Runs a step recorded, and takes note of what that took."""
        began = perf_counter()
        granted = self._record(sink, step, candidate)
        self._patience.has_recorded(perf_counter() - began, granted is not None)
        return granted

    def _record(self, sink: Sink, step: Step, candidate: Candidate) -> State | None:
        self._patience.begins_to_record()
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
        self._patience.made_none(step.key, candidate, recording)
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
            self._patience.report(function)
            return False
        candidate.found(observation)
        self._patience.made(key, candidate)
        tensors = [binding.tensor for binding in bindings if binding.tensor is not None]
        parts = self._parts
        knowing = self._counts, parts.carried, parts.drawn, parts.optimizer_counts, self._hyper
        taken = {id(tensor) for tensor in tensors}
        counts = [pair for each in knowing for pair in each.inputs() if id(pair[0]) in taken]
        lifted = [*self._hyper.tensors.values(), *parts.varying.tensors]
        held = [pair for pair in parts.carried.inputs(written=True) if id(pair[0]) in taken]
        known = {slot.name for binding in bindings for slot in binding.slots}
        bystanders = asked.of_others(self._volatile | known, bindings, observation.recorder)
        if self._programs.add(key, Program(observation, bindings, function, bystanders, counts, held, lifted)):
            self.lost(self._patience.steps, {})
        return True
