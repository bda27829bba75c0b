"""Records a step while it trains: the trace is one real step of the training that leaves a graph behind.

Nothing is simulated and nothing is thrown away. The step runs on real tensors through PyTorch's own autograd and
optimizer, below them a dispatch mode writes down every operation. So a recorded step has the side effects, the random
draws and the results that it has in plain training, and a step that turns out not to be compilable has simply been
trained. Tensors that the step did not make itself become the graph's inputs, whoever holds them: parameters, optimizer
state, a closed-over tensor.

`Recorder` owns one recording while it is made; `Recording` is what stays. Whether a recording may stand for later
steps is decided in `binding.py`, by comparing it with the recording of the step before.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from types import CodeType, FrameType
from typing import Any

import torch
from torch import Tensor, fx
from torch.fx.node import map_aggregate
from torch.optim import Optimizer

from lightning_sink.engine.numbers.guards import Uses
from lightning_sink.engine.numbers.handed import Handed
from lightning_sink.engine.numbers.math_functions import known_to_math
from lightning_sink.engine.numbers.number import Number
from lightning_sink.engine.numbers.plain_uses import PlainUses
from lightning_sink.engine.numbers.released import released
from lightning_sink.engine.operands import members
from lightning_sink.engine.private import (
    TorchDispatchMode,
    is_computed_again,
    is_mutable,
    scaler_steps_by,
    schema_name,
    written_arguments,
)
from lightning_sink.engine.state.appends import containers_in
from lightning_sink.engine.state.attributes import changed_names
from lightning_sink.engine.state.collected import Place, Watched
from lightning_sink.engine.state.counts import Counts
from lightning_sink.engine.state.default_generators import Generators
from lightning_sink.engine.state.hyper import Hyperparameters
from lightning_sink.engine.state.looks import Looks
from lightning_sink.engine.state.slots import PLAIN_TENSORS, Snapshot, place_of
from lightning_sink.engine.step import Tape
from lightning_sink.engine.tracing.apart import Apart
from lightning_sink.engine.tracing.assumptions import Assumptions
from lightning_sink.engine.tracing.batch_gradients import BatchGradients
from lightning_sink.engine.tracing.bounds import largest_in
from lightning_sink.engine.tracing.graph_writer import GraphWriter
from lightning_sink.engine.tracing.left_behind import learn, release
from lightning_sink.engine.tracing.moved import Moved
from lightning_sink.engine.tracing.origins import Origin, Origins
from lightning_sink.engine.tracing.parts import in_parts
from lightning_sink.engine.tracing.recorded_options import RecordedOptions
from lightning_sink.engine.tracing.recording import Recording
from lightning_sink.engine.tracing.redraws import Redraws
from lightning_sink.engine.tracing.rewritten import by_places, with_types
from lightning_sink.engine.tracing.scaled_steps import ScaledSteps
from lightning_sink.engine.tracing.stand_in import StandInMode
from lightning_sink.engine.tracing.step_counts import StepCounts
from lightning_sink.engine.tracing.undo import Attributes, Undo
from lightning_sink.engine.tracing.unrepeatable import Unfilled, why_unrepeatable
from lightning_sink.engine.tracing.values import Values
from lightning_sink.engine.tracing.whose_error import is_raised_by_user, may_be_ours
from lightning_sink.engine.watch import DRAWN, Hazard, innermost_line, user_line, watch_reads
from lightning_sink.errors import add_note

# Keeps what its backward needs only where gradients are on.
_READS_GRAD_MODE = {"aten::mkldnn_rnn_layer"}


class Recorder(TorchDispatchMode, Tape):
    """Records the spans of one step. It is the step's tape.

    Args:
        hyper: The optimizers' hyperparameters; those that are lifted become inputs of the graph.
        counts: The owner's counters; those that the step uses become inputs of the graph.
        before: What every slot holds before the step.
        look: Returns a fingerprint of the Python values that the step may change, by name.
        sets_options: Whether the owner sets the optimizers' options in the step, or has the user's code do so.

    Attributes:
        moved: The tensors to which the step gives other memory, and a program what that holds.
        batch_gradients: What was on the batch's own tensors before the step.
    """

    records = True

    def __init__(
        self,
        hyper: Hyperparameters,
        counts: Counts,
        before: Snapshot,
        leaves: Sequence[Tensor] = (),
        look: Callable[[], dict[str, Hashable]] = dict,
        sets_options: bool = False,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.recording = Recording(fx.Graph())
        self.ran: dict[int, CodeType] = {}
        self.taken: list[list[tuple[Place, Any]]] = []
        self._watched = Watched()
        self._uses = Uses(self.recording.hazard, self.recording.freeze)
        self._look = look
        self._hyper = hyper
        self._options = RecordedOptions(hyper, self._uses, self.paused, set_in_step=sets_options)
        self._counts, self._before = counts, before
        self._writer = GraphWriter(self.recording, self._take_input)
        self._undo = Undo()
        self._steps = StepCounts(before, self._writer.node, self._uses, self.recording.equal, self.paused)
        varying = before.parts.varying
        varying.begin(before.parts.holders())
        carried, drawn = before.parts.carried.begin(), before.parts.drawn.begin()
        changing = [*hyper.tensors.values(), *counts.begin(), *carried, *drawn, *varying.tensors]
        self._origins = Origins(leaves, changing)
        self._unfilled = Unfilled()
        self.batch_gradients = BatchGradients(leaves)
        self.moved = Moved(before, self._writer.age)
        apart = lambda: self._options.are_being_set  # noqa: E731
        self._handed = Handed()
        # Which of both is made first is of no account: they ask each other while the step runs.
        self._plain = PlainUses(before.parts.carried.has, lambda getter: self._values.receives(getter), self._handed)
        most = lambda tensor: largest_in(self._writer.node(tensor))  # noqa: E731
        # What runs programs on a device has several of them on their way, and is told of a failure late.
        self._assumptions = Assumptions(self.recording, self._writer, before.parts.device.type == "cpu")
        known = self._is_sum, self._uses, self._plain, self._origin, most, self._assumptions.takes
        self._values = Values(self.recording, leaves, *known, self.paused)
        self._looks = Looks(self._uses, self.ran, [], self._plain, apart)
        self._paused = False
        self._failed = False
        self._generators = Generators(before.parts.device)
        self._apart = Apart(self.recording, self._generators)
        self._redraws = Redraws(self._generators, self.hazard)
        self._gos, self._is_again = 0, False
        self._scaled = ScaledSteps(self.recording, before, self, self.paused)
        self._hook: Any = None
        self._places: list[int] = []

    # -- the tape ---------------------------------------------------------------------------------------------------

    def span(self, body: Callable[[], Any], rewind: Callable[[], None]) -> Any:
        """Runs `body` recorded; if that raises, undoes it and runs it plainly, so that only a real error surfaces."""
        generated = self._generators.state()
        parts = self._before.parts
        present, attributes = self._before.again(), Attributes(parts)
        self._undo.forget()
        python = self._look()
        called = self._handed.called
        self._uses.closed = False
        self._redraws.begin()
        try:
            with ExitStack() as stack:
                # What the user compiled runs operation by operation, and is compiled as ever where nothing is recorded:
                # Dynamo would leave it uncompiled for good, or refuse to where it is to be in one graph.
                stack.enter_context(torch.compiler.set_stance("force_eager"))
                stack.enter_context(parts.drawn.watched(self._uses, self.hazard, self._is_apart, self.paused))
                self._watched = stack.enter_context(parts.collected.watched(self.hazard))
                stack.enter_context(parts.varying.watched(parts.holders(), self._looks))
                stack.enter_context(parts.carried.watched(self._looks))
                self._hook = stack.enter_context(
                    watch_reads(self.hazard, parts.codes, self.ran, self._looks.past, called)
                )
                self._handed.hook = self._hook
                stack.enter_context(StandInMode(self._number, self._put_data, self.paused))
                stack.enter_context(self)
                stack.enter_context(scaler_steps_by(self._scaled))
                stack.enter_context(known_to_math())
                stack.enter_context(self._hyper.lifted(self._uses))
                # The backward pass of a device has a thread of its own elsewhere, where the hook would see nothing.
                stack.enter_context(torch.autograd.set_multithreading_enabled(False))
                out = released(body())
                left = parts.carried.leave()
                if self._handed.are_given and not self._handed.sees_calls:
                    self.hazard("the step sets another profile hook (`sys.setprofile`, `cProfile`)")
            self._redraws.end()
            release(self._uses, self._steps.numbers, parts, self.hazard)
            self._collect(attributes, left)
            self._compare(python, attributes)
            return out
        except Exception as error:
            release(self._uses, self._steps.numbers, parts, lambda what: None)  # the frames of the error hold some
            if not may_be_ours(error):
                raise
            self._fails(error)
        self._undo.restore()
        present.restore()
        self.batch_gradients.restore()
        attributes.restore()
        parts.carried.put_back()
        parts.drawn.put_back()
        self._generators.restore(generated)
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

    def _fails(self, error: Exception) -> None:
        """Notes that recording failed, before all else: that is what the user is to be told."""
        what, done = f"recording it failed: {type(error).__name__}: {error}", self.recording.hazards
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
            self.hazard("the step changes Python state: " + ", ".join(f"`{name}`" for name in changed[:5]))
        wanted = [(id(holder), key) for holder, key in self._plain.wanted]
        learn(self._before.parts, changed, wanted, attributes, self._watched, self.ran.values())

    def watched(self, name: str, value: int) -> Any:
        """Returns a stand-in for `value`, or the value once recording has failed."""
        return value if self._failed or self._options.are_being_set else self._counts.number(name, value, self._uses)

    def goes_to(self, holder: Any, method: str) -> None:
        """Takes note of a method of the owner's that does the same with a stand-in for a number."""
        self._values.goes_to(holder, method)

    def decided(self, what: str, of: object, outcome: bool, decide: Callable[[], bool]) -> None:
        """Notes that this recording stands for steps with the same answer."""
        if not self._failed and not self._options.are_being_set:
            self._uses.froze(f"{what} decides what Python does", (what, id(of)), outcome, decide)

    def hazard(self, what: str, where: str | None = None) -> None:
        """Notes a reason why this recording may not stand for other steps, with the user's line."""
        self.recording.hazard(what, where)

    def is_no_example(self) -> None:
        """Takes note that the step did less than others of its kind."""
        self.recording.is_no_example = True

    def _is_apart(self) -> bool:
        """Tells whether what runs now is run elsewhere where a program runs the step."""
        return self._paused or self._options.are_being_set

    def _is_sum(self, holder: Any, key: str) -> bool:
        return self._watched.has_sum(holder, key)

    def _number(self, tensor: Tensor, caller: FrameType) -> Number | None:
        count = self._steps.number(tensor)
        return self._values.number(tensor, caller) if count is None and not self._paused else count

    def _put_data(self, put: Callable[..., None], tensor: Tensor, value: Any) -> None:
        """Gives a tensor other memory; a program has a copy to the memory that it has."""
        if self._paused or not isinstance(value, Tensor):
            put(tensor, value)
            return
        if self._writer.made(tensor):
            put(tensor, value)
            self._writer.rebind(tensor, value)
            return
        if self._writer.made(value) and self.moved.may_take(tensor, value):
            node, origin = self._writer.node(tensor), self._origins.of([value])
            self._writer.write(torch.ops.aten.copy_.default, (node, self._writer.node(value)), {}, None, draws=False)
            self.moved.take(tensor, value, self._writer.operations)
            self.recording.written |= {tensor.untyped_storage().data_ptr()}
            self.recording.moved.append(tensor)
            put(tensor, value)
            self._origins.operation(origin, (), [tensor])
            self._undo.watch(tensor)
            self.recording.written |= {tensor.untyped_storage().data_ptr()}
            self._places[node.meta["input"]] = place_of(tensor)
            return
        place = place_of(tensor)
        put(tensor, value)
        if place_of(tensor) != place:
            name = next(iter(self._before.names.get(id(tensor), [])), "a tensor")
            self.hazard(f"the step replaces `.data` of {name} (`.data.copy_()` is compiled)")

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Operations in here are not recorded."""
        paused, self._paused = self._paused, True
        try:
            yield
        finally:
            self._paused = paused

    @contextmanager
    def changing_options(self, of: Optimizer) -> Iterator[None]:
        """Lets the owner change an optimizer's options; what uses them behind that makes no program.

        What runs in here is known to do nothing else: its code is no part of the step's.
        """
        if self._failed:
            yield
            return
        with self._options.changing(of), self._unwatched():
            yield

    @contextmanager
    def _unwatched(self) -> Iterator[None]:
        """Takes the profile hook out, where it is in."""
        watched = self._hook is not None and sys.getprofile() is self._hook
        if watched:
            sys.setprofile(None)
        try:
            yield
        finally:
            if watched:
                sys.setprofile(self._hook)

    def setting_options(self, last: bool) -> AbstractContextManager[None]:
        """Lets the user's code set the optimizers' options, with plain numbers, and sees that it does nothing else."""
        return nullcontext() if self._failed else self._options.setting(last)

    def computing(self) -> AbstractContextManager[None]:
        """The options are set, for what is done in here."""
        return nullcontext() if self._failed else self._options.computing()

    @contextmanager
    def apart(self, what: str, given: Sequence[Tensor]) -> Iterator[None]:
        """Operations in here are not recorded; one that depends on the rest of the step makes no program."""
        with self.paused(), self._apart.entered(what, given, self._before.again().tensors.values()):
            yield

    def foreign(self, tensors: Iterable[Tensor], what: str) -> None:
        """Takes note of tensors that no program has."""
        self._apart.add(tensors, what)

    @property
    def asks_for_gradients(self) -> bool:
        """Whether code of the user's names them."""
        return any("grad" in (*code.co_names, *code.co_consts) for code in self.ran.values())

    def finish(self, outputs: list[Tensor]) -> Recording:
        """Ends the recording; `outputs` are the tensors that its program shall return."""
        recording = self.recording
        self._assumptions.finish()
        self._writer.finish(outputs)
        counts = self._values.check()
        recording.guards = list(self._uses.guards.values())
        recording.counts = [*self._steps.deciding(recording.guards), *counts]
        parts = self._before.parts
        recording.is_alone = parts.carried.changes_types
        carried = [*parts.carried.set_by_step(), *parts.drawn.left(self.hazard), *self._hyper.set_by_step()]
        for carry, host, text in carried:
            recording.carries.append((carry, host))
            recording.text += f"\n{text}"
        for tensor, place, where in zip(recording.inputs, self._places, recording.first_use, strict=True):
            if place != place_of(tensor):
                self.hazard("the step replaces `.data` of a tensor (`.data.copy_()` is compiled)", where)
        self._redraws.finish(recording.graph)
        self._undo.forget()
        return recording

    def made(self, tensor: Tensor) -> bool:
        """Tells whether an operation of this recording gave the tensor."""
        return self._writer.made(tensor)

    # -- the dispatch mode ------------------------------------------------------------------------------------------

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Runs an operation and writes it down."""
        kwargs = kwargs or {}
        if self._options.are_being_set and not self._paused:
            self.hazard("a hook that sets the optimizer's options computes with tensors, too")
        if self._paused or func.namespace in ("profiler", "prim"):
            self._apart.check(func, args, kwargs)
            return func(*args, **kwargs)
        if (run := in_parts(func, args, kwargs)) is not None:
            with self:
                return run()
        if torch.is_inference_mode_enabled() and (made := self._decomposed(func, args, kwargs)) is not NotImplemented:
            return made
        # PyTorch's own operations call nothing of the user's, and the hook would double the time of writing them down.
        # Written out: `_unwatched` would make that a tenth longer.
        watched = func.namespace == "aten" and self._hook is not None and sys.getprofile() is self._hook
        if watched:
            sys.setprofile(None)
        try:
            return self._operation(func, args, kwargs)
        finally:
            if watched:
                sys.setprofile(self._hook)

    def _decomposed(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Runs an operation that is made of others, which are what is seen of it elsewhere than in inference mode.

        As a whole, `bool(tensor)` is no operation of which it is known that it takes a value out of a tensor.
        """
        with self:
            return func.decompose(*args, **kwargs)

    def _operation(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if _is_made_of_numbers(func, args):
            self._writer.constant(args[0])
            func = torch.ops.aten.clone.default  # a program has what was made once, and may not write to that
        func, args = by_places(func, args, self._places_of)
        leaves = members(Tensor, (*args, *kwargs.values()))
        self.recording.grad_mode |= schema_name(func) in _READS_GRAD_MODE
        node_args, node_kwargs = map_aggregate((args, kwargs), self._as_node)
        origin = self._origins.of(leaves)
        decides = torch.Tag.data_dependent_output in func.tags
        if not decides and (why := why_unrepeatable(func, args, kwargs)) is not None:
            self.hazard(why)
        written = list(written_arguments(func, args, kwargs, Tensor)) if is_mutable(func) else []
        self.recording.written |= self._undo.keep(written)
        self._scaled.about_to_write(written)
        may_draw = torch.Tag.nondeterministic_seeded in func.tags
        generated = self._generators.state() if may_draw else None
        out = func(*args, **kwargs)
        # Attention without dropout has the tag and draws nothing.
        draws = generated is not None and self._generators.drew_since(generated)
        made = members(Tensor, (out,))
        if decides:
            self._values.taken(func, node_args, node_kwargs, out, origin)
        self._origins.operation(None if draws else origin, made, written)
        if self.moved.are_used(leaves):
            self.hazard("the step computes with what it put into a tensor's `.data`, or with what was there before")
        if self._unfilled.operation(func, leaves, written, made):
            self.hazard("the step computes with memory that a kernel past torch's dispatcher has filled, or none")
        self._note_made(made)
        self._scaled.made(made, leaves)
        if isinstance(out, (Tensor, tuple, list)) or out is None:
            node_args, node_kwargs = with_types(func, node_args, node_kwargs, out, self._writer.cast)
            node = self._writer.write(func, node_args, node_kwargs, out, draws)
            self._note_go(node)
            if generated is not None and draws:
                self._writer.repeats(node, self._redraws.drew(node, generated))
        return out

    def _note_go(self, node: fx.Node) -> None:
        """Notes what is computed again, and which operations of that follow one another."""
        if is_computed_again():
            node.meta["again"] = self._gos
        elif self._is_again:
            self._gos += 1
        self._is_again = "again" in node.meta

    def _origin(self, tensor: Tensor) -> Origin | None:
        self._writer.node(tensor)  # an input that stays as it is has to be known as one
        return self._origins.of([tensor])

    def _places_of(self, mask: Tensor) -> list[Tensor] | None:
        """Returns the places of a mask's ones, by dimension; None for a mask that may be another one in other steps."""
        origin = self._origin(mask)
        if origin is None or origin.of_batch or mask.numel() == 0:
            return None
        self._values.look_at(origin, user_line() or innermost_line())
        places = [place.clone() for place in mask.nonzero().unbind(1)]
        for place in places:
            self._writer.constant(place)
        return places

    def _as_node(self, value: Any) -> Any:
        return self._writer.node(value) if isinstance(value, Tensor) else value

    def _take_input(self, tensor: Tensor, index: int) -> None:
        self._origins.input(tensor, index)
        if id(tensor) in self._watched.items:
            self.hazard(f"the step reads `{self._watched.items[id(tensor)]}`, to which steps append")
        self._places.append(place_of(tensor))
        self.recording.first_use.append(user_line())
        self._apart.use(tensor)
        if type(tensor) not in PLAIN_TENSORS or tensor.layout is not torch.strided or tensor.is_nested:
            kind = "nested" if tensor.is_nested else f"with layout {tensor.layout}"
            self.hazard(f"a tensor of type `{type(tensor).__name__}` {kind} takes part")
        elif tensor.is_conj() or tensor.is_neg():
            self.hazard(
                "a tensor takes part that is conjugated or negated when it is read; `resolve_conj().resolve_neg()`"
                " gives one that is so in memory"
            )
        else:
            self._undo.watch(tensor)

    def _note_made(self, made: list[Tensor]) -> None:
        recording = self.recording
        for tensor in made:
            if tensor.layout is not torch.strided:
                self.hazard(f"an operation gives a tensor with layout {tensor.layout}")
            recording.largest = max(recording.largest, tensor.numel())
            recording.dtypes.add(tensor.dtype)


def _is_made_of_numbers(func: Any, args: tuple[Any, ...]) -> bool:
    """Tells whether an operation gives a tensor that was made of Python's numbers, in memory of its own."""
    return schema_name(func) == "aten::lift_fresh" and bool(args[0].untyped_storage().resizable())
