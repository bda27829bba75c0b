"""What the data path costs and gains: `SinkStrategy` fed by a real DataLoader.

    python examples/benchmarks/data_path.py --out data_path.md

Four tables:

* end to end: the MLP from batches that lie ready in a list, and from a shuffled `DataLoader(TensorDataset)`, plain and
  in sinks;
* overlap: a dataset that takes 5 ms a batch beside a step that takes about 5 ms, with the time of either alone;
* memory: the peak of a process that trains in short sinks and in long ones;
* traversals: how long the training stands still where one traversal follows another, for workers of each kind.

Every measurement runs in a process of its own, the sides take turns, and the tables give medians.
"""

from __future__ import annotations

import argparse
import json
import platform
import resource
import subprocess
import sys
import tempfile
import time
import warnings
from importlib.metadata import version
from pathlib import Path
from statistics import median

import lightning as L
import torch
from fitting import OFF, Cycle, StepClock
from job import Clock
from machine import machine
from models import MLP
from nets import shuffled
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

from lightning_sink import SinkStrategy

SINK = 1000
FETCH_SECONDS = 0.005


class Wide(L.LightningModule):
    """A step of about 5 ms on two cores: three products of 1024 by 1024, batch 64, SGD."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 10)
        )

    def training_step(self, batch, batch_idx):
        x, y = batch
        return nn.functional.cross_entropy(self.net(x), y)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=1e-3)


class Sleepy(Wide):
    """A step of 5 ms that leaves the processor to others, as one on an accelerator does; runs eagerly."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Linear(1024, 10)

    def training_step(self, batch, batch_idx):
        time.sleep(FETCH_SECONDS)
        return super().training_step(batch, batch_idx)


class Slow(Dataset):
    """Whole batches, each after some seconds."""

    def __init__(self, batches: int, seconds: float) -> None:
        g = torch.Generator().manual_seed(0)
        self.x, self.y = torch.randn(64, 1024, generator=g), torch.randint(10, (64,), generator=g)
        self.batches, self.seconds = batches, seconds

    def __len__(self) -> int:
        return self.batches

    def __getitem__(self, index: int):
        if self.seconds:
            time.sleep(self.seconds)
        return self.x + index, self.y


def trainer(way: str, size: int, epochs: int, clock: Clock | None = None, engine: str = "auto") -> L.Trainer:
    strategy = "auto" if way == "plain" else SinkStrategy(size, engine=engine)
    callbacks = [StepClock(clock)] if clock is not None else []
    return L.Trainer(accelerator="cpu", strategy=strategy, max_epochs=epochs, callbacks=callbacks, **OFF)


def end_to_end(way: str, data: str, steps: int) -> dict[str, float]:
    clock = Clock(SINK, steps)
    batches = Cycle(MLP.batches(200), SINK) if data == "list" else shuffled(MLP.batches(SINK))
    trainer(way, SINK, steps // SINK, clock).fit(MLP(), batches)
    return {"speed": clock.speed}


def overlap(way: str, step: str, seconds: float, steps: int) -> dict[str, float]:
    """Milliseconds a step, after a first sink."""
    size = 100
    clock = Clock(size, steps)
    loader = DataLoader(Slow(size, seconds), batch_size=None)
    module, engine = (Wide(), "auto") if step == "computes" else (Sleepy(), "eager")
    trainer(way, size, steps // size, clock, engine).fit(module, loader)
    return {"ms": 1e3 / clock.speed}


def memory(size: int, steps: int) -> dict[str, float]:
    trainer("sink", size, steps // size).fit(MLP(), shuffled(MLP.batches(SINK)))
    return {"MiB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}


STAMPS: list[float] = []
"""Not the module's: an attribute that keeps changing would make the step eager."""


class Stamped(MLP):
    """Takes down the time at which each batch is there."""

    def on_before_batch_transfer(self, batch, dataloader_idx):
        STAMPS.append(time.perf_counter())
        return batch


def traversals(workers: int, persistent: bool, batches: int) -> dict[str, float]:
    """Milliseconds for which the training stands still at the first batch of a traversal, and at any other."""
    dataset = TensorDataset(torch.randn(32 * batches, 64), torch.randint(10, (32 * batches,)))
    loader = DataLoader(
        dataset,
        batch_size=32,
        shuffle=True,
        num_workers=workers,
        persistent_workers=persistent,
        worker_init_fn=print if workers else None,  # no reason but that such a loader is not gathered
    )
    trainer("sink", 10 * batches, 3).fit(Stamped(), loader)
    gaps = [1e3 * (b - a) for a, b in zip(STAMPS, STAMPS[1:], strict=False)]
    first = [gap for index, gap in enumerate(gaps, start=1) if index % batches == 0 and index % (10 * batches)]
    return {"first": median(first), "other": median(gaps[10 * batches :])}


PARTS = {"end_to_end": end_to_end, "overlap": overlap, "memory": memory, "traversals": traversals}


def apart(part: str, *arguments: object) -> dict[str, float]:
    """Runs one measurement in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder, "result.json")
        command = [sys.executable, __file__, "--job", json.dumps([part, arguments, str(result)])]
        done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        if done.returncode != 0:
            raise RuntimeError(f"{part}{arguments} failed:\n{done.stderr}")
        found = json.loads(result.read_text())
    print(part, *arguments, found, flush=True)
    return found


def ratio(pairs: list[tuple[float, float]]) -> str:
    ratios = [a / b for a, b in pairs]
    return f"{median(ratios):.2f} ({min(ratios):.2f}-{max(ratios):.2f})"


def end_to_end_table(repeats: int) -> str:
    sides = [("sink", "list", 20_000), ("sink", "loader", 20_000), ("plain", "loader", 3000), ("plain", "list", 3000)]
    runs = [[apart("end_to_end", *side)["speed"] for side in sides] for _ in range(repeats)]
    by_list, by_loader, plain, plain_list = (median(column) for column in zip(*runs, strict=True))
    return f"""\
| MLP, batch 32, sinks of {SINK:,} | steps/s |
|---|--:|
| sinks, batches in a list | {by_list:,.0f} |
| sinks, shuffled DataLoader(TensorDataset) | {by_loader:,.0f} |
| plain Lightning, shuffled DataLoader(TensorDataset) | {plain:,.0f} |
| plain Lightning, batches in a list | {plain_list:,.0f} |
| sinks: loader / list | {ratio([(run[1], run[0]) for run in runs])} |
| from the loader: sinks / plain | {ratio([(run[1], run[2]) for run in runs])} |
"""


def overlap_table(repeats: int) -> str:
    rows = []
    for step in ("computes", "sleeps"):
        sides = [("plain", step, FETCH_SECONDS), ("sink", step, FETCH_SECONDS), ("sink", step, 0.0)]
        runs = [[apart("overlap", *side, 600)["ms"] for side in sides] for _ in range(repeats)]
        plain, sink, alone = (median(column) for column in zip(*runs, strict=True))
        longer = [(run[1], max(run[2], 1e3 * FETCH_SECONDS)) for run in runs]
        rows.append(
            f"| {step} | {1e3 * FETCH_SECONDS:.1f} | {alone:.2f} | {plain:.2f} | {sink:.2f} | {ratio(longer)} |"
        )
    return "\n".join(
        [
            "| the step | fetch alone, ms | step alone, ms | plain, ms | sinks, ms | sinks / the longer of the two |",
            "|---|--:|--:|--:|--:|--:|",
            *rows,
            "",
        ]
    )


def memory_table(repeats: int) -> str:
    runs = [[apart("memory", size, 20_000)["MiB"] for size in (10, 10_000)] for _ in range(repeats)]
    short, long = (median(column) for column in zip(*runs, strict=True))
    return f"""\
| peak memory, 20,000 steps of the MLP from the loader | MiB |
|---|--:|
| sinks of 10 | {short:,.0f} |
| sinks of 10,000 | {long:,.0f} |
| ratio | {ratio([(run[1], run[0]) for run in runs])} |
"""


def traversals_table(repeats: int) -> str:
    rows = []
    for workers, persistent in ((0, False), (2, False), (2, True)):
        runs = [apart("traversals", workers, persistent, 50) for _ in range(repeats)]
        first, other = (median(run[key] for run in runs) for key in ("first", "other"))
        rows.append(f"| {workers}{', persistent' if persistent else ''} | {first:.2f} | {other:.3f} |")
    head = ["| workers | a traversal's first batch, ms | any batch, ms |", "|---|--:|--:|"]
    return "\n".join([*head, *rows, ""])


TABLES = {
    "end_to_end": end_to_end_table,
    "overlap": overlap_table,
    "memory": memory_table,
    "traversals": traversals_table,
}


def main() -> None:
    parser = argparse.ArgumentParser(description="What the data path costs and gains.")
    parser.add_argument("--parts", nargs="+", choices=TABLES, default=list(TABLES))
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path, help="write the tables here too, as Markdown")
    parser.add_argument("--job", type=json.loads, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.job:
        warnings.simplefilter("ignore")
        part, arguments, result = args.job
        L.seed_everything(0, verbose=False)
        Path(result).write_text(json.dumps(PARTS[part](*arguments)))
        return
    host = machine()
    tables = [TABLES[part](args.repeats) for part in args.parts]
    packages = ", ".join(f"{name} {version(name)}" for name in ("torch", "lightning"))
    tables.append(
        f"* machine: {host}; torch used {torch.get_num_threads()} threads\n"
        f"* versions: Python {platform.python_version()}, {packages}\n"
        f"* medians of {args.repeats}, each in a process of its own, the sides taking turns\n"
        f"* command: `python examples/benchmarks/data_path.py {' '.join(sys.argv[1:])}`".rstrip()
    )
    report = "\n".join(tables)
    print(report)
    if args.out:
        args.out.write_text(report + "\n")


if __name__ == "__main__":
    main()
