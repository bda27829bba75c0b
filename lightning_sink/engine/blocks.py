"""Steps as a device repeats them, several in one graph, and which of these graphs a row of steps is made of.

What a captured graph reads and writes stays where it was when it was captured. So a `Block` has memory of its own for
the inputs that differ from step to step, which is filled before each replay, and for what is kept of each step.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from lightning_sink.engine.block_memory import OutputCopies, Varying
from lightning_sink.engine.graphs import Graphs
from lightning_sink.engine.loop import Layout, Outputs
from lightning_sink.engine.private import copy_all
from lightning_sink.engine.step import Column

_SIZES = (16, 4, 1)
"""Steps in one graph, for steps that take little. A row of any length is few replays, and there are three captures."""

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
        self._copies: OutputCopies | None = None
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
        resolved = {id(output): output.resolve_conj().resolve_neg() for output in outputs}
        return tuple([resolved[id(output)] for output in outputs])

    def outputs(self) -> Outputs:
        """Returns the last step's outputs as they are now: what is run later leaves these alone.

        Those that share memory do so there too; what shares it with an input that stays is that input's.
        """
        if self._copies is None or not self.is_captured:
            self._copies = OutputCopies(self._outputs, self._fixed)
        return self._copies.make()


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
        self._seconds: float | None = None

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
        for size in _SIZES if self.take_less(_SHORT) else _SIZES[-1:]:
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

    def take_less(self, seconds: float) -> bool:
        """Tells whether steps are captured and take less time than this.

        Waits for the one that was launched last, unless it is known by then what one takes.
        """
        if self._seconds is None and self._marks is not None:
            self._graphs.wait(self._marks[1])
            self._seconds = self._graphs.seconds(*self._marks)
        return self._refuse is not None and (self._seconds or 0.0) < seconds

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


def places_of(tensors: list[Tensor | None]) -> list[int | None]:
    """Returns where tensors begin."""
    return [None if tensor is None else tensor.data_ptr() for tensor in tensors]
