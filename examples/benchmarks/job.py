"""One measurement in a process of its own: what it is told, the clock, and what it reports. Without any framework.

A peer is a script that is called as `python peers/x.py JOB.json` and hands `run` a function that trains. Speed is
measured from the end of the warm-up, which is at least one sink, to the last step. What the warm-up took beyond its
steps at that speed is the start: recording, tracing, compiling.
"""

from __future__ import annotations

import json
import os
import platform
import resource
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from importlib.metadata import version
from pathlib import Path
from time import perf_counter

MIN_WARMUP = 20  # steps; short sinks need several until they run as they will
MIB = 1024**2


class LacksModelError(Exception):
    """The peer has no such model, and says why."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """What one process trains. `options` go to the model; `engine` and `accelerator` to PyTorch's sides."""

    side: str
    model: str
    sink_size: int
    batch_size: int
    steps: int = 0
    row: str = "bare"
    data: str = "memory"
    engine: str = "auto"
    accelerator: str = "cpu"
    options: dict[str, int] = field(default_factory=dict)

    @property
    def warmup(self) -> int:
        """Whole sinks that are not measured."""
        return whole_sinks(MIN_WARMUP, self.sink_size)

    def lasting(self, steps: int) -> Job:
        """The same with about so many steps: whole sinks, and at least one after the warm-up."""
        return replace(self, steps=max(whole_sinks(steps, self.sink_size), self.warmup + self.sink_size))


@dataclass(frozen=True, kw_only=True)
class Result:
    """What one process found. `loss` is the last one that the framework gives out."""

    speed: float  # steps a second after the warm-up
    start: float  # seconds
    imports_mib: float  # the largest resident size before training
    peak_mib: float  # and to the end
    threads: int
    loss: float
    parameters: int  # numbers that are trained
    device: str
    versions: dict[str, str]


@dataclass(frozen=True, kw_only=True)
class Trained:
    """What a peer's training hands back, beside the marks of the clock."""

    loss: float
    parameters: int
    threads: int
    device: str = "CPU"


class Clock:
    """The times of the start, of the end of the warm-up and of the last step, and how many steps were done there."""

    def __init__(self, warmup: int, steps: int, synchronize: Callable[[], object] = lambda: None) -> None:
        self._wanted = [warmup, steps]
        self._synchronize = synchronize  # so that work which is still under way is counted
        self.marks: list[tuple[int, float]] = []

    def begin(self) -> None:
        self._mark(0)

    def due(self, step: int) -> bool:
        """Whether `reached(step)` will mark: a framework that has to be waited for is waited for only then."""
        return bool(self._wanted) and step >= self._wanted[0]

    def reached(self, step: int) -> None:
        """Says that `step` steps have been made."""
        if self.due(step):
            self._wanted.pop(0)
            self._mark(step)

    def _mark(self, step: int) -> None:
        self._synchronize()
        self.marks.append((step, perf_counter()))

    @property
    def done(self) -> bool:
        return not self._wanted

    @property
    def speed(self) -> float:
        """Steps a second after the warm-up."""
        _, (warm_step, warm), (last_step, last) = self.marks
        return (last_step - warm_step) / (last - warm)

    @property
    def start(self) -> float:
        """What the warm-up took beyond its steps at that speed, in seconds."""
        (_, began), (warm_step, warm), _ = self.marks
        return warm - began - warm_step / self.speed


def whole_sinks(steps: int, sink_size: int) -> int:
    """The fewest steps in whole sinks that are at least `steps`."""
    return -(-steps // sink_size) * sink_size


def cores() -> int:
    """The cores that this process may use, which is how many threads XLA and MindSpore take."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def peak_mib() -> float:
    """The largest resident size of this process (of compiler processes that it started, nothing)."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / MIB if sys.platform == "darwin" else peak / 1024


def result(clock: Clock, imports_mib: float, trained: Trained, packages: tuple[str, ...]) -> Result:
    """The figures of one training."""
    versions = {"Python": platform.python_version()} | {name: version(name) for name in packages}
    memory = {"imports_mib": imports_mib, "peak_mib": peak_mib()}
    return Result(speed=clock.speed, start=clock.start, versions=versions, **memory, **asdict(trained))


def run(train: Callable[[Job, Clock], Trained], packages: tuple[str, ...], synchronize: Callable[[], object]) -> None:
    """The whole of a peer's script: read the job named on the command line, train, write what was found."""
    told = json.loads(Path(sys.argv[1]).read_text())
    out = Path(told.pop("result"))
    job = Job(**told)
    clock = Clock(job.warmup, job.steps, synchronize)
    imports_mib = peak_mib()
    try:
        trained = train(job, clock)
    except LacksModelError as error:
        out.write_text(json.dumps({"lacks": str(error)}))
        return
    out.write_text(json.dumps(asdict(result(clock, imports_mib, trained, packages))))
