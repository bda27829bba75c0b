"""Which graphs a row of steps is made of: a loop of the device's, blocks of several steps, or of one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from lightning_sink.engine.device.block import Block, BlockLoop, BlockStep, Launch
from lightning_sink.engine.device.graphs import Graphs
from lightning_sink.engine.failures import in_short

_SIZES = ((64, 1e-4), (16, 1e-3), (4, 1e-3), (1, float("inf")))
"""Steps in one graph, and seconds that one step takes less than. A row of any length is few replays, and captures are
few; beside a step of a millisecond a launch is nothing, and a graph of one takes the least memory."""

_TURN = 16
"""Steps that are one turn of a loop, where a device repeats graphs by itself."""

_TURNS = 64
"""Turns of a loop at most: of as many steps as batches are sent to a device beside steps."""

_LINE = 32 << 20
"""Bytes at most of what lies in line for a loop, inputs and what is kept."""


class Blocks:
    """The blocks of a step that have been made.

    Args:
        graphs: The device.
        refuse: Told why steps cannot be captured, which are then launched one by one; None where none are to be.
        unroll: Told why they cannot be captured as a loop, and are unrolled; None where there is to be no loop.
    """

    def __init__(
        self, graphs: Graphs, refuse: Callable[[Exception], None] | None, unroll: Callable[[str], None] | None
    ) -> None:
        self.graphs, self._refuse, self._unroll = graphs, refuse, unroll
        self._is_capturable, self._most = False, _SIZES[0][0]
        self._known: dict[tuple[int, ...], Block] = {}
        self._marks: tuple[Any, Any] | None = None
        self._seconds: float | None = None

    @classmethod
    def of_rounds(cls, steps: Sequence[Blocks]) -> Blocks | None:
        """Returns those of rounds of steps, each of which has been run; None where one is not captured.

        Args:
            steps: The blocks of each step of a round.
        """
        if not all(own.captures for own in steps):
            return None
        unrolled = any(own._unroll is None for own in steps)
        blocks = cls(steps[0].graphs, steps[0]._refuse, None if unrolled else steps[0]._unroll)
        blocks._most = max(1, blocks._most // len(steps))
        blocks._seconds = sum(own._took() for own in steps)
        return blocks

    @property
    def captures(self) -> bool:
        """Whether steps are captured, as far as one knows."""
        return self._refuse is not None

    def ran(self, begin: Any, end: Any) -> None:
        """Takes note of the events around a step: how long it took is looked at when it has to be known."""
        self._marks = begin, end

    def took(self, seconds: float) -> None:
        """Takes note of how long a step took."""
        self._seconds = seconds

    def find(self, step: BlockStep, steps: int) -> list[Launch]:
        """Returns what runs so many steps in a row, one launch behind the other."""
        found, left = list[Launch](), steps
        for size, seconds in _SIZES:
            if size > self._most or (size > 1 and not self.take_less(seconds)):
                continue
            # Many in one graph are worth its capture where it is launched again and again, and no loop is.
            if size > _TURN and (left < 2 * size or self._turns(step, _TURN) > 1):
                continue
            count, left = divmod(left, size)
            if count:
                block = self._get(step, size)
                if block is None:
                    return self.find(step, steps)
                found += block.launches(count) if isinstance(block, BlockLoop) else [block] * count
        return found

    def _get(self, step: BlockStep, size: int) -> Block | None:
        """Returns a block that has been made, or makes it; None where it cannot be captured, and is not to be."""
        key = size, len(step.positions), *step.positions, *step.kept
        block = self._known.pop(key, None)
        if block is not None and block.places != step.places:
            block = None  # before another one takes memory
        if block is None:
            turns = self._turns(step, size)
            if turns > 1 and not self._is_capturable and self._get(step, 1) is None:
                return None  # what cannot be captured at all is found out without a loop
            block = (self._loop(step, size, turns) if turns > 1 else None) or self._block(step, size)
        if block is not None:
            self._known[key] = block
        return block

    def take_less(self, seconds: float) -> bool:
        """Tells whether steps are captured and take less time than this; may wait for the last one."""
        return self.captures and self._took() < seconds

    def _took(self) -> float:
        """Returns how long a step took. Waits for the one that was launched last, unless it is known by then."""
        if self._seconds is None and self._marks is not None:
            self.graphs.wait(self._marks[1])
            self._seconds = self.graphs.seconds(*self._marks)
        return self._seconds or 0.0

    def _block(self, step: BlockStep, size: int) -> Block | None:
        block = Block(step, size)
        if self._refuse is not None:
            try:
                block.capture(self.graphs)
            except RuntimeError as error:
                self._known.clear()  # graphs behind one that failed are captured in other memory, or none is
                if size > _TURN:
                    self._most = _TURN  # where there is no memory for so many, fewer in a graph do as well
                    return None
                refuse, self._refuse = self._refuse, None  # steps are launched one by one from now on
                refuse(error)
                return None
            self._is_capturable = True
        return block

    def _loop(self, step: BlockStep, size: int, turns: int) -> BlockLoop | None:
        """Returns a loop; None where it cannot be captured, which is said, and none is tried again."""
        try:
            loop = BlockLoop(step, size, turns)
            loop.capture(self.graphs)
        except Exception as error:  # nothing depends on it: blocks take its place
            unroll, self._unroll = self._unroll, None
            if unroll is not None:
                unroll(in_short(error))
            return None
        return loop

    def _turns(self, step: BlockStep, size: int) -> int:
        """Returns how many turns a loop may have; 0 where there is to be none."""
        if size != _TURN or self._unroll is None or not self.graphs.repeats():
            return 0
        return min(_TURNS, _LINE // max(1, size * step.nbytes))
