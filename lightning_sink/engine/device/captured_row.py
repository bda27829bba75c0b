"""Rows of steps that a device repeats by itself.

A row is a few replays of blocks of several steps, launched one behind the other. What its last step gave is copied out
behind them, for others may hold that while later replays fill the memory that graphs share; not so where the next row
has been launched by then, which leaves all of it anew.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from weakref import ref

import torch

from lightning_sink.engine.compiler.row import Outputs, Repeated, Row, Turn
from lightning_sink.engine.device.block import Launch
from lightning_sink.engine.device.block_memory import cut
from lightning_sink.engine.failures import with_type
from lightning_sink.engine.step import Column

if TYPE_CHECKING:
    from lightning_sink.engine.device.captured import CapturedStep


class CapturedRow(Row):
    """Steps in a row that are replayed.

    Args:
        step: What runs them.
        turn: What they take, where the owner has it, and which outputs are wanted of each.
        blocks: Graphs of the steps, one behind the other.
        varying: The inputs that differ, of all steps, on the device.
        steps: How many steps.
    """

    def __init__(self, step: CapturedStep, turn: Turn, blocks: list[Launch], varying: list[Column], steps: int) -> None:
        self._captured, self._graphs = step, step.graphs
        self._inputs, self._blocks, self._varying = turn.fixed, blocks, varying
        self._values = {
            index: torch.empty((steps, *column.shape[1:]), dtype=column.dtype, device=column.device)
            for index, column in zip(turn.kept, blocks[0].columns, strict=True)
        }
        self._marks: tuple[Any, Any] | None = None
        self._outputs: Callable[[], Outputs] | None = Outputs
        self._is_superseded = False
        self._result = Repeated(0)

    def __del__(self) -> None:
        if getattr(self, "_marks", None) is not None:
            self._outputs = None
            self.wait()  # where nobody has: what the steps did to the host's tensors counts

    def launch(self) -> None:
        """Gives them to the device, behind what it was given before."""
        counterparts, before = self._captured.counterparts, self._captured.last()
        is_captured = self._blocks[0].is_captured
        counterparts.launch(self._inputs)
        try:
            begin = self._graphs.mark()
            self._run()
            self._fetch()
            self._marks = begin, self._graphs.mark()
        except BaseException:
            if before is not None and is_captured:
                before._outputs = None  # some of these steps may have filled that memory
            if self._result.done:
                counterparts.bring_back(self._inputs, Outputs())
            else:
                counterparts.give_up()
            raise
        self._blocks, self._varying = [], []
        if self._result.done:
            self._captured.last = ref(self)
            if before is not None and is_captured:
                before._is_superseded = True

    def _fetch(self) -> None:
        """Takes of what is kept what the steps have filled, where eager steps have it."""
        done = {index: column[: self._result.done] for index, column in self._values.items()}
        self._values = self._captured.counterparts.fetch(done)

    def _run(self) -> None:
        """Runs the blocks, up to one that fails."""
        sizes = [block.size for block in self._blocks]
        kept = [column.split(sizes) for column in self._values.values()]
        for number, (block, given) in enumerate(zip(self._blocks, cut(self._varying, sizes), strict=True)):
            try:
                block.run(given)
            except Exception as error:
                self._result.error = with_type(error)
                break
            self._result.done += block.size
            for parts, column in zip(kept, block.columns, strict=True):
                parts[number].copy_(column)
            self._outputs = block.outputs
        if self._result.done and not self._blocks[0].is_captured:
            outputs = self._blocks[0].outputs()  # while they are those of the last step that did not fail
            self._outputs = lambda: outputs

    def wait(self) -> Repeated:
        """Waits for their end; returns what became of them."""
        assert self._marks is not None, "a row is launched before it is waited for"  # noqa: S101
        (begin, end), self._marks, result = self._marks, None, self._result
        self._graphs.wait(end)
        result.seconds = self._graphs.seconds(begin, end)
        if result.done:
            self._captured.blocks.took(result.seconds / result.done)
        result.outputs, result.kept = self._bring_back(), [*self._values.values()]
        return result

    def _bring_back(self) -> Outputs | None:
        """Returns what the last step gave, if nothing else has taken its place; brings back what the steps left."""
        counterparts, outputs = self._captured.counterparts, Outputs()
        if self._is_superseded:
            counterparts.give_up()
            return None
        try:
            outputs = Outputs() if self._outputs is None else self._outputs()
        finally:  # what the steps did to the host's tensors counts, also where there is no memory for the rest
            outputs = counterparts.bring_back(self._inputs, outputs)
        return None if self._outputs is None else outputs
