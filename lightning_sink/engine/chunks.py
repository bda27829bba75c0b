"""What goes into one call: how many steps, and the numbers that differ from one to the next."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor

from lightning_sink.engine.hyper import Hyperparameters
from lightning_sink.engine.program import Program
from lightning_sink.engine.step import Sink

_SECONDS = 0.05
"""What one call should take at most. Ctrl-C, SIGTERM and `max_time` take effect between two calls."""

_MOST = 1024
"""Steps in a call at most: what a call costs by itself is nothing to that many."""

_FIRST = 8
"""Steps in the first call, whose time is not known."""


@dataclass
class Numbers:
    """The counters and options that steps in a row take.

    Attributes:
        steps: How many steps they are for: fewer than asked for where the next one needs another program.
        rows: The values of `Program.numbers` for each step; empty where they stay as they are.
        stale: Whether something changed that every program has as a constant.
        error: What a schedule raised behind the last of the steps, which is still to be run.
    """

    steps: int
    rows: list[list[Tensor]] = field(default_factory=list)
    stale: bool = False
    error: Exception | None = None


class Chunks:
    """Makes chunks; knows the time of a step of the program that ran last.

    Args:
        hyper: The optimizers' options.
    """

    def __init__(self, hyper: Hyperparameters) -> None:
        self._hyper = hyper
        self._program: Program | None = None
        self._seconds = _SECONDS / _FIRST

    def most(self, program: Program) -> int:
        """Returns how many steps of a program may go into the next call."""
        if program is not self._program:
            self._program, self._seconds = program, _SECONDS / _FIRST
        return max(1, min(_MOST, int(_SECONDS / self._seconds)))

    def took(self, program: Program, steps: int, seconds: float) -> None:
        """Takes note of a call."""
        self._program, self._seconds = program, max(seconds / steps, 1e-9)

    def numbers(self, sink: Sink, program: Program, steps: int) -> Numbers:
        """Goes through steps that come next, if anything differs between them, before they are run."""
        if not (sink.schedules or program.counts or program.guards):
            return Numbers(steps)
        found = Numbers(0)
        passing = sink.passing(steps, program.note)
        try:
            for _ in passing:
                found.stale = self._hyper.update()
                if found.stale or not program.fits():
                    passing.close()
                    break
                for tensor, get in program.counts:
                    tensor.fill_(get())
                found.rows.append([tensor.clone() for _, tensor in program.numbers])
        except Exception as error:  # raised when the steps that come before it have been run
            found.error = error
        found.steps = len(found.rows)
        return found
