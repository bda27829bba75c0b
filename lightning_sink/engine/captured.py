"""Steps that a device repeats by itself: captured in graphs, and replayed.

A row is a few replays of blocks of several steps, launched one behind the other. What its last step gave is copied out
behind them, for others may hold that while later replays fill the memory that graphs share; not so where the next row
has been launched by then, which leaves all of it anew.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain, islice
from operator import is_
from typing import Any, cast
from weakref import ref

import torch
from torch import Tensor

from lightning_sink.engine.blocks import Block, Blocks, places_of
from lightning_sink.engine.counterparts import Counterparts
from lightning_sink.engine.draws import Draw
from lightning_sink.engine.failures import with_type
from lightning_sink.engine.graphs import Graphs
from lightning_sink.engine.loop import CompiledStep, Layout, Outputs, Repeated, Row, layout_of
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


class CapturedRow(Row):
    """Steps in a row that are replayed.

    Args:
        step: What runs them.
        fixed: The inputs that are the same for each, where the owner has them.
        blocks: Graphs of the steps, one behind the other.
        varying: The inputs that differ, of all steps, on the device.
        kept: Outputs of which every step's is wanted.
        steps: How many steps.
    """

    def __init__(
        self,
        step: CapturedStep,
        fixed: list[Tensor | None],
        blocks: list[Block],
        varying: list[Column],
        kept: list[int],
        steps: int,
    ) -> None:
        self._captured, self._graphs = step, step.graphs
        self._inputs, self._blocks, self._varying = fixed, blocks, varying
        self._values = {
            index: torch.empty((steps, *column.shape[1:]), dtype=column.dtype, device=column.device)
            for index, column in zip(kept, blocks[0].columns, strict=True)
        }
        self._marks: tuple[Any, Any] | None = None
        self._error: Exception | None = None
        self._outputs: Callable[[], Outputs] | None = Outputs
        self._is_superseded = False
        self._done = 0

    def __del__(self) -> None:
        if getattr(self, "_marks", None) is not None:
            self._outputs = None
            self.wait()  # where nobody has: what the steps did to the host's tensors counts

    @property
    def failed(self) -> bool:
        """Whether a step has failed already where it was launched."""
        return self._error is not None

    def launch(self) -> None:
        """Gives them to the device, behind what it was given before."""
        counterparts, before = self._captured.counterparts, self._captured.last()
        is_captured = self._blocks[0].is_captured
        counterparts.launch(self._inputs)
        try:
            begin = self._graphs.mark()
            self._run()
            self._values = counterparts.fetch({i: column[: self._done] for i, column in self._values.items()})
            self._marks = begin, self._graphs.mark()
        except BaseException:
            if before is not None and is_captured:
                before._outputs = None  # some of these steps may have filled that memory
            if self._done:
                counterparts.bring_back(self._inputs, Outputs())
            else:
                counterparts.give_up()
            raise
        self._blocks, self._varying = [], []
        if self._done:
            self._captured.last = ref(self)
            if before is not None and is_captured:
                before._is_superseded = True

    def _run(self) -> None:
        """Runs the blocks, up to one that fails."""
        for block in self._blocks:
            try:
                block.run([column[self._done : self._done + block.size] for column in self._varying])
            except Exception as error:
                self._error = with_type(error)
                break
            begin, self._done = self._done, self._done + block.size
            for column, part in zip(self._values.values(), block.columns, strict=True):
                column[begin : self._done].copy_(part)
            self._outputs = block.outputs
        if self._done and not self._blocks[0].is_captured:
            outputs = self._blocks[0].outputs()  # while they are those of the last step that did not fail
            self._outputs = lambda: outputs

    def wait(self) -> Repeated:
        """Waits for their end; returns what became of them."""
        assert self._marks is not None, "a row is launched before it is waited for"  # noqa: S101
        (begin, end), self._marks = self._marks, None
        self._graphs.wait(end)
        seconds = self._graphs.seconds(begin, end)
        if self._done:
            self._captured.blocks.took(seconds / self._done)
        return Repeated(self._done, self._bring_back(), [*self._values.values()], seconds, self._error)

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
