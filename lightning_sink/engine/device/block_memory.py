"""The memory around a graph: what its inputs are put into, and copies of what it leaves."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate

import torch
from torch import Tensor

from lightning_sink.engine.compiler.copies import memory_of
from lightning_sink.engine.compiler.row import Outputs
from lightning_sink.engine.private import copy_alike, copy_all
from lightning_sink.engine.step import Column

_ALIGNMENT = 256
"""Bytes to a multiple of which each step's begin, as with PyTorch's allocator for CUDA: kernels may count on it."""


class OutputCopies:
    """Makes copies of what a block left. The outputs of a graph stay where they are, so these are looked at once.

    Args:
        outputs: The outputs.
        fixed: The inputs that are the same for each step.
    """

    def __init__(self, outputs: Outputs, fixed: list[Tensor | None]) -> None:
        distinct = {id(output): output for output in outputs}
        numbers = {key: number for number, key in enumerate(distinct)}
        self._order = [numbers[id(output)] for output in outputs]
        stays = set(memory_places(tensor for tensor in fixed if tensor is not None))
        places = memory_places(distinct.values())
        self._sources: list[Tensor] = []
        sources: dict[int, int] = {}
        for tensor, place in zip(distinct.values(), places, strict=True):
            if place not in stays and place not in sources:
                sources[place] = len(self._sources)
                self._sources.append(tensor if places.count(place) == 1 and _is_whole(tensor) else _whole(tensor))
        self._outputs = [(output, sources.get(place)) for output, place in zip(distinct.values(), places, strict=True)]

    def make(self) -> Outputs:
        """Returns copies of the outputs, as they are now; of one that occurs twice one and the same."""
        fresh = [torch.empty_like(source) for source in self._sources]
        copy_all(fresh, self._sources)
        found = []
        for output, number in self._outputs:
            if number is not None and self._sources[number] is output:
                found.append(fresh[number])
                continue
            memory = (output if number is None else fresh[number]).untyped_storage()
            tensor = torch.empty(0, dtype=output.dtype, device=output.device)
            found.append(tensor.set_(memory, output.storage_offset(), output.shape, output.stride()))
        return tuple([found[number] for number in self._order])


class Varying:
    """Memory for one of the inputs that differ from step to step.

    Args:
        like: One step's. Other steps' are laid as it is, and have its type.
        size: How many steps.

    Attributes:
        tensors: Each step's.
        whole: All of them: `[size, ...]`.
        memory: Each one's memory, as a tensor that lies in one piece.
        words: All memory, step by step: `[size, words of a step]`, whatever type it is of.
    """

    def __init__(self, like: Tensor, size: int) -> None:
        extent = memory_of(like)
        each = -(-max(1, extent.nbytes) // _ALIGNMENT) * _ALIGNMENT // like.itemsize
        memory = torch.empty(size * each, dtype=like.dtype, device=like.device)
        self.tensors = [memory.as_strided(like.shape, like.stride(), number * each) for number in range(size)]
        self.whole = memory.as_strided((size, *like.shape), (each, *like.stride()), 0)
        self.words = memory.view(torch.int64).view(size, -1)
        self._is_packed = like.is_contiguous()
        self.memory = self.memory_of(self.tensors)
        copy_alike(self.memory, self.memory_of([like] * size))

    def memory_of(self, tensors: list[Tensor]) -> list[Tensor]:
        """Returns the memory of tensors that are laid as these are."""
        return tensors if self._is_packed else [*map(memory_of, tensors)]


def fill(memory: list[Varying], columns: Sequence[Column]) -> None:
    """Puts the inputs that differ of some steps, the first ones there, into memory, by few copies."""
    targets, sources = list[Tensor](), list[Tensor]()
    for varying, column in zip(memory, columns, strict=True):
        if isinstance(column, Tensor):
            count = column.shape[0]
            (varying.whole if count == len(varying.tensors) else varying.whole[:count]).copy_(column)
        else:
            targets += varying.memory[: len(column)]
            sources += varying.memory_of(column)
    copy_all(targets, sources)


def cut(columns: Sequence[Column], sizes: list[int]) -> list[tuple[Column, ...]]:
    """Returns columns in parts of so many steps each: of the first part that of each column, and so on."""
    ends, steps = [*accumulate(sizes)], sum(sizes)
    parts: list[Sequence[Column]] = []
    for column in columns:
        if isinstance(column, Tensor):
            parts.append(column[:steps].split(sizes))
        else:
            parts.append([column[end - size : end] for end, size in zip(ends, sizes, strict=True)])
    return [*zip(*parts, strict=True)] if parts else [()] * len(sizes)


def _is_whole(tensor: Tensor) -> bool:
    """Tells whether a tensor is all that lies in its memory, each element once."""
    is_packed = tensor.is_contiguous() and not tensor.requires_grad
    return is_packed and tensor.nbytes == tensor.untyped_storage().nbytes()


def _whole(tensor: Tensor) -> Tensor:
    storage = tensor.untyped_storage()
    return torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(storage, 0, (storage.nbytes(),), (1,))


def memory_places(tensors: Iterable[Tensor]) -> list[int]:
    """Returns where the memory of each tensor begins, whatever part of it the tensor has."""
    return [tensor.untyped_storage().data_ptr() for tensor in tensors]
