"""What is needed of a device to send batches to it. `cuda.py` has CUDA's `Streams`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

from torch import Tensor


class Streams(ABC):
    """A device with a stream that copies beside the one that computes."""

    @abstractmethod
    def pinned(self, like: Tensor) -> Tensor:
        """Returns memory of the host's, laid out like a tensor, that copies are made from while the host goes on."""

    @abstractmethod
    def send(self, tensors: list[Tensor]) -> tuple[list[Tensor], Any]:
        """Issues copies of pinned tensors to the device, on the copying stream; returns them and an event behind them.

        Waits for nothing.
        """

    @abstractmethod
    def arrive(self, tensors: list[Tensor], event: Any) -> None:
        """Makes the caller's stream wait for an event, and use the tensors: nobody gets their memory before it has."""


class Arriving:
    """What was sent at once, on its way; `rebuild` makes of its tensors, on the device, what is handed out."""

    def __init__(self, streams: Streams, pinned: list[Tensor], rebuild: Callable[[list[Tensor]], Any]) -> None:
        self._streams, self._rebuild = streams, rebuild
        self._tensors, self._event = streams.send(pinned)

    def take(self) -> Any:
        """Makes the caller's stream wait for it, and returns it, on the device."""
        self._streams.arrive(self._tensors, self._event)
        return self._rebuild(self._tensors)
