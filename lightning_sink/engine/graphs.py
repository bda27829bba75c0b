"""What is needed of a device that runs steps by itself, and steps as such a device repeats them.

What a captured graph reads and writes stays where it was when it was captured. So a `Block` has memory of its own for
the inputs that differ from step to step, which is filled before each replay, and for what is kept of each step.

`cuda.py` has CUDA's `Graphs`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from lightning_sink.engine.copies import copy_of, memory_of
from lightning_sink.engine.loop import Layout, Outputs
from lightning_sink.engine.private import copy_all


class Graphs(ABC):
    """A device that captures what it is given.

    Its operations run in the order in which it was given them, behind the host, which waits nowhere but in `wait`.
    """

    @abstractmethod
    def capture(self, body: Callable[[], Outputs]) -> tuple[Callable[[], None], Outputs]:
        """Takes down what a function has the device do, none of which happens now.

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


class Block:
    """Some steps, captured as one graph.

    Args:
        step: Runs one of them.
        fixed: The inputs that are the same for each, all on the device; None for those that are not.
        positions: Which are not.
        row: Those of one step, to know what they are like.
        kept: Outputs of which every step's is wanted, with what they look like.
        size: How many steps.

    Attributes:
        size: How many steps.
        columns: What is kept: `[size, ...]` each.
        is_captured: Whether they are one graph. They are launched one by one as long as they are not.
    """

    def __init__(
        self,
        step: Callable[..., Outputs],
        fixed: list[Tensor | None],
        positions: list[int],
        row: list[Tensor],
        kept: dict[int, Layout],
        size: int,
    ) -> None:
        self.size, self._step, self._fixed, self._positions, self._kept = size, step, fixed, positions, [*kept]
        self._places = _places(fixed)
        self._given = [copy_of(tensor) for _ in range(size) for tensor in row]
        self._is_packed = all(tensor.is_contiguous() for tensor in row)
        device = next(tensor.device for tensor in (*row, *fixed) if tensor is not None)
        self.columns = [torch.empty((size, *shape), dtype=dtype, device=device) for dtype, shape in kept.values()]
        self._outputs = Outputs()
        self.is_captured = False
        self._replay: Callable[[], None] = self._run

    def capture(self, graphs: Graphs) -> None:
        """Captures the steps."""
        self._replay, self._outputs = graphs.capture(self._body)
        self.is_captured = True

    def is_for(self, fixed: list[Tensor | None]) -> bool:
        """Tells whether these inputs lie where those lay that it was made with."""
        return self._places == _places(fixed)

    def run(self, varying: list[Tensor]) -> None:
        """Has the device run the steps with these inputs, step after step."""
        if self._is_packed:
            copy_all(self._given, varying)
        else:
            copy_all([*map(memory_of, self._given)], [*map(memory_of, varying)])
        self._replay()

    def _run(self) -> None:
        self._outputs = self._body()

    def _body(self) -> Outputs:
        outputs, count = Outputs(), len(self._positions)
        for number in range(self.size):
            given: list[Any] = self._fixed.copy()
            for place, position in enumerate(self._positions):
                given[position] = self._given[number * count + place]
            outputs = self._step(*given)
            for column, index in zip(self.columns, self._kept, strict=True):
                column[number].copy_(outputs[index].reshape(column[number].shape))
        # What only says that it is conjugated or negated would still say so, of other memory.
        return tuple([output.resolve_conj().resolve_neg() for output in outputs])

    def outputs(self) -> Outputs:
        """Returns the last step's outputs as they are now: what is run later leaves these alone.

        Those that share memory do so there too; what shares it with an input that stays is that input's.
        """
        stays = set(_storages(tensor for tensor in self._fixed if tensor is not None))
        flat: dict[int, Tensor] = {}
        for tensor, storage in zip(self._outputs, _storages(self._outputs), strict=True):
            if storage not in stays and storage not in flat:
                flat[storage] = _whole(tensor)
        fresh = {storage: torch.empty_like(whole) for storage, whole in flat.items()}
        copy_all([*fresh.values()], [*flat.values()])
        found = []
        for tensor, storage in zip(self._outputs, _storages(self._outputs), strict=True):
            memory = fresh[storage].untyped_storage() if storage in fresh else tensor.untyped_storage()
            output = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
            found.append(output.set_(memory, tensor.storage_offset(), tensor.shape, tensor.stride()))
        return tuple(found)


def _whole(tensor: Tensor) -> Tensor:
    storage = tensor.untyped_storage()
    return torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(storage, 0, (storage.nbytes(),), (1,))


def _places(tensors: list[Tensor | None]) -> list[int | None]:
    return [None if tensor is None else tensor.data_ptr() for tensor in tensors]


def _storages(tensors: Any) -> list[int]:
    return [tensor.untyped_storage().data_ptr() for tensor in tensors]
