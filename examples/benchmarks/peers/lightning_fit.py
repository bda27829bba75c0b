"""Lightning's `Trainer.fit`: plain, with the module compiled, and in sinks. `python peers/lightning_fit.py JOB.json`.

All three train the same module on the same batches with the same Trainer options; the compiled one is
`torch.compile(module)`, and only `strategy=` makes sinks. Row "bare" has no logger, checkpoint, bar or summary and the
module logs nothing; row "defaults" has all that Lightning turns on by itself, and the module logs its loss.

Batches in memory come in epochs of one sink, on every side. With a loader, an epoch is one pass over its 200 batches,
and in sinks, which cross its end, one sink: plain Lightning then ends more epochs.
"""

from __future__ import annotations

import sys
import tempfile
import warnings
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))  # the shared modules lie beside suite.py

import lightning as L
import nets
import torch
from fitting import OFF, Cycle, StepClock
from job import Clock, Job, Trained, run
from models import MODELS
from workload import DISTINCT


def strategy(job: Job) -> L.pytorch.strategies.Strategy | str:
    if job.side != "sink":
        return "auto"
    from lightning_sink import SinkStrategy  # plain Lightning is measured without it

    # Steps that quietly ran on another engine than the table says would be worse than no figure.
    return SinkStrategy(sink_size=job.sink_size, engine=job.engine, fallback="error")


def train(job: Job, clock: Clock) -> Trained:
    warnings.simplefilter("ignore")
    L.seed_everything(0, verbose=False)
    kind = MODELS[job.model]
    module = kind(log_loss=job.row == "defaults", **job.options)
    batches = kind.batches(DISTINCT, job.batch_size)
    steps = StepClock(clock)
    with tempfile.TemporaryDirectory() as folder:
        trainer = L.Trainer(
            accelerator=job.accelerator,
            devices=1,
            strategy=strategy(job),
            max_epochs=-1,
            max_steps=job.steps,
            callbacks=[steps],
            default_root_dir=folder,
            **(OFF if job.row == "bare" else {}),
        )
        trainer.fit(
            torch.compile(module) if job.side == "lightning-compile" else module,
            Cycle(batches, job.sink_size) if job.data == "memory" else nets.shuffled(batches),
        )
    return nets.trained(module, steps.loss, job.accelerator)


if __name__ == "__main__":
    run(train, ("torch", "lightning"), nets.synchronize)
