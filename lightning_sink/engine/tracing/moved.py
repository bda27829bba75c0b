"""Tensors that a step gives other memory: `teacher.data = 0.9 * teacher.data + 0.1 * student.data`.

A program writes what was put there into the memory that the tensor has. That is the same as long as nobody looks at the
memory that the tensor had before, and nobody else holds what was put there: `Moved` knows both of a recorded step.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from lightning_sink.engine.state.slots import PLAIN_TENSORS, Snapshot, storages
from lightning_sink.engine.tracing.graph_writer import GraphWriter
from lightning_sink.engine.tracing.origins import memory_of


def puts_data(func: Any) -> bool:
    """Tells whether a function is what `tensor.data = ...` calls."""
    return getattr(func, "__self__", None) is torch.Tensor.data and func.__name__ == "__set__"


class Moved:
    """The tensors that were given other memory; `before` is what slots hold before a step, and keeps these tensors."""

    def __init__(self, before: Snapshot, writer: GraphWriter) -> None:
        self._slots, self._writer = before, writer
        self._tensors: set[int] = set()
        self._kept: list[torch.UntypedStorage] = []  # so that no other tensor has the memory of one before
        self._before: set[int] = set()
        self._given: dict[int, int] = {}  # as of which operation a tensor in such memory is the one that was given it

    @cached_property
    def _held(self) -> set[int]:
        """The tensors in slots that may be moved: a gradient's slot is filled anew."""
        return {id(self._slots.tensors[name]) for name, slot in self._slots.slots.items() if not slot.is_gradient}

    @cached_property
    def _places(self) -> Counter[int | None]:
        """Where all that slots hold lies."""
        return Counter(storages(self._slots.tensors.values()))

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
        return own is not None and given is not None and self._places[own] == 1 and not self._places[given]

    def take(self, tensor: Tensor, value: Tensor) -> None:
        """Takes note of a tensor that is about to get what another one holds."""
        self._tensors.add(id(tensor))
        before, given = (each.untyped_storage() for each in (tensor, value))
        self._places[before.data_ptr()] -= 1
        self._places[given.data_ptr()] += 1
        self._kept += before, given
        self._before.add(before.data_ptr())
        self._given[given.data_ptr()] = self._writer.operations

    def are_used(self, tensors: Sequence[Tensor]) -> bool:
        """Tells whether an operation looks at what a tensor had before, or at what it was given by another name."""
        if not self._tensors:
            return False
        places = [*zip(tensors, storages(tensors), strict=True)]
        if any(place in self._before for _, place in places):
            return True
        others = (tensor for tensor, place in places if place in self._given and not self.has(tensor))
        return any(self._writer.age(tensor) <= self._given[memory_of(tensor)] for tensor in others)


def _fills_its_memory(tensor: Tensor) -> bool:
    return tensor.layout is torch.strided and tensor.untyped_storage().nbytes() == tensor.nbytes
