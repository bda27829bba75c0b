"""What a GPU and its host do during a sink: how busy the GPU is, kernels and launches, the host's time for each step.

    python examples/benchmarks/gpu.py --models MLP LeNet SmallGPT --out gpu.md

For each model `Trainer.fit` trains in sinks from memory, with nothing turned on. Busy is the time in which at least one
kernel or copy ran, by PyTorch's profiler, over the time of one sink from its first batch to its last one's end, that of
the host waiting for the GPU included. Fed is the same with gaps of up to 5 us counted, in which a GPU goes from one
kernel of a graph to the next; for the rest of the time it waits for its host. The host's time is that of the trainer's
thread on a processor, in other sinks, which nobody profiles; medians of several. What it spends waiting for the GPU is
not counted, and what the driver takes to launch graphs, which waits where the GPU has much before it, stands beside it.
Of the host's time, what it takes to copy batches into pinned memory is taken in a sink of its own: looking costs time.
What all calls of CUDA's take, by their names, is said below the table: in the sink that is profiled, which makes them
slower, of all threads, those that wait for the GPU left out. The rest of the host's time is Python's.
What a user's callback might change at a batch is not looked for here: without such callbacks it is not, and the ones
that measure change nothing.
`suite.py --accelerator cuda --peers loop-reduce-overhead plain sink` has the speeds beside others'.
"""

from __future__ import annotations

import argparse
import logging
import re
import sys
import time
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any
from unittest.mock import patch

import lightning as L
import torch
from fitting import OFF, Cycle
from machine import command, machine
from models import MODELS
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile
from workload import DISTINCT, WORKLOADS

from lightning_sink import SinkDataModule, SinkStrategy
from lightning_sink.data import load
from lightning_sink.engine.device.cuda import CudaGraphs
from lightning_sink.trainer.batch_hooks import BatchHooks

_GAP = 5.0
"""Microseconds between two kernels that no host is to blame for."""

_WARM, _TIMED = 3, 5
"""Sinks before the first that counts, and sinks whose host time is taken. In the one behind them copies of batches are
timed, and the next is profiled."""


@dataclass
class Found:
    """What was seen of one model's sinks, in seconds and counts a step."""

    host: list[float] = field(default_factory=list)
    launching: list[float] = field(default_factory=list)
    packing: float = 0.0
    step: list[float] = field(default_factory=list)
    busy: float = 0.0
    fed: float = 0.0
    kernels: float = 0.0
    launches: float = 0.0
    calls: Counter[str] = field(default_factory=Counter)


def covered(spans: list[tuple[float, float]], gap: float = 0.0) -> float:
    """Returns the length of what spans cover, overlaps counted once, and gaps between them of at most so much."""
    total, reached = 0.0, float("-inf")
    for begin, end in sorted(spans):
        total += max(0.0, end - (reached if begin - reached <= gap else begin))
        reached = max(reached, end)
    return total


def calls_of_cuda(events: Iterable[Any]) -> Counter[str]:
    """Returns the microseconds on the host in calls of CUDA's runtime and driver, by name, but for those that wait."""
    found = Counter[str]()
    for event in events:
        if event.device_type == DeviceType.CPU and re.match(r"cu(da)?[A-Z](?!.*Synchronize)", event.name):
            found[event.name] += event.time_range.end - event.time_range.start
    return found


class Watch(L.Callback):
    """Looks at sinks from the first batch of each to the end of its last."""

    def __init__(self, steps: int) -> None:
        self.found, self._steps, self._sinks = Found(), steps, 0
        self._waited = self._launched = self._packed = 0.0
        self._packs = False
        self._profiler: Any = None
        self._began = (0.0, 0.0)

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Takes the time of waiting for the GPU, which is none of the host's work, and that of the driver's launches.

        Looks for no user's changes.
        """
        wait, capture, make_packer = CudaGraphs.wait, CudaGraphs.capture, load.packer

        def timed(graphs: CudaGraphs, mark: Any) -> None:
            began = time.thread_time()
            wait(graphs, mark)
            self._waited += time.thread_time() - began

        def captured(*arguments: Any) -> Any:
            replay, outputs = capture(*arguments)

            def launch() -> None:
                began = time.thread_time()
                replay()
                self._launched += time.thread_time() - began

            return launch, outputs

        def packer(*arguments: Any) -> Any:
            pack = make_packer(*arguments)

            def timed_pack(batch: Any, number: int) -> bool:
                if not self._packs:
                    return pack(batch, number)
                began = time.thread_time()
                found = pack(batch, number)
                self._packed += time.thread_time() - began
                return found

            return timed_pack

        with (  # a name that is no longer there is an error
            patch.object(CudaGraphs, "wait", timed),
            patch.object(CudaGraphs, "capture", captured),
            patch.object(load, "packer", packer),
            patch.object(BatchHooks, "_compared", lambda *_: nullcontext()),
        ):
            yield

    def on_train_batch_start(self, *_: Any) -> None:
        self._sinks += 1
        torch.cuda.synchronize()
        self._packs = self._sinks == _WARM + _TIMED + 1
        if self._sinks == _WARM + _TIMED + 2:
            self._profiler = profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA])
            self._profiler.start()
        self._waited = self._launched = 0.0
        self._began = (time.thread_time(), time.perf_counter())

    def on_train_batch_end(self, *_: Any) -> None:
        host = time.thread_time() - self._began[0] - self._waited - self._launched
        torch.cuda.synchronize()
        wall = time.perf_counter() - self._began[1]
        if self._profiler is not None:
            self._profiler.stop()
            self._read(self._profiler.events(), wall)
            self._profiler = None
        elif self._packs:
            self.found.packing, self._packs = self._packed / self._steps, False
        elif self._sinks > _WARM:
            self.found.host.append(host / self._steps)
            self.found.launching.append(self._launched / self._steps)
            self.found.step.append(wall / self._steps)

    def _read(self, events: Any, wall: float) -> None:
        on_gpu = [event for event in events if event.device_type == DeviceType.CUDA]
        spans = [(event.time_range.start, event.time_range.end) for event in on_gpu]
        launched = [event for event in events if "Launch" in event.name and event.device_type == DeviceType.CPU]
        self.found.busy, self.found.fed = (covered(spans, gap) / 1e6 / wall for gap in (0.0, _GAP))
        self.found.kernels = len(on_gpu) / self._steps
        self.found.launches = len(launched) / self._steps
        self.found.calls = calls_of_cuda(events)


def measure(model: str, sink_size: int, engine: str, buffer_size: int | None, accumulate: int) -> Found:
    """Trains one model."""
    L.seed_everything(0, verbose=False)
    kind = MODELS[model]
    watch = Watch(sink_size)
    strategy = SinkStrategy(sink_size, engine=engine, fallback="error")
    epochs = _WARM + _TIMED + 2
    options = {"strategy": strategy, "callbacks": [watch], "accumulate_grad_batches": accumulate, **OFF}
    trainer = L.Trainer(accelerator="cuda", devices=1, max_epochs=epochs, **options)
    data = Cycle(kind.batches(DISTINCT), sink_size)
    with watch.watching():
        trainer.fit(kind(), datamodule=SinkDataModule.from_loaders(data, buffer_size=buffer_size))
    return watch.found


def row(model: str, sink_size: int, found: Found) -> str:
    """One line of the table."""
    step, host, launching = (median(each) * 1e6 for each in (found.step, found.host, found.launching))
    return (
        f"| {model} | {sink_size} | {step:.1f} | {found.busy:.0%} | {found.fed:.0%} | {found.kernels:.1f} |"
        f" {found.launches:.2f} | {host:.1f} | {found.packing * 1e6:.1f} | {launching:.1f} |"
    )


def said_of_calls(model: str, sink_size: int, found: Found) -> str:
    """What the calls of CUDA's take, those first that take most."""
    named = [f"{name} {spent / sink_size:.2f}" for name, spent in found.calls.most_common(6)]
    return f"* {model}, us a step in all calls of CUDA's: {found.calls.total() / sink_size:.1f} ({', '.join(named)})"


def main() -> None:
    parser = argparse.ArgumentParser(description="What a GPU and its host do during a sink.")
    parser.add_argument("--models", nargs="+", choices=WORKLOADS, default=["MLP", "LeNet", "SmallGPT"])
    parser.add_argument("--sink-size", type=int, default=1_000)
    parser.add_argument("--engine", default="cudagraph")
    parser.add_argument("--buffer-size", type=int, help="batches fetched in one go, the most in a row of steps")
    parser.add_argument("--accumulate", type=int, default=1, help="batches to an optimizer step")
    parser.add_argument("--out", type=Path, help="write the table here too, as Markdown")
    args = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("gpu.py needs a CUDA device, and there is none here.")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    warnings.simplefilter("ignore")
    named = ["GPU busy", "fed", "kernels and copies a step", "launches a step"]
    named += ["host us a step", "of it copying batches", "and launching"]
    lines = [f"| model | sink | us a step | {' | '.join(named)} |", f"|---|{'--:|' * (2 + len(named))}"]
    notes = []
    for model in args.models:
        found = measure(model, args.sink_size, args.engine, args.buffer_size, args.accumulate)
        lines.append(row(model, args.sink_size, found))
        notes.append(said_of_calls(model, args.sink_size, found))
        print(lines[-1], notes[-1], sep="\n", flush=True)
    lines += ["", *notes, f"* machine: {machine()}; {torch.cuda.get_device_name()}"]
    lines += [f"* versions: torch {version('torch')}, lightning {version('lightning')}"]
    lines += [f"* command: `{command('gpu.py')}`"]
    print(*lines, sep="\n")
    if args.out:
        args.out.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
