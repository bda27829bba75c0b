"""Batches on their way to a device that runs behind its host.

`Device` sends a batch by a stream that copies beside the one that computes. The training's stream waits for the copy
where the batch is taken; nothing on the host waits. Memory, the host's pinned and the device's, is asked for anew for
each copy, and belongs to whoever holds the batch: PyTorch's caching allocators give it to nobody else before the copies
and steps that use it have ended, and ask the driver for none once they have enough. So what a user keeps of a batch
stays as it is, which a ring of memory that is filled again could not promise.

`Streams` is what is needed of a device; `cuda.py` has CUDA's.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from ctypes import memmove
from typing import Any, cast

import torch
from torch import Tensor

from lightning_sink.data.private import pytree

_ALIGNMENT = 256
"""Bytes to a multiple of which a tensor begins, as with PyTorch's own allocator for CUDA."""

_PLAIN = (int, float, complex, bool, str, bytes, type(None))


class Streams(ABC):
    """A device with a stream that copies beside the one that computes."""

    @abstractmethod
    def pinned(self, like: Tensor) -> Tensor:
        """Returns memory of the host's, laid out like a tensor, that copies are made from while the host goes on."""

    @abstractmethod
    def send(self, tensors: list[Tensor]) -> tuple[list[Tensor], Any]:
        """Issues copies of pinned tensors to the device, on the copying stream. Waits for nothing.

        Returns:
            The tensors there, and an event behind the copies.
        """

    @abstractmethod
    def arrive(self, tensors: list[Tensor], event: Any) -> None:
        """Makes the caller's stream wait for an event, and use the tensors: nobody gets their memory before it has."""


class _Copy:
    """What was sent at once."""

    def __init__(self, streams: Streams, pinned: list[Tensor]) -> None:
        self._streams = streams
        self.tensors, self._event = streams.send(pinned)

    def arrive(self) -> None:
        if self._event is not None:
            self._streams.arrive(self.tensors, self._event)
            self._event = None


class Arriving:
    """A batch on its way.

    Args:
        rebuild: Makes it of its tensors.
    """

    def __init__(self, rebuild: Callable[[list[Tensor]], Any]) -> None:
        self._rebuild = rebuild
        self._sent: tuple[_Copy, list[Tensor]] | None = None

    def send(self, copy: _Copy, tensors: list[Tensor]) -> None:
        """Its tensors have been sent."""
        self._sent = copy, tensors

    def take(self) -> Any:
        """Makes the caller's stream wait for the batch, and returns it, on the device."""
        assert self._sent is not None, "a load is sent before its batches are taken"  # noqa: S101
        copy, tensors = self._sent
        copy.arrive()
        return self._rebuild(tensors)


class Device:
    """Sends batches to a device.

    A batch that holds more than tensors, numbers and texts in containers is not sent: whoever made it knows how it is
    moved.

    Args:
        streams: The device.
    """

    def __init__(self, streams: Streams) -> None:
        self._streams = streams

    def send(self, batch: Any) -> Any:
        """Sends a batch that the user's code may see, each tensor in memory of its own: what is kept keeps no more.

        Returns:
            An `Arriving`, and the batch's memory may be filled again from then on; the batch if it is not sent.
        """
        found = _apart(batch)
        if found is None:
            return batch
        tensors, rebuild = found
        item = Arriving(rebuild)
        copy = _Copy(self._streams, [self._streams.pinned(tensor).copy_(tensor) for tensor in tensors])
        item.send(copy, copy.tensors)
        return item

    def load(self, batches: int, room: int) -> Load:
        """Returns what sends batches that programs will use by few copies; the arguments are those of `Load`."""
        return Load(self._streams, batches, room)


class Load:
    """Batches of one layout that lie side by side and are sent at once; another layout begins another copy.

    Args:
        streams: The device.
        batches: How many there may be.
        room: Bytes that one copy may have; a batch that is larger has one of its own.
    """

    def __init__(self, streams: Streams, batches: int, room: int) -> None:
        self._streams, self._left, self._room = streams, batches, room
        self._layouts: list[_Layout] = []
        self._size = self._most = self._base = 0
        self._arena: Tensor | None = None
        self._views: dict[tuple[int, torch.Size], Sequence[Tensor]] = {}
        self._items: list[Arriving] = []

    def add(self, batch: Any) -> Any:
        """Takes a batch.

        Returns:
            An `Arriving`, and the batch's memory may be filled again from then on; the batch if it is not sent.
        """
        self._left -= 1
        found = _apart(batch)
        if found is None:
            return batch
        tensors, rebuild = found
        if len(self._items) >= self._most or not self._fill(tensors):
            self.send()
            self._begin(tensors)
            self._fill(tensors)
        item = Arriving(rebuild)
        self._items.append(item)
        return item

    def _begin(self, tensors: list[Tensor]) -> None:
        self._layouts, self._size, self._views = [], 0, {}
        for tensor in tensors:
            shape, dtype, stride, nbytes = _as_sent(tensor)
            self._layouts.append((shape, dtype, stride, nbytes, self._size, {tensor.stride()}))
            self._size += -(-nbytes // _ALIGNMENT) * _ALIGNMENT
        most = min(self._left + 1, max(1, self._room // max(1, self._size)))
        whole = torch.empty(max(1, self._size * most), dtype=torch.uint8, device="meta")
        self._arena = self._streams.pinned(whole)
        self._base, self._most = self._arena.data_ptr(), most  # behind what may find no memory

    def _fill(self, tensors: list[Tensor]) -> bool:
        """Copies tensors to the next place; False, and they may be in part, where `Tensor.to` lays them otherwise."""
        if len(tensors) != len(self._layouts):
            return False
        number = len(self._items)
        begin = self._base + self._size * number
        for tensor, (shape, dtype, stride, nbytes, offset, others) in zip(tensors, self._layouts, strict=True):
            if tensor.dtype != dtype or tensor.shape != shape:
                return False
            given = tensor.stride()
            if given == stride:  # in one piece, in this order
                memmove(begin + offset, tensor.data_ptr(), nbytes)
                continue
            if given not in others:
                if _as_sent(tensor)[2] != stride:
                    return False
                others.add(given)
            place = offset, shape  # an empty tensor ends where it begins
            if place not in self._views:
                arena = cast(Tensor, self._arena)
                self._views[place] = self._column(arena, self._most, shape, dtype, stride, offset).unbind()
            self._views[place][number].copy_(tensor)
        return True

    def send(self) -> None:
        """Issues the copy of what was added since the last one."""
        if self._items and self._arena is not None:
            count = len(self._items)
            copy = _Copy(self._streams, [self._arena[: max(1, self._size * count)]])
            columns = [
                # Each counts its own writes, which views would share.
                [part.data for part in self._column(copy.tensors[0], count, shape, dtype, stride, offset).unbind()]
                for shape, dtype, stride, _, offset, _ in self._layouts
            ]
            for item, *tensors in zip(self._items, *columns, strict=True):
                item.send(copy, tensors)
        self._arena, self._items, self._most = None, [], 0

    def _column(
        self, arena: Tensor, count: int, shape: torch.Size, dtype: torch.dtype, stride: tuple[int, ...], offset: int
    ) -> Tensor:
        """Returns the tensors at one place of each batch, in an arena's memory."""
        column = torch.empty(0, dtype=dtype, device=arena.device)
        place, each = offset // dtype.itemsize, self._size // dtype.itemsize
        return column.set_(arena.untyped_storage(), place, (count, *shape), (each, *stride))


_Layout = tuple[torch.Size, torch.dtype, tuple[int, ...], int, int, set[tuple[int, ...]]]
"""A tensor's shape, type and strides once it is sent; its bytes; where it begins; strides from which it comes so."""


def _as_sent(tensor: Tensor) -> tuple[torch.Size, torch.dtype, tuple[int, ...], int]:
    """Returns the shape, type, strides and bytes of what `Tensor.to` makes of a tensor."""
    like = torch.empty_like(tensor, device="meta")
    return like.shape, like.dtype, like.stride(), like.nbytes


def _apart(batch: Any) -> tuple[list[Tensor], Callable[[list[Tensor]], Any]] | None:
    """Returns the tensors of a batch, one that comes twice twice, and what makes a batch of others in their place.

    None where there is no tensor to send, or anything that nobody knows how to move.
    """
    kind = type(batch)
    if (kind is tuple or kind is list) and batch and all(map(_is_plain, batch)):  # what most loaders give
        return list(batch), kind
    if kind is dict and batch and all(map(_is_plain, batch.values())):
        names = [*batch]
        return list(batch.values()), lambda tensors: dict(zip(names, tensors, strict=True))
    leaves, spec = pytree.tree_flatten(batch)
    places = [place for place, leaf in enumerate(leaves) if isinstance(leaf, Tensor)]
    is_known = all(type(leaf) in _PLAIN or _is_plain(leaf) for leaf in leaves)
    if not places or not is_known:
        return None

    def rebuild(tensors: list[Tensor]) -> Any:
        filled = leaves.copy()
        for place, tensor in zip(places, tensors, strict=True):
            filled[place] = tensor
        return pytree.tree_unflatten(filled, spec)

    tensors = [leaves[place] for place in places]
    for place in places:
        leaves[place] = None  # the loader's
    return tensors, rebuild


def _is_plain(item: Any) -> bool:
    """Tells whether this is a tensor, numbers in the host's memory and no more."""
    if type(item) is not Tensor or item.layout is not torch.strided or not item.is_cpu:
        return False
    return not (item.requires_grad or item.is_quantized or item.is_nested or item.is_conj() or item.is_neg())
