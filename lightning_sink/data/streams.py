"""Slots on a device that runs behind its host: memory that is allocated once, and a stream that copies.

`StreamSlot` owns two arenas of bytes, one in the host's pinned memory and one on the device. The tensors of a batch are
laid side by side in the first, sent to the second by a single copy, and given to the training as views of it. *Ready*
and *free*, the events of `device.py`, keep steps from reading what has not arrived, and copies from overwriting what is
still read. `Backend` is what a slot needs of a device; `cuda.py` has CUDA's.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor

from lightning_sink.data.device import Device, Slot
from lightning_sink.data.private import users_of_storage
from lightning_sink.data.tensors import movable, rebuilt

_ALIGNMENT = 256
"""Bytes to a multiple of which a tensor begins, as with PyTorch's own allocator for CUDA."""


class Event(ABC):
    """A place in a stream; where it was never recorded, it has happened."""

    @abstractmethod
    def record(self) -> None:
        """Puts it behind everything that the caller's stream was given so far."""

    @abstractmethod
    def wait(self) -> None:
        """Makes what the caller's stream is given from now on wait for it."""

    @abstractmethod
    def synchronize(self) -> None:
        """Waits for it on the host."""


class Backend(ABC):
    """A device with a stream that copies beside the one that computes."""

    @abstractmethod
    def event(self) -> Event:
        """Returns a new event."""

    @abstractmethod
    def allocate(self, nbytes: int) -> tuple[Tensor, Tensor]:
        """Returns bytes of the host's that a copy can be sent from without waiting, and as many of the device's."""

    @abstractmethod
    def send(self, target: Tensor, source: Tensor, after: Event, before: Event) -> None:
        """Issues a copy on the copying stream, behind one event, and records another behind it. Does not wait.

        Args:
            target: Bytes on the device.
            source: As many on the host, which stay as they are until the copy has been made.
            after: What the copy waits for.
            before: What is recorded.
        """


class StreamDevice(Device):
    """Makes slots of a device.

    Args:
        backend: The device.
    """

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    def slot(self) -> StreamSlot:
        """Returns a new, empty slot."""
        return StreamSlot(self._backend)


class StreamSlot(Slot):
    """A place for a batch on a device.

    A batch that holds more than tensors, numbers and texts in tuples, lists and dictionaries is given as it is: whoever
    made it knows how it is moved. What somebody keeps of a batch stays as it is, too: the slot takes other memory.

    Args:
        backend: The device.
    """

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._ready, self._free = backend.event(), backend.event()
        self._host = self._memory = torch.empty(0, dtype=torch.uint8)
        self._unshared = users_of_storage(self._memory)
        self._batch: Any = None

    def fill(self, batch: Any) -> None:
        """Issues the copy of a batch; waits only for the copy of the one that the slot held before."""
        tensors = movable(batch)
        self.lends = not tensors
        if not tensors:
            self._batch = batch
            return
        layouts = [torch.empty_like(tensor, device="meta") for tensor in tensors]  # as `Tensor.to` lays them
        offsets, nbytes = [], 0
        for layout in layouts:
            offsets.append(nbytes)
            nbytes += -(-layout.nbytes // _ALIGNMENT) * _ALIGNMENT
        self._make_room(nbytes)
        for tensor, layout, offset in zip(tensors, layouts, offsets, strict=True):
            _part(self._host, layout, offset).copy_(tensor)
        self._backend.send(self._memory[:nbytes], self._host[:nbytes], after=self._free, before=self._ready)
        parts = [_part(self._memory, layout, offset) for layout, offset in zip(layouts, offsets, strict=True)]
        self._batch = rebuilt(batch, dict(zip(map(id, tensors), parts, strict=True)))

    def take(self) -> Any:
        """Makes the trainer's stream wait for *ready* and returns the batch on the device."""
        if not self.lends:
            self._ready.wait()
        batch, self._batch = self._batch, None
        return batch

    def release(self) -> None:
        """Records *free* behind everything that the trainer's stream was given so far."""
        if not self.lends:
            self._free.record()

    def _make_room(self, nbytes: int) -> None:
        self._ready.synchronize()  # the copy that reads the host's bytes, a whole round of slots ago
        is_kept = users_of_storage(self._memory) > self._unshared
        if is_kept or nbytes > self._memory.nbytes:
            self._host, self._memory = self._backend.allocate(max(nbytes, self._memory.nbytes))
            self._unshared = users_of_storage(self._memory)
            self._free = self._backend.event()  # nothing reads the new memory


def _part(arena: Tensor, layout: Tensor, offset: int) -> Tensor:
    """Returns a tensor of some layout at an offset of an arena."""
    flat = arena[offset : offset + layout.nbytes].view(layout.dtype)
    return flat.as_strided(layout.shape, layout.stride(), flat.storage_offset())
