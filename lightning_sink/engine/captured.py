"""Steps that a device repeats by itself: captured in graphs, and replayed.

What a graph reads and writes stays where it was when it was captured. So inputs that differ from step to step are
copied to memory of the graph's before each replay, the graph itself copies what is kept of each of its steps, and the
last step's outputs are copied out behind the last replay: others may hold them while later replays fill that memory.

`Graphs` is what is needed of a device; `cuda.py` has CUDA's.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from lightning_sink.engine.draws import Draw
from lightning_sink.engine.loop import CompiledStep, Layout, Outputs, Repeated, Row, layout_of
from lightning_sink.engine.private import copy_all

_SIZES = (16, 4, 1)
"""Steps in one graph, for steps that take little. A row of any length is few replays, and there are three captures."""

_SHORT = 1e-3
"""Seconds of a step beside which the launch of a graph is nothing: one in each will do, and takes the least memory."""


class Graphs(ABC):
    """A device that captures what it is given."""

    @abstractmethod
    def capture(self, body: Callable[[], Outputs]) -> tuple[Callable[[], None], Outputs]:
        """Takes down what a function has the device do, none of which happens now.

        Returns:
            What has the device do it, and what the function returned: memory that is filled each time.
        """

    @abstractmethod
    def bring(self, tensors: list[Tensor]) -> list[Tensor]:
        """Returns tensors on the device, those of the host's by few copies, for which nobody waits."""

    @abstractmethod
    def mark(self) -> Any:
        """Records an event behind what the device was given."""

    @abstractmethod
    def wait(self, mark: Any) -> None:
        """Waits for an event on the host, and for nothing behind it."""

    @abstractmethod
    def seconds(self, begin: Any, end: Any) -> float:
        """Returns the time between two events that have happened."""


class _Graph:
    """Some steps as one graph.

    Args:
        graphs: What captures it.
        step: Runs one of them.
        fixed: The inputs that are the same for each; None for those that are not.
        positions: Which are not.
        row: Those of one step, to know what they are like.
        kept: Outputs of which every step's is wanted, with what they look like.
        size: How many steps.

    Attributes:
        size: How many steps.
        inputs: The inputs that differ, step after step; they are filled before each replay.
        columns: What is kept: `[size, ...]` each.
        replay: Has the device run the steps.
    """

    def __init__(
        self,
        graphs: Graphs,
        step: Callable[..., Outputs],
        fixed: list[Tensor | None],
        positions: list[int],
        row: list[Tensor],
        kept: dict[int, Layout],
        size: int,
    ) -> None:
        self.size, self._places = size, _places(fixed)
        self.inputs = [tensor.clone() for _ in range(size) for tensor in row]
        device = next(tensor.device for tensor in (*row, *fixed) if tensor is not None)
        self.columns = [torch.empty((size, *shape), dtype=dtype, device=device) for dtype, shape in kept.values()]

        def body() -> Outputs:
            outputs = Outputs()
            for number in range(size):
                given: list[Any] = fixed.copy()
                for place, position in enumerate(positions):
                    given[position] = self.inputs[number * len(positions) + place]
                outputs = step(*given)
                for column, index in zip(self.columns, kept, strict=True):
                    column[number].copy_(outputs[index].reshape(column[number].shape))
            return outputs

        self.replay, outputs = graphs.capture(body)
        stays = {tensor.untyped_storage().data_ptr() for tensor in fixed if tensor is not None}
        self._memory: dict[int, Tensor] = {}
        for tensor in outputs:
            storage = tensor.untyped_storage()
            if storage.data_ptr() not in stays:
                flat = torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(storage)
                self._memory.setdefault(storage.data_ptr(), flat)
        self._outputs = outputs

    def is_for(self, fixed: list[Tensor | None]) -> bool:
        """Tells whether these inputs lie where those lay that it was captured with."""
        return self._places == _places(fixed)

    def outputs(self) -> Outputs:
        """Returns the last step's outputs as they are now: later replays leave these alone.

        Those that share memory do so there too; what shares it with an input that stays is that input's.
        """
        fresh = [torch.empty_like(flat) for flat in self._memory.values()]
        copy_all(fresh, [*self._memory.values()])
        storages = {place: flat.untyped_storage() for place, flat in zip(self._memory, fresh, strict=True)}
        found = []
        for tensor in self._outputs:
            storage = tensor.untyped_storage()
            storage = storages.get(storage.data_ptr(), storage)
            output = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
            found.append(output.set_(storage, tensor.storage_offset(), tensor.shape, tensor.stride()))
        return tuple(found)


def _places(tensors: list[Tensor | None]) -> list[int | None]:
    return [None if tensor is None else tensor.data_ptr() for tensor in tensors]


class CapturedStep(CompiledStep):
    """A step that is captured where several are run in a row.

    Args:
        function: As for `CompiledStep`; may be captured, once it has run.
        graphs: Captures it.
        draws: As for `CompiledStep`, from generators that captures know of.
    """

    def __init__(self, function: Callable[..., Outputs], graphs: Graphs, draws: Sequence[Draw] = ()) -> None:
        super().__init__(function, draws)
        self._graphs = graphs
        self._captured: dict[tuple[int, ...], _Graph] = {}
        self._layouts: list[Layout] = []
        self._seconds = 0.0

    def __call__(self, *inputs: Tensor) -> Outputs:
        """Runs one step."""
        outputs = super().__call__(*inputs)
        if not self._layouts:
            self._layouts = [layout_of(output) for output in outputs]
        return outputs

    @property
    def overlaps(self) -> bool:
        """Whether rows run beside the thread that launches them."""
        return True

    def row(self, fixed: list[Tensor | None], positions: list[int], rows: list[list[Tensor]], kept: list[int]) -> Row:
        """Returns steps in a row, to be run; the arguments are those of `Row`."""
        varying = self._graphs.bring([tensor for row in rows for tensor in row])
        wanted = {index: self._layouts[index] for index in kept}
        replayed, left = [], len(rows)
        for size in _SIZES if self._seconds < _SHORT else _SIZES[-1:]:
            count, left = divmod(left, size)
            if count:
                key = size, len(positions), *positions, *kept
                graph = self._captured.get(key)
                if graph is None or not graph.is_for(fixed):
                    self._captured.pop(key, None)  # before another one takes memory
                    graph = _Graph(self._graphs, self._step, fixed, positions, varying[: len(positions)], wanted, size)
                    self._captured[key] = graph
                replayed += [graph] * count
        return CapturedRow(self._graphs, replayed, varying, wanted, len(rows), self._took)

    def _step(self, *inputs: Tensor) -> Outputs:
        return super().__call__(*inputs)

    def _took(self, seconds: float) -> None:
        self._seconds = seconds


class CapturedRow(Row):
    """Steps in a row that are replayed.

    Args:
        graphs: The device.
        replayed: Graphs of the steps, one behind the other.
        varying: The inputs that differ, step after step.
        kept: Outputs of which every step's is wanted, with what they look like.
        steps: How many steps.
        took: Told how long one took, when that is known.
    """

    def __init__(
        self,
        graphs: Graphs,
        replayed: list[_Graph],
        varying: list[Tensor],
        kept: dict[int, Layout],
        steps: int,
        took: Callable[[float], None],
    ) -> None:
        self._graphs, self._replayed, self._varying, self._steps, self._took = graphs, replayed, varying, steps, took
        self._columns = [
            torch.empty((steps, *shape), dtype=dtype, device=column.device)
            for (dtype, shape), column in zip(kept.values(), replayed[0].columns, strict=True)
        ]
        self._launched: tuple[Any, Any, Outputs] | None = None

    def launch(self) -> None:
        """Gives them to the device, behind what it was given before."""
        begin, step, place = self._graphs.mark(), 0, 0
        for graph in self._replayed:
            copy_all(graph.inputs, self._varying[place : place + len(graph.inputs)])
            graph.replay()
            place += len(graph.inputs)
            for column, part in zip(self._columns, graph.columns, strict=True):
                column[step : step + graph.size].copy_(part)
            step += graph.size
        outputs = self._replayed[-1].outputs()
        self._launched = begin, self._graphs.mark(), outputs
        self._replayed, self._varying = [], []

    def wait(self) -> Repeated:
        """Waits for their end; returns what became of them."""
        assert self._launched is not None, "a row is launched before it is waited for"  # noqa: S101
        begin, end, outputs = self._launched
        self._graphs.wait(end)
        seconds = self._graphs.seconds(begin, end)
        self._took(seconds / self._steps)
        return Repeated(self._steps, outputs, self._columns, seconds)
