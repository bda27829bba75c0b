"""Steps that a device repeats by itself: captured in graphs, and replayed.

A row is a few replays of blocks of several steps, launched one behind the other. What its last step gave is copied out
behind them: others may hold that while later replays fill the memory that graphs share.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
from torch import Tensor

from lightning_sink.engine.counterparts import Counterparts
from lightning_sink.engine.draws import Draw
from lightning_sink.engine.failures import with_type
from lightning_sink.engine.graphs import Block, Graphs
from lightning_sink.engine.loop import CompiledStep, Layout, Outputs, Repeated, Row, layout_of
from lightning_sink.engine.placement import Placement
from lightning_sink.engine.slots import storages

_SIZES = (16, 4, 1)
"""Steps in one graph, for steps that take little. A row of any length is few replays, and there are three captures."""

_SHORT = 1e-3
"""Seconds of a step beside which the launch of a graph is nothing: one in each will do, and takes the least memory."""


class CapturedStep(CompiledStep):
    """A step on a device, captured where several are run in a row.

    Args:
        function: As for `CompiledStep`, of tensors on the device.
        graphs: The device.
        placement: What the step has on the host.
        draws: As for `CompiledStep`.
        refuse: Told why steps cannot be captured, which are then launched one by one; None where none are to be.
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
        self._graphs, self._placement, self._refuse = graphs, placement, refuse
        self._counterparts = Counterparts(graphs, placement)
        self._on_host = [draw for number, draw in enumerate(draws) if number in placement.draws]
        self._blocks: dict[tuple[int, ...], Block] = {}
        self._layouts: list[Layout] = []
        self._times: tuple[Any, Any] | None = None
        self._seconds = 0.0

    def __call__(self, *inputs: Tensor) -> Outputs:
        """Runs one step. Waits for it where it leaves something on the host."""
        graphs, counterparts = self._graphs, self._counterparts
        given = cast(list[Tensor], counterparts.instead(inputs))
        counterparts.launch(inputs)
        try:
            drawn = graphs.bring([draw() for draw in self._on_host])
            begin = graphs.mark()
            outputs = self._step(*given, *drawn)
            self._times = begin, graphs.mark()
            finish = counterparts.fetch(inputs, [outputs[number] for number in sorted(self._placement.outputs)])
            if self._placement.outputs or self._placement.inputs & self._placement.written:
                graphs.wait(graphs.mark())
        except BaseException:
            counterparts.give_up()
            raise
        self._layouts = self._layouts or [layout_of(output) for output in outputs]
        return self._with(outputs, finish())

    def _step(self, *given: Tensor) -> Outputs:
        """Runs one step on the device: the inputs, and behind them what was drawn on the host."""
        count = len(given) - len(self._on_host)
        hosts = iter(given[count:])
        drawn = [next(hosts) if number in self._placement.draws else draw() for number, draw in enumerate(self._draws)]
        return self._function(*given[:count], *drawn)

    def _with(self, outputs: Outputs, hosts: list[Tensor]) -> Outputs:
        """Returns outputs with those in their place that eager steps have on the host."""
        found = [*outputs]
        for number, tensor in zip(sorted(self._placement.outputs), hosts, strict=True):
            found[number] = tensor
        return tuple(found)

    @property
    def overlaps(self) -> bool:
        """Whether rows run beside the thread that launches them."""
        return True

    def row(self, fixed: list[Tensor | None], positions: list[int], rows: list[list[Tensor]], kept: list[int]) -> Row:
        """Returns steps in a row, to be run; the arguments are those of `Row`."""
        if not self._layouts or not self._may_stage(fixed, positions, rows):
            return super().row(fixed, positions, rows, kept)
        behind = range(len(fixed), len(fixed) + len(self._on_host))
        drawn = [[draw() for draw in self._on_host] for _ in rows]
        varying = self._graphs.bring([t for row, more in zip(rows, drawn, strict=True) for t in (*row, *more)])
        wanted = {index: self._layouts[index] for index in kept}
        given = [*self._counterparts.instead(fixed), *(None for _ in behind)]
        blocks = self._find_blocks(given, [*positions, *behind], varying, wanted, len(rows))
        return CapturedRow(self, fixed, blocks, varying, wanted, len(rows))

    def _may_stage(self, fixed: list[Tensor | None], positions: list[int], rows: list[list[Tensor]]) -> bool:
        """Tells whether steps may work on copies of the inputs that differ, made before any of the steps."""
        first, written = rows[0], self._placement.written
        if written & set(positions):
            return False
        places = {place for place in storages(fixed[n] for n in written) if place is not None}
        if places & set(storages(tensor for row in rows for tensor in row)):
            return False
        return all(
            tensor.shape == like.shape and tensor.stride() == like.stride() and tensor.dtype == like.dtype
            for row in rows
            for tensor, like in zip(row, first, strict=True)
        )

    def _find_blocks(
        self,
        fixed: list[Tensor | None],
        positions: list[int],
        varying: list[Tensor],
        kept: dict[int, Layout],
        steps: int,
    ) -> list[Block]:
        if self._times is not None:
            self._graphs.wait(self._times[1])
            self._seconds, self._times = self._graphs.seconds(*self._times), None
        found, left = list[Block](), steps
        short = self._seconds < _SHORT and self._refuse is not None
        for size in _SIZES if short else _SIZES[-1:]:
            count, left = divmod(left, size)
            if count:
                key = size, len(positions), *positions, *kept
                block = self._blocks.pop(key, None)
                if block is not None and not block.is_for(fixed):
                    block = None  # before another one takes memory
                if block is None:
                    block = Block(self._step, fixed, positions, varying[: len(positions)], kept, size)
                    if not self._capture(block):
                        return self._find_blocks(fixed, positions, varying, kept, steps)
                self._blocks[key] = block
                found += [block] * count
        return found

    def _capture(self, block: Block) -> bool:
        """Captures a block where that is to be; tells whether it went well."""
        if self._refuse is not None:
            try:
                block.capture(self._graphs)
            except RuntimeError as error:
                refuse, self._refuse = self._refuse, None
                refuse(error)
                return False
        return True

    def took(self, seconds: float) -> None:
        """Takes note of how long a step took."""
        self._seconds = seconds

    def launch(self, fixed: list[Tensor | None]) -> None:
        """Brings what a row takes from the host."""
        self._counterparts.launch(fixed)

    def give_up(self) -> None:
        """The row was not launched."""
        self._counterparts.give_up()

    def finish(
        self, fixed: list[Tensor | None], outputs: Outputs, columns: dict[int, Tensor]
    ) -> Callable[[], tuple[Outputs, list[Tensor]]]:
        """Has what a row leaves on the host brought there.

        Args:
            fixed: The row's inputs.
            outputs: Its last step's outputs.
            columns: What was kept, by output.

        Returns:
            Gives both with what belongs on the host there; to be called when that has been waited for.
        """
        hosts = sorted(self._placement.outputs) if outputs else []
        kept = [number for number in columns if number in self._placement.outputs]
        besides = [*(outputs[number] for number in hosts), *(columns[number] for number in kept)]
        brought = self._counterparts.fetch(fixed, besides)

        def finish() -> tuple[Outputs, list[Tensor]]:
            found = brought()
            there = {**columns, **dict(zip(kept, found[len(hosts) :], strict=True))}
            done = self._with(outputs, found[: len(hosts)]) if outputs else outputs
            return done, [there[number] for number in columns]

        return finish


class CapturedRow(Row):
    """Steps in a row that are replayed.

    Args:
        step: What runs them.
        fixed: The inputs that are the same for each, where the owner has them.
        blocks: Graphs of the steps, one behind the other.
        varying: The inputs that differ, step after step, on the device.
        kept: Outputs of which every step's is wanted, with what they look like.
        steps: How many steps.
    """

    def __init__(
        self,
        step: CapturedStep,
        fixed: list[Tensor | None],
        blocks: list[Block],
        varying: list[Tensor],
        kept: dict[int, Layout],
        steps: int,
    ) -> None:
        self._captured, self._graphs = step, step._graphs
        self._inputs, self._blocks, self._varying, self._steps = fixed, blocks, varying, steps
        self._columns = {
            index: torch.empty((steps, *column.shape[1:]), dtype=column.dtype, device=column.device)
            for index, column in zip(kept, blocks[0].columns, strict=True)
        }
        self._marks: tuple[Any, Any] | None = None
        self._error: Exception | None = None
        self._finish: Callable[[], tuple[Outputs, list[Tensor]]] | None = None

    def __del__(self) -> None:
        if getattr(self, "_marks", None) is not None:
            self.wait()  # where nobody has: what the steps did to the host's tensors counts

    @property
    def failed(self) -> bool:
        """Whether a step has failed already where it was launched."""
        return self._error is not None

    def launch(self) -> None:
        """Gives them to the device, behind what it was given before."""
        self._captured.launch(self._inputs)
        try:
            begin = self._graphs.mark()
            done, outputs = self._run()
            columns = {index: column[:done] for index, column in self._columns.items()}
            self._finish = self._captured.finish(self._inputs, outputs, columns)
            self._marks = begin, self._graphs.mark()
        except BaseException:
            self._captured.give_up()
            raise
        self._steps, self._blocks, self._varying = done, [], []

    def _run(self) -> tuple[int, Outputs]:
        """Runs the blocks; returns how many steps that were, and what the last one gave."""
        done, place, outputs = 0, 0, Outputs()
        each = len(self._varying) // self._steps
        for block in self._blocks:
            try:
                block.run(self._varying[place : place + each * block.size])
            except Exception as error:
                if block.is_captured:
                    raise
                self._error = with_type(error)
                break
            for column, part in zip(self._columns.values(), block.columns, strict=True):
                column[done : done + block.size].copy_(part)
            place += each * block.size
            done += block.size
        if done:
            outputs = self._blocks[-1].outputs() if self._error is None else self._blocks[0].outputs()
        return done, outputs

    def wait(self) -> Repeated:
        """Waits for their end; returns what became of them."""
        assert self._marks is not None, "a row is launched before it is waited for"  # noqa: S101
        assert self._finish is not None  # noqa: S101
        (begin, end), self._marks = self._marks, None
        self._graphs.wait(end)
        seconds = self._graphs.seconds(begin, end)
        if self._steps:
            self._captured.took(seconds / self._steps)
        outputs, columns = self._finish()
        return Repeated(self._steps, outputs, columns, seconds, self._error)
