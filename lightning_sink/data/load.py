"""Batches that programs will use, packed on the host, sent at once, and used there as they lie.

What comes at one place of each batch lies side by side there, a column, which is one copy, and which steps in a row
take as one tensor. Each batch is packed before the next one is fetched: a loader may fill its memory again.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import repeat
from typing import Any

import torch
from torch import Tensor

from lightning_sink.data.batch import Signature
from lightning_sink.data.gathered import Gathered
from lightning_sink.data.listed_texts import Looked, Path, texts_of, with_texts
from lightning_sink.data.packing import Column, packer
from lightning_sink.data.run import Found, Run, count_of
from lightning_sink.data.streams import Arriving, Streams

_ROW = 16
"""Batches to a multiple of which a copy is cut, where it is cut: steps in a row are replayed so many at once."""

_ALIGNMENT = 256
"""Bytes to a multiple of which a tensor begins, as with PyTorch's own allocator for CUDA."""


class Load(Run):
    """A run of batches that lie side by side and are sent at once. Made by `Device.load`.

    Args:
        found: The first of them.
        batch: One like them.
        leaves: Its tensors.
        signature: What all have in common.
        rebuild: Makes a batch of others in their place.
        most: How many there may be.
        looked: The lists of texts at which steps look; others may differ.

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
        looked: Looked,
    ) -> None:
        super().__init__(looked)
        self._streams, self._rebuild, self._signature = streams, rebuild, signature
        self._texts: Callable[[Any], dict[Path, Any] | None] = lambda batch: None
        if texts_of(batch, looked):
            self._texts = partial(texts_of, looked=looked)
        self._layouts = [*map(_Layout, leaves)]
        fit = room // sum(layout.step for layout in self._layouts)
        self.fit = max(1, fit - fit % _ROW if fit > _ROW else fit)
        self._most = max(count_of(found), min(most, self.fit))
        # One that comes twice is sent twice, as `Tensor.to` makes two of it.
        self._memory = [_Memory(streams, *both, self._most) for both in zip(leaves, self._layouts, strict=True)]
        self._pack = packer(batch, leaves, signature, [memory.column for memory in self._memory], looked)
        self.size = found[2] // count_of(found)
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
        for memory, tensors in zip(self._memory, batch.columns, strict=True):
            memory.whole[number : number + count].copy_(tensors)
        self._kept.extend(zip(note, repeat(size // count), repeat(None)))
        return True

    def put(self, batch: Any, note: Any, size: int | None = None) -> bool:
        """Takes a batch as the last, likewise; without a size, of as many bytes as the first.

        It is done for each of very many (`packing.py`).
        """
        number = len(self._kept)
        if number >= self._most or not self._pack(batch, number):
            return False
        self._kept.append((note, self.size if size is None else size, self._texts(batch)))
        return True

    def send(self) -> None:
        """Issues the copies."""
        assert self._sent is None, "a load is sent once"  # noqa: S101
        packed = [memory.bytes(len(self)) for memory in self._memory]
        self._memory, self._pack = [], lambda batch, number: False
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
        batch = self._rebuild([column[number].data for column in self._arrive()])
        texts = self._kept[number - self.first][2]
        return batch if texts is None else with_texts(batch, texts)

    def columns(self, begin: int, end: int) -> list[Tensor | list[Tensor]]:
        """Returns each tensor of some batches, side by side."""
        return [column[begin:end] for column in self._arrive()]


class _Layout:
    """How what comes at one place of each batch lies side by side, a column.

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


class _Memory:
    """Memory that the copy of a column is made from.

    Attributes:
        whole: All of them: `[most, ...]`.
        column: Where they go.
    """

    def __init__(self, streams: Streams, tensor: Tensor, layout: _Layout, most: int) -> None:
        # Like what has no such memory; not on "meta", where torch would run Python.
        self._bytes = streams.pinned(torch.empty((), dtype=torch.uint8, device="cpu").expand(layout.step * most))
        self.whole = layout.of(self._bytes, most)
        places = None if tensor.stride() == layout.stride else self.whole.unbind()
        self.column = Column(self._bytes.data_ptr(), layout.step, layout.nbytes, places)

    def bytes(self, count: int) -> Tensor:
        """Returns the memory of the first ones."""
        return self._bytes[: self.column.step * count]
