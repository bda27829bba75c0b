"""Batches that programs will use, side by side: packed on the host, sent by one copy, and used there as they lie."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from ctypes import memmove
from itertools import repeat
from operator import itemgetter
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
        self._streams, self._rebuild, self._signature, self._size = streams, rebuild, signature, 0
        is_flat = type(batch) in (tuple, list) and all(type(item) is Tensor for item in batch)
        self._flat = type(batch) if is_flat else None
        self._layouts: list[_Layout] = []
        for tensor in leaves:  # one that comes twice is sent twice, as `Tensor.to` makes two of it
            self._layouts.append(_Layout(tensor, self._size))
            self._size += -(-self._layouts[-1].nbytes // _ALIGNMENT) * _ALIGNMENT
        fit = room // max(1, self._size)
        self.fit = max(1, fit - fit % _ROW if fit > _ROW else fit)
        self._most = max(count_of(found), min(most, self.fit))
        whole = torch.empty(max(1, self._size * self._most), dtype=torch.uint8, device="meta")
        arena = streams.pinned(whole)
        self._base = arena.data_ptr()
        self._arena: Tensor | None = arena
        # What lies in one piece, as it will there, is moved; what does not is copied into these places.
        places = [
            None if tensor.stride() == layout.stride else self._column(arena, layout, self._most).unbind()
            for tensor, layout in zip(leaves, self._layouts, strict=True)
        ]
        self._targets = [
            (likeness(tensor), layout.offset, layout.nbytes, copies)
            for tensor, layout, copies in zip(leaves, self._layouts, places, strict=True)
        ]
        self._sent: Arriving | None = None
        self._columns: list[Tensor] = []
        self.add(found)

    def add(self, found: Found) -> bool:
        """Takes what was found as the last, whose memory may be filled again then.

        False, and nothing was taken, where it is not like the others, there is no room, or they have been sent.
        """
        batch = found[0]
        if self._arena is None or len(self._kept) + count_of(found) > self._most:
            return False
        if type(batch) is self._flat:
            return len(batch) == len(self._targets) and self._pack(batch, found)
        if type(batch) is Gathered:
            return batch.signature == self._signature and self._pack_together(found)
        leaves, signature = flatten(batch)
        return signature == self._signature and self._pack(leaves, found)

    def _pack_together(self, found: Found) -> bool:
        """Copies batches that lie side by side to the next places."""
        batches, notes, size = found
        count, step = len(batches), self._size
        begin = self._base + step * len(self._kept)
        for column, (_, offset, nbytes, _) in zip(batches.columns, self._targets, strict=True):
            source, target = column.data_ptr(), begin + offset
            for place in range(count):
                memmove(target + place * step, source + place * nbytes, nbytes)
        self._kept.extend(zip(notes, repeat(size // count), repeat(None)))
        return True

    def _pack(self, leaves: Sequence[Any], found: Found) -> bool:
        """Copies tensors to the next place, if each is like the first batch's; looks at each once."""
        number = len(self._kept)
        begin = self._base + self._size * number
        for tensor, (is_alike, offset, nbytes, copies) in zip(leaves, self._targets, strict=True):
            if type(tensor) is not Tensor or tensor.is_nested or not is_alike(tensor):
                return False
            if copies is None:
                memmove(begin + offset, tensor.data_ptr(), nbytes)
            else:
                copies[number].copy_(tensor)
        self._kept.append((found[1], found[2], None))
        return True

    def send(self) -> None:
        """Issues the copy."""
        assert self._arena is not None, "a load is sent once"  # noqa: S101
        packed = self._arena[: max(1, self._size * len(self))]
        self._sent = Arriving(self._streams, [packed], itemgetter(0))  # what knows of this load would keep itself alive
        self._arena, self._targets = None, []

    def _arrive(self) -> list[Tensor]:
        """Makes the caller's stream wait for them, and returns each tensor of all batches."""
        assert self._sent is not None, "a load is sent before its batches are taken"  # noqa: S101
        if not self._columns:
            there, count = self._sent.take(), self.first + len(self)
            self._columns = [self._column(there, layout, count) for layout in self._layouts]
        return self._columns

    def batch(self, number: int) -> Any:
        """Returns a batch, on the device."""
        # Each tensor counts its own writes, which views would share.
        return self._rebuild([column[number].data for column in self._arrive()])

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
