"""Keras 3 on JAX: `model.fit` with `steps_per_execution`. `python peers/keras_fit.py JOB.json`, KERAS_BACKEND=jax.

On JAX, Keras 3.15 runs the steps of an execution one after another from Python, each compiled; callbacks are called
once for each execution. Batches in memory come from a generator, in epochs of one sink. The nearest to a shuffled
loader is `fit(x, y, shuffle=True)`, where an epoch is a pass and ends an execution: an execution then has the largest
number of steps that divides a pass and is not above the sink size. Row "defaults" has the progress bar. The start
includes what `fit` does before the first step. Keras gives out the mean loss of an epoch, not that of a step.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

os.environ["KERAS_BACKEND"] = "jax"
sys.path.insert(0, str(Path(__file__).parents[1]))  # the shared modules lie beside suite.py

import keras
from job import Clock, Job, LacksModelError, Trained, cores, run
from keras_models import MODELS
from workload import WORKLOADS, Arrays, Optimizer, batches, channels_last, narrow, rows


def optimizer(told: Optimizer) -> keras.optimizers.Optimizer:
    if told.kind == "sgd":
        return keras.optimizers.SGD(told.rate, told.momentum)
    kind = {"adam": keras.optimizers.Adam, "adamw": keras.optimizers.AdamW}[told.kind]
    decay = {"weight_decay": told.weight_decay} if told.kind == "adamw" else {}
    beta1, beta2 = told.betas
    return kind(told.rate, beta_1=beta1, beta_2=beta2, epsilon=told.epsilon, **decay)


class StepClock(keras.callbacks.Callback):
    """Counts steps by executions, all of the same length, and ends the training at the last."""

    def __init__(self, clock: Clock, execution: int) -> None:
        super().__init__()
        self.clock, self.execution = clock, execution
        self.steps, self.loss = 0, float("nan")

    def on_train_batch_end(self, batch: int, logs: dict | None = None) -> None:
        self.steps += self.execution
        if self.clock.due(self.steps):
            self.loss = float((logs or {})["loss"])  # waits for the execution
            self.clock.reached(self.steps)
            if self.clock.done:
                self.model.stop_training = True


def cycle(found: list[Arrays]) -> Iterator[Arrays]:
    while True:
        yield from found


def train(job: Job, clock: Clock) -> Trained:
    if job.model not in MODELS or job.options:
        raise LacksModelError(f"no {job.model} with {job.options}" if job.options else f"no {job.model}")
    keras.utils.set_random_seed(0)
    found = narrow(channels_last(batches(job.model, batch_size=job.batch_size)))
    if job.data == "memory":
        execution, epoch = job.sink_size, job.sink_size
        data = {"x": cycle(found), "steps_per_epoch": epoch, "shuffle": False}
    else:
        execution = max(n for n in range(1, job.sink_size + 1) if len(found) % n == 0)
        epoch, (x, y) = len(found), rows(found)
        data = {"x": x, "y": y, "batch_size": job.batch_size, "shuffle": True}
    model = MODELS[job.model]()
    model.compile(
        optimizer(WORKLOADS[job.model].optimizer),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        steps_per_execution=execution,
    )
    steps = StepClock(clock, execution)
    clock.begin()
    epochs = -(-job.steps // epoch)
    model.fit(**data, epochs=epochs, verbose=0 if job.row == "bare" else "auto", callbacks=[steps])
    parameters = sum(int(weight.size) for weight in map(keras.ops.convert_to_numpy, model.trainable_weights))
    return Trained(loss=steps.loss, parameters=parameters, threads=cores())


if __name__ == "__main__":
    run(train, ("keras", "jax"), lambda: None)
