"""Steps as a device repeats them, some in one graph, or as many as it is told by one launch.

What a captured graph reads and writes stays where it was when it was captured. So a `Block` has memory of its own for
the inputs that differ from step to step, which is filled before each replay, and for what is kept of each step.

A `BlockLoop` has a block captured as the body of a loop. Its steps' inputs lie in line on the device; each turn takes
the next ones from there, and puts what is kept of each step behind that of the turn before. So what a row costs the
host does not depend on how long it is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch import Tensor

from lightning_sink.engine.compiler.copies import memory_of
from lightning_sink.engine.compiler.row import Layout, Outputs
from lightning_sink.engine.device.block_memory import OutputCopies, Varying, fill, memory_places
from lightning_sink.engine.device.graphs import Graphs
from lightning_sink.engine.private import copy_all
from lightning_sink.engine.step import Column

_SMALL = 1 << 12
"""Bytes of an output's memory up to which it may wait for the end of a graph to be kept."""


@dataclass(frozen=True)
class BlockStep:
    """The step that blocks are made of.

    Attributes:
        run: Runs it.
        fixed: The inputs that are the same each time, all on the device; None for those that are not.
        places: Where these begin.
        positions: Which are not.
        first: Those of one step, to know what they are like.
        kept: Outputs of which every step's is wanted, with what they look like.
    """

    run: Callable[..., Outputs]
    fixed: list[Tensor | None]
    places: list[int | None]
    positions: list[int]
    first: list[Tensor]
    kept: dict[int, Layout]

    @property
    def nbytes(self) -> int:
        """Bytes of what differs from step to step: inputs, and what is kept."""
        kept = sum(dtype.itemsize * prod(shape) for dtype, shape in self.kept.values())
        return kept + sum(memory_of(tensor).nbytes for tensor in self.first)


class Block:
    """Some steps, captured as one graph.

    Args:
        step: One of them.
        size: How many.

    Attributes:
        size: How many steps.
        device: Where they run.
        places: Where the inputs lie that are the same for each.
        varying: Memory for those that are not.
        columns: What is kept: `[size, ...]` each.
        is_captured: Whether they are one graph. They are launched one by one as long as they are not.
        replay: Has the device do what was captured.
    """

    def __init__(self, step: BlockStep, size: int) -> None:
        self.size, self._step, self._fixed, self.places = size, step.run, step.fixed, step.places
        self._positions, self._kept = step.positions, [*step.kept]
        self.varying = [Varying(tensor, size) for tensor in step.first]
        self.device = next(tensor.device for tensor in (*step.first, *step.fixed) if tensor is not None)
        layouts = step.kept.values()
        self.columns = [torch.empty((size, *shape), dtype=dtype, device=self.device) for dtype, shape in layouts]
        given = [tensor for tensor in step.fixed if tensor is not None]
        self._memory = {*memory_places([*given, *(varying.whole for varying in self.varying)])}
        self._outputs = Outputs()
        self._copies: OutputCopies | None = None
        self.is_captured = False
        self.replay: Callable[[], None] = self._run

    def capture(self, graphs: Graphs) -> None:
        """Captures the steps."""
        self._take(graphs.capture(self.body))

    def _take(self, captured: tuple[Callable[[], None], Outputs]) -> None:
        (self.replay, self._outputs), self.is_captured = captured, True

    def run(self, columns: Sequence[Column]) -> None:
        """Has the device run the steps with these inputs."""
        fill(self.varying, columns)
        self.replay()

    def write_back(self, inputs: dict[int, Tensor]) -> None:
        """Writes what the only step has left of inputs that differ, by their positions, to where they came from."""
        tensors = {place: varying.tensors[0] for place, varying in zip(self._positions, self.varying, strict=True)}
        copy_all([*inputs.values()], [tensors[position] for position in inputs])

    def _run(self) -> None:
        self._outputs = self.body()

    def body(self) -> Outputs:
        """Runs the steps on what lies in `varying`; returns what the last one gave."""
        outputs, later = Outputs(), tuple[list[Tensor], list[Tensor]](([], []))
        for number in range(self.size):
            given: list[Any] = self._fixed.copy()
            for position, varying in zip(self._positions, self.varying, strict=True):
                given[position] = varying.tensors[number]
            outputs = self._step(*given)
            self._keep(number, outputs, later)
        copy_all(*later)
        # What only says that it is conjugated or negated would still say so, of other memory.
        resolved = {id(output): output.resolve_conj().resolve_neg() for output in outputs}
        return tuple([resolved[id(output)] for output in outputs])

    def _keep(self, number: int, outputs: Outputs, later: tuple[list[Tensor], list[Tensor]]) -> None:
        """Puts what is kept of a step into the columns; small outputs at the end, those of many steps by one kernel.

        What shares memory with an input is put there at once, since the next step may write to that.
        """
        targets = [column[number] for column in self.columns]
        sources = [outputs[index].reshape(target.shape) for index, target in zip(self._kept, targets, strict=True)]
        at_once: tuple[list[Tensor], list[Tensor]] = ([], [])
        for target, source, place in zip(targets, sources, memory_places(sources), strict=True):
            waits = source.untyped_storage().nbytes() <= _SMALL and place not in self._memory
            to, given = later if waits else at_once
            to.append(target)
            given.append(source)
        copy_all(*at_once)

    def outputs(self) -> Outputs:
        """Returns the last step's outputs as they are now: what is run later leaves these alone.

        Those that share memory do so there too; what shares it with an input that stays is that input's.
        """
        if self._copies is None or not self.is_captured:
            self._copies = OutputCopies(self._outputs, self._fixed)
        return self._copies.make()


class BlockLoop(Block):
    """A block that is captured as a loop, of which it is one turn; there are `most` turns at most."""

    def __init__(self, step: BlockStep, size: int, most: int) -> None:
        super().__init__(step, size)
        self._most = most
        self._line = [Varying(tensor, size * most) for tensor in step.first]
        self._every = [column.new_empty((most, *column.shape)) for column in self.columns]
        self._turn = torch.zeros(1, dtype=torch.int64, device=self.device)
        self._left = torch.zeros((), dtype=torch.int64, device=self.device)

    def capture(self, graphs: Graphs) -> None:
        """Captures a turn of the loop."""
        self._take(graphs.capture(self._take_turn, self._left))

    def _take_turn(self) -> Outputs:
        for varying, line in zip(self.varying, self._line, strict=True):
            torch.index_select(line.words.view(self._most, -1), 0, self._turn, out=varying.words.view(1, -1))
        outputs = self.body()
        for every, column in zip(self._every, self.columns, strict=True):
            every.index_copy_(0, self._turn, column[None])
        self._turn.add_(1)
        self._left.sub_(1)
        return outputs

    def repeat(self, columns: Sequence[Column], turns: int) -> None:
        """Has the device run so many turns, on these inputs."""
        fill(self._line, columns)
        self._turn.zero_()
        self._left.fill_(turns)
        self.replay()

    def kept(self, turns: int) -> list[Tensor]:
        """Returns what was kept of the steps of the last so many turns: `[steps, ...]` each."""
        return [every[:turns].flatten(0, 1) for every in self._every]

    def launches(self, turns: int) -> list[Launch]:
        """Returns what runs so many turns, one launch behind the other where they are too many for one."""
        return [Turns(self, min(self._most, turns - begin)) for begin in range(0, turns, self._most)]


class Turns:
    """Some turns of a loop, as one launch of a row."""

    is_captured = True

    def __init__(self, loop: BlockLoop, turns: int) -> None:
        self._loop, self._turns = loop, turns
        self.size, self.columns = turns * loop.size, loop.kept(turns)

    def run(self, columns: Sequence[Column]) -> None:
        """Has the device run the steps with these inputs."""
        self._loop.repeat(columns, self._turns)

    def outputs(self) -> Outputs:
        """Returns the last step's outputs as they are now."""
        return self._loop.outputs()


Launch = Block | Turns
"""Some steps of a row, given to a device at once."""
