"""Many steps in one call.

`CompiledStep` is what a compiler makes of a recording: it can be called for one step, or for several in a row that
differ in some of their inputs. `NativeStep` is one whose loop is machine code, too (`loop.cpp`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, cast

import torch
from torch import Tensor

from lightning_sink.engine.draws import Draw
from lightning_sink.engine.failures import error_of, with_type
from lightning_sink.engine.masks import RowDraws, draw_in_a_row
from lightning_sink.engine.native import NativeLoop
from lightning_sink.engine.recording import Recording
from lightning_sink.engine.step import Column, taken_apart

Outputs = tuple[Tensor, ...]


@dataclass
class Repeated:
    """What became of steps in a row.

    Attributes:
        done: How many were run.
        outputs: What the last of them gave; None where steps that were launched behind them leave all of it anew.
        kept: For each output of which every step's is wanted, these in one tensor: `[steps]` of one element each,
            `[steps, ...]` of others.
        seconds: What they took.
        error: What the step behind them raised; None where all were run.
    """

    done: int
    outputs: Outputs | None = ()
    kept: list[Tensor] = field(default_factory=list)
    seconds: float = 0.0
    error: Exception | None = None


Layout = tuple[torch.dtype, tuple[int, ...]]
"""The type and the shape of an output, as it is kept of each step; it lies in one piece."""


def layout_of(output: Tensor) -> Layout:
    """Returns the layout of an output."""
    return output.dtype, () if output.numel() == 1 else tuple(output.shape)


class Row:
    """Steps in a row that differ in some of their inputs.

    Args:
        step: What runs one.
        fixed: The inputs that are the same for each step; None for those that are not.
        positions: Which are not.
        columns: Those inputs, of all steps; each step's are laid as any other's.
        kept: Outputs of which every step's is wanted.
        steps: How many steps.
    """

    def __init__(
        self,
        step: Callable[..., Outputs],
        fixed: list[Tensor | None],
        positions: list[int],
        columns: list[Column],
        kept: list[int],
        steps: int,
    ) -> None:
        self._step, self._fixed, self._positions, self._kept = step, fixed, positions, kept
        self._columns, self._steps = columns, steps
        self._result = Repeated(0)

    @property
    def failed(self) -> bool:
        """Whether a step has failed already where they were launched."""
        return self._result.error is not None

    def launch(self) -> None:
        """Begins to run them; may end with that."""
        inputs: list[Any] = self._fixed.copy()
        kept: list[list[Tensor]] = [[] for _ in self._kept]
        began, done, outputs, error = time.perf_counter(), 0, Outputs(), None
        varying = [*map(taken_apart, self._columns)]
        for number in range(self._steps):
            for position, tensors in zip(self._positions, varying, strict=True):
                inputs[position] = tensors[number]
            try:
                outputs = self._step(*inputs)
            except Exception as raised:
                error = with_type(raised)
                break
            done += 1
            for values, index in zip(kept, self._kept, strict=True):
                values.append(outputs[index].reshape(layout_of(outputs[index])[1]).clone())
        stacked = [*map(torch.stack, kept)] if done else []
        self._result = Repeated(done, outputs, stacked, time.perf_counter() - began, error)

    def wait(self) -> Repeated:
        """Waits for their end; returns what became of them."""
        return self._result


class NativeRow(Row):
    """Steps in a row that machine code runs.

    Args:
        loop: Runs them.
        inputs: The inputs, None for those that differ.
        columns: These, of all steps.
        positions: Where they go.
        kept: Outputs of which every step's is wanted, with what they look like.
        steps: How many.
        one_thread: Whether they run faster on one thread.
        beside: Whether to run them beside the thread that launches them, behind the row that was launched before; they
            are not run where that fails.
        draw_again: Has the random generator draw what so many of the steps draw, as if nothing else had been drawn
            since; None where they draw nothing.
    """

    def __init__(
        self,
        loop: NativeLoop,
        inputs: list[Tensor | None],
        columns: list[Column],
        positions: list[int],
        kept: dict[int, Layout],
        steps: int,
        *,
        one_thread: bool,
        beside: bool,
        draw_again: Callable[[int], None] | None,
    ) -> None:
        self._loop, self._one_thread, self._beside, self._draw_again = loop, one_thread, beside, draw_again
        self._kept_values = [torch.empty((steps, *shape), dtype=dtype, device="cpu") for dtype, shape in kept.values()]
        places = [
            number
            for index, values in zip(kept, self._kept_values, strict=True)
            for number in (index, values.data_ptr(), values[0].nbytes)
        ]
        varying = [*chain.from_iterable(zip(*map(taken_apart, columns), strict=True))]
        self._run = loop.prepare(inputs, varying, positions, places, steps)
        self._result = Repeated(0)

    def __del__(self) -> None:
        if hasattr(self, "_run"):
            del self._run  # waits where nobody has; what is kept, which is written to, goes after it

    def launch(self) -> None:
        """Begins to run them."""
        with on_one_thread() if self._one_thread and not self._beside else nullcontext():
            self._loop.launch(self._run, self._beside)

    def wait(self) -> Repeated:
        """Waits for their end; returns what became of them."""
        done, outputs, seconds, message = self._loop.wait(self._run)
        error = None if message is None else error_of(message)
        if error is not None and self._draw_again is not None:
            self._draw_again(done + 1)
        return Repeated(done, outputs, [values[:done] for values in self._kept_values], seconds, error)


@contextmanager
def on_one_thread() -> Iterator[None]:
    """Lets torch compute on one thread for a while."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


class CompiledStep:
    """A function that stands for a step.

    Args:
        function: Takes the inputs; writes in place what the step wrote in place, returns the outputs.
        draws: What makes the inputs behind those that are given: random draws, in the step's order.
        one_thread: Whether it runs faster on one thread.
    """

    def __init__(
        self,
        function: Callable[..., Outputs],
        draws: Sequence[Draw] = (),
        *,
        one_thread: bool = False,
    ) -> None:
        self._function = function
        self._draws = draws
        self._one_thread = one_thread

    def __call__(self, *inputs: Tensor) -> Outputs:
        """Runs one step."""
        drawn = [draw() for draw in self._draws]
        with on_one_thread() if self._one_thread else nullcontext():
            return self._function(*inputs, *drawn)

    def once(self, inputs: list[Tensor], positions: list[int], kept: list[int]) -> Outputs:
        """Runs one step, of a training's.

        Args:
            inputs: The inputs.
            positions: Which are others at each step, or may be.
            kept: Outputs of which every step's would be wanted in a row.
        """
        return self(*inputs)

    @property
    def overlaps(self) -> bool:
        """Whether rows run beside the thread that launches them."""
        return False

    def row(
        self, fixed: list[Tensor | None], positions: list[int], columns: list[Column], kept: list[int], steps: int
    ) -> Row:
        """Returns steps in a row, to be run; the arguments are those of `Row`."""
        return Row(self, fixed, positions, columns, kept, steps)

    def rest(self) -> None:
        """Ends what rows that run beside others need; the next one begins it anew."""


class NativeStep(CompiledStep):
    """A step with its loop in machine code.

    Args:
        function: As for `CompiledStep`.
        loop: The loop around the same code.
        draws: As for `CompiledStep`.
        options: As for `CompiledStep`.
    """

    def __init__(
        self,
        function: Callable[..., Outputs],
        loop: NativeLoop,
        draws: Sequence[Draw] = (),
        **options: bool,
    ) -> None:
        super().__init__(function, draws, **options)
        self._loop = loop
        self._row_draws = RowDraws(draws, loop)
        self._layouts: dict[int, Layout] = {}

    def __call__(self, *inputs: Tensor) -> Outputs:
        """Runs one step."""
        outputs = super().__call__(*inputs)
        if not self._layouts:
            self._layouts = {i: layout_of(t) for i, t in enumerate(outputs) if t.is_contiguous()}
        return outputs

    @property
    def overlaps(self) -> bool:
        """Whether rows run beside the thread that launches them.

        Those of several threads do not: they would wait for each other longer (`Producer.retire` says why).
        """
        return self._one_thread and self._loop.is_bare and bool(self._layouts)

    def row(
        self, fixed: list[Tensor | None], positions: list[int], columns: list[Column], kept: list[int], steps: int
    ) -> Row:
        """Returns steps in a row, to be run; the arguments are those of `Row`."""
        if not self._layouts:
            return super().row(fixed, positions, columns, kept, steps)
        generator = torch.get_rng_state() if self._draws else None

        def draw_again(steps: int) -> None:
            torch.set_rng_state(cast(Tensor, generator))
            for _ in range(steps):
                draw_in_a_row(self._draws, 1)

        behind = range(len(fixed), len(fixed) + len(self._draws))
        return NativeRow(
            self._loop,
            [*fixed, *(None for _ in behind)],
            [*columns, *self._row_draws.make(steps)],
            [*positions, *behind],
            {index: self._layouts[index] for index in kept},
            steps,
            one_thread=self._one_thread,
            beside=self.overlaps,
            draw_again=draw_again if self._draws else None,
        )

    def rest(self) -> None:
        """Ends the thread for rows beside others."""
        self._loop.rest()


Compiler = Callable[[Recording], CompiledStep]
"""Makes a function of a recording."""
