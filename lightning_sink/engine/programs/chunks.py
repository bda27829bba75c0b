"""Steps in a row: how many go into one call, the numbers that differ from one to the next, and the call itself."""

from __future__ import annotations

from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from lightning_sink.engine.compiler.row import Repeated
from lightning_sink.engine.programs.program import Program
from lightning_sink.engine.programs.window import Window
from lightning_sink.engine.state.ahead import Left, in_row
from lightning_sink.engine.state.hyper import Hyperparameters
from lightning_sink.engine.step import Column, Sink

_SECONDS = 0.05
"""What one call should take at most. Ctrl-C, SIGTERM and `max_time` take effect between two calls. In calls of a fifth
of a second a small GPT's steps took an H200 591 us in place of 561: it then has more before it than its queue holds."""

_ROUND = 16
"""Steps of which a call that is cut has a multiple: devices replay so many at once, and fewer one by one."""

_FIRST = 8
"""Steps at most in a call that nothing runs beside. The next ones are prepared beside it; an MLP's sink of 1,000 steps
with 20 traversals of a DataLoader takes 47 ms so, and 59 where the first call has 16 (`buffer_size`)."""

_MORE = 8
"""How many times as long a call may be as the one beside which it is prepared, so that it is ready when that ends. An
MLP's step took two H200s 28.3 and 29.4 us so, and 28.8 and 27.7 with 4 in the place of 8: no difference."""

_MOST = 1024
"""Steps in a call at most: what a call costs by itself is nothing to that many."""

_KEPT = 1 << 26
"""Bytes at most that a call keeps of what steps gave: memory must not grow with what a step logs or collects."""


@dataclass
class Numbers:
    """The counters and options that steps in a row take.

    Attributes:
        steps: How many steps they are for: fewer than asked for where the next one needs another program.
        rows: The values of `Program.numbers` for each step; empty where they stay as they are.
        stale: Whether something changed that every program has as a constant.
        carries: What steps set: attributes, and where generators stand.
        carried: For each step, what these are behind it.
    """

    steps: int
    rows: list[list[Tensor]] = field(default_factory=list)
    stale: bool = False
    carries: list[Left] = field(default_factory=list)
    carried: list[list[Any]] = field(default_factory=list)

    def carry(self, done: int) -> None:
        """Sets them to what so many of the steps have left in them."""
        if done and self.carries:
            for carry, value in zip(self.carries, self.carried[done - 1], strict=True):
                carry.set(value)


class Call:
    """Steps in a row that a program is to run.

    Args:
        columns: For each leaf, those of the batches that come next.
        numbers: How many of these are taken, and the counters and options that go with them.

    Attributes:
        is_whole: Whether they are on all of the batches that come next.
    """

    def __init__(
        self, sink: Sink, program: Program | Window, columns: list[Column], numbers: Numbers, is_whole: bool
    ) -> None:
        self.steps, self.is_whole, self.numbers = numbers.steps, is_whole, numbers
        self._sink, self._program = sink, program
        with self._grad_mode():  # a device may capture the steps now
            self._row = program.function.row(program.in_row(columns, numbers.rows, self.steps), self.steps)

    def _grad_mode(self) -> AbstractContextManager[None]:
        return torch.enable_grad() if self._program.grad_mode else nullcontext()

    def launch(self) -> None:
        """Begins to run the steps, behind those of a call that was launched before."""
        with self._grad_mode():
            self._row.launch()

    @property
    def failed(self) -> bool:
        """Whether it is known where they were launched that a step has failed."""
        return self._row.failed

    def wait(self) -> Repeated:
        """Waits for the end of the steps, which were launched; returns what became of them."""
        ended = self._row.wait()
        self._sink.ran_seconds += ended.seconds
        if ended.done < self.steps:
            self._sink.pass_again(ended.done, self._program.note)
        if ended.done:
            self._program.seconds = ended.seconds / ended.done
        return ended


def most(program: Program | Window, behind: int = 0) -> int:
    """Returns how many steps of a program may go into the next call, behind one of so many, or of none."""
    count = max(1, min(_MOST, int(_SECONDS / max(program.seconds, 1e-9)), _KEPT // max(1, program.kept_bytes)))
    if program.function.overlaps:
        count = min(count, max(2 * _FIRST, _MORE * behind) if behind else _FIRST)
    return count - count % _ROUND if count > _ROUND else count


def pass_through(sink: Sink, program: Program | Window, hyper: Hyperparameters, steps: int, behind: int = 0) -> Numbers:
    """Goes through steps that come next, if anything differs between them, before they are run.

    So many were gone through before (`behind`), and are being run. Say four come next, and of the third one the program
    is wrong: at each of the first two the counters and options are read, and what is due behind it is done; at the
    third `passing` is closed, which takes back what was done before it. Two are then run. Where only one of them ends
    well, `Call.wait` has all taken back, and the first one gone through again (`pass_again`).
    """
    turns, schedules = program.turns, sink.schedules(program.note)
    if not (schedules or any(turn.counts or turn.guards or turn.carries for turn in turns)):
        return Numbers(steps)
    look = hyper.update if schedules else bool  # nothing else changes options between steps in a row
    carries = [*{id(carry): carry for turn in turns for carry, _ in turn.carries}.values()]
    found, stale, too_many = Numbers(0, carries=carries), list[bool](), 0
    counts = [*{id(count): count for turn in turns for count in turn.counted}.values()]
    with (
        closing(sink.passing(steps, program.note, lambda: stale.append(look()))) as passing,
        in_row([*carries, *counts], behind > 0),
    ):
        while True:
            try:
                next(passing)
            except StopIteration:
                break
            except Exception:  # a schedule failed behind the last step, which is left to be run, and to fail, by itself
                too_many = 1
                break
            turn = turns[len(found.rows) % len(turns)]
            found.stale = stale[-1:] == [True]
            if len(stale) != len(found.rows) + 1 or found.stale or not turn.goes_on():
                break
            for tensor, get in turn.counts:
                tensor.fill_(get())
            found.rows.append([tensor.clone() for _, tensor in turn.numbers])
            for count in turn.counted:
                count.passed()
            if carries:
                turn.carry()
                found.carried.append([carry.found() for carry in carries])
    found.steps = max(0, len(found.rows) - too_many)
    found.steps -= found.steps % len(turns)  # whole rounds
    if too_many or found.steps < len(found.rows):
        del found.rows[found.steps :], found.carried[found.steps :]
        sink.pass_again(behind + found.steps, program.note)
    return found
