"""What `SinkStrategy(verify=n)` costs: the time of a step that is run both ways and compared.

    python examples/benchmarks/verify_cost.py --out verify_cost.md

Each training is run with `verify=0` and with `verify=--steps`, one after the other and several times over, with a
compiler cache that is full after the first. The difference, divided by the steps, is what comparing adds to a step; the
default compares two steps of each program. A plain step, in plain Lightning, is given beside it.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from importlib.metadata import version
from pathlib import Path
from statistics import median
from time import perf_counter

import lightning as L
from fitting import OFF, Cycle
from machine import machine
from models import MODELS

from lightning_sink import SinkStrategy


def seconds(model: str, strategy: L.pytorch.strategies.Strategy | str, steps: int) -> float:
    """The time of a whole `fit`."""
    L.seed_everything(0, verbose=False)
    kind = MODELS[model]
    trainer = L.Trainer(accelerator="cpu", max_epochs=1, strategy=strategy, **OFF)
    module, batches = kind(), Cycle(kind.batches(50), steps)
    started = perf_counter()
    trainer.fit(module, batches)
    return perf_counter() - started


def sinks(verify: int) -> SinkStrategy:
    """A strategy that makes one sink of an epoch."""
    return SinkStrategy(epoch="dataset", engine="inductor", verify=verify, fallback="error")


def measure(model: str, steps: int, repeats: int) -> str:
    """One row of the table."""
    length = 2 * steps
    seconds(model, sinks(0), length)  # fills the cache
    added, plain, ratios = [], [], []
    for _ in range(repeats):
        without, compared = seconds(model, sinks(0), length), seconds(model, sinks(steps), length)
        eager = seconds(model, "auto", steps)
        added.append(1000 * (compared - without) / steps)
        plain.append(1000 * eager / steps)
        ratios.append(added[-1] / plain[-1])
        print(f"{model}: {added[-1]:.2f} ms for each step compared, {plain[-1]:.2f} ms for a plain step")
    spread = f"{median(ratios):.1f} ({min(ratios):.1f}-{max(ratios):.1f})"
    return f"| {model} | {median(plain):.2f} | {median(added):.2f} | {spread} |"


def main() -> None:
    parser = argparse.ArgumentParser(description="The cost of comparing compiled steps with eager ones.")
    parser.add_argument("--models", nargs="+", choices=MODELS, default=["MLP", "LeNet", "SmallGPT"])
    parser.add_argument("--steps", type=int, default=200, help="steps that are compared")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path, help="write the table here too, as Markdown")
    args = parser.parse_args()
    lines = ["| model | a plain step, ms | comparing adds to a step, ms | in plain steps |", "|---|--:|--:|--:|"]
    about = machine()
    with tempfile.TemporaryDirectory() as cache:
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = cache
        lines += [measure(model, args.steps, args.repeats) for model in args.models]
    lines += ["", f"* machine: {about}", f"* versions: torch {version('torch')}, lightning {version('lightning')}"]
    print(*lines, sep="\n")
    if args.out:
        args.out.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
