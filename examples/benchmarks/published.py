"""Models of published libraries, as they are: each library's own way to train, plainly and in sinks.

    pip install darts neuralforecast scvi-tools
    python examples/benchmarks/published.py --out published.md

Data is made up, batches are small, and everything else is as the libraries have it. Each training runs in a process of
its own, and plain ones and those in sinks take turns. Steps per second are those of the later half of the epochs, the
seconds are a whole process's training, with recording and compiling; the tables give medians.
"""

from __future__ import annotations

import argparse
import json
import logging
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any

import lightning_sink

lightning_sink.alias_pytorch_lightning()  # darts and neuralforecast import that name

import lightning as L  # noqa: E402
import numpy as np  # noqa: E402
from machine import machine  # noqa: E402

SINK = 100


class Clock(L.Callback):
    """When each epoch ended, and how many steps there had been by then."""

    def __init__(self) -> None:
        self.ends: list[tuple[int, float]] = []
        self.engine = "plain"

    def __deepcopy__(self, memo: dict[int, Any]) -> Clock:
        return self  # neuralforecast trains a copy of a model and of what that was given

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self.ends.append((trainer.global_step, time.perf_counter()))
        self.engine = getattr(trainer.strategy, "active_engine", "plain")

    def steps_per_second(self) -> float:
        (first, began), (last, ended) = self.ends[len(self.ends) // 2], self.ends[-1]
        return (last - first) / (ended - began)


def of_darts(name: str, **options: Any) -> Callable[[dict[str, Any]], None]:
    def train(trainer: dict[str, Any]) -> None:
        import darts
        import darts.models

        times = np.arange(1000, dtype=np.float32)
        series = darts.TimeSeries.from_values(np.sin(times / 7)[:, None] + 0.1 * np.sin(times * times)[:, None])
        sizes = {"input_chunk_length": 24, "output_chunk_length": 6, "batch_size": 16, "n_epochs": 60}
        model = getattr(darts.models, name)(**sizes, **options, random_state=0, pl_trainer_kwargs=trainer)
        model.fit(series)

    return train


def of_neuralforecast(name: str) -> Callable[[dict[str, Any]], None]:
    def train(trainer: dict[str, Any]) -> None:
        import neuralforecast
        import neuralforecast.models
        import pandas

        days = pandas.date_range("2020-01-01", periods=200)
        frame = pandas.DataFrame({"unique_id": np.repeat(np.arange(32), 200), "ds": [*days] * 32})
        frame["y"] = np.sin(np.arange(len(frame)) / 9)
        model = getattr(neuralforecast.models, name)(h=6, input_size=24, max_steps=300, batch_size=8, **trainer)
        neuralforecast.NeuralForecast([model], freq="D").fit(frame)

    return train


def of_scvi(trainer: dict[str, Any]) -> None:
    import anndata
    import scvi

    cells = anndata.AnnData(np.random.default_rng(0).poisson(1.0, (1200, 60)).astype(np.float32))
    scvi.model.SCVI.setup_anndata(cells)
    model = scvi.model.SCVI(cells, n_hidden=32, n_latent=6)
    model.train(max_epochs=20, batch_size=32, devices=1, **trainer)


MODELS: dict[str, Callable[[dict[str, Any]], None]] = {
    "darts, `NHiTSModel`": of_darts("NHiTSModel"),
    "darts, `TFTModel`": of_darts("TFTModel", add_relative_index=True),
    "neuralforecast, `NHITS`": of_neuralforecast("NHITS"),
    "neuralforecast, `MLP`": of_neuralforecast("MLP"),
    "scvi-tools, `SCVI`": of_scvi,
}


def train(name: str, sinks: bool) -> dict[str, Any]:
    """Trains one of them in this process."""
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    L.seed_everything(0, verbose=False)
    clock = Clock()
    quiet = dict.fromkeys(("enable_progress_bar", "logger", "enable_checkpointing", "enable_model_summary"), False)
    trainer: dict[str, Any] = {"accelerator": "cpu", "callbacks": [clock], **quiet}
    if sinks:
        trainer["strategy"] = lightning_sink.SinkStrategy(SINK, epoch="dataset")
    began = time.perf_counter()
    MODELS[name](trainer)
    return {"rate": clock.steps_per_second(), "seconds": time.perf_counter() - began, "engine": clock.engine}


def measured(name: str, repeats: int) -> str:
    """Returns one row of the table."""
    found: dict[bool, list[dict[str, Any]]] = {False: [], True: []}
    for _ in range(repeats):
        for sinks in found:
            command = [sys.executable, __file__, "--one", name, *["--sinks"] * sinks]
            done = subprocess.run(command, capture_output=True, text=True)
            if done.returncode:
                raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}:\n{done.stderr[-3000:]}")
            found[sinks].append(json.loads(done.stdout.splitlines()[-1]))
    rates, seconds = ([median(each[key] for each in found[sinks]) for sinks in found] for key in ("rate", "seconds"))
    row = [name, found[True][0]["engine"], *(f"{rate:,.0f}" for rate in rates), f"{rates[1] / rates[0]:.1f}"]
    return "| " + " | ".join([*row, *(f"{each:.1f}" for each in seconds)]) + " |"


def main() -> None:
    """Measures all of them, and writes a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="*", default=list(MODELS), choices=list(MODELS))
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path("published.md"))
    parser.add_argument("--one", choices=list(MODELS), help="train this one here, and print what it took")
    parser.add_argument("--sinks", action="store_true")
    asked = parser.parse_args()
    if asked.one:
        print(json.dumps(train(asked.one, asked.sinks)))
        return
    libraries = ", ".join(f"{name} {version(name)}" for name in ("darts", "neuralforecast", "scvi-tools", "lightning"))
    columns = ["model", "engine", "steps/s plainly", "in sinks", "times", "seconds plainly", "in sinks"]
    head = "| " + " | ".join(columns) + " |\n|---|---|" + "--:|" * 5
    rows = []
    for name in asked.models:
        rows.append(measured(name, asked.repeats))
        print(rows[-1], flush=True)
    asked.out.write_text(f"{machine()}; {libraries}.\n\n{head}\n" + "\n".join(rows) + "\n")


if __name__ == "__main__":
    main()
