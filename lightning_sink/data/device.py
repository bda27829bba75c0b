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
from typing import Any

import torch
from torch import Tensor

from lightning_sink.data.batch import flatten
from lightning_sink.data.private import pytree
from lightning_sink.data.run import Found, Run

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
        copy: What it was sent by.
        rebuild: Makes it of its tensors.
    """

    def __init__(self, copy: _Copy, rebuild: Callable[[list[Tensor]], Any]) -> None:
        self._copy, self._rebuild = copy, rebuild

    def take(self) -> Any:
        """Makes the caller's stream wait for the batch, and returns it, on the device."""
        self._copy.arrive()
        return self._rebuild(self._copy.tensors)


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
        copy = _Copy(self._streams, [self._streams.pinned(tensor).copy_(tensor) for tensor in tensors])
        return Arriving(copy, rebuild)

    def load(self, found: Found, batches: int, room: int) -> Load | None:
        """Returns what sends batches like this one that programs will use by one copy; None if it is not sent.

        Args:
            found: The first of them.
            batches: How many there may be.
            room: Bytes that the copy may have; a batch that is larger has one of its own.
        """
        apart = _apart(found[0])
        return None if apart is None else Load(self._streams, found, *apart, batches, room)


class Load(Run):
    """A run of batches that lie side by side and are sent at once. Made by `Device.load`, with the first of them.

    Args:
        streams: The device.
        found: The first.
        tensors: Its tensors.
        rebuild: Makes a batch of others in their place.
        batches: How many there may be.
        room: Bytes that the copy may have.
    """

    def __init__(
        self,
        streams: Streams,
        found: Found,
        tensors: list[Tensor],
        rebuild: Callable[[list[Tensor]], Any],
        batches: int,
        room: int,
    ) -> None:
        super().__init__()
        self._streams, self._rebuild, self._size = streams, rebuild, 0
        leaves, self._signature = flatten(found[0])
        is_flat = type(found[0]) in (tuple, list) and all(type(item) is Tensor for item in found[0])
        self._flat = type(found[0]) if is_flat else None
        places: dict[int, list[int]] = {}  # a tensor that comes twice is sent twice, as `Tensor.to` makes two of it
        for place, leaf in enumerate(leaves):
            places.setdefault(id(leaf), []).append(place)
        self._order = [places[id(tensor)].pop(0) for tensor in tensors]
        self._layouts: list[_Layout] = []
        for tensor in leaves:
            self._layouts.append(_Layout(tensor, self._size))
            self._size += -(-self._layouts[-1].nbytes // _ALIGNMENT) * _ALIGNMENT
        self._most = max(1, min(batches, room // max(1, self._size)))
        whole = torch.empty(max(1, self._size * self._most), dtype=torch.uint8, device="meta")
        self._arena = streams.pinned(whole)
        self._base = self._arena.data_ptr()
        self._targets = [
            (tensor.shape, tensor.dtype, tensor.stride(), layout.offset, layout.nbytes, self._copies_of(tensor, layout))
            for tensor, layout in zip(leaves, self._layouts, strict=True)
        ]
        self._copy: _Copy | None = None
        self._columns: list[Tensor] = []
        self._take(leaves, found)

    def add(self, found: Found) -> bool:
        """Takes a batch as the last one, whose memory may be filled again then.

        False, and nothing was taken, where it is not like the others, there is no room, or they have been sent.
        """
        batch = found[0]
        if len(self._kept) >= self._most or self._copy is not None:
            return False
        if type(batch) is self._flat:
            return len(batch) == len(self._targets) and self._take(batch, found)
        leaves, signature = flatten(batch)
        return signature == self._signature and self._take(leaves, found)

    def _take(self, leaves: Sequence[Any], found: Found) -> bool:
        """Copies tensors to the next place, if each is like the first batch's; in half the time of a look at all."""
        number = len(self._kept)
        begin = self._base + self._size * number
        for tensor, (shape, dtype, stride, offset, nbytes, copies) in zip(leaves, self._targets, strict=True):
            if (
                type(tensor) is not Tensor
                or tensor.shape != shape
                or tensor.dtype is not dtype
                or not tensor.is_cpu
                or tensor.requires_grad
                or tensor.is_conj()
                or tensor.is_neg()
                or tensor.stride() != stride
            ):
                return False
            if copies is None:
                memmove(begin + offset, tensor.data_ptr(), nbytes)
            else:
                copies[number].copy_(tensor)
        self._kept.append((found[1], found[2], None))
        return True

    def _copies_of(self, tensor: Tensor, layout: _Layout) -> Sequence[Tensor] | None:
        """Returns where a tensor of each batch is copied to; None for what lies in one piece, as it will."""
        if tensor.stride() == layout.stride:
            return None
        return self._column(self._arena, layout, self._most).unbind()

    def send(self) -> None:
        """Issues the copy."""
        self._copy = _Copy(self._streams, [self._arena[: max(1, self._size * len(self))]])
        self._targets = []

    def _arrive(self) -> list[Tensor]:
        """Makes the caller's stream wait for them, and returns each tensor of all batches."""
        assert self._copy is not None, "a load is sent before its batches are taken"  # noqa: S101
        if not self._columns:
            self._copy.arrive()
            (there,) = self._copy.tensors
            count = self.first + len(self)
            self._columns = [self._column(there, layout, count) for layout in self._layouts]
        return self._columns

    def batch(self, number: int) -> Any:
        """Returns a batch, on the device."""
        # Each tensor counts its own writes, which views would share.
        leaves = [column[number].data for column in self._arrive()]
        return self._rebuild([leaves[place] for place in self._order])

    def columns(self, begin: int, end: int) -> list[Tensor | list[Tensor]]:
        """Returns each tensor of some batches, side by side."""
        return [column[begin:end] for column in self._arrive()]

    def _column(self, arena: Tensor, layout: _Layout, count: int) -> Tensor:
        """Returns the tensors at one place of each batch, in an arena's memory."""
        column = torch.empty(0, dtype=layout.dtype, device=arena.device)
        place, each = layout.offset // layout.dtype.itemsize, self._size // layout.dtype.itemsize
        return column.set_(arena.untyped_storage(), place, (count, *layout.shape), (each, *layout.stride))


class _Layout:
    """What `Tensor.to` makes of a tensor, and where it lies in what is sent of a batch.

    Args:
        tensor: The tensor.
        offset: Bytes before it.
    """

    def __init__(self, tensor: Tensor, offset: int) -> None:
        like = torch.empty_like(tensor, device="meta")
        self.shape, self.dtype, self.stride, self.nbytes = like.shape, like.dtype, like.stride(), like.nbytes
        self.offset = offset


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
