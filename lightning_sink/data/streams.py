"""What is needed of a device to send batches to it. `cuda.py` has CUDA's `Streams`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from torch import Tensor


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


class Copy:
    """What was sent at once.

    Args:
        streams: The device.
        pinned: The tensors.

    Attributes:
        tensors: The same on the device.
    """

    def __init__(self, streams: Streams, pinned: list[Tensor]) -> None:
        self._streams = streams
        self.tensors, self._event = streams.send(pinned)

    def arrive(self) -> None:
        """Makes the caller's stream wait for them, where it has not waited yet."""
        if self._event is not None:
            self._streams.arrive(self.tensors, self._event)
            self._event = None
