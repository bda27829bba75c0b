"""Steps in a row: what each of them takes, what runs them one behind the other, and what becomes of them.

Most rows are of steps that are all alike. Those of an accumulation window are not: they take turns, over and over, and
what one of them leaves in a slot is what a later one finds there.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import torch
from torch import Tensor

from lightning_sink.engine.compiler.native import NativeLoop
from lightning_sink.engine.failures import AssumptionFailedError, error_of, with_type
from lightning_sink.engine.step import Column, taken_apart

Outputs = tuple[Tensor, ...]


@dataclass
class Repeated:
    """What became of steps in a row.

    Attributes:
        outputs: What the last of them gave, of each turn that was reached, one behind the other; None where steps that
            were launched behind them leave all of it anew.
        kept: For each output of which every step's is wanted, in the same order, these in one tensor: `[steps]` of one
            element each, `[steps, ...]` of others.
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


@dataclass
class Turn:
    """What those of a row's steps take that are alike. They take turns with the others, one of each in a round.

    Attributes:
        fixed: The inputs that are the same for each; None for those that are not.
        positions: Which differ.
        columns: Those inputs, of all of these steps; each step's are laid as any other's.
        kept: Outputs of which every step's is wanted.
        links: Which inputs, by position, are what an earlier turn of the round gave: the turn, and the output's number.
    """

    run: Callable[..., Outputs]
    fixed: list[Tensor | None]
    positions: list[int]
    columns: list[Column]
    kept: list[int]
    links: dict[int, tuple[int, int]] = field(default_factory=dict)


class Row:
    """Steps in a row: whole rounds of turns, or of one where all are alike."""

    def __init__(self, turns: list[Turn], steps: int) -> None:
        self._turns, self._steps = turns, steps
        self._result = Repeated(0)

    @property
    def failed(self) -> bool:
        """Whether a step has failed already where they were launched."""
        return self._result.error is not None

    def launch(self) -> None:
        """Begins to run them; may end with that."""
        turns = self._turns
        inputs: list[list[Any]] = [turn.fixed.copy() for turn in turns]
        varying = [[*map(taken_apart, turn.columns)] for turn in turns]
        outputs = [Outputs() for _ in turns]
        kept: list[list[list[Tensor]]] = [[[] for _ in turn.kept] for turn in turns]
        began, done, error = time.perf_counter(), 0, None
        for number in range(self._steps):
            turn_round, which = divmod(number, len(turns))
            turn, given = turns[which], inputs[which]
            for position, tensors in zip(turn.positions, varying[which], strict=True):
                given[position] = tensors[turn_round]
            for position, (giver, index) in turn.links.items():
                given[position] = outputs[giver][index]
            try:
                outputs[which] = turn.run(*given)
            except Exception as raised:
                error = with_type(raised)
                break
            done += 1
            for values, index in zip(kept[which], turn.kept, strict=True):
                output = outputs[which][index]
                values.append(output.reshape(layout_of(output)[1]).clone())
        stacked = [torch.stack(values) for of_turn in kept[:done] for values in of_turn]
        self._result = Repeated(done, (*chain(*outputs),), stacked, time.perf_counter() - began, error)

    def wait(self) -> Repeated:
        """Waits for their end; returns what became of them."""
        return self._result


class NativeRow(Row):
    """Steps in a row that machine code runs.

    Args:
        turns: What they take; one where all are alike.
        loops: What runs those of each turn.
        layouts: What the outputs of each turn look like of which every step's is wanted.
        beside: Whether to run them beside the thread that launches them, behind the row that was launched before; they
            are not run where that fails.
        assumes: Whether a step that fails goes another way, or may, and has changed nothing.
        draw_again: Has the random generator draw what so many of the steps draw, as if nothing else had been drawn
            since; None where they draw nothing.
    """

    def __init__(
        self,
        turns: list[Turn],
        loops: list[NativeLoop],
        layouts: list[dict[int, Layout]],
        steps: int,
        *,
        one_thread: bool,
        beside: bool,
        assumes: bool,
        draw_again: Callable[[int], None] | None,
    ) -> None:
        self._loop, self._one_thread, self._beside, self._draw_again = loops[0], one_thread, beside, draw_again
        self._assumes = assumes
        rounds = steps // len(turns)
        self._kept_values = [
            [torch.empty((rounds, *layouts[which][index][1]), dtype=layouts[which][index][0], device="cpu")
             for index in turn.kept]
            for which, turn in enumerate(turns)
        ]  # fmt: skip
        native = [
            loop.turn(
                turn.fixed,
                [*chain.from_iterable(zip(*map(taken_apart, turn.columns), strict=True))],
                turn.positions,
                [n for i, v in zip(turn.kept, values, strict=True) for n in (i, v.data_ptr(), v[0].nbytes)],
                [n for position, (giver, index) in turn.links.items() for n in (position, giver, index)],
            )
            for loop, turn, values in zip(loops, turns, self._kept_values, strict=True)
        ]
        self._run = self._loop.prepare(native, steps)
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
        error = None if message is None else AssumptionFailedError(message) if self._assumes else error_of(message)
        if error is not None and self._draw_again is not None:
            self._draw_again(done + (not self._assumes))
        turns = len(self._kept_values)
        kept = [
            values[: -(-(done - which) // turns)]
            for which, of_turn in enumerate(self._kept_values[:done])
            for values in of_turn
        ]
        return Repeated(done, outputs, kept, seconds, error)


@contextmanager
def on_one_thread() -> Iterator[None]:
    """Lets torch compute on one thread for a while."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
