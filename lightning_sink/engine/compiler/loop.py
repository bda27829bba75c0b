"""What a compiler makes of a recording.

`CompiledStep` can be called for one step, or for several in a row that differ in some of their inputs (`row.py`).
`NativeStep` is one whose loop is machine code, too (`loop.cpp`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from itertools import islice
from typing import cast

import torch
from torch import Tensor

from lightning_sink.engine.compiler.masks import RowDraws
from lightning_sink.engine.compiler.native import NativeLoop
from lightning_sink.engine.compiler.row import Layout, NativeRow, Outputs, Row, Turn, layout_of, on_one_thread
from lightning_sink.engine.failures import AssumptionFailedError
from lightning_sink.engine.step import Column
from lightning_sink.engine.tracing.draws import Draw
from lightning_sink.engine.tracing.recording import Recording


class CompiledStep:
    """A function that stands for a step.

    Args:
        function: Takes the inputs; writes in place what the step wrote in place, returns the outputs.
        draws: What makes the inputs behind those that are given: random draws, in the step's order.
        assumes: Whether it may find out that the step goes another way; it changes nothing then, nor where it fails.

    Attributes:
        draws: As given.
        rounding: By how much of a gradient's largest number its gradients may differ from the step's, where that is
            more than what types round.
        overlaps: Whether rows run beside the thread that launches them.
        waits: Whether a row is launched only when the one before it is known to have been right.
        graph: The operations that the function was compiled of, to be called as it is; None where there are others.
    """

    rounding, overlaps, waits = 0.0, False, False
    graph: Callable[..., Outputs] | None = None

    def __init__(
        self,
        function: Callable[..., Outputs],
        draws: Sequence[Draw] = (),
        *,
        one_thread: bool = False,
        assumes: bool = False,
    ) -> None:
        self._function, self.draws, self.one_thread, self.assumes = function, draws, one_thread, assumes

    def __call__(self, *inputs: Tensor) -> Outputs:
        """Runs one step.

        Raises:
            AssumptionFailedError: The step goes another way, and nothing has been changed, or drawn.
        """
        if not self.assumes:
            return self._run(inputs)
        generated = torch.get_rng_state()
        try:
            return self._run(inputs)
        except Exception as error:  # whatever it is: what fails here may not be done at all on the other way
            torch.set_rng_state(generated)
            raise AssumptionFailedError(str(error)) from error

    def _run(self, inputs: tuple[Tensor, ...]) -> Outputs:
        drawn = [draw() for draw in self.draws]
        with on_one_thread() if self.one_thread else nullcontext():
            return self._function(*inputs, *drawn)

    def uncompiled(self) -> CompiledStep | None:
        """Returns what runs the operations themselves; None where they are not known."""
        return None if self.graph is None else CompiledStep(self.graph, self.draws)

    def once(self, inputs: list[Tensor], positions: list[int], kept: list[int]) -> Outputs:
        """Runs one step, of a training's.

        At `positions` are inputs that are others at each step, or may be; of the outputs `kept`, every step's would be
        wanted in a row.
        """
        return self(*inputs)

    def in_turns(self, steps: Sequence[CompiledStep]) -> TurnTaking:
        """Returns what runs this step and others, of which each has its turn."""
        return TurnTaking(steps)

    def row(self, turns: list[Turn], steps: int) -> Row:
        """Returns steps in a row, to be run: of one turn, all of them alike."""
        return Row(turns, steps)

    def rest(self) -> None:
        """Ends what rows that run beside others need; the next one begins it anew."""


class NativeStep(CompiledStep):
    """A step with its loop in machine code, around the same code as the function; else as `CompiledStep`.

    Attributes:
        layouts: What its outputs look like that lie in one piece; known when it has been called.
    """

    def __init__(
        self, function: Callable[..., Outputs], loop: NativeLoop, draws: Sequence[Draw] = (), **options: bool
    ) -> None:
        super().__init__(function, draws, **options)
        self.loop = loop
        self.layouts: dict[int, Layout] = {}
        # Those of several threads would wait for each other longer (`Producer.retire` says why).
        self.overlaps = self.one_thread and loop.is_bare
        self._alone: TurnTaking | None = None

    def __call__(self, *inputs: Tensor) -> Outputs:
        """Runs one step."""
        outputs = super().__call__(*inputs)
        if not self.layouts:
            self.layouts = {i: layout_of(t) for i, t in enumerate(outputs) if t.is_contiguous()}
        return outputs

    def row(self, turns: list[Turn], steps: int) -> Row:
        """Returns steps in a row, to be run: of one turn, all of them alike."""
        if self._alone is None:
            self._alone = TurnTaking([self])
        return self._alone.row(turns, steps)

    def rest(self) -> None:
        """Ends the thread for rows beside others."""
        self.loop.rest()


class TurnTaking:
    """Steps that take turns in a row, one of each turn, all of which have been called."""

    waits = False
    """As for a step."""

    def __init__(self, steps: Sequence[CompiledStep]) -> None:
        self._steps = steps
        native = [step for step in steps if isinstance(step, NativeStep)]
        self._native = native if len(native) == len(steps) else []
        draws = [draw for step in self._native for draw in step.draws]
        self._row_draws = RowDraws(draws, native[0].loop) if self._native else None

    @property
    def overlaps(self) -> bool:
        """Whether rows run beside the thread that launches them."""
        return all(step.overlaps for step in self._steps)

    def row(self, turns: list[Turn], steps: int) -> Row:
        """Returns steps in a row, to be run: whole rounds of turns, in which nothing is drawn yet."""
        if self._row_draws is None:
            return Row(turns, steps)
        native = self._native
        generator = torch.get_rng_state() if self._row_draws else None
        drawn = iter(self._row_draws.make(steps // len(turns)))

        def draw_again(steps: int) -> None:
            torch.set_rng_state(cast(Tensor, generator))
            for number in range(steps):
                for draw in native[number % len(native)].draws:
                    draw()

        return NativeRow(
            [_with_draws(turn, [*islice(drawn, len(step.draws))]) for turn, step in zip(turns, native, strict=True)],
            [step.loop for step in native],
            [step.layouts for step in native],
            steps,
            one_thread=all(step.one_thread for step in native),
            beside=self.overlaps,
            assumes=any(step.assumes for step in native),
            draw_again=None if generator is None else draw_again,
        )

    def rest(self) -> None:
        """Ends what rows that run beside others need; the next one begins it anew."""
        for step in self._steps:
            step.rest()


def _with_draws(turn: Turn, drawn: Sequence[Column]) -> Turn:
    """Returns a turn with what its steps draw behind its inputs."""
    behind = range(len(turn.fixed), len(turn.fixed) + len(drawn))
    return replace(
        turn,
        fixed=[*turn.fixed, *(None for _ in behind)],
        positions=[*turn.positions, *behind],
        columns=[*turn.columns, *drawn],
    )


Compiler = Callable[[Recording], CompiledStep]
"""Makes a function of a recording."""
