"""Steps as a device repeats them, several in one graph, and which of these graphs a row of steps is made of.

What a captured graph reads and writes stays where it was when it was captured. So a `Block` has memory of its own for
the inputs that differ from step to step, which is filled before each replay, and for what is kept of each step.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from lightning_sink.engine.copies import memory_of
from lightning_sink.engine.graphs import Graphs
from lightning_sink.engine.loop import Layout, Outputs
from lightning_sink.engine.private import copy_alike, copy_all
from lightning_sink.engine.step import Column

_SIZES = (16, 4, 1)
"""Steps in one graph, for steps that take little. A row of any length is few replays, and there are three captures."""

_ALIGNMENT = 256
"""Bytes to a multiple of which each step's begin, as with PyTorch's allocator for CUDA: kernels may count on it."""

_SHORT = 1e-3
"""Seconds of a step beside which the launch of a graph is nothing: one in each will do, and takes the least memory."""


class Block:
    """Some steps, captured as one graph.

    Args:
        step: Runs one of them.
        fixed: The inputs that are the same for each, all on the device; None for those that are not.
        positions: Which are not.
        first: Those of one step, to know what they are like.
        kept: Outputs of which every step's is wanted, with what they look like.
        size: How many steps.

    Attributes:
        size: How many steps.
        places: Where the inputs lie that are the same for each.
        columns: What is kept: `[size, ...]` each.
        is_captured: Whether they are one graph. They are launched one by one as long as they are not.
    """

    def __init__(
        self,
        step: Callable[..., Outputs],
        fixed: list[Tensor | None],
        positions: list[int],
        first: list[Tensor],
        kept: dict[int, Layout],
        size: int,
    ) -> None:
        self.size, self._step, self._fixed, self._positions, self._kept = size, step, fixed, positions, [*kept]
        self.places = places_of(fixed)
        self._varying = [Varying(tensor, size) for tensor in first]
        device = next(tensor.device for tensor in (*first, *fixed) if tensor is not None)
        self.columns = [torch.empty((size, *shape), dtype=dtype, device=device) for dtype, shape in kept.values()]
        self._outputs = Outputs()
        self._leaves: _Leaves | None = None
        self.is_captured = False
        self._replay: Callable[[], None] = self._run

    def capture(self, graphs: Graphs) -> None:
        """Captures the steps."""
        self._replay, self._outputs = graphs.capture(self._body)
        self.is_captured = True

    def run(self, columns: list[Column]) -> None:
        """Has the device run the steps with these inputs."""
        targets, sources = list[Tensor](), list[Tensor]()
        for varying, column in zip(self._varying, columns, strict=True):
            if isinstance(column, Tensor):
                varying.whole.copy_(column)
            else:
                targets += varying.memory
                sources += varying.memory_of(column)
        copy_all(targets, sources)
        self._replay()

    def write_back(self, inputs: dict[int, Tensor]) -> None:
        """Writes what the only step has left of inputs that differ, by their positions, to where they came from."""
        tensors = {place: varying.tensors[0] for place, varying in zip(self._positions, self._varying, strict=True)}
        copy_all([*inputs.values()], [tensors[position] for position in inputs])

    def _run(self) -> None:
        self._outputs = self._body()

    def _body(self) -> Outputs:
        outputs = Outputs()
        for number in range(self.size):
            given: list[Any] = self._fixed.copy()
            for position, varying in zip(self._positions, self._varying, strict=True):
                given[position] = varying.tensors[number]
            outputs = self._step(*given)
            for column, index in zip(self.columns, self._kept, strict=True):
                column[number].copy_(outputs[index].reshape(column[number].shape))
        # What only says that it is conjugated or negated would still say so, of other memory.
        return tuple([output.resolve_conj().resolve_neg() for output in outputs])

    def outputs(self) -> Outputs:
        """Returns the last step's outputs as they are now: what is run later leaves these alone.

        Those that share memory do so there too; what shares it with an input that stays is that input's.
        """
        if self._leaves is None or not self.is_captured:
            self._leaves = _Leaves(self._outputs, self._fixed)
        return self._leaves.copied()


class _Leaves:
    """Where copies of a block's outputs go, looked at once: the outputs of a graph stay where they are.

    Args:
        outputs: The outputs.
        fixed: The inputs that are the same for each step.
    """

    def __init__(self, outputs: Outputs, fixed: list[Tensor | None]) -> None:
        stays = set(_storages(tensor for tensor in fixed if tensor is not None))
        places = _storages(outputs)
        self._sources: list[Tensor] = []
        numbers: dict[int, int] = {}
        for tensor, place in zip(outputs, places, strict=True):
            if place not in stays and place not in numbers:
                numbers[place] = len(self._sources)
                self._sources.append(tensor if places.count(place) == 1 and _is_whole(tensor) else _whole(tensor))
        self._outputs = [(output, numbers.get(place)) for output, place in zip(outputs, places, strict=True)]

    def copied(self) -> Outputs:
        """Returns copies of the outputs, as they are now."""
        fresh = [torch.empty_like(source) for source in self._sources]
        copy_all(fresh, self._sources)
        found = []
        for output, number in self._outputs:
            if number is not None and self._sources[number] is output:
                found.append(fresh[number])
                continue
            memory = (output if number is None else fresh[number]).untyped_storage()
            tensor = torch.empty(0, dtype=output.dtype, device=output.device)
            found.append(tensor.set_(memory, output.storage_offset(), output.shape, output.stride()))
        return tuple(found)


class Varying:
    """Memory for one of the inputs that differ from step to step.

    Args:
        like: One step's. Other steps' are laid as it is, and have its type.
        size: How many steps.

    Attributes:
        tensors: Each step's.
        whole: All of them: `[size, ...]`.
        memory: Each one's memory, as a tensor that lies in one piece.
    """

    def __init__(self, like: Tensor, size: int) -> None:
        extent = memory_of(like)
        each = -(-max(1, extent.nbytes) // _ALIGNMENT) * _ALIGNMENT // like.itemsize
        memory = torch.empty(size * each, dtype=like.dtype, device=like.device)
        self.tensors = [memory.as_strided(like.shape, like.stride(), number * each) for number in range(size)]
        self.whole = memory.as_strided((size, *like.shape), (each, *like.stride()), 0)
        self._is_packed = like.is_contiguous()
        self.memory = self.memory_of(self.tensors)
        copy_alike(self.memory, self.memory_of([like] * size))

    def memory_of(self, tensors: list[Tensor]) -> list[Tensor]:
        """Returns the memory of tensors that are laid as these are."""
        return tensors if self._is_packed else [*map(memory_of, tensors)]


class Blocks:
    """The blocks of a step that have been made.

    Args:
        step: Runs one step.
        graphs: The device.
        refuse: Told why steps cannot be captured, which are then launched one by one; None where none are to be.
    """

    def __init__(
        self, step: Callable[..., Outputs], graphs: Graphs, refuse: Callable[[Exception], None] | None
    ) -> None:
        self._step, self._graphs, self._refuse = step, graphs, refuse
        self._known: dict[tuple[int, ...], Block] = {}
        self._marks: tuple[Any, Any] | None = None
        self._seconds = 0.0

    def ran(self, begin: Any, end: Any) -> None:
        """Takes note of the events around a step: how long it took is looked at when it has to be known."""
        self._marks = begin, end

    def took(self, seconds: float) -> None:
        """Takes note of how long a step took."""
        self._seconds = seconds

    def find(
        self,
        fixed: list[Tensor | None],
        places: list[int | None],
        positions: list[int],
        varying: list[Column],
        kept: dict[int, Layout],
        steps: int,
    ) -> list[Block]:
        """Returns blocks that run steps in a row, one behind the other.

        Args:
            fixed: The inputs that are the same for each, all on the device; None for those that are not.
            places: Where they lie.
            positions: Which are not.
            varying: Those, of all steps.
            kept: Outputs of which every step's is wanted, with what they look like.
            steps: How many steps.
        """
        found, left = list[Block](), steps
        for size in _SIZES if self.are_worth_several else _SIZES[-1:]:
            count, left = divmod(left, size)
            if count:
                key = size, len(positions), *positions, *kept
                block = self._known.pop(key, None)
                if block is not None and block.places != places:
                    block = None  # before another one takes memory
                if block is None:
                    block = Block(self._step, fixed, positions, [column[0] for column in varying], kept, size)
                    if not self._capture(block):
                        return self.find(fixed, places, positions, varying, kept, steps)
                self._known[key] = block
                found += [block] * count
        return found

    @property
    def are_worth_several(self) -> bool:
        """Whether steps are captured and take so little that their launch counts. Waits for the last one, once."""
        if self._marks is not None:
            self._graphs.wait(self._marks[1])
            self._seconds, self._marks = self._graphs.seconds(*self._marks), None
        return self._seconds < _SHORT and self._refuse is not None

    def _capture(self, block: Block) -> bool:
        """Captures a block where that is to be; tells whether it went well."""
        if self._refuse is not None:
            try:
                block.capture(self._graphs)
            except RuntimeError as error:
                refuse, self._refuse = self._refuse, None
                refuse(error)
                return False
        return True


def _is_whole(tensor: Tensor) -> bool:
    """Tells whether a tensor is all that lies in its memory, each element once."""
    is_packed = tensor.is_contiguous() and not tensor.requires_grad
    return is_packed and tensor.nbytes == tensor.untyped_storage().nbytes()


def _whole(tensor: Tensor) -> Tensor:
    storage = tensor.untyped_storage()
    return torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(storage, 0, (storage.nbytes(),), (1,))


def places_of(tensors: list[Tensor | None]) -> list[int | None]:
    """Returns where tensors begin."""
    return [None if tensor is None else tensor.data_ptr() for tensor in tensors]


def _storages(tensors: Any) -> list[int]:
    return [tensor.untyped_storage().data_ptr() for tensor in tensors]
