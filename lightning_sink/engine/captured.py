"""Steps that a device repeats by itself: captured in graphs, and replayed, one at a time or in rows.

`CapturedStep` owns what is staged, where steps may work on copies of the inputs that differ, and the blocks of graphs;
`captured_row.py` has its rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain, islice
from operator import is_
from typing import cast

from torch import Tensor

from lightning_sink.engine.blocks import Block, Blocks, places_of
from lightning_sink.engine.captured_row import CapturedRow
from lightning_sink.engine.counterparts import Counterparts
from lightning_sink.engine.draws import Draw
from lightning_sink.engine.graphs import Graphs
from lightning_sink.engine.loop import CompiledStep, Layout, Outputs, Row, layout_of
from lightning_sink.engine.masks import draw_in_a_row
from lightning_sink.engine.placement import Placement
from lightning_sink.engine.slots import storages
from lightning_sink.engine.step import Column

_OFTEN = 8
"""Steps that are launched one by one before a graph is captured for those that are run so."""


class _Fixed:
    """The inputs that are the same for the steps of a row, and for those of most of the rows behind it.

    Args:
        fixed: The inputs, where the owner has them; None for those that differ.
        given: The same on the device.
        written: Those that steps write to.
    """

    def __init__(self, fixed: list[Tensor | None], given: list[Tensor | None], written: frozenset[int]) -> None:
        self._fixed, self.given = fixed, given
        self.places = places_of(given)
        self.written = {place for place in storages(fixed[number] for number in written) if place is not None}

    def are(self, fixed: list[Tensor | None]) -> bool:
        """Tells whether they are these."""
        return len(fixed) == len(self._fixed) and all(map(is_, fixed, self._fixed))


class CapturedStep(CompiledStep):
    """A step on a device, captured where several are run in a row.

    Args:
        function: As for `CompiledStep`, of tensors on the device.
        graphs: The device.
        placement: What the step has on the host.
        draws: As for `CompiledStep`.
        refuse: Told why steps cannot be captured, which are then launched one by one; None where none are to be.

    Attributes:
        graphs: The device.
        counterparts: What the step has on the host.
        blocks: The graphs.
        last: The row that was launched last, unless nobody has it any more.
    """

    def __init__(
        self,
        function: Callable[..., Outputs],
        graphs: Graphs,
        placement: Placement,
        draws: Sequence[Draw] = (),
        refuse: Callable[[Exception], None] | None = None,
    ) -> None:
        super().__init__(function, draws)
        self.graphs, self._placement = graphs, placement
        self.counterparts = Counterparts(graphs, placement)
        self.blocks = Blocks(self._step, graphs, refuse)
        self.last: Callable[[], CapturedRow | None] = lambda: None
        self._on_host = [draw for number, draw in enumerate(draws) if number in placement.draws]
        self._layouts: list[Layout] = []
        self._fixed: dict[int, _Fixed] = {}
        self._alone, self._is_worth_one = 0, False
        self._places: list[int | None] = []

    def __call__(self, *inputs: Tensor) -> Outputs:
        """Runs one step. Waits for it where it leaves something on the host."""
        graphs, counterparts = self.graphs, self.counterparts
        given = cast(list[Tensor], counterparts.instead(inputs))
        counterparts.launch(inputs)
        try:
            drawn = graphs.bring([draw() for draw in self._on_host])
            begin = graphs.mark()
            outputs = self._step(*given, *drawn)
            self.blocks.ran(begin, graphs.mark())
        except BaseException:
            counterparts.give_up()
            raise
        self._layouts = self._layouts or [layout_of(output) for output in outputs]
        return counterparts.bring_back(inputs, outputs)

    def _step(self, *given: Tensor) -> Outputs:
        """Runs one step on the device: the inputs, and behind them what was drawn on the host."""
        count = len(given) - len(self._on_host)
        hosts = iter(given[count:])
        drawn = [next(hosts) if number in self._placement.draws else draw() for number, draw in enumerate(self._draws)]
        return self._function(*given[:count], *drawn)

    def once(self, inputs: list[Tensor], positions: list[int], kept: list[int]) -> Outputs:
        """Runs one step, by a graph of its own where steps are often run so and their launch counts."""
        self._alone += 1
        if self._alone == _OFTEN:
            self._is_worth_one = self.blocks.are_worth_several
        if not self._is_worth_one:
            return self(*inputs)
        at = frozenset(positions)
        fixed = [None if number in at else tensor for number, tensor in enumerate(inputs)]
        columns: list[Column] = [[inputs[position]] for position in positions]
        same, before = self._same(fixed, positions), self._places
        self._places = same.places
        written = self._placement.written & at
        if self._places != before or not (self._may_stage(same, columns) and self._may_write(written, inputs, at)):
            return self(*inputs)
        (block,), varying = self._find(same, positions, columns, kept, 1)
        self.counterparts.launch(fixed)
        try:
            block.run(varying)
        except BaseException:
            self.counterparts.give_up()
            raise
        outputs = Outputs()
        try:
            block.write_back({number: inputs[number] for number in written})
            outputs = block.outputs()
        finally:  # what the step did to the host's tensors counts, also where there is no memory for the rest
            outputs = self.counterparts.bring_back(fixed, outputs)
        return outputs

    def _may_write(self, written: frozenset[int], inputs: list[Tensor], at: frozenset[int]) -> bool:
        """Tells whether inputs that differ may be written to in a copy, and be what that is then."""
        if not written:
            return True
        places = storages(inputs[number] for number in at)
        return written.isdisjoint(self._placement.inputs) and len({*places}) == len(places)

    @property
    def overlaps(self) -> bool:
        """Whether rows run beside the thread that launches them."""
        return True

    def row(
        self, fixed: list[Tensor | None], positions: list[int], columns: list[Column], kept: list[int], steps: int
    ) -> Row:
        """Returns steps in a row, to be run; the arguments are those of `Row`."""
        same = self._same(fixed, positions)
        if not self._layouts or not self._may_stage(same, columns) or self._placement.written.intersection(positions):
            return super().row(fixed, positions, columns, kept, steps)
        blocks, varying = self._find(same, positions, columns, kept, steps)
        return CapturedRow(self, fixed, blocks, varying, kept, steps)

    def _same(self, fixed: list[Tensor | None], positions: list[int]) -> _Fixed:
        same = self._fixed.get(len(positions))
        if same is None or not same.are(fixed):
            given = [*self.counterparts.instead(fixed), *(None for _ in self._on_host)]
            self._fixed[len(positions)] = same = _Fixed(fixed, given, self._placement.written)
        return same

    def _may_stage(self, same: _Fixed, columns: list[Column]) -> bool:
        """Tells whether steps may work on copies of the inputs that differ, made before any of the steps."""
        tensors = chain.from_iterable([column] if isinstance(column, Tensor) else column for column in columns)
        return same.written.isdisjoint(tensor.untyped_storage().data_ptr() for tensor in tensors)

    def _find(
        self, same: _Fixed, positions: list[int], columns: list[Column], kept: list[int], steps: int
    ) -> tuple[list[Block], list[Column]]:
        """Returns blocks for steps in a row, and the inputs that differ, on the device, with what the host draws."""
        varying = self._bring([*columns, *draw_in_a_row(self._on_host, steps)])
        wanted = {index: self._layouts[index] for index in kept}
        places = [*positions, *range(len(same.given) - len(self._on_host), len(same.given))]
        return self.blocks.find(same.given, same.places, places, varying, wanted, steps), varying

    def _bring(self, columns: list[Column]) -> list[Column]:
        """Returns inputs that differ on the device, those of the host's by few copies."""
        lists = [column for column in columns if isinstance(column, list)]
        brought = iter(self.graphs.bring([*chain.from_iterable(lists)]))
        return [column if isinstance(column, Tensor) else [*islice(brought, len(column))] for column in columns]
