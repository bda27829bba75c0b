"""Steps that a device repeats by itself: captured in graphs, and replayed, one at a time or in rows.

`CapturedStep` owns what is staged, where steps may work on copies of the inputs that differ, and the blocks of graphs;
`captured_row.py` has its rows, `captured_turns.py` those of steps that take turns.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import chain, islice
from operator import is_
from typing import cast

import torch
from torch import Tensor

from lightning_sink.engine.compiler.loop import CompiledStep
from lightning_sink.engine.compiler.masks import draw_in_a_row
from lightning_sink.engine.compiler.row import Layout, Outputs, Row, Turn, layout_of
from lightning_sink.engine.device.assumed import AssumingRow, Before
from lightning_sink.engine.device.block import Block, BlockStep, Launch
from lightning_sink.engine.device.blocks import Blocks
from lightning_sink.engine.device.captured_row import CapturedRow
from lightning_sink.engine.device.captured_turns import CapturedTurns
from lightning_sink.engine.device.counterparts import Counterparts
from lightning_sink.engine.device.placement import Placement
from lightning_sink.engine.failures import ASSUMED, AssumptionFailedError
from lightning_sink.engine.state.default_generators import Generators
from lightning_sink.engine.state.slots import storages
from lightning_sink.engine.step import Column
from lightning_sink.engine.tracing.draws import Draw

_OFTEN = 8
"""Steps that are launched one by one before a graph is captured for those that are run so."""

_LAUNCHED = 1e-2
"""Seconds of a step that is launched operation by operation, from which on it is known not to be the launching."""


class _Fixed:
    """The inputs that are the same for the steps of a row, and for those of most of the rows behind it.

    Args:
        fixed: The inputs, where the owner has them; None for those that differ.
        given: The same on the device.
        written: Those that steps write to.
    """

    def __init__(self, fixed: list[Tensor | None], given: list[Tensor | None], written: frozenset[int]) -> None:
        self._fixed, self.given = fixed, given
        self.places = [None if tensor is None else tensor.data_ptr() for tensor in given]
        memory = storages(fixed)
        self._memory = {place for place in memory if place is not None}
        self._written = {memory[number] for number in written} - {None}

    def are(self, fixed: list[Tensor | None]) -> bool:
        """Tells whether they are these."""
        return all(map(is_, fixed, self._fixed))

    def leave(self, others: Sequence[int | None]) -> bool:
        """Tells whether steps write through these to no memory of others."""
        return self._written.isdisjoint(others)

    def hold(self, places: Sequence[int | None]) -> bool:
        """Tells whether some of these lie in that memory."""
        return not self._memory.isdisjoint(places)


class CapturedStep(CompiledStep):
    """A step on a device, captured where several are run in a row.

    Args:
        function: As for `CompiledStep`, of tensors on the device.
        blocks: The graphs, none of which has been made.
        placement: What the step has on the host.
        draws: As for `CompiledStep`.
        generators: Those of the device, where the function gives, behind all else, whether its assumptions hold.

    Attributes:
        graphs: The device.
        placement: As given.
        counterparts: What the step has on the host.
        on_host: The draws that are made there.
        layouts: What its outputs look like; known when it has been called.
        blocks: The graphs.
        last: The row that was launched last, unless nobody has it any more.
    """

    def __init__(
        self,
        function: Callable[..., Outputs],
        blocks: Blocks,
        placement: Placement,
        draws: Sequence[Draw] = (),
        *,
        generators: Generators | None = None,
    ) -> None:
        super().__init__(function, draws, assumes=generators is not None)
        self.overlaps, self.waits = True, self.assumes
        self._generators = generators
        self.graphs, self.blocks, self.placement = blocks.graphs, blocks, placement
        self.counterparts = Counterparts(self.graphs, placement)
        self.last: Callable[[], CapturedRow | None] = lambda: None
        self.on_host = [draw for number, draw in enumerate(draws) if number in placement.draws]
        self.layouts: list[Layout] = []
        self._fixed: dict[tuple[int, ...], _Fixed] = {}
        self._alone = 0
        self._places: list[int | None] = []

    def __call__(self, *inputs: Tensor) -> Outputs:
        """Runs one step. Waits for it where it leaves something on the host, or has to say whether it was right.

        Raises:
            AssumptionFailedError: The step goes another way, and nothing has been changed, or drawn.
        """
        if not self.assumes:
            return self._run_once(inputs)
        try:
            before = self.before(inputs)
        except torch.OutOfMemoryError as error:
            raise AssumptionFailedError(str(error)) from error
        try:
            *outputs, holds = self._run_once(inputs)
        except Exception as error:  # what fails here may not be done at all on the other way
            before.put_back()
            raise AssumptionFailedError(str(error)) from error
        (held,) = self.graphs.fetch([holds])
        self.graphs.wait(self.graphs.mark())
        if not held:
            before.put_back()
            raise AssumptionFailedError(ASSUMED)
        return (*outputs,)

    def before(self, inputs: Sequence[Tensor | None]) -> Before:
        """Returns what it writes to and draws from, as it is now."""
        written = (inputs[number] for number in sorted(self.placement.written))
        return Before([tensor for tensor in written if tensor is not None], cast(Generators, self._generators))

    def _run_once(self, inputs: Sequence[Tensor]) -> Outputs:
        graphs, counterparts = self.graphs, self.counterparts
        given = cast(list[Tensor], counterparts.instead(inputs))
        outputs: Outputs | None = None
        counterparts.launch(inputs)
        try:
            drawn = graphs.bring([draw() for draw in self.on_host])
            begin = graphs.mark()
            outputs = self.run_there(*given, *drawn)
            self.blocks.ran(begin, graphs.mark())
            if not self.layouts:
                self.layouts = [layout_of(output) for output in outputs]
        finally:
            outputs = self._end(inputs, outputs)
        return outputs

    def run_there(self, *given: Tensor) -> Outputs:
        """Runs one step there, on inputs that are there, and behind them what was drawn on the host."""
        count = len(given) - len(self.on_host)
        hosts = iter(given[count:])
        drawn = [next(hosts) if number in self.placement.draws else draw() for number, draw in enumerate(self.draws)]
        return self._function(*given[:count], *drawn)

    def once(self, inputs: list[Tensor], positions: list[int], kept: list[int]) -> Outputs:
        """Runs one step, by a graph of its own where steps are often run so and their launch counts."""
        self._alone += 1
        if self.assumes or self._alone < _OFTEN or not self.blocks.take_less(_LAUNCHED):
            return self(*inputs)
        differ = frozenset(positions)
        fixed = [None if number in differ else tensor for number, tensor in enumerate(inputs)]
        same = self._same(fixed, positions)
        before, self._places = self._places, same.places  # a graph is for inputs that stay where they are
        if before != same.places or not self._may_stage_and_write(same, inputs, positions):
            return self(*inputs)
        found, varying = self._find(same, positions, [[inputs[position]] for position in positions], kept, 1)
        block = cast(Block, found[0])
        outputs: Outputs | None = None
        self.counterparts.launch(fixed)
        try:
            block.run(varying)
            outputs = Outputs()  # it counts, also where there is no memory for the rest
            block.write_back({number: inputs[number] for number in positions if number in self.placement.written})
            outputs = block.outputs()
        finally:
            outputs = self._end(fixed, outputs)
        return outputs

    def _end(self, inputs: Sequence[Tensor | None], outputs: Outputs | None) -> Outputs:
        """Brings back what a step left, if it ran: None for the outputs of one that did not."""
        if outputs is not None:
            return self.counterparts.bring_back(inputs, outputs)
        self.counterparts.give_up()
        return Outputs()

    def _may_stage_and_write(self, same: _Fixed, inputs: list[Tensor], positions: list[int]) -> bool:
        """Tells whether a step may work on copies of the inputs that differ, and write to them, and be what it is."""
        places = storages(inputs[position] for position in positions)
        written = self.placement.written.intersection(positions)
        if not same.leave(places):
            return False
        counts = Counter(places)
        targets = [p for number, p in zip(positions, places, strict=True) if number in written and p is not None]
        alone = all(counts[place] == 1 for place in targets) and not same.hold(targets)
        return alone and written.isdisjoint(self.placement.inputs)

    def in_turns(self, steps: Sequence[CompiledStep]) -> CapturedTurns:
        """Returns what runs this step and others, of which each has its turn."""
        return CapturedTurns([cast(CapturedStep, step) for step in steps])

    def row(self, turns: list[Turn], steps: int) -> Row:
        """Returns steps in a row, to be run: of one turn, all of them alike."""
        (turn,) = turns
        same = self._same(turn.fixed, turn.positions)
        tensors = chain.from_iterable([column] if isinstance(column, Tensor) else column for column in turn.columns)
        may_stage = self.placement.written.isdisjoint(turn.positions) and same.leave(storages(tensors))
        if not may_stage:
            return super().row(turns, steps)
        if self.assumes:
            turn = replace(turn, kept=[*turn.kept, len(self.layouts) - 1])
        blocks, varying = self._find(same, turn.positions, turn.columns, turn.kept, steps)
        return (AssumingRow if self.assumes else CapturedRow)(self, turn, blocks, varying, steps)

    def _same(self, fixed: list[Tensor | None], positions: list[int]) -> _Fixed:
        same = self._fixed.get(tuple(positions))
        if same is None or not same.are(fixed):
            given = [*self.counterparts.instead(fixed), *(None for _ in self.on_host)]
            self._fixed[tuple(positions)] = same = _Fixed(fixed, given, self.placement.written)
        return same

    def _find(
        self, same: _Fixed, positions: list[int], columns: list[Column], kept: list[int], steps: int
    ) -> tuple[list[Launch], list[Column]]:
        """Returns blocks for steps in a row, and the inputs that differ, on the device, with what the host draws."""
        varying = self._bring([*columns, *draw_in_a_row(self.on_host, steps)])
        wanted = {index: self.layouts[index] for index in kept}
        differ = [*positions, *range(len(same.given) - len(self.on_host), len(same.given))]
        step = BlockStep(self.run_there, same.given, same.places, differ, [column[0] for column in varying], wanted)
        return self.blocks.find(step, steps), varying

    def _bring(self, columns: list[Column]) -> list[Column]:
        """Returns inputs that differ on the device, those of the host's by few copies."""
        parts = [column if isinstance(column, list) else [column] for column in columns]
        brought = iter(self.graphs.bring([*chain.from_iterable(parts)]))
        return [[*islice(brought, len(column))] if isinstance(column, list) else next(brought) for column in columns]
