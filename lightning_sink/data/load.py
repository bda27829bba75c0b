"""Batches that programs will use, packed on the host, sent at once, and used there as they lie.

What comes at one place of each batch lies side by side there, a column, which is one copy, and which steps in a row
take as one tensor. Each batch is packed before the next one is fetched: a loader may fill its memory again.
"""

from __future__ import annotations

from collections.abc import Callable
from ctypes import memmove
from itertools import repeat
from typing import Any

import torch
from torch import Tensor

from lightning_sink.data.batch import Signature, flatten
from lightning_sink.data.gathered import Gathered
from lightning_sink.data.private import likeness
from lightning_sink.data.run import Found, Run, count_of
from lightning_sink.data.streams import Arriving, Streams

_ROW = 16
"""Batches to a multiple of which a copy is cut, where it is cut: steps in a row are replayed so many at once."""

_ALIGNMENT = 256
"""Bytes to a multiple of which a tensor begins, as with PyTorch's own allocator for CUDA."""


class Load(Run):
    """A run of batches that lie side by side and are sent at once. Made by `Device.load`.

    Args:
        streams: The device.
        found: The first of them.
        batch: One like them.
        leaves: Its tensors.
        signature: What batches have in common that are like it.
        rebuild: Makes a batch of others in their place.
        most: How many there may be.
        room: Bytes that the copy may have.

    Attributes:
        fit: How many such batches have room there.
        size: Bytes of the first.
    """

    def __init__(
        self,
        streams: Streams,
        found: Found,
        batch: Any,
        leaves: list[Tensor],
        signature: Signature,
        rebuild: Callable[[list[Tensor]], Any],
        most: int,
        room: int,
    ) -> None:
        super().__init__()
        self._streams, self._rebuild, self._signature = streams, rebuild, signature
        items = batch if type(batch) in (tuple, list) else batch.values() if type(batch) is dict else ()
        is_flat = len(items) == len(leaves) and all(type(item) is Tensor for item in items)
        self._kind = type(batch) if is_flat else None  # of which `put` knows where its tensors are
        self._names = [*batch] if self._kind is dict else None
        self._layouts = [*map(_Layout, leaves)]
        fit = room // sum(layout.step for layout in self._layouts)
        self.fit = max(1, fit - fit % _ROW if fit > _ROW else fit)
        self._most = max(count_of(found), min(most, self.fit))
        # One that comes twice is sent twice, as `Tensor.to` makes two of it.
        self._packing = [_Column(streams, *both, self._most) for both in zip(leaves, self._layouts, strict=True)]
        self._targets = [(column.begin, column.step, column.nbytes, column.places) for column in self._packing]
        self._are_alike, self.size = likeness(leaves), found[2] // count_of(found)
        self._sent: Arriving | None = None
        self._columns: list[Tensor] = []
        self.add(found)

    def add(self, found: Found) -> bool:
        """Takes what was found as the last, whose memory may be filled again then.

        False, and nothing was taken, where it is not like the others, there is no room, or they have been sent.
        """
        batch, note, size = found
        if type(batch) is not Gathered:
            return self.put(batch, note, size)
        if self._sent is not None or len(self._kept) + len(batch) > self._most or batch.signature != self._signature:
            return False
        number, count = len(self._kept), len(batch)
        for column, tensors in zip(self._packing, batch.columns, strict=True):
            column.whole[number : number + count].copy_(tensors)
        self._kept.extend(zip(note, repeat(size // count), repeat(None)))
        return True

    def put(self, batch: Any, note: Any, size: int | None = None) -> bool:
        """Takes a batch as the last, likewise: what is done for each of very many, and so looks at each tensor once.

        Args:
            batch: The batch.
            note: Its note.
            size: Its bytes; None for those of the first.
        """
        number = len(self._kept)
        if number >= self._most or self._sent is not None:
            return False
        if type(batch) is not self._kind:
            leaves, signature = flatten(batch)
            if signature != self._signature:
                return False
        elif self._names is None:
            leaves = batch
        elif [*batch] == self._names:
            leaves = [*batch.values()]
        else:
            return False
        if len(leaves) != len(self._targets):
            return False
        for tensor in leaves:
            if type(tensor) is not Tensor or tensor.is_nested or tensor.__dict__:
                return False
        if not self._are_alike(*leaves):
            return False
        for tensor, (begin, step, nbytes, places) in zip(leaves, self._targets, strict=True):
            if places is None:
                memmove(begin + number * step, tensor.data_ptr(), nbytes)
            else:
                places[number].copy_(tensor)
        self._kept.append((note, self.size if size is None else size, None))
        return True

    def send(self) -> None:
        """Issues the copies."""
        assert self._sent is None, "a load is sent once"  # noqa: S101
        packed = [column.bytes(len(self)) for column in self._packing]
        self._packing, self._targets = [], []
        self._sent = Arriving(self._streams, packed, list)  # what knows of this load would keep itself alive

    def _arrive(self) -> list[Tensor]:
        """Makes the caller's stream wait for them, and returns each tensor of all batches."""
        assert self._sent is not None, "a load is sent before its batches are taken"  # noqa: S101
        if not self._columns:
            there, count = self._sent.take(), self.first + len(self)
            self._columns = [layout.of(memory, count) for layout, memory in zip(self._layouts, there, strict=True)]
        return self._columns

    def batch(self, number: int) -> Any:
        """Returns a batch, on the device."""
        # Each tensor counts its own writes, which views would share.
        return self._rebuild([column[number].data for column in self._arrive()])

    def columns(self, begin: int, end: int) -> list[Tensor | list[Tensor]]:
        """Returns each tensor of some batches, side by side."""
        return [column[begin:end] for column in self._arrive()]


class _Layout:
    """How what comes at one place of each batch lies side by side, a column.

    Args:
        tensor: The first batch's.

    Attributes:
        stride: That of each, as `Tensor.to` makes it.
        nbytes: Bytes of each.
        step: Bytes from one to the next.
    """

    def __init__(self, tensor: Tensor) -> None:
        like = torch.empty_like(tensor, device="meta")
        self._shape, self._dtype, self.stride, self.nbytes = like.shape, like.dtype, like.stride(), like.nbytes
        self.step = -(-max(1, self.nbytes) // _ALIGNMENT) * _ALIGNMENT

    def of(self, memory: Tensor, count: int) -> Tensor:
        """Returns the first ones in such memory: `[count, ...]`."""
        column, size = torch.empty(0, dtype=self._dtype, device=memory.device), self._dtype.itemsize
        place = memory.storage_offset() // size
        return column.set_(memory.untyped_storage(), place, (count, *self._shape), (self.step // size, *self.stride))


class _Column:
    """A column, in memory that copies are made from.

    Args:
        streams: The device.
        tensor: The first batch's.
        layout: How it lies.
        most: How many there may be.

    Attributes:
        whole: All of them: `[most, ...]`.
        begin: Where the first begins.
        step: Bytes from one to the next.
        nbytes: Bytes of each, if it lies in one piece, as it will there.
        places: What those are copied into that do not; None for those that do, which are moved.
    """

    def __init__(self, streams: Streams, tensor: Tensor, layout: _Layout, most: int) -> None:
        self.step, self.nbytes = layout.step, layout.nbytes
        # Like what has no such memory; not on "meta", where torch would run Python.
        self._memory = streams.pinned(torch.empty((), dtype=torch.uint8, device="cpu").expand(layout.step * most))
        self.begin, self.whole = self._memory.data_ptr(), layout.of(self._memory, most)
        self.places = None if tensor.stride() == layout.stride else self.whole.unbind()

    def bytes(self, count: int) -> Tensor:
        """Returns the memory of the first ones."""
        return self._memory[: self.step * count]
