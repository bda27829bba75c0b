"""A CUDA device as `device.py` needs it, by PyTorch's rules for streams and memory (notes/cuda.html).

`tests/data/test_device_gpu.py` has run on an H200 (torch 2.11).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor

from lightning_sink.data.device import Device
from lightning_sink.data.streams import Streams


@cache
def _copying(index: int) -> torch.cuda.Stream:
    """Returns the stream on which trainings copy batches to a device, one after the other the same.

    The allocator gives freed memory only to the stream on which it was first asked for: with a stream for each
    training, batches of the ones before would hold memory. PyTorch gives streams of one priority out again and again,
    so it is of another priority than those whose work is captured.
    """
    return torch.cuda.Stream(index, priority=-1)


class CudaStreams(Streams):
    """A CUDA device with a stream for copies, which all of the process's trainings share."""

    def __init__(self, device: torch.device) -> None:
        index = torch.cuda.current_device() if device.index is None else device.index
        self._device, self._copying = torch.device(device.type, index), _copying(index)

    def pinned(self, like: Tensor) -> Tensor:
        """Returns pinned memory, laid out like a tensor.

        Its allocator notes the stream of each copy that does not wait, and gives freed memory out behind these copies.
        """
        return torch.empty_like(like, device="cpu", pin_memory=True)

    def send(self, tensors: list[Tensor]) -> tuple[list[Tensor], torch.cuda.Event]:
        """Issues copies on the copying stream, into memory that belongs to it; returns these and an event."""
        with torch.cuda.stream(self._copying):
            sent = [tensor.to(self._device, non_blocking=True) for tensor in tensors]
            return sent, self._copying.record_event()

    def arrive(self, tensors: list[Tensor], event: torch.cuda.Event) -> None:
        """Makes the caller's stream wait, and notes for the allocator that it uses the memory too."""
        stream = torch.cuda.current_stream(self._device)
        stream.wait_event(event)
        for tensor in tensors:
            tensor.record_stream(stream)


STREAMS: dict[str, Callable[[torch.device], Streams]] = {"cuda": CudaStreams}
"""What batches are sent by, by the type of the device."""


def brought(tensor: Tensor, device: torch.device) -> Tensor:
    """Returns a tensor on a device, for what the caller has it do next; the host goes on where it may."""
    if tensor.is_cpu and device.type in STREAMS:
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor.to(device)


def sender(device: torch.device) -> Device | None:
    """Returns what sends batches to a device; None for the host, where they stay."""
    return Device(STREAMS[device.type](device)) if device.type in STREAMS else None
