"""Steps as a device repeats them by itself: one launch for as many of them as it is told.

A `BlockLoop` has a block captured as the body of a loop. Its steps' inputs lie in line on the device; each turn takes
the next ones from there, and puts what is kept of each step behind that of the turn before. So what a row costs the
host does not depend on how long it is.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from lightning_sink.engine.compiler.row import Outputs
from lightning_sink.engine.device.block import Block, BlockStep
from lightning_sink.engine.device.block_memory import Varying, fill
from lightning_sink.engine.device.graphs import Graphs
from lightning_sink.engine.step import Column


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
