"""Where a batch lies between the loader and the step, and who may touch it when.

A queue owns a fixed number of slots. Each goes round one way: the producer fills it, the training takes what is in it,
the training releases it. On a device that runs behind its host (a CUDA stream) each of these only issues work, so two
events keep the order there: *ready*, recorded behind the copy that fills a slot and waited for by the stream that reads
it, and *free*, recorded behind the last step that reads a slot and waited for by the stream that fills it again.

`HostDevice` is the CPU's: nothing is copied, and both events have always happened.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any


class Slot(ABC):
    """One place for a batch on the device."""

    @abstractmethod
    def fill(self, batch: Any) -> None:
        """Issues the copy of a batch to the device, behind *free*, and records *ready* behind it.

        Called where the batch was fetched, which may be the queue's thread. Must not wait for the device.
        """

    @abstractmethod
    def take(self) -> Any:
        """Makes the trainer's stream wait for *ready* and returns the batch on the device."""

    @abstractmethod
    def release(self) -> None:
        """Records *free* behind everything that the trainer's stream was given so far.

        Called once for each `take`, when the step that reads the batch has been issued. What `take` returned may be
        overwritten from then on.
        """


class Device(ABC):
    """Makes slots."""

    @abstractmethod
    def slot(self) -> Slot:
        """Returns a new, empty slot."""


class HostSlot(Slot):
    """Holds the loader's own batch."""

    def __init__(self) -> None:
        self._batch: Any = None

    def fill(self, batch: Any) -> None:
        """Keeps the batch."""
        self._batch = batch

    def take(self) -> Any:
        """Gives the batch away: from here on it belongs to the training."""
        batch, self._batch = self._batch, None
        return batch

    def release(self) -> None:
        """Does nothing: the batch is the training's own."""


class HostDevice(Device):
    """The CPU: the loader's batches are on it."""

    def slot(self) -> HostSlot:
        """Returns a new, empty slot."""
        return HostSlot()
