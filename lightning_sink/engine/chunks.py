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


@dataclass
class Numbers:
    """The counters and options that steps in a row take.

    Attributes:
        steps: How many steps they are for: fewer than asked for where the next one needs another program.
        rows: The values of `Program.numbers` for each step; empty where they stay as they are.
        stale: Whether something changed that every program has as a constant.
    """

    steps: int
    rows: list[list[Tensor]] = field(default_factory=list)
    stale: bool = False


def most(program: Program) -> int:
    """Returns how many steps of a program may go into the next call."""
    return max(1, min(_MOST, int(_SECONDS / max(program.seconds, 1e-9))))


def pass_through(sink: Sink, program: Program, hyper: Hyperparameters, steps: int) -> Numbers:
    """Goes through steps that come next, if anything differs between them, before they are run.

    Args:
        sink: Whose steps they are.
        program: What will run them.
        hyper: The optimizers' options.
        steps: How many.
    """
    if not (sink.schedules or program.counts or program.guards):
        return Numbers(steps)
    found = Numbers(0)
    passing = sink.passing(steps, program.note)
    while True:
        try:
            next(passing)
        except StopIteration:
            break
        except Exception:  # a schedule failed behind the last step, which is left to be run, and to fail, by itself
            found.rows.pop()
            sink.pass_again(len(found.rows), program.note)
            break
        found.stale = hyper.update()
        if found.stale or not program.fits():
            passing.close()
            break
        for tensor, get in program.counts:
            tensor.fill_(get())
        found.rows.append([tensor.clone() for _, tensor in program.numbers])
    found.steps = len(found.rows)
    return found
