"""What is needed of a device that repeats by itself what it was given. `cuda.py` has CUDA's `Graphs`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

from torch import Tensor

from lightning_sink.engine.compiler.row import Outputs


class Graphs(ABC):
    """A device that captures what it is given.

    Its operations run in the order in which it was given them, behind the host, which waits nowhere but in `wait`.
    """

    @abstractmethod
    def repeats(self) -> bool:
        """Tells whether the device can repeat by itself what was captured, as often as a number of its own says."""

    @abstractmethod
    def capture(self, body: Callable[[], Outputs], left: Tensor | None = None) -> tuple[Callable[[], None], Outputs]:
        """Takes down what a function has the device do, none of which happens now.

        Args:
            body: The function.
            left: A whole number on the device, which the function counts down: the device repeats all of it until that
                is 0. None where it is to be done once. Only for a device that `repeats`, and what draws nothing on it.

        Returns:
            What has the device do it, and what the function returned: memory that is filled each time.

        Raises:
            RuntimeError: The function does what cannot be captured. The device can be used as before.
        """

    @abstractmethod
    def bring(self, tensors: list[Tensor]) -> list[Tensor]:
        """Returns tensors on the device, those of the host's by few copies. The host's may be changed at once."""

    @abstractmethod
    def fetch(self, tensors: list[Tensor]) -> list[Tensor]:
        """Returns tensors on the host, by few copies; to be read behind a mark that has been waited for."""

    @abstractmethod
    def mark(self) -> Any:
        """Records an event behind what the device was given."""

    @abstractmethod
    def wait(self, mark: Any) -> None:
        """Waits for an event on the host, and for nothing behind it."""

    @abstractmethod
    def seconds(self, begin: Any, end: Any) -> float:
        """Returns the time between two events that have happened."""
