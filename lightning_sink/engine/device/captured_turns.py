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
from lightning_sink.engine.device.block_memory import memory_places
from lightning_sink.engine.device.blocks import Blocks
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
        kept: For each turn, its outputs of which every round's is wanted.
    """

    sources: list[list[Source]]
    fixed: list[Tensor | None]
    positions: list[int]
    columns: list[Column]
    kept: list[list[int]]

    @classmethod
    def of(cls, turns: Sequence[Turn]) -> Round:
        """Returns that of some turns."""
        found, known = cls([], [], [], [], [turn.kept for turn in turns]), dict[Any, int]()
        for turn in turns:
            varying = dict(zip(turn.positions, turn.columns, strict=True))
            found.sources.append([found._source(turn, i, varying.get(i), known) for i in range(len(turn.fixed))])
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
        """Returns what a round has on the host: what one step gives another never leaves the device."""
        inputs, written, outputs, kept = set[int](), set[int](), list[bool](), list[bool]()
        for step, sources, wanted in zip(steps, self.sources, self.kept, strict=True):
            own = step.placement
            inputs |= {place for i in own.inputs if isinstance(place := sources[i], int)}
            written |= {place for i in own.written if isinstance(place := sources[i], int)}
            outputs += [i in own.outputs for i in range(len(step.layouts))]
            kept += [i in own.outputs for i in wanted]
        drawn = range(sum(len(step.on_host) for step in steps))
        hosts = (number for number, on_host in enumerate(outputs + kept) if on_host)
        return Placement(frozenset(inputs), frozenset(drawn), frozenset(hosts), frozenset(written))

    def run_by(self, steps: Sequence[CapturedStep]) -> Callable[..., Outputs]:
        """Returns what runs a round on its inputs, and what its steps draw on the host, one behind the other.

        Behind all outputs it gives those that are kept, as their step leaves them: a later turn may write to them.
        """
        count, sources, wanted = len(self.fixed), self.sources, self.kept
        taken = {place for places in sources for place in places if not isinstance(place, int)}

        def run(*given: Tensor) -> Outputs:
            outputs, kept, drawn = list[Outputs](), list[Tensor](), iter(given[count:])
            for turn, (step, places) in enumerate(zip(steps, sources, strict=True)):
                inputs = [given[p] if isinstance(p, int) else outputs[p[0]][p[1]] for p in places]
                own = step.run_there(*inputs, *(next(drawn) for _ in step.on_host))
                outputs.append(own)
                others = {*memory_places([*inputs, *(own[i] for i in range(len(own)) if (turn, i) in taken)])}
                at_hand = [own[index] for index in wanted[turn]]
                places_of_kept = memory_places(at_hand)
                kept += [t.clone() if p in others else t for t, p in zip(at_hand, places_of_kept, strict=True)]
            return *chain(*outputs), *kept

        return run


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

    @property
    def overlaps(self) -> bool:
        """Whether rows run beside the thread that launches them.

        Steps that are launched one by one take from the host what those before them have brought back by then.
        """
        return self._sources is None or self._captures

    @property
    def _captures(self) -> bool:
        return self._step is not None and self._step.blocks.captures

    def row(self, turns: list[Turn], steps: int) -> Row:
        """Returns steps in a row, to be run; launched one by one where it is known that they cannot be captured."""
        found = Round.of(turns)
        if self._sources != found.sources:  # not beside a row: inputs stay what they are until a step runs by itself
            self._step = None  # before another one takes memory
            self._step, self._sources = self._step_for(found), found.sources
        if self._step is None or not self._captures:
            return Row(turns, steps)
        first = sum(len(step.layouts) for step in self._captured)
        kept = [first + index for index in range(sum(map(len, found.kept)))]
        turn = Turn(self._step, found.fixed, found.positions, found.columns, kept)
        return _Rounds(self._step.row([turn], steps // len(turns)), len(turns), first)

    def _step_for(self, found: Round) -> CapturedStep | None:
        """Returns what runs a round; None where there can be none, or its steps are not captured."""
        steps, placement = self._captured, found.placement(self._captured)
        if share_memory(found.fixed, placement.inputs & placement.written):
            return None  # one would not see on the device what another one has left there
        if any(step.assumes for step in steps):
            return None  # each says by itself whether it was right
        blocks = Blocks.of_rounds([step.blocks for step in steps])
        if blocks is None:
            return None
        draws = [draw for step in steps for draw in step.on_host]
        of_round = type(steps[0])(found.run_by(steps), blocks, placement, draws)
        layouts = [step.layouts for step in steps]
        kept = [own[index] for own, wanted in zip(layouts, found.kept, strict=True) for index in wanted]
        of_round.layouts = [*chain(*layouts), *kept]
        return of_round


class _Rounds(Row):
    """Rounds in a row, as the steps that they are.

    Args:
        row: The rounds.
        turns: How many steps a round has.
        outputs: How many outputs of a round are those of its steps.
    """

    def __init__(self, row: Row, turns: int, outputs: int) -> None:
        self._row, self._length, self._outputs = row, turns, outputs

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
        outputs = result.outputs and result.outputs[: self._outputs]
        return replace(result, done=result.done * self._length, outputs=outputs)
