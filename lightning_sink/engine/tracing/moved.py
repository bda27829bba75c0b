"""Tensors that a step gives other memory: `teacher.data = 0.9 * teacher.data + 0.1 * student.data`.

A program writes what was put there into the memory that the tensor has. That is the same as long as nobody looks at the
memory that the tensor had before, and nobody else holds what was put there: `Moved` knows both of a recorded step. A
place that holds it, and has held the same tensor's memory before (`p.data = self.state[p]["old_p"]`), need not be
filled by a program: it holds the memory that the program writes to, and is a `Follower`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lightning_sink.engine.state.slot import Slot
from lightning_sink.engine.state.slots import PLAIN_TENSORS, Snapshot, place_of, shape_of, storages
from lightning_sink.engine.tracing.graph_writer import GraphWriter
from lightning_sink.engine.tracing.origins import memory_of


def puts_data(func: Any) -> bool:
    """Tells whether a function is what `tensor.data = ...` calls."""
    return getattr(func, "__self__", None) is torch.Tensor.data and func.__name__ == "__set__"


class Follower(NamedTuple):
    """A slot that holds another tensor's memory before each step and behind it.

    Attributes:
        slot: The slot.
        tensor: The tensor whose memory is there.
    """

    slot: Slot
    tensor: Tensor

    def follows(self) -> bool:
        """Tells whether it does so now."""
        return lie_alike(self.slot.get(), self.tensor)

    def follow(self) -> None:
        """Has it do so: the tensor has other memory now."""
        self.slot.set(self.tensor.detach())


class Moved:
    """The tensors that were given other memory; `before` is what slots hold before a step, and keeps these tensors."""

    def __init__(self, before: Snapshot, writer: GraphWriter) -> None:
        self._slots, self._writer = before, writer
        self._tensors: set[int] = set()
        self._kept: list[torch.UntypedStorage] = []  # so that no other tensor has the memory of one before
        self._before: set[int] = set()
        self._given: dict[int, int] = {}  # as of which operation a tensor in such memory is the one that was given it
        self._last: dict[int, tuple[Tensor, int]] = {}  # by memory, to which tensor it was given, and what that had

    @cached_property
    def _held(self) -> set[int]:
        """The tensors in slots that may be moved: a gradient's slot is filled anew."""
        return {id(self._slots.tensors[name]) for name, slot in self._slots.slots.items() if not slot.is_gradient}

    @cached_property
    def _held_at(self) -> dict[int | None, list[str]]:
        """The slots that hold what lies at a place, or did before the step."""
        held: dict[int | None, list[str]] = {}
        for name, place in zip(self._slots.tensors, storages(self._slots.tensors.values()), strict=True):
            held.setdefault(place, []).append(name)
        return held

    def has(self, tensor: Tensor | None) -> bool:
        """Tells whether a tensor is one of them."""
        return id(tensor) in self._tensors

    def may_take(self, tensor: Tensor, value: Tensor) -> bool:
        """Tells whether a tensor may have what an operation of the step has given: it, and that, are nobody else's."""
        if id(tensor) not in self._held or not (type(tensor) in PLAIN_TENSORS and type(value) in PLAIN_TENSORS):
            return False
        alike = [(t.shape, t.stride(), t.dtype, t.device, t.layout) for t in (tensor, value) if not t.is_nested]
        if len({*alike}) > 1 or len(alike) < 2 or not _fills_its_memory(tensor) or not _fills_its_memory(value):
            return False
        own, given = storages([tensor, value])
        if own is None or given is None or given in self._held_at:
            return False
        # Others that held it before may hold something else by now.
        names = self._held_at.get(own, [])
        return storages(self._slots.slots[name].get() for name in names).count(own) == 1

    def take(self, tensor: Tensor, value: Tensor) -> None:
        """Takes note of a tensor that is about to get what another one holds."""
        self._tensors.add(id(tensor))
        before, given = (each.untyped_storage() for each in (tensor, value))
        self._held_at[given.data_ptr()] = self._slots.names[id(tensor)]
        self._last[given.data_ptr()] = tensor, place_of(tensor)
        self._kept += before, given
        self._before.add(before.data_ptr())
        self._given[given.data_ptr()] = self._writer.operations

    def left(self, tensor: Tensor) -> bool:
        """Tells whether a tensor lies where another one did before the step gave that other memory."""
        return bool(self._before) and storages([tensor])[0] in self._before

    def are_used(self, tensors: Sequence[Tensor]) -> bool:
        """Tells whether an operation looks at what a tensor had before, or at what it was given by another name."""
        if not self._tensors:
            return False
        places = [*zip(tensors, storages(tensors), strict=True)]
        if any(place in self._before for _, place in places):
            return True
        others = (tensor for tensor, place in places if place in self._given and not self.has(tensor))
        return any(self._writer.age(tensor) <= self._given[memory_of(tensor)] for tensor in others)

    def follower(self, slot: Slot, held: Tensor) -> Follower | None:
        """Returns what a slot is that holds a tensor behind the step; None for one that follows nothing."""
        tensor, place = self._last.get(place_of(held), (None, 0))
        if tensor is None or held.requires_grad or self._slots.pointers.get(slot.name) != place:
            return None
        is_so = shape_of(self._slots.tensors[slot.name]) == shape_of(held) and lie_alike(held, tensor)
        return Follower(slot, tensor) if is_so else None


def lie_alike(one: Tensor | None, other: Tensor) -> bool:
    """Tells whether two tensors are the same memory in the same way."""
    return one is not None and place_of(one) == place_of(other) != 0 and shape_of(one) == shape_of(other)


def _fills_its_memory(tensor: Tensor) -> bool:
    return tensor.layout is torch.strided and tensor.untyped_storage().nbytes() == tensor.nbytes
