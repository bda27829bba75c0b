"""From two recordings that agree to a program that stands for every later step of their kind.

One recording shows what a step did; it does not show what would have been different a step later. So two steps that
follow each other are recorded, and only where both did the same operations with the same constants on the same places
is there a program. Each of its inputs then is a batch's tensor, a tensor that stays where it is, or the present
content of a slot; anything else is a hazard.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, fx, nn

from lightning_sink.engine.private import pytree, version
from lightning_sink.engine.record import Recorder
from lightning_sink.engine.recording import Recording
from lightning_sink.engine.slots import Slot, Snapshot
from lightning_sink.engine.step import Result, Step
from lightning_sink.engine.watch import Hazard

_TENSOR = object()
"""Stands for a tensor among the values that a step returns."""


@dataclass
class Observation:
    """One recorded step with what surrounded it."""

    recorder: Recorder
    recording: Recording
    leaves: list[Tensor]
    before: Snapshot
    filled: list[Slot]
    cleared: list[Slot]
    spec: Any
    constants: list[Any]
    num_outputs: int
    num_logged: int
    loss: int | None
    note: Any
    gradients: list[tuple[Slot, bool]]

    @property
    def way(self) -> Hashable:
        """What must be equal for two steps to have done the same: branches, and gradients that were there before."""
        return self.recording.path, tuple((slot.name, there) for slot, there in self.gradients)

    @property
    def hazards(self) -> list[Hazard]:
        """Why this step may not stand for others."""
        return self.recording.hazards

    @property
    def same_leaves(self) -> list[tuple[int, int]]:
        """Pairs of indices at which the batch held one and the same tensor."""
        first = {id(leaf): index for index, leaf in reversed(list(enumerate(self.leaves)))}
        return [(first[id(leaf)], index) for index, leaf in enumerate(self.leaves) if first[id(leaf)] != index]


def observe(recorder: Recorder, before: Snapshot, after: Snapshot, step: Step, result: Result) -> Observation:
    """Ends a recording: works out what the program has to return and which slots it fills."""
    leaves = step.leaves
    flat, spec = pytree.tree_flatten(result.output)
    tensors = [item for item in flat if isinstance(item, Tensor)]
    filled: list[Slot] = []
    cleared: list[Slot] = []
    for name, slot in after.slots.items():
        if name not in before.slots:
            recorder.hazard(f"{name} appears")
        elif (tensor := after.tensors[name]) is not before.tensors[name]:
            (cleared if tensor is None else filled).append(slot)
        elif before.pointers.get(name) != after.pointers.get(name):
            recorder.hazard(f"the step replaces `.data` of {name}")
    for name in before.slots.keys() - after.slots.keys():
        recorder.hazard(f"{name} disappears")
    outputs = [*tensors, *result.logged, *(after.tensors[slot.name] for slot in filled)]
    recording = recorder.finish([tensor for tensor in outputs if tensor is not None])
    constants = [_TENSOR if isinstance(item, Tensor) else item for item in flat]
    loss = next((index for index, tensor in enumerate(tensors) if tensor is result.loss), None)
    counts = len(tensors), len(result.logged), loss
    # Autograd adds to a gradient that is there and sets one that is not; no operation shows which.
    slots = [] if step.clears else [slot for slot in before.slots.values() if slot.is_gradient]
    gradients = [(slot, before.tensors[slot.name] is not None) for slot in slots]
    return Observation(
        recorder, recording, leaves, before, filled, cleared, spec, constants, *counts, result.note, gradients
    )


@dataclass
class Binding:
    """Where one input of a program comes from; exactly one of the three is set.

    Attributes:
        leaf: Index of a tensor of the batch.
        slot: The slot whose present content it is.
        tensor: The tensor itself; `home` is the slot that must still hold it, if one did.
        twins: Other slots that hold the same tensor and must go on doing so (tied weights).
    """

    name: str
    leaf: int | None = None
    slot: Slot | None = None
    tensor: Tensor | None = None
    home: Slot | None = None
    twins: list[Slot] = field(default_factory=list)


def bind(first: Observation, second: Observation, volatile: set[str]) -> list[Binding] | list[Hazard]:
    """Finds out where each input comes from, or why the two steps make no program.

    Args:
        first: A recorded step.
        second: The next recorded step of the same kind.
        volatile: Slots that some step fills; what is in them now may not be there at the next step.
    """
    if first.recording.text != second.recording.text:
        return [_difference(first.recording, second.recording)]
    if first.constants != second.constants or first.spec != second.spec:
        return [Hazard("the step returns other Python values each time")]
    if first.note != second.note:
        return [Hazard("the step logs other names, or with other arguments, each time")]
    names = [slot.name for slot in (*first.filled, *first.cleared)]
    if names != [slot.name for slot in (*second.filled, *second.cleared)]:
        return [Hazard("the step fills other places each time")]
    bindings = [_bind(first, second, index, volatile) for index in range(len(second.recording.inputs))]
    hazards = [item for item in bindings if isinstance(item, Hazard)]
    hazards += _aliases(second.recording)
    hazards += [
        Hazard(f"the value of {b.name}, which a step replaces, decides what Python does", second.recording.first_use[i])
        for i, b in enumerate(bindings)
        if i in second.recording.read and isinstance(b, Binding) and b.tensor is None
    ]
    return hazards or [item for item in bindings if isinstance(item, Binding)]


def _bind(first: Observation, second: Observation, index: int, volatile: set[str]) -> Binding | Hazard:
    old, new = first.recording.inputs[index], second.recording.inputs[index]
    for leaf, tensor in enumerate(second.leaves):
        if new is tensor and leaf < len(first.leaves) and old is first.leaves[leaf]:
            return Binding(f"batch tensor {leaf}", leaf=leaf)
    names = second.before.names.get(id(new), [])
    homes = [second.before.slots[name] for name in names]
    if new is old and not any(home.is_gradient or home.name in volatile for home in homes):
        if not homes:
            return Binding(f"closed-over tensor {index}", tensor=new)
        return Binding(names[0], tensor=new, home=homes[0], twins=homes[1:])
    if names and all(first.before.tensors.get(name) is old for name in names):
        return Binding(names[0], slot=homes[0], twins=homes[1:])
    where = second.recording.first_use[index]
    if first.recorder.made(new):
        return Hazard("a tensor of one step is used in the next, and no attribute holds it", where)
    if new.requires_grad or not torch.equal(new, old):
        return Hazard("a tensor is made anew in each step from Python or numpy values", where)
    return Binding(f"constant {index}", tensor=new)


def _aliases(recording: Recording) -> list[Hazard]:
    storages: dict[int, int] = {}
    for tensor in recording.inputs:
        pointer = tensor.untyped_storage().data_ptr()
        storages[pointer] = storages.get(pointer, 0) + 1
    if any(storages.get(pointer, 0) > 1 for pointer in recording.written if pointer):
        return [Hazard("a tensor that the step writes to shares its memory with another one")]
    return []


def _difference(first: Recording, second: Recording) -> Hazard:
    lines = zip(first.text.splitlines(), second.text.splitlines(), strict=False)
    old, new = next(((a, b) for a, b in lines if a != b), ("", ""))
    if not old:
        return Hazard("two steps in a row do a different number of operations")
    return Hazard(f"two steps in a row do not do the same: first `{old[:100]}`, then `{new[:100]}`")


class Program:
    """Runs one step without the user's Python.

    Args:
        observation: The step that it stands for.
        bindings: Where its inputs come from.
        function: Takes the inputs, writes in place what the step wrote in place, returns the outputs.
        counts: Inputs that stand for counters, with what gives their values.
    """

    def __init__(
        self,
        observation: Observation,
        bindings: list[Binding],
        function: Callable[..., tuple[Tensor, ...]],
        counts: list[tuple[Tensor, Callable[[], int]]],
    ) -> None:
        self.function = function
        self.bindings = bindings
        self.counts = counts
        self.text = observation.recording.text
        self.homes = {b.name for b in bindings if b.home}
        self.filled = observation.filled
        self.guards = observation.recording.guards
        self.low_precision = observation.recording.low_precision
        self.grad_mode = observation.recording.grad_mode
        self.note = observation.note
        self._gradients = observation.gradients
        self.loss = observation.loss
        self.num_outputs = observation.num_outputs
        self.num_results = observation.num_outputs + observation.num_logged
        self._cleared = observation.cleared
        self._spec = observation.spec
        self._constants = observation.constants
        self._equal = observation.recording.equal
        read = (observation.recording.inputs[i] for i in sorted(observation.recording.read))
        self._read = [(tensor, version(tensor)) for tensor in read]
        self._leaves = [(i, b.leaf) for i, b in enumerate(bindings) if b.leaf is not None]
        self._layouts = layouts = [
            (tensor.shape, tensor.dtype, tensor.stride()) for tensor in observation.recording.inputs
        ]
        self._slots = [(i, b.slot, layouts[i]) for i, b in enumerate(bindings) if b.slot is not None]
        self.reads_slots = bool(self._slots)
        self._twins = [(b.slot, twin) for b in bindings if b.slot is not None for twin in b.twins]
        self._same_leaves = observation.same_leaves
        self._template: list[Any] = []
        self.looked_at = -1

    def fits(self) -> bool:
        """Tells whether the step that is about to run goes the way that was recorded."""
        if not self.guards and not self._gradients:
            return True
        present = all((slot.get() is not None) is there for slot, there in self._gradients)
        return present and all(guard.holds() for guard in self.guards)

    def refresh(self) -> bool:
        """Takes the tensors that stay in place anew; returns whether each is still where it was."""
        homes = ((home, b.tensor) for b in self.bindings if b.home is not None for home in (b.home, *b.twins))
        if any(home.get() is not tensor for home, tensor in homes):
            return False
        stays = ((b.tensor, layout) for b, layout in zip(self.bindings, self._layouts, strict=True))
        if any(t is not None and (t.shape, t.dtype, t.stride()) != layout for t, layout in stays):
            return False
        if any(not torch.equal(first, other) for first, other in self._equal):
            return False
        if any(version(tensor) != seen for tensor, seen in self._read):
            return False
        # Aliases: compiled code must neither ask for gradients nor see a tensor that `.data =` has since replaced.
        self._template = [None if b.tensor is None else b.tensor.detach() for b in self.bindings]
        return True

    def arguments(self, leaves: list[Tensor]) -> list[Tensor] | None:
        """Returns the inputs for one batch; None where a slot holds nothing or something of another shape."""
        if self._same_leaves and any(leaves[i] is not leaves[j] for i, j in self._same_leaves):
            return None
        if self._twins and any(slot.get() is not twin.get() for slot, twin in self._twins):
            return None
        arguments = self._template.copy()
        for position, leaf in self._leaves:
            tensor = leaves[leaf]
            arguments[position] = tensor.detach() if tensor.requires_grad else tensor
        for position, slot, layout in self._slots:
            content = slot.get()
            if content is None or (content.shape, content.dtype, content.stride()) != layout:
                return None
            arguments[position] = content.detach()
        return arguments

    def __call__(self, arguments: list[Tensor]) -> tuple[Tensor, ...]:
        """Runs the step on its inputs."""
        if self.grad_mode:
            with torch.enable_grad():
                return self.function(*arguments)
        # No input asks for gradients, so there is nothing to switch off.
        return self.function(*arguments)

    def store(self, outputs: tuple[Tensor, ...]) -> None:
        """Fills the slots with what the function returned."""
        for slot, tensor in zip(self.filled, outputs[self.num_results :], strict=True):
            slot.set(tensor)
        for slot in self._cleared:
            slot.set(None)

    def result(self, outputs: tuple[Tensor, ...]) -> Result:
        """Rebuilds what the step returned."""
        tensors = iter(outputs[: self.num_outputs])
        flat = [next(tensors) if value is _TENSOR else value for value in self._constants]
        logged = list(outputs[self.num_outputs : self.num_results])
        return Result(pytree.tree_unflatten(flat, self._spec), logged, self.note)


def graph_module(recording: Recording) -> fx.GraphModule:
    """Returns a recording's graph as something that can be called and compiled."""
    return fx.GraphModule(nn.Module(), recording.graph)
