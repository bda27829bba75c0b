"""Batches that programs will use, packed on the host, sent at once, and used there as they lie.

What comes at one place of each batch lies side by side there, a column: tensors that are alike are put together by one
call, and steps in a row take them as one tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from ctypes import memmove
from itertools import repeat
from typing import Any

import torch
from torch import Tensor

from lightning_sink.data.batch import Signature, flatten
from lightning_sink.data.gathered import Gathered
from lightning_sink.data.private import likeness
from lightning_sink.data.run import Found, Run, count_of
from lightning_sink.data.several import Bunch
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
        self._streams, self._rebuild, self._signature = streams, rebuild, signature
        is_flat = type(batch) in (tuple, list) and all(type(item) is Tensor for item in batch)
        self._flat = type(batch) if is_flat else None
        self._layouts = [*map(_Layout, leaves)]
        fit = room // sum(layout.step for layout in self._layouts)
        self.fit = max(1, fit - fit % _ROW if fit > _ROW else fit)
        self._most = max(count_of(found), min(most, self.fit))
        # One that comes twice is sent twice, as `Tensor.to` makes two of it.
        self._packing = [_Column(streams, *both, self._most) for both in zip(leaves, self._layouts, strict=True)]
        self._sent: Arriving | None = None
        self._columns: list[Tensor] = []
        self.add(found)

    def add(self, found: Found) -> bool:
        """Takes what was found as the last, whose memory may be filled again then.

        False, and nothing was taken, where it is not like the others, there is no room, or they have been sent.
        """
        batch = found[0]
        if self._sent is not None or len(self._kept) + count_of(found) > self._most:
            return False
        if type(batch) is self._flat:
            return len(batch) == len(self._packing) and self._pack(batch, found)
        if isinstance(batch, (Bunch, Gathered)):
            return batch.signature == self._signature and self._pack_together(batch, found)
        leaves, signature = flatten(batch)
        return signature == self._signature and self._pack(leaves, found)

    def _pack_together(self, batches: Bunch | Gathered, found: Found) -> bool:
        """Copies batches that are like the first one to the next places."""
        number, count = len(self._kept), len(batches)
        columns: Sequence[Any] = batches.columns
        for column, tensors in zip(self._packing, columns, strict=True):
            column.put_all(number, tensors)
        self._kept.extend(zip(found[1], repeat(found[2] // count), repeat(None)))
        return True

    def _pack(self, leaves: Sequence[Any], found: Found) -> bool:
        """Copies tensors to the next place, if each is like the first batch's; looks at each once."""
        number = len(self._kept)
        for tensor, column in zip(leaves, self._packing, strict=True):
            if type(tensor) is not Tensor or tensor.is_nested or tensor.__dict__ or not column.is_alike(tensor):
                return False
            column.put(number, tensor)
        self._kept.append((found[1], found[2], None))
        return True

    def send(self) -> None:
        """Issues the copies."""
        assert self._sent is None, "a load is sent once"  # noqa: S101
        packed, self._packing = [column.bytes(len(self)) for column in self._packing], []
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
        is_alike: Tells whether something else, that is no nested tensor, is a tensor like the first.
    """

    def __init__(self, streams: Streams, tensor: Tensor, layout: _Layout, most: int) -> None:
        self.is_alike, self._step, self._nbytes = likeness(tensor), layout.step, layout.nbytes
        self._memory = streams.pinned(torch.empty(layout.step * most, dtype=torch.uint8, device="meta"))
        self._begin, self._whole = self._memory.data_ptr(), layout.of(self._memory, most)
        # What lies in one piece, as it will there, is moved; what does not is copied into these places.
        self._places = None if tensor.stride() == layout.stride else self._whole.unbind()
        self._is_dense = self._whole.is_contiguous()

    def put(self, number: int, tensor: Tensor) -> None:
        """Copies a tensor to a place."""
        if self._places is None:
            memmove(self._begin + number * self._step, tensor.data_ptr(), self._nbytes)
        else:
            self._places[number].copy_(tensor)

    def put_all(self, number: int, tensors: Tensor | tuple[Tensor, ...]) -> None:
        """Copies tensors, or one that has all of them side by side, to the places from one on."""
        if not self._is_dense:
            for place, tensor in enumerate(tensors, start=number):
                self.put(place, tensor)
        elif isinstance(tensors, Tensor):
            self._whole[number : number + len(tensors)].copy_(tensors)
        else:
            torch.stack(tensors, out=self._whole[number : number + len(tensors)])

    def bytes(self, count: int) -> Tensor:
        """Returns the memory of the first ones."""
        return self._memory[: self._step * count]
