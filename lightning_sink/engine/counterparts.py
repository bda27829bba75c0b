"""What steps on a device take from the host, and leave there: its tensors, and their counterparts on the device."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor

from lightning_sink.engine.copies import copy_of, memory_of
from lightning_sink.engine.graphs import Graphs
from lightning_sink.engine.placement import Placement
from lightning_sink.engine.private import copy_all


class Counterparts:
    """Tensors on the device in the place of inputs that lie on the host. They stay where they are.

    While steps that were launched have not been waited for, what they write is newer here than on the host.

    Args:
        graphs: The device.
        placement: Which inputs lie on the host.
    """

    def __init__(self, graphs: Graphs, placement: Placement) -> None:
        self._graphs, self._placement = graphs, placement
        self._there: dict[int, Tensor] = {}
        self._launched = 0

    def instead(self, inputs: Sequence[Tensor | None]) -> list[Tensor | None]:
        """Returns inputs with the counterparts in the place of those on the host; None stays."""
        found = [*inputs]
        for number in self._placement.inputs:
            tensor = inputs[number]
            if tensor is not None:
                there = self._there.get(number)
                if there is None or (there.shape, there.stride()) != (tensor.shape, tensor.stride()):
                    (there,) = self._graphs.bring([tensor])
                    self._there[number] = there = copy_of(there)
                found[number] = there
        return found

    def launch(self, inputs: Sequence[Tensor | None]) -> None:
        """Brings the inputs over, for steps that are about to be launched."""
        newer = self._placement.written if self._launched else frozenset()
        numbers = [number for number in self._placement.inputs - newer if inputs[number] is not None]
        brought = self._graphs.bring([tensor for number in numbers if (tensor := inputs[number]) is not None])
        copy_all([memory_of(self._there[number]) for number in numbers], [memory_of(tensor) for tensor in brought])
        self._launched += 1

    def give_up(self) -> None:
        """The steps that were about to be launched were not, or nothing is known of them."""
        self._launched -= 1

    def fetch(self, inputs: Sequence[Tensor | None], besides: list[Tensor]) -> Callable[[], list[Tensor]]:
        """Has what the steps wrote brought back, behind them.

        Args:
            inputs: The inputs.
            besides: Other tensors of the device's that are wanted on the host.

        Returns:
            Puts it where it belongs, and returns the others; to be called when it has been waited for.
        """
        wanted = self._placement.inputs & self._placement.written
        numbers = [number for number in sorted(wanted) if inputs[number] is not None]
        fetched = self._graphs.fetch([*(self._there[number] for number in numbers), *besides])

        def finish() -> list[Tensor]:
            self._launched -= 1
            targets = [tensor for number in numbers if (tensor := inputs[number]) is not None]
            copy_all(targets, fetched[: len(numbers)])
            return fetched[len(numbers) :]

        return finish
