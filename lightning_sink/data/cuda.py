"""A CUDA device as `streams.py` needs it, by PyTorch's documented rules for streams, events and pinned memory."""

from __future__ import annotations

import torch
from torch import Tensor

from lightning_sink.data.streams import Backend, Event


class CudaEvent(Event):
    """An event of CUDA's, on whichever stream is the caller's."""

    def __init__(self) -> None:
        self._event = torch.cuda.Event()  # without a time: twice as cheap to record

    def record(self) -> None:
        """Puts it behind everything that the caller's stream was given so far."""
        self._event.record()

    def wait(self) -> None:
        """Makes what the caller's stream is given from now on wait for it."""
        self._event.wait()

    def synchronize(self) -> None:
        """Waits for it on the host."""
        self._event.synchronize()


class CudaBackend(Backend):
    """A CUDA device with a stream of its own for copies.

    Args:
        device: The device.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)

    def event(self) -> CudaEvent:
        """Returns a new event."""
        return CudaEvent()

    def allocate(self, nbytes: int) -> tuple[Tensor, Tensor]:
        """Returns pinned bytes of the host's, and as many of the device's.

        Memory is the stream's on which it was allocated; the allocator is told of the other one, so that it is not
        given to somebody else while a copy is under way (notes/cuda.html#cuda-memory-management).
        """
        host = torch.empty(nbytes, dtype=torch.uint8, pin_memory=True)
        memory = torch.empty(nbytes, dtype=torch.uint8, device=self._device)
        memory.record_stream(self._stream)
        return host, memory

    def send(self, target: Tensor, source: Tensor, after: Event, before: Event) -> None:
        """Issues a copy on the copying stream, behind one event, and records another behind it."""
        with torch.cuda.stream(self._stream):
            after.wait()
            target.copy_(source, non_blocking=True)
            before.record()
