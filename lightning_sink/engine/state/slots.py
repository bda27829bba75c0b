"""Places that hold the tensors of a training: where a program's inputs live and where its outputs go.

A tensor that is written in place stays in its slot and needs nothing. A tensor that a step replaces (`p.grad` after
`zero_grad`, a metric's state, a hidden state kept in an attribute) is found by looking into every slot before and
after a recorded step; the program then reads the slot before each run and fills it after.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field
from functools import cached_property
from types import CellType, CodeType
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from lightning_sink.engine.private import MODULE_HOOKS, own_buffers, own_parameters
from lightning_sink.engine.state.attributes import TENSOR_HOLDERS, WITH_SLOTS, is_a
from lightning_sink.engine.state.carried import Carried
from lightning_sink.engine.state.collected import Collected
from lightning_sink.engine.state.host_draws import HostDraws
from lightning_sink.engine.state.kept_counts import OptimizerCounts
from lightning_sink.engine.state.slot import ItemSlot, Slot, StateSlot, places_in
from lightning_sink.engine.state.varying import Varying

PLAIN_TENSORS = (Tensor, nn.Parameter, nn.Buffer)
"""Types of tensors that have memory of their own and nothing else."""


def storages(tensors: Iterable[Tensor | None]) -> list[int | None]:
    """Returns where the memory of each tensor begins; None for one that has none of its own."""
    return [
        tensor.untyped_storage().data_ptr() if tensor is not None and _has_memory(tensor) else None
        for tensor in tensors
    ]


def share_memory(tensors: Iterable[Tensor | None], numbers: Collection[int]) -> bool:
    """Tells whether one of the tensors with these numbers shares its memory with another one of all."""
    places = storages(tensors)
    counts = Counter(places)
    return any(places[number] is not None and counts[places[number]] > 1 for number in numbers)


def _has_memory(tensor: Tensor) -> bool:
    return type(tensor) in PLAIN_TENSORS and tensor.layout is torch.strided and tensor.numel() > 0


def shape_of(tensor: Tensor | None) -> Hashable:
    """Returns what a step may ask of a tensor that it does not compute with."""
    if tensor is None:
        return None
    return tensor.shape, tensor.dtype, tensor.stride() if tensor.layout is torch.strided else tensor.layout


def place_of(tensor: Tensor) -> int:
    """Returns where a tensor begins in memory; 0 for one that has none of its own."""
    return tensor.data_ptr() if type(tensor) in PLAIN_TENSORS and tensor.layout is torch.strided else 0


StatePlace = tuple[int, int, Hashable]
"""A place in an optimizer's state: which optimizer, the identity of the parameter, the key."""

Outside = Callable[[Collection[CodeType]], Callable[[], dict[str, Hashable]]]


class Beside(NamedTuple):
    """What a step may change beside the attributes of modules and optimizers.

    Attributes:
        values: Objects and containers.
        cells: Variables of functions around it.
        names: Global variables: where they are, and their names.
    """

    values: Sequence[Any] = ()
    cells: Sequence[CellType] = ()
    names: Sequence[tuple[dict[str, Any], str]] = ()


@dataclass(frozen=True)
class Parts:
    """What belongs to a training, as its owner tells: objects with their attributes, and what these do not show.

    Attributes:
        module: The module; its submodules belong to it.
        optimizers: The optimizers, which keep state and options; those inside of them behind them.
        others: Objects that take part in the step besides; the modules that they hold belong to them.
        is_apart: Tells of a submodule whether the owner of the training keeps it up to date by itself.
        ignore: Attributes of the module that say nothing about a step.
        counters: What gives a counter of the owner's in the step that is about to run, by the name that users know.
        codes: Code objects of getters whose reads depend on the step, with their names.
        outside: Takes code; returns what looks at all that it reaches in a way that only the owner knows, and gives a
            fingerprint.
        beside: Returns what a step may change besides.
        schedulers: Returns schedulers that the owner steps behind a program as the recorded step did; what code names
            of them is for `outside` to look at.
        collected: Those among the attributes in which steps collect.
        carried: Those that steps set to what the host knows.
        varying: Those that change between sinks.
        drawn: The generators of the process that are Python's and numpy's.
        optimizer_counts: The numbers that optimizers keep for each parameter, and steps set.
        counted: Identities of tensors in which modules count steps, and of which steps ask for the number.
        ones: How many ones masks of the batch had last that steps index by, by line and operations, and by shape.
        step_counts: Numbers for what optimizers count in tensors, by the place of each; different ones where counts
            ever have differed.
    """

    module: nn.Module
    optimizers: Sequence[Optimizer] = ()
    others: Sequence[Any] = ()
    is_apart: Callable[[nn.Module], bool] = lambda module: False
    ignore: frozenset[str] = frozenset()
    counters: Mapping[str, Callable[[], int]] = field(default_factory=dict)
    codes: Mapping[CodeType, str] = field(default_factory=dict)
    outside: Outside = lambda codes: dict
    beside: Callable[[], Beside] = Beside
    schedulers: Callable[[], Sequence[Any]] = list
    collected: Collected = field(default_factory=Collected)
    carried: Carried = field(default_factory=Carried)
    varying: Varying = field(default_factory=Varying)
    drawn: HostDraws = field(default_factory=HostDraws)
    optimizer_counts: OptimizerCounts = field(default_factory=OptimizerCounts)
    counted: set[int] = field(default_factory=set)
    ones: dict[Hashable, dict[torch.Size, int]] = field(default_factory=dict)
    step_counts: dict[StatePlace, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "optimizers", with_inner(self.optimizers))

    @property
    def device(self) -> torch.device:
        """Where the training computes: where the module's first parameter is."""
        first = next(self.module.parameters(), None)
        return torch.device("cpu") if first is None else first.device

    def left_out(self, holder: Any) -> frozenset[str]:
        """Returns the attributes of an object that are looked at by themselves, or say nothing about a step."""
        return self._of_module if holder is self.module else TENSOR_HOLDERS

    @cached_property
    def _of_module(self) -> frozenset[str]:
        return TENSOR_HOLDERS | (self.ignore - MODULE_HOOKS)

    def holders(self) -> Iterator[tuple[str, Any]]:
        """Yields every object, with what its attributes' names begin with."""
        roots: list[tuple[str, Any]] = [("", self.module)]
        met = Counter[str]()
        for other in self.others:
            name = type(other).__name__
            met[name] += 1
            name = f"{name}." if met[name] == 1 else f"{name} {met[name]}."
            yield name, other
            roots += [(f"{name}{key}.", value) for key, value in vars(other).items() if is_a(value, nn.Module)]
        seen: set[int] = set()
        for prefix, root in roots:
            yield from self._within(root, prefix, seen)

    def with_optimizers(self) -> Iterator[tuple[str, Any]]:
        """Yields every object, and every optimizer, with what its attributes' names begin with."""
        yield from self.holders()
        yield from ((f"optimizer {number}.", optimizer) for number, optimizer in enumerate(self.optimizers))

    def _within(self, module: nn.Module, prefix: str, seen: set[int]) -> Iterator[tuple[str, nn.Module]]:
        if id(module) in seen or self.is_apart(module):
            return
        seen.add(id(module))
        yield prefix, module
        for name, child in module.named_children():
            yield from self._within(child, f"{prefix}{name}.", seen)


def with_inner(optimizers: Iterable[Optimizer]) -> list[Optimizer]:
    """Returns optimizers with those in their attributes, or in lists and dictionaries there, and so on.

    One that looks ahead holds the one that it looks ahead of; both make the training's steps.
    """
    found = list(optimizers)
    for optimizer in found:
        for value in vars(optimizer).values():
            held = value.values() if type(value) is dict else value if type(value) in (list, tuple) else [value]
            inner = [each for each in held if is_a(each, Optimizer)]
            found += [each for each in inner if not any(each is known for known in found)]
    return found


def find_slots(parts: Parts) -> dict[str, Slot]:
    """Returns every slot of a training by name, filled or not, each tensor once."""
    slots = [*_attribute_slots(parts.holders(), parts.collected), *_optimizer_slots(parts.module, parts.optimizers)]
    found: dict[str, Slot] = {}
    met = Counter[str]()
    for slot in slots:
        met[slot.name] += 1
        if met[slot.name] > 1:  # keys of a dictionary that look alike: two layers of one size
            slot.name = f"{slot.name} {met[slot.name]}"
        found[slot.name] = slot
    return found


def _attribute_slots(held: Iterable[tuple[str, Any]], collected: Collected) -> Iterator[Slot]:
    in_tables = collected.in_tables()
    for prefix, holder in held:
        if isinstance(holder, nn.Module):
            for name, _ in (*own_parameters(holder), *own_buffers(holder)):  # one tensor may have two names
                yield Slot(prefix + name, holder, name)
        attributes = vars(holder)
        left_out = TENSOR_HOLDERS | collected.names(holder)
        for name, value in attributes.items():
            if is_a(value, Tensor):
                yield Slot(prefix + name, holder, name)
            elif type(value) in WITH_SLOTS and name not in left_out:
                for path in places_in(value, in_tables):
                    where = "".join(f"[{key!r}]" for key in path)
                    yield ItemSlot(f"{prefix}{name}{where}", attributes, name, path)


def _optimizer_slots(module: nn.Module, optimizers: Iterable[Optimizer]) -> Iterator[Slot]:
    names: dict[Tensor, str] = {parameter: name for name, parameter in module.named_parameters()}
    # Quantizers let the gradient of one gather (`self.zero.requires_grad_()`); nobody clears it.
    names |= {buffer: name for name, buffer in module.named_buffers() if buffer.requires_grad and buffer.is_leaf}
    for number, optimizer in enumerate(optimizers):
        for group_number, group in enumerate(optimizer.param_groups):
            for index, parameter in enumerate(group["params"]):
                names.setdefault(parameter, f"optimizer {number} group {group_number} parameter {index}")
        for key, state in optimizer.state.items():
            # What a module or a tuple looks like in text may change with what is inside.
            plain = repr(key) if isinstance(key, (str, int)) else f"a {type(key).__name__}"
            of = names.get(key, "another tensor") if is_a(key, Tensor) else plain
            if is_a(state, Tensor):
                yield StateSlot(f"optimizer {number} state {of}", optimizer, key)
            for what in state if isinstance(state, dict) else ():
                yield StateSlot(f"optimizer {number} state {what!r} of {of}", optimizer, key, what)
    for parameter, name in names.items():
        yield Slot(f"gradient of {name}", parameter, "grad")


class Snapshot:
    """What the slots of a training hold at one moment, to compare with later or to go back to.

    Going back restores which tensor is where, its `.data` and whether it asks for a gradient; what is inside tensors is
    not kept here.
    """

    def __init__(self, parts: Parts) -> None:
        self.parts = parts
        self.slots = find_slots(parts)
        self.tensors = {name: slot.get() for name, slot in self.slots.items()}
        self.containers = {n: slot.containers() for n, slot in self.slots.items() if isinstance(slot, ItemSlot)}
        self.pointers = {name: place_of(tensor) for name, tensor in self.tensors.items() if tensor is not None}
        held = {id(tensor): tensor for tensor in self.tensors.values() if tensor is not None and place_of(tensor)}
        self._data = [(tensor, tensor.detach(), tensor.requires_grad) for tensor in held.values()]
        self.names: dict[int, list[str]] = {}
        for name, tensor in self.tensors.items():
            if tensor is not None:
                self.names.setdefault(id(tensor), []).append(name)
        self.states = [{key: copy(value) for key, value in item.state.items()} for item in parts.optimizers]

    def again(self) -> Snapshot:
        """Returns a snapshot of the same training as it is now."""
        return Snapshot(self.parts)

    def keeper_of(self, tensor: Tensor) -> tuple[Optimizer, StatePlace] | None:
        """Returns the optimizer that keeps the tensor in its state, now, and where."""
        for index, optimizer in enumerate(self.parts.optimizers):
            for parameter, state in optimizer.state.items():
                for key, value in state.items() if isinstance(state, dict) else ():
                    if value is tensor:
                        return optimizer, (index, id(parameter), key)
        return None

    def restore(self) -> None:
        """Puts every tensor back into its slot and forgets optimizer state that was made since."""
        for optimizer, states in zip(self.parts.optimizers, self.states, strict=True):
            for key in list(optimizer.state):
                if key in states and isinstance(states[key], dict):
                    optimizer.state[key].clear()
                    optimizer.state[key].update(states[key])
                elif key in states:
                    optimizer.state[key] = states[key]
                else:
                    del optimizer.state[key]
        for name, slot in self.slots.items():
            if slot.get() is not self.tensors[name]:
                slot.set(self.tensors[name])
        for tensor, data, asks in self._data:
            if place_of(tensor) != place_of(data):
                tensor.data = data
            if tensor.is_leaf and tensor.requires_grad != asks:
                tensor.requires_grad_(asks)
