"""A program: what stands for every later step of one kind, and what must hold for it to do so."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import chain
from typing import Any

import torch
from torch import Tensor

from lightning_sink.engine.compiler.loop import CompiledStep
from lightning_sink.engine.compiler.row import Layout, Turn, layout_of
from lightning_sink.engine.numbers.given import Gives
from lightning_sink.engine.private import pytree
from lightning_sink.engine.programs.binding import Binding
from lightning_sink.engine.programs.bystanders import Bystanders
from lightning_sink.engine.programs.equal_counts import EqualCounts
from lightning_sink.engine.programs.observation import Observation
from lightning_sink.engine.state.slot import Slot
from lightning_sink.engine.state.slots import shape_of, share_memory, storages
from lightning_sink.engine.step import Column, Result


class Program:
    """Runs one step without the user's Python.

    Args:
        function: Takes the inputs, writes in place what the step wrote in place, returns the outputs.
        bystanders: Tensors of the training with which it does nothing.
        counts: Inputs that stand for counters, with what gives their values.
        held: Inputs that have what attributes hold, and may be written to, with what gives it before a step; None for
            one that keeps what is there.

    Attributes:
        seconds: What a step took when one was last run.
        kept_bytes: What is kept of a step in a row, as of when it was last asked whether it `may_keep` that.
        numbers: The inputs that stand for options and counters, with their positions.
        slots: The inputs that are what a slot holds: their positions, the slots, and what these must look like.
        stays: Those of them, without gradients, in which the step leaves what it finds.
        counted: The counts by which Python decides, as far as they are known ahead.
        carries: The attributes that a step sets, with what gives the values.
        replaced: The slots that a step fills, but for gradients.
        touches: The slots that a step fills, or clears, with whether there is something in them then.
        moved: The tensors to which the step gives other memory; the program writes what that holds into what
            they have.
        writes: The tensors that stay in place to which the step writes.
        written_first: The identities of those to which the step writes before that.
        followers: The slots that are to hold the memory of some of those.
        takes_turns: Whether steps that it is for may take turns with others in a row.
        needs_own_batch: Whether it is for batches only that are nobody else's.
        frozen: What decided by numbers which way the step goes.
        assumed: The truths that it finds out by itself.
        steps: How many it has run.
        failed: How many it has left, since they go another way.
        generation: For whoever runs it: as of when it has last taken its tensors anew (`refresh`).
    """

    def __init__(
        self,
        observation: Observation,
        bindings: list[Binding],
        function: CompiledStep,
        bystanders: Bystanders,
        counts: list[tuple[Tensor, Callable[[], Any]]],
        held: Sequence[tuple[Tensor, Callable[[], Any]]],
        lifted: Collection[Tensor] = (),
    ) -> None:
        recording = observation.recording
        self.turns, self.function, self.bindings = [self], function, bindings
        self.counts, self._held, self._bystanders = counts, held, bystanders
        self.text, self.dtypes, self.grad_mode = recording.text, recording.dtypes, recording.grad_mode
        self.guards, self.frozen, self.questions = recording.guards, recording.frozen, recording.questions
        self.note, self.loss, self.appends = observation.note, observation.loss, observation.appends
        self.filled, self.cleared, self._gradients = observation.filled, observation.cleared, observation.gradients
        self.replaced = [slot for slot in self.filled if not slot.is_gradient]
        self._equal = EqualCounts(recording.equal, recording.inputs, bindings, self.filled)
        self.carries, self._found = recording.carries, list[Any]()
        self._spec, self._constants = observation.spec, observation.constants
        self.num_outputs = observation.num_outputs
        self.num_results = self.num_outputs + observation.num_logged
        self.num_given = self.num_results + len(self.appends.names)
        self.num_all = self.num_given + len(self.filled)
        self.homes = {b.name for b in bindings if b.home}
        read = (recording.inputs[i] for i in sorted(recording.read))
        self._read = [(tensor, tensor.detach().clone()) for tensor in read]
        self._written, self.moved = recording.written_inputs, recording.moved
        stay = recording.looked_at | self._written
        self._replaceable = [b for i, b in enumerate(bindings) if i not in stay]
        self.written_first, self.followers = recording.written_first, observation.followers
        fixed = [(i, b.tensor) for i, b in enumerate(bindings) if b.tensor is not None]
        self.writes = [tensor for i, tensor in fixed if i in self._written]
        self._adds = {id(tensor): recording.adds[i] for i, tensor in fixed if i in recording.adds}
        known = {id(tensor) for tensor in (*lifted, *(tensor for tensor, _ in counts))}
        self.numbers = [(i, tensor) for i, tensor in fixed if id(tensor) in known]
        self._leaves = [(i, b.leaf) for i, b in enumerate(bindings) if b.leaf is not None]
        self._layouts = layouts = [(tensor.shape, tensor.dtype, tensor.stride()) for tensor in recording.inputs]
        self.slots = [(i, b.slot, layouts[i]) for i, b in enumerate(bindings) if b.slot is not None]
        self._moving = [*(position for position, _ in self._leaves), *(position for position, _, _ in self.slots)]
        self.touches = [(slot, True) for slot in self.filled] + [(slot, False) for slot in observation.cleared]
        of_slots = [b.slots for i, b in enumerate(bindings) if b.slot is not None and i in self._written]
        self._changes = [*(slot for slot, _ in self.touches), *chain.from_iterable(of_slots)]
        self._absent, unread = observation.absent, observation.unread
        self.asked_shapes = [(slot, before) for slot, before, _ in unread]
        self.left_shapes = {slot.name: after for slot, _, after in unread}
        reshapes = any(before != after for _, before, after in unread)
        # Of the counts by which Python decides, those that a step adds something to, always the same, are known ahead.
        self.counted = [count for count in recording.counts if count.adds is not None]
        # Another step would compute with what this one left.
        asks_what_it_writes = bool(self.questions) and any(i in self._written for i, _ in self._leaves)
        asks_what_it_writes |= len(self.counted) < len(recording.counts)
        left = {slot.name: there for slot, there in self.touches}
        # What is in other slots stays there while nothing but programs runs.
        self.stays = [(i, slot) for i, slot, _ in self.slots if not (slot.is_gradient or slot.name in left)]
        once = len(self.stays) < len(self.slots) or reshapes or asks_what_it_writes or recording.is_alone
        self._repeats = self.finds(left) and not once
        logged = range(self.num_outputs, self.num_given)
        self._kept = [*logged] if self.loss is None else [self.loss, *logged]
        self.num_losses = 0 if self.loss is None else 1
        self.num_kept = len(self._kept)
        self._twins = [(b.slot, twin) for b in bindings if b.slot is not None for twin in b.twins]
        asks = bool(self.questions) or len(self.counted) < len(recording.counts)
        self.takes_turns = not (reshapes or asks or self._twins or self.appends or recording.is_alone)
        self._template: list[Any] = []
        self._places: tuple[list[int], list[int | None]] | None = None
        self._asked_as_of: int | None = None
        self._is_answered = True
        self.generation, self.seconds, self.kept_bytes = -1, 1.0, 0
        self.needs_own_batch = recording.needs_own_batch
        self.assumed, self.steps, self.failed = recording.assumed, 0, 0

    def finds(self, left: dict[str, bool]) -> bool:
        """Tells whether it finds gradients where there were some, behind steps that leave these slots so."""
        return all(left.get(slot.name, there) == there for slot, there in self._gradients)

    def fits(self, generation: int | None = None) -> bool:
        """Tells whether the step that is about to run goes the way that was recorded, whatever its batch holds.

        `generation`: as long as it is the same, only programs have run.
        """
        if generation is None or self._asked_as_of != generation:
            self._asked_as_of, self._is_answered = generation, self._bystanders.are_the_same()
        if not self._is_answered:
            return False
        if any(shape_of(slot.get()) != shape for slot, shape in self.asked_shapes):
            return False
        if any(slot.get() is not twin.get() for slot, twin in self._twins):
            return False
        return all((slot.get() is not None) is there for slot, there in self._gradients) and self.goes_on()

    def goes_on(self) -> bool:
        """Tells the same of a step in a row, which finds the gradients that it is for."""
        return all(guard.holds() for guard in self.guards) and (not self.carries or self.sets_attributes())

    def sets_attributes(self) -> bool:
        """Tells whether what the step sets attributes to is known, of what it finds; keeps that for `carry`."""
        try:
            self._found = [value() for _, value in self.carries]
        except (ArithmeticError, ValueError, TypeError):  # the user's line raises it in its turn
            return False
        return True

    def carry(self) -> None:
        """Sets attributes as a step does that goes on this way, as was just asked."""
        for (carry, _), value in zip(self.carries, self._found, strict=True):
            carry.set(value)

    def is_for(self, leaves: Sequence[Tensor]) -> bool:
        """Tells whether a batch with these tensors gives the answers by which the recorded step went its way."""
        return all(question.holds(leaves) for question in self.questions)

    def leading(self, columns: list[Column], steps: int) -> int:
        """Returns how many of the steps that come next it is for, up to the first one that it is not for."""
        if not self.questions:
            return steps
        return next((i for i in range(steps) if not self.is_for([column[i] for column in columns])), steps)

    def refresh(self) -> bool:
        """Takes the tensors that stay in place anew; returns whether they and the slots' can be this program's."""
        if any(home.get() is not tensor for home, tensor in _homes(self.bindings)):
            return False
        stays = ((b.tensor, layout) for b, layout in zip(self.bindings, self._layouts, strict=True))
        if any(t is not None and not _looks(t, layout) for t, layout in stays):
            return False
        if not self._equal.hold() or not all(follower.follows() for follower in self.followers):
            return False
        if any(not torch.equal(tensor, value) for tensor, value in self._read):
            return False
        if any(slot.get() is not None for slot in self._absent):
            return False
        # Aliases: compiled code must neither ask for gradients nor see a tensor that `.data =` has since replaced.
        self._template = [None if b.tensor is None else b.tensor.detach() for b in self.bindings]
        return not self._shares_what_it_writes()

    def replaced_in(self) -> dict[str, Tensor]:
        """Returns the places that have another tensor by now, with that; not those that programs cannot read it from.

        Those are parameters', with which gradients go, and what the step writes to, or looks at the values of.
        """
        replaced = {
            home.name: home.get()
            for home, tensor in _homes(self._replaceable)
            if tensor is not None and not tensor.requires_grad and home.get() is not tensor
        }
        return {name: tensor for name, tensor in replaced.items() if tensor is not None}

    def places(self) -> Iterator[int]:
        """Yields where each tensor lies by which it holds another one's memory itself."""
        return (own.data_ptr() for own in self._template if own is not None)

    def is_kept_by(self, other: Program) -> bool:
        """Tells whether another program writes to nothing that this one takes to stay as it is.

        Those are values, which step counts are equal, and that there are no gradients that it would not clear.
        """
        filled = {slot.name for slot, there in other.touches if there}
        if any(slot.name in filled for slot in self._absent):
            return False
        read = storages(tensor for tensor, _ in self._read)
        if read and not {*read}.isdisjoint(storages(other.writes)):
            return False
        return self._equal.are_kept_by(other._changes, other._adds)

    def counts_with(self, other: Program) -> bool:
        """Tells whether another program, too, adds to a count by which this one decides."""
        counts = storages(count.present() for count in self.counted)
        return bool(counts) and not {*counts}.isdisjoint(storages(other.writes))

    def _shares_what_it_writes(self) -> bool:
        """Tells whether what it writes to would be seen through another input, which no recording has allowed for."""
        contents = [slot.get() for _, slot, _ in self.slots]
        places = [tensor.data_ptr() for tensor in self._template if tensor is not None], storages(contents)
        if places != self._places:
            inputs: list[Tensor | None] = self._template.copy()
            for (position, _, _), content in zip(self.slots, contents, strict=True):
                inputs[position] = content
            if share_memory(inputs, self._written):
                return True
            self._places = places
        return False

    def arguments(self, leaves: list[Tensor]) -> list[Tensor] | None:
        """Returns the inputs for one batch; None where a slot holds nothing or something of another shape."""
        arguments = self._template.copy()
        for position, leaf in self._leaves:
            tensor = leaves[leaf]
            arguments[position] = tensor.detach() if tensor.requires_grad else tensor
        for position, slot, layout in self.slots:
            content = slot.get()
            if content is None or not _looks(content, layout):
                return None
            if content.is_conj() or content.is_neg():  # which would be lost: programs read memory
                return None
            arguments[position] = content.detach()
        return arguments

    def fill(self) -> None:
        """Gives the inputs that stand for what attributes hold what they hold."""
        for tensor, get in self._held:
            if (value := get()) is not None:
                tensor.fill_(value)

    def __call__(self, arguments: list[Tensor]) -> tuple[Tensor, ...]:
        """Runs the step on its inputs."""
        with self._grad_mode():
            return self.function.once(arguments, self._moving, self._kept)

    def uncompiled(self) -> Callable[[list[Tensor]], tuple[Tensor, ...]] | None:
        """Returns what runs the operations themselves that were compiled; None where they are not known."""
        step = self.function.uncompiled()
        if step is None:
            return None

        def run(arguments: list[Tensor]) -> tuple[Tensor, ...]:
            with self._grad_mode():
                return step(*arguments)

        return run

    def _grad_mode(self) -> AbstractContextManager[None]:
        # No input asks for gradients, so there is nothing to switch off.
        return torch.enable_grad() if self.grad_mode else nullcontext()

    def turn(self, columns: list[Column], numbers: list[list[Tensor]], steps: int) -> Turn:
        """Returns what steps take of its kind, some of those in a row.

        What they keep is for `taken_apart`. There is a column for each leaf of a batch; the numbers take the place of
        `numbers` in each step, and are empty where they stay as they are.
        """
        fixed, positions = self._template, [position for position, _ in self._leaves]
        if self.stays:
            fixed = fixed.copy()
            for position, slot in self.stays:
                content = slot.get()
                fixed[position] = None if content is None else content.detach()
        varying = [_without_gradient(columns[leaf][:steps]) for _, leaf in self._leaves]
        if numbers:
            places = [position for position, _ in self.numbers]
            fixed = [None if position in places else tensor for position, tensor in enumerate(fixed)]
            positions = [*positions, *places]
            varying += [[*tensors] for tensors in zip(*numbers, strict=True)]
        return Turn(self.function, fixed, positions, varying, self._kept)

    def in_row(self, columns: list[Column], numbers: list[list[Tensor]], steps: int) -> list[Turn]:
        """Returns what steps in a row take, right behind one that it ran; the arguments are those of `turn`."""
        return [self.turn(columns, numbers, steps)]

    def may_repeat(self, outputs: tuple[Tensor, ...]) -> bool:
        """Tells whether steps may be run in a row, right behind one that gave these outputs."""
        return self._repeats and self.may_keep(outputs)

    def may_keep(self, outputs: tuple[Tensor, ...]) -> bool:
        """Tells whether what is kept of steps in a row lies in one piece, as one of these outputs' step left it."""
        self.kept_bytes = sum(outputs[index].nbytes for index in self._kept)
        return all(outputs[index].is_contiguous() for index in self._kept)

    def kept_layouts(self, outputs: tuple[Tensor, ...]) -> list[Layout]:
        """Returns what that looks like which is kept of steps in a row."""
        return [layout_of(outputs[index]) for index in self._kept]

    def left(self, outputs: tuple[Tensor, ...], steps: int) -> list[tuple[Program, tuple[Tensor, ...]]]:
        """Returns the programs that steps in a row have left something of, and what, in the order of the steps."""
        return [(self, outputs)]

    def store(self, outputs: tuple[Tensor, ...]) -> None:
        """Fills the slots with what the function returned."""
        for slot, tensor in zip(self.filled, outputs[self.num_given :], strict=True):
            slot.set(tensor)
        for slot in self.cleared:
            slot.set(None)

    def taken_apart(self, kept: list[Tensor]) -> tuple[Tensor | None, list[Tensor], list[Tensor]]:
        """Returns the losses of steps in a row, None where there are none, what they log, and what they append."""
        losses, others = (None, kept) if self.loss is None else (kept[0], kept[1:])
        logged = self.num_results - self.num_outputs
        return losses, others[:logged], others[logged:]

    def collect(self, outputs: tuple[Tensor, ...], late: bool) -> None:
        """Appends to lists what the step appends, behind the owner's turn or before it."""
        if self.appends:
            self.appends.append(outputs[self.num_results : self.num_given], late)

    def returned(self, result: Result, at_first: Any) -> list[Tensor]:
        """Returns what a step that went this way returned, as the function gives it; `at_first`: nobody's by then."""
        if all(value.dtype is None for value in self._constants if type(value) is Gives):
            return [leaf for leaf in pytree.tree_leaves(result.output) if isinstance(leaf, Tensor)]
        flat = zip(self._spec.flatten_up_to(at_first), self._constants, strict=True)
        return [value.as_tensor(leaf) for leaf, value in flat if type(value) is Gives]

    def result(self, outputs: tuple[Tensor, ...]) -> Result:
        """Rebuilds what the step returned."""
        tensors = iter(outputs[: self.num_outputs])
        flat = [value.made_of(next(tensors)) if type(value) is Gives else value for value in self._constants]
        logged = list(outputs[self.num_outputs : self.num_results])
        return Result(pytree.tree_unflatten(flat, self._spec), logged, self.note)


def _without_gradient(column: Column) -> Column:
    if isinstance(column, Tensor):
        return column.detach() if column.requires_grad else column
    return [tensor.detach() if tensor.requires_grad else tensor for tensor in column]


def _homes(bindings: Iterable[Binding]) -> Iterator[tuple[Slot, Tensor | None]]:
    return ((home, b.tensor) for b in bindings if b.home is not None for home in (b.home, *b.twins))


def _looks(tensor: Tensor, layout: tuple[Any, ...]) -> bool:
    """Tells whether a tensor has such a shape, type and strides; sparse ones have none."""
    return tensor.layout is torch.strided and (tensor.shape, tensor.dtype, tensor.stride()) == layout
