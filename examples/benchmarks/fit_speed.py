"""Steps per second of `Trainer.fit`: plain Lightning against `SinkStrategy`, with a hand-written loop for context.

    python examples/benchmarks/fit_speed.py --out fit_speed.md

Both sides train the same module on the same batches, which lie ready in memory, with the same Trainer options and
epochs of the same length; only `strategy=` differs. Row "bare" has no logger, checkpoint, bar or summary and the module
logs nothing; row "defaults" has all that Lightning turns on by itself, and the module logs its loss. The first sink,
and as many steps of the other sides, is warm-up; speed is measured from there to the last step. What the first sink
took beyond its steps at that speed is given as "first sink": recording and compiling. Its "cold" value is the first
repeat, with an empty compiler cache; "warm" is the median of the others, which find that cache filled.

Every measurement runs in a process of its own, and the sides take turns. A ratio is of neighbours in that order; the
table gives the median of the ratios and the range.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from statistics import median
from time import perf_counter

import lightning as L
import torch
from models import MODELS, Batch

SIDES = ("loop", "plain", "sink")
ROWS = ("bare", "defaults")
# sink size, steps in sinks, steps of the other sides: enough for some seconds each on a small machine
SIZES = {"MLP": (1000, 20_000, 3000), "LeNet": (100, 2000, 500), "SmallGPT": (100, 1000, 300)}
DISTINCT = 200  # batches in memory; an epoch cycles through them


class Cycle:
    """`length` batches: the list, over and over. (Lightning would take a bare list for a list of loaders.)"""

    def __init__(self, batches: list[Batch], length: int) -> None:
        self.batches = batches
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __iter__(self) -> Iterator[Batch]:
        n = len(self.batches)
        return (self.batches[i % n] for i in range(self.length))


def now() -> float:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return perf_counter()


class Clock(L.Callback):
    """The times of the start, of the end of the warm-up and of the last step."""

    def __init__(self, warmup: int, steps: int) -> None:
        self.wanted = (warmup, steps)
        self.marks: dict[int, float] = {}  # by optimizer steps done

    def on_train_start(self, trainer, pl_module) -> None:
        self.marks[0] = now()

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx) -> None:
        if trainer.global_step in self.wanted:
            self.marks[trainer.global_step] = now()


def fit(job: dict, strategy: L.pytorch.strategies.Strategy | str) -> dict[int, float]:
    """`Trainer.fit` as row `job["row"]` has it: the marks of its clock."""
    bare = job["row"] == "bare"
    off = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False}
    clock = Clock(job["sink_size"], job["steps"])
    module_class = MODELS[job["model"]]
    with tempfile.TemporaryDirectory() as folder:
        trainer = L.Trainer(
            accelerator=job["accelerator"],
            devices=1,
            strategy=strategy,
            max_epochs=job["steps"] // job["sink_size"],
            callbacks=[clock],
            default_root_dir=folder,
            **(off if bare else {}),
        )
        trainer.fit(module_class(log_loss=not bare), Cycle(module_class.batches(DISTINCT), job["sink_size"]))
    return clock.marks


def loop(job: dict) -> dict[int, float]:
    """The loop one would write by hand in PyTorch: the same marks."""
    module = MODELS[job["model"]]()
    device = "cuda" if job["accelerator"] in ("gpu", "cuda") else job["accelerator"]
    module.to(device).train()
    optimizer = module.configure_optimizers()
    marks = {0: now()}
    for step, batch in enumerate(Cycle(module.batches(DISTINCT), job["steps"]), start=1):
        x, y = batch[0].to(device), batch[1].to(device)
        optimizer.zero_grad()
        loss = module.training_step((x, y), step - 1)
        loss.backward()
        optimizer.step()
        if step in (job["sink_size"], job["steps"]):
            marks[step] = now()
    return marks


def measure(job: dict) -> dict[str, float]:
    """Run one job in this process."""
    L.seed_everything(0, verbose=False)
    if job["side"] == "loop":
        marks = loop(job)
    elif job["side"] == "plain":
        marks = fit(job, strategy="auto")
    else:
        from lightning_sink import SinkStrategy

        # Steps that quietly ran on another engine than the table says would be worse than no figure.
        marks = fit(job, SinkStrategy(sink_size=job["sink_size"], engine=job["engine"], fallback="error"))
    warmup, steps = job["sink_size"], job["steps"]
    speed = (steps - warmup) / (marks[steps] - marks[warmup])
    return {"speed": speed, "start": marks[warmup] - marks[0] - warmup / speed, "threads": torch.get_num_threads()}


def measure_apart(job: dict, cache: Path) -> dict[str, float]:
    """Run one job in a process of its own, its standard output (where the bar goes) sent away."""
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder, "result.json")
        command = [sys.executable, __file__, "--job", json.dumps(job | {"result": str(result)})]
        environment = os.environ | {"TORCHINDUCTOR_CACHE_DIR": str(cache)}
        done = subprocess.run(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        if done.returncode != 0:
            raise RuntimeError(f"the run failed: {job}\n{done.stderr}")
        return json.loads(result.read_text())


def compare(model: str, row: str, args: argparse.Namespace) -> tuple[str, int]:
    """All repeats of one row of the table: the row, and the number of threads that torch used."""
    sink_size, sink_steps, other_steps = SIZES[model]
    sink_size = args.sink_size or sink_size
    wanted = {"sink": args.steps or sink_steps, "other": args.other_steps or other_steps}
    # Whole sinks, and at least one after the warm-up.
    steps = {key: max(2, round(value / sink_size)) * sink_size for key, value in wanted.items()}
    found: dict[str, list[dict[str, float]]] = {side: [] for side in SIDES}
    with tempfile.TemporaryDirectory() as cache:
        for repeat in range(args.repeats):
            for side in SIDES:
                job = {"model": model, "row": row, "side": side, "engine": args.engine, "sink_size": sink_size}
                job |= {"steps": steps.get(side, steps["other"]), "accelerator": args.accelerator}
                found[side].append(measure_apart(job, Path(cache)))
                print(f"{model} {row} {repeat + 1}/{args.repeats} {side}: {found[side][-1]['speed']:,.0f} steps/s")
    speeds = {side: [r["speed"] for r in results] for side, results in found.items()}
    ratios = [sink / plain for sink, plain in zip(speeds["sink"], speeds["plain"], strict=True)]
    cold, *warm = (r["start"] for r in found["sink"])
    cells = [
        model,
        row,
        f"{sink_size:,}",
        *(f"{median(speeds[side]):,.0f}" for side in SIDES),
        f"{median(ratios):.1f} ({min(ratios):.1f}-{max(ratios):.1f})",
        f"{cold:.1f} s cold" + (f", {median(warm):.1f} s warm" if warm else ""),
        f"{steps['sink']:,} / {steps['other']:,}",
    ]
    return "| " + " | ".join(cells) + " |", int(found["plain"][0]["threads"])


def machine(accelerator: str) -> str:
    """The machine in words, with its load: on a busy one, threads wait for each other and no figure means anything."""
    name = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        names = [line.partition(":")[2].strip() for line in cpuinfo.read_text().splitlines() if "model name" in line]
        name = names[0] if names else name
    if accelerator != "cpu" and torch.cuda.is_available():
        name = f"{torch.cuda.get_device_name()}, {name}"
    load = f", load {os.getloadavg()[0]:.1f} before the first run" if hasattr(os, "getloadavg") else ""
    return f"{name}, {os.cpu_count()} cores, {platform.system()}{load}"


def main() -> None:
    parser = argparse.ArgumentParser(description="Steps per second of Trainer.fit, plain and in sinks.")
    parser.add_argument("--models", nargs="+", choices=MODELS, default=["MLP", "SmallGPT"])
    parser.add_argument("--all", action="store_true", help="all models")
    parser.add_argument("--rows", nargs="+", choices=ROWS, default=ROWS)
    parser.add_argument("--steps", type=int, help="steps in sinks (default: by model)")
    parser.add_argument("--other-steps", type=int, help="steps of plain Lightning and of the loop (default: by model)")
    parser.add_argument("--sink-size", type=int, help="steps per sink, and per epoch on both sides (default: by model)")
    parser.add_argument("--engine", default="auto")
    parser.add_argument("--accelerator", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path, help="write the table here too, as Markdown")
    parser.add_argument("--job", type=json.loads, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.job:
        Path(args.job["result"]).write_text(json.dumps(measure(args.job)))
        return

    host = machine(args.accelerator)
    models = list(MODELS) if args.all else args.models
    rows, threads = zip(*(compare(model, row, args) for model in models for row in args.rows), strict=True)
    threading = [f"{key}={value} " for key, value in sorted(os.environ.items()) if key.startswith(("OMP_", "GOMP_"))]
    packages = ", ".join(f"{name} {version(name)}" for name in ("torch", "lightning"))
    report = f"""\
Steps per second of `Trainer.fit` after the first sink; medians of {args.repeats}, each in a process of its own.

| model | row | sink size | loop by hand | plain | sink | sink / plain | first sink | steps: sink / others |
|---|---|--:|--:|--:|--:|--:|---|---|
{chr(10).join(rows)}

* machine: {host}; torch used {threads[0]} threads
* versions: Python {platform.python_version()}, {packages}
* command: `{"".join(threading)}python examples/benchmarks/fit_speed.py {" ".join(sys.argv[1:])}`
"""
    print(report)
    if args.out:
        args.out.write_text(report)


if __name__ == "__main__":
    main()
