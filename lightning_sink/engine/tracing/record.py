"""Records a step while it trains: the trace is one real step of the training that leaves a graph behind.

Nothing is simulated and nothing is thrown away. The step runs on real tensors through PyTorch's own autograd and
optimizer, below them a dispatch mode writes down every operation. So a recorded step has the side effects, the random
draws and the results that it has in plain training, and a step that turns out not to be compilable has simply been
trained.

`Recorder` owns one recording while it is made, and what Python does in the step; operations are written down in
`operations.py`. `Recording` is what stays. Whether it may stand for later steps is decided in `binding.py`, by
comparing it with the recording of the step before.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from types import CodeType, FrameType
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.optim import Optimizer

from lightning_sink.engine.numbers.guards import Uses
from lightning_sink.engine.numbers.handed import Handed
from lightning_sink.engine.numbers.math_functions import known_to_math
from lightning_sink.engine.numbers.number import Number
from lightning_sink.engine.numbers.passed_on import RETURNED
from lightning_sink.engine.numbers.plain_uses import PlainUses
from lightning_sink.engine.private import scaler_steps_by
from lightning_sink.engine.state.attribute_watch import Looks
from lightning_sink.engine.state.attributes import changed_names
from lightning_sink.engine.state.collected import Place, Watched
from lightning_sink.engine.state.collectors import containers_in
from lightning_sink.engine.state.counts import Counts
from lightning_sink.engine.state.hyper import Hyperparameters
from lightning_sink.engine.state.lookups import lookups_known
from lightning_sink.engine.state.slot import Slot
from lightning_sink.engine.state.slots import Snapshot
from lightning_sink.engine.step import Tape
from lightning_sink.engine.tracing.assumptions import Assumptions
from lightning_sink.engine.tracing.count import added_to
from lightning_sink.engine.tracing.identities import Identities
from lightning_sink.engine.tracing.left_behind import learn, lines_of, release
from lightning_sink.engine.tracing.left_on_batch import BatchContents, BatchGradients
from lightning_sink.engine.tracing.old_gradients import OldGradients
from lightning_sink.engine.tracing.operations import Operations
from lightning_sink.engine.tracing.put_out import PutOut
from lightning_sink.engine.tracing.recording import Recording
from lightning_sink.engine.tracing.stand_in import StandInMode
from lightning_sink.engine.tracing.step_counts import StepCounts
from lightning_sink.engine.tracing.undo import Attributes
from lightning_sink.engine.tracing.values import Values
from lightning_sink.engine.tracing.whose_error import is_raised_by_user, may_be_ours
from lightning_sink.engine.watch import CHANGES, DRAWN, Hazard, unwatched, user_line, watch_reads
from lightning_sink.errors import add_note
from lightning_sink.whose import is_pythons

_OF_MODULES = nn.Module.__getattr__.__code__
"""What gives parameters, buffers and modules, in whichever way they are asked for."""

_SETS_IN_MODULES = nn.Module.__setattr__.__code__
_REGISTERS = nn.Module.register_buffer.__code__
_SETS_PAST = frozenset(["_buffers", "_parameters", "__dict__", "__setattr__", "vars"])
"""Names by which code gives a module an attribute without calling either."""


class Recorder(Tape):
    """Records the spans of one step. It is the step's tape.

    Args:
        hyper: The optimizers' hyperparameters; those that are lifted become inputs of the graph.
        counts: The owner's counters; those that the step uses become inputs of the graph.
        before: What every slot holds before the step.
        leaves: The batch's tensors.
        look: Returns a fingerprint of the Python values that the step may change, by name.

    Attributes:
        moved: The tensors to which the step gives other memory.
        batch_gradients: What was on the batch's own tensors before the step.
        batch_contents: What the batch held.
        identities: Which tensors it asks whether they are others.
        put_out: The numbers among what it puts out.
    """

    records = True

    def __init__(
        self,
        hyper: Hyperparameters,
        counts: Counts,
        before: Snapshot,
        leaves: Sequence[Tensor] = (),
        look: Callable[[], dict[str, Hashable]] = dict,
    ) -> None:
        self.recording = Recording(fx.Graph())
        self.ran: dict[int, CodeType] = {}
        self.got = set[tuple[int, str]]()  # which modules were asked for which parameter, buffer or module
        self._put = set[tuple[int, str]]()  # which modules were given which attribute
        self.taken: list[list[tuple[Place, Any]]] = []
        self._watched = Watched()
        self._uses = Uses(self.recording.hazard, self.recording.freeze, lambda: not self._operations.are_paused)
        self._look, self._hyper, self._counts, self._before = look, hyper, counts, before
        varying = before.parts.varying
        varying.begin(before.parts.holders())
        kept = [*before.parts.carried.begin(), *before.parts.drawn.begin(), *before.parts.optimizer_counts.begin()]
        changing = [*hyper.begin(), *counts.begin(), *kept, *varying.tensors]
        appended = lambda tensor: self._watched.items.get(id(tensor))  # noqa: E731
        self._operations = Operations(self.recording, before, leaves, changing, lambda: self._values, appended)
        self._writer, self.moved = self._operations.writer, self._operations.moved
        self._steps = StepCounts(before, self._writer.node, self._uses, self.recording, self.paused)
        self.batch_gradients, self.batch_contents = BatchGradients(leaves), BatchContents()
        self._handed, self.old_gradients, self.identities = Handed(), OldGradients(), Identities()
        # `PlainUses` and `Values` ask each other while the step runs, so the one is made before what it asks.
        self._plain = PlainUses(before.parts.carried.has, lambda getter: self._values.receives(getter), self._handed)
        self._assumptions = Assumptions(self.recording, self._writer)
        known = self._is_sum, self._uses, self._plain, self._operations.origin, self._assumptions, self.paused
        self._values = Values(self.recording, leaves, before.parts, self._writer, *known)
        self._looks, self.put_out = Looks(self._uses, self.ran, [], self._plain), PutOut()
        self._failed = False

    def _called(self, frame: FrameType) -> None:
        if frame.f_code is _OF_MODULES:
            self.got.add((id(frame.f_locals["self"]), frame.f_locals["name"]))
        elif frame.f_code is _SETS_IN_MODULES or frame.f_code is _REGISTERS:
            self._put.add((id(frame.f_locals["self"]), frame.f_locals["name"]))
        self.old_gradients.called(frame)
        self._handed.called(frame)
        self.identities.called(frame)

    # -- the tape ---------------------------------------------------------------------------------------------------

    def span(self, body: Callable[[], Any], rewind: Callable[[], None]) -> Any:
        """Runs `body` recorded; if that raises, undoes it and runs it plainly, so that only a real error surfaces."""
        generated = self._operations.generators.state()
        parts = self._before.parts
        present, attributes = self._before.again(), Attributes(parts)
        self._operations.undo.forget()
        python = self._look()
        self._uses.closed = False
        self._operations.redraws.begin()
        self._hyper.begin_part()
        try:
            with ExitStack() as stack:
                self._watch(stack)
                out = self.put_out.plainly(body())
                left = parts.carried.leave()
                if self._handed.are_given and not self._handed.sees_calls:
                    self.hazard("the step sets another profile hook (`sys.setprofile`, `cProfile`)")
            self._operations.redraws.end()
            release(self._uses, self._steps.numbers, parts, self.hazard)
            self._collect(attributes, left)
            self._compare(python, attributes)
            return out
        except BaseException as error:
            release(self._uses, self._steps.numbers, parts, lambda what: None)  # the frames of the error hold some
            if not isinstance(error, Exception) or not may_be_ours(error):
                raise
            self._fails(error)
        self._operations.undo.restore()
        present.restore()
        self.batch_gradients.restore()
        self.batch_contents.restore()
        attributes.restore()
        parts.carried.put_back()
        parts.drawn.put_back()
        self._operations.generators.restore(generated)
        rewind()
        self._failed = True
        twice = [name for name, value in self._look().items() if value != python.get(name)]
        if twice:
            self.recording.acts_twice = True
            what = "recording it failed, and this step has changed twice: " + ", ".join(f"`{n}`" for n in twice[:5])
            self.recording.hazards.insert(0, Hazard(what, self.recording.hazards[0].where))
        try:
            return body()
        except Exception as error:
            add_note(
                error, f"[lightning_sink] raised by the second of two runs of the step: {self.recording.hazards[0]}"
            )
            raise

    def _watch(self, stack: ExitStack) -> None:
        """Has all be seen that a step does, until the stack is left."""
        parts, operations = self._before.parts, self._operations
        draws_otherwise = partial(self.recording.hazard, lasts=True)
        # What the user compiled runs operation by operation, and is compiled as ever where nothing is recorded:
        # Dynamo would leave it uncompiled for good, or refuse to where it is to be in one graph.
        stack.enter_context(torch.compiler.set_stance("force_eager"))
        stack.enter_context(
            parts.drawn.watched(self._uses, draws_otherwise, lambda: operations.are_paused, self.paused)
        )
        self._watched = stack.enter_context(parts.collected.watched(self.hazard, parts.carried.tables()))
        stack.enter_context(parts.varying.watched(parts.holders(), self._looks))
        stack.enter_context(parts.carried.watched(self._looks))
        stack.enter_context(lookups_known(parts.holders()))
        operations.hook = stack.enter_context(
            watch_reads(
                self.hazard,
                parts.codes,
                self.ran,
                self._looks.past,
                self._called,
                operations.redraws.sets_back,
                self._are_known,
            )
        )
        self._handed.hook = operations.hook
        told = operations.put_data, self.paused, self.old_gradients.meets
        stack.enter_context(StandInMode(self._number, *told, self._values.taking))
        stack.enter_context(operations)
        stack.enter_context(scaler_steps_by(operations.scaled))
        stack.enter_context(known_to_math())
        stack.enter_context(self._hyper.lifted(self._uses))
        stack.enter_context(parts.optimizer_counts.lifted(self._uses))
        # The backward pass of a device has a thread of its own elsewhere, where the hook would see nothing.
        stack.enter_context(torch.autograd.set_multithreading_enabled(False))
        parts.carried.stand_in_dictionaries()

    def _fails(self, error: Exception) -> None:
        """Notes that recording failed, before all else: that is what the user is to be told."""
        said = str(error).replace(", please report a bug to PyTorch", "")  # that it was recorded is no bug of PyTorch's
        what, done = f"recording it failed: {type(error).__name__}: {said}", self.recording.hazards
        if done:
            # Much of what makes no program, such as writing to a file, cannot be undone.
            what += f"; it was run again, and with it what it had done before (first: {done[0]})"
        self.recording.failed, self.recording.failed_by_raise = True, is_raised_by_user(error)
        self.recording.acts_twice = bool(done)
        self.recording.hazards.insert(0, Hazard(what, user_line(error)))

    def _collect(self, attributes: Attributes, left: list[tuple[Place, Any]]) -> None:
        """Takes what the span collected, and what it has left in attributes."""
        self._watched.check(self.ran.values())
        self.taken.append([*self._watched.taken, *left])
        containers = [*containers_in(item for _, item in self._watched.taken)]
        if len({*map(id, containers)}) < len(containers) or any(map(attributes.hold, containers)):
            self.hazard("the step appends lists or dictionaries that are held elsewhere, too", "")

    def _compare(self, python: dict[str, Hashable], attributes: Attributes) -> None:
        if not self._before.parts.drawn.explains():
            self.hazard(DRAWN)
        if changed := changed_names(python, self._look()):
            lines = lines_of(changed, attributes, self.ran.values())
            names = [*lines, *(name for name in changed if name not in lines)]  # the first one's line is told
            what = f"{CHANGES}: " + ", ".join(f"`{name}`" for name in names[:5])
            self.hazard(what, next(iter(lines.values()), None))
            self._before.parts.optimizer_counts.learn(self._before.parts.optimizers, self._before.states)
        learn(self._before.parts, changed, self._plain.wanted, attributes, self._watched, self.ran.values())

    def gets(self, batch: Any, yielded: Any) -> None:
        """Looks at what the batch holds before the user's code gets it."""
        self.batch_contents = BatchContents(batch, yielded)

    def watched(self, name: str, value: int) -> Any:
        """Returns a stand-in for `value`, or the value once recording has failed."""
        return value if self._failed else self._counts.number(name, value, self._uses)

    def goes_to(self, holder: Any, method: str) -> None:
        """Takes note of a method of the owner's that does the same with a stand-in for a number."""
        self._values.goes_to(holder, method)

    def puts_out(self, function: Callable[..., Any]) -> None:
        """Takes note of a function that returns what the step puts out; code of C's has none to be known by."""
        self._values.goes_to(getattr(function, "__code__", None), RETURNED)

    def decided(self, what: str, of: object, outcome: bool, decide: Callable[[], bool]) -> None:
        """Notes that this recording stands for steps with the same answer."""
        if not self._failed:
            self._uses.froze(f"{what} decides what Python does", (what, id(of)), outcome, decide)

    def hazard(self, what: str, where: str | None = None) -> None:
        """Notes a reason why this recording may not stand for other steps, with the user's line."""
        self.recording.hazard(what, where)

    def is_no_example(self) -> None:
        """Takes note that the step did less than others of its kind."""
        self.recording.is_no_example = True

    def _is_sum(self, holder: Any, key: str) -> bool:
        return self._watched.has_sum(holder, key)

    def _number(self, tensor: Tensor, caller: FrameType) -> Number | None:
        count = self._steps.number(tensor)
        return self._values.number(tensor, caller) if count is None and not self._operations.are_paused else count

    def _are_known(self, method: Any, caller: FrameType) -> bool:
        """Tells whether all numbers of a tensor stay as they are, or go where a program gives them."""
        tensor = method.__self__
        if not isinstance(tensor, Tensor):
            return False
        return (method.__name__ == "tolist" and self._operations.stays(tensor)) or self._values.hands_on(tensor, caller)

    @contextmanager
    def changing_options(self, of: Optimizer) -> Iterator[None]:
        """Lets the owner change an optimizer's options; what uses them behind that makes no program.

        What runs in here is known to do nothing else: its code is no part of the step's.
        """
        if self._failed:
            yield
            return
        with self._hyper.plain(self._uses, of), self.paused(), unwatched():
            yield

    def options_may_be_others(self) -> None:
        """From now on those that are there are not what the step has computed with, and make no program."""
        self._hyper.spend()

    def paused(self) -> AbstractContextManager[None]:
        """Operations in here are not recorded."""
        return self._operations.paused()

    @contextmanager
    def apart(self, what: str, given: Sequence[Tensor]) -> Iterator[None]:
        """Operations in here are not recorded; one that depends on the rest of the step makes no program."""
        with self.paused(), self._operations.outside.entered(what, given, self._before.again().tensors.values()):
            yield

    def foreign(self, tensors: Iterable[Tensor], what: str, used: Callable[[], None] = lambda: None) -> None:
        """Takes note of tensors that no program has."""
        self._operations.outside.add(tensors, what, used)

    def finish(self, outputs: list[Tensor]) -> Recording:
        """Ends the recording; `outputs` are the tensors that its program shall return."""
        recording = self.recording
        self._assumptions.finish()
        self.identities.finish(self.ran.values())
        if self.identities.asks_of_gradients and any(was_there for _, was_there in self.old_gradients.found.values()):
            self.hazard("the step asks which tensor is in a gradient")
        self._writer.finish(outputs)
        counts = self._values.check()
        recording.guards = list(self._uses.guards.values())
        recording.counts = [*self._steps.deciding(recording.guards), *counts]
        parts = self._before.parts
        recording.is_alone = parts.carried.changes_types
        carried = [*parts.carried.set_by_step(), *parts.drawn.left(self.hazard), *self._hyper.set_by_step()]
        carried += parts.optimizer_counts.set_by_step()
        for carry, host, text in carried:
            recording.carries.append((carry, host))
            recording.text += f"\n{text}"
        self._operations.finish()
        written = recording.written_inputs
        for node in recording.graph.find_nodes(op="placeholder"):
            number = node.meta.get("input")  # none where recording has failed at it
            if number in written and recording.inputs[number].numel() == 1:
                recording.adds[number] = added_to(node)
        return recording

    def puts_into(self, slot: Slot, unseen: bool) -> bool:
        """Tells whether the step puts a tensor into a slot, as far as that is seen; `unseen`: or may do so."""
        if slot.is_gradient:
            return slot.owner_id in self.old_gradients.cleared or slot.owner_id in self.old_gradients.given
        if (slot.owner_id, slot.key) in self._put:
            return True
        past = (code for code in self.ran.values() if _SETS_PAST.intersection(code.co_names))
        return unseen and (slot.is_set_unseen or not all(map(is_pythons, past)))

    def made(self, tensor: Tensor) -> bool:
        """Tells whether an operation of this recording gave the tensor."""
        return self._writer.made(tensor)
