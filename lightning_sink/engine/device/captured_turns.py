"""Steps that take turns as a device repeats them: a round of them is one step to it.

What one of them gives a later one never leaves the graph. `Round` says which of the round's inputs and outputs are
whose; a `CapturedTurns` keeps one `CapturedStep` for rounds as long as they have the same inputs in common.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING, Any

from torch import Tensor

from lightning_sink.engine.compiler.loop import TurnTaking
from lightning_sink.engine.compiler.row import Outputs, Repeated, Row, Turn
from lightning_sink.engine.device.captured_row import CapturedRow
from lightning_sink.engine.device.placement import Placement
from lightning_sink.engine.state.slots import place_of, share_memory
from lightning_sink.engine.step import Column

if TYPE_CHECKING:
    from lightning_sink.engine.device.captured import CapturedStep

Source = int | tuple[int, int]
"""Where a turn's input comes from: an input of the round, or what an earlier turn gave, and which output it is."""


@dataclass
class Round:
    """The inputs of a round's steps as those of one: what is the same for several of them is there once.

    Attributes:
        sources: For each turn, where each of its inputs comes from.
        fixed: The inputs that are the same for each round; None for those that are not.
        positions: Which are not.
        columns: These, of all rounds.
        kept: Outputs of which every round's is wanted, all turns' in one line.
    """

    sources: list[list[Source]]
    fixed: list[Tensor | None]
    positions: list[int]
    columns: list[Column]
    kept: list[int]

    @classmethod
    def of(cls, turns: Sequence[Turn], outputs: Sequence[int]) -> Round:
        """Returns that of some turns.

        Args:
            turns: The turns.
            outputs: How many outputs each has.
        """
        found, known = cls([], [], [], [], []), dict[Any, int]()
        for number, turn in enumerate(turns):
            varying = dict(zip(turn.positions, turn.columns, strict=True))
            found.sources.append([found._source(turn, i, varying.get(i), known) for i in range(len(turn.fixed))])
            found.kept += [sum(outputs[:number]) + index for index in turn.kept]
        return found

    def _source(self, turn: Turn, position: int, column: Column | None, known: dict[Any, int]) -> Source:
        if position in turn.links:
            return turn.links[position]
        tensor, place = turn.fixed[position], len(self.fixed)
        if tensor is not None:
            place = known.setdefault(_identity(tensor), place)
        if place == len(self.fixed):
            self.fixed.append(tensor)
            if column is not None:
                self.positions.append(place)
                self.columns.append(column)
        return place

    def placement(self, steps: Sequence[CapturedStep]) -> Placement:
        """Returns what the steps have on the host, as a round has it."""
        inputs, written, given, drawn, outputs = set[int](), set[int](), 0, 0, set[int]()
        for step, sources in zip(steps, self.sources, strict=True):
            own = step.placement
            inputs |= {place for i in own.inputs if isinstance(place := sources[i], int)}
            written |= {place for i in own.written if isinstance(place := sources[i], int)}
            outputs |= {given + i for i in own.outputs}
            given, drawn = given + step.num_outputs, drawn + len(step.on_host)
        return Placement(frozenset(inputs), frozenset(range(drawn)), frozenset(outputs), frozenset(written))


def _identity(tensor: Tensor) -> Any:
    """Returns what only tensors have in common that are one and the same memory, seen in the same way."""
    place = place_of(tensor)
    if not place:
        return id(tensor)
    seen_as = tensor.shape, tensor.stride(), tensor.dtype, tensor.is_conj(), tensor.is_neg()
    return place, tensor.device, *seen_as


class CapturedTurns(TurnTaking):
    """Steps that take turns in a row, captured a round at a time.

    Args:
        steps: One of each turn, all of which have been called.
    """

    def __init__(self, steps: Sequence[CapturedStep]) -> None:
        super().__init__(steps)
        self._captured = steps
        self._step: CapturedStep | None = None
        self._sources: list[list[Source]] | None = None

    def row(self, turns: list[Turn], steps: int) -> Row:
        """Returns steps in a row, to be run; launched one by one where they cannot be captured."""
        found = Round.of(turns, [step.num_outputs for step in self._captured])
        if self._sources != found.sources:
            self._step = None  # before another one takes memory
            self._step, self._sources = self._step_for(found), found.sources
        if self._step is not None:
            row = self._step.row(found.fixed, found.positions, found.columns, found.kept, steps // len(turns))
            if isinstance(row, CapturedRow) and row.is_captured:
                return _Rounds(row, len(turns))
        return Row(turns, steps)

    def _step_for(self, found: Round) -> CapturedStep | None:
        """Returns what runs a round; None where there can be none."""
        steps, placement = self._captured, found.placement(self._captured)
        if share_memory(found.fixed, placement.inputs & placement.written):
            return None  # one would not see on the device what another one has left there
        return steps[0].of_round(steps, _in_turns(steps, found.sources, len(found.fixed)), placement)


class _Rounds(Row):
    """Rounds in a row, as the steps that they are.

    Args:
        row: The rounds.
        turns: How many steps a round has.
    """

    def __init__(self, row: CapturedRow, turns: int) -> None:
        self._row, self._length = row, turns

    @property
    def failed(self) -> bool:
        """Whether a round has failed already where it was launched."""
        return self._row.failed

    def launch(self) -> None:
        """Gives them to the device."""
        self._row.launch()

    def wait(self) -> Repeated:
        """Waits for their end; returns what became of the steps."""
        result = self._row.wait()
        return replace(result, done=result.done * self._length)


def _in_turns(steps: Sequence[CapturedStep], sources: Sequence[Sequence[Source]], count: int) -> Callable[..., Outputs]:
    """Returns what runs a round on its inputs, so many, and what its steps draw on the host, one behind the other."""

    def run(*given: Tensor) -> Outputs:
        outputs, drawn = list[Outputs](), iter(given[count:])
        for step, places in zip(steps, sources, strict=True):
            inputs = [given[p] if isinstance(p, int) else outputs[p[0]][p[1]] for p in places]
            outputs.append(step.run_there(*inputs, *(next(drawn) for _ in step.on_host)))
        return (*chain(*outputs),)

    return run
