"""Steps as a device repeats them by itself: one launch for as many of them as it is told.

A `BlockLoop` is a block that is captured as the body of a loop. Its steps' inputs lie in line on the device; each turn
takes the next ones from there, and puts what is kept of each step behind that of the turn before. So a row costs the
host a few launches, however long it is.
"""

from __future__ import annotations

import torch
from torch import Tensor

from lightning_sink.engine.block import Block, BlockStep
from lightning_sink.engine.block_memory import Varying, fill
from lightning_sink.engine.graphs import Graphs
from lightning_sink.engine.loop import Outputs
from lightning_sink.engine.step import Column


class BlockLoop(Block):
    """A block that is captured as a loop.

    Args:
        step: As for `Block`.
        size: How many steps are one turn.
        most: How many turns at most.
    """

    def __init__(self, step: BlockStep, size: int, most: int) -> None:
        super().__init__(step, size)
        self._most = most
        self._line = [Varying(tensor, size * most) for tensor in step.first]
        self._kept_of_all = [column.new_empty((most, *column.shape)) for column in self.columns]
        self._turn = torch.zeros(1, dtype=torch.int64, device=self.device)
        self._left = torch.zeros((), dtype=torch.int64, device=self.device)

    def capture(self, graphs: Graphs) -> None:
        """Captures a turn of the loop."""
        self._replay, self._outputs = graphs.capture(self._take_turn, self._left)
        self.is_captured = True

    def _take_turn(self) -> Outputs:
        for varying, line in zip(self._varying, self._line, strict=True):
            torch.index_select(line.words.view(self._most, -1), 0, self._turn, out=varying.words.view(1, -1))
        outputs = self._body()
        for every, column in zip(self._kept_of_all, self.columns, strict=True):
            every.index_copy_(0, self._turn, column[None])
        self._turn.add_(1)
        self._left.sub_(1)
        return outputs

    def turns(self, count: int) -> list[Turns]:
        """Returns so many turns, one launch behind the other where they are too many for one."""
        return [Turns(self, min(self._most, count - begin)) for begin in range(0, count, self._most)]

    def repeat(self, columns: list[Column], turns: int) -> None:
        """Has the device run as many turns, on these inputs."""
        fill(self._line, columns)
        self._turn.zero_()
        self._left.fill_(turns)
        self._replay()

    def kept(self, turns: int) -> list[Tensor]:
        """Returns what was kept of the steps of the last so many turns: `[steps, ...]` each."""
        return [every[:turns].flatten(0, 1) for every in self._kept_of_all]


class Turns:
    """Some turns of a loop: to a row of steps, a block of that many.

    Args:
        loop: The loop.
        turns: How many.

    Attributes:
        size: How many steps.
        columns: As those of a block.
        is_captured: True.
        outputs: As that of a block.
    """

    is_captured = True

    def __init__(self, loop: BlockLoop, turns: int) -> None:
        self._loop, self._turns = loop, turns
        self.size, self.columns, self.outputs = turns * loop.size, loop.kept(turns), loop.outputs

    def run(self, columns: list[Column]) -> None:
        """Has the device run the steps with these inputs."""
        self._loop.repeat(columns, self._turns)
