"""JAX: a sink as one call of `jax.jit(lax.scan)`, or a call for each step. `python peers/jax_scan.py JOB.json`.

The batches of a sink are stacked by numpy and handed over in one call, which is timed too. From "memory" they are
gathered out of the 200 that lie ready; the nearest to a shuffled loader is a gather of permuted examples. The
optimizers are written by hand. XLA compiles anew in each process: its cache on disk is off, as it is by default.

Side "jax-step" calls the compiled step from Python. It is there for models with convolutions: XLA's are up to twenty
times slower on a CPU inside a loop such as `scan`, and nobody would train them that way.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from functools import partial
from itertools import cycle, islice
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))  # the shared modules lie beside suite.py

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax_models import MODELS, Apply, Numbers, Tree
from job import Clock, Job, LacksModelError, Trained, cores, run
from workload import WORKLOADS, Arrays, Optimizer, batches, channels_last, narrow, orders, rows

State = tuple[Tree, Tree, Tree]  # numbers that are trained, running means, the optimizer's


def first_state(told: Optimizer, params: Tree) -> Tree:
    """The optimizer's state before the first step."""
    zeros = partial(jax.tree.map, jnp.zeros_like)
    if told.kind == "sgd":
        return {"momentum": zeros(params)}
    return {"step": jnp.zeros((), jnp.int32), "mean": zeros(params), "square": zeros(params)}


def updated(told: Optimizer, params: Tree, gradients: Tree, state: Tree) -> tuple[Tree, Tree]:
    """One step of SGD with momentum, Adam or AdamW."""
    if told.kind == "sgd":
        momentum = jax.tree.map(lambda m, g: told.momentum * m + g, state["momentum"], gradients)
        return jax.tree.map(lambda p, m: p - told.rate * m, params, momentum), {"momentum": momentum}
    (beta1, beta2), step = told.betas, state["step"] + 1
    mean = jax.tree.map(lambda m, g: beta1 * m + (1 - beta1) * g, state["mean"], gradients)
    square = jax.tree.map(lambda s, g: beta2 * s + (1 - beta2) * g * g, state["square"], gradients)
    rate, root = told.rate / (1 - beta1**step), jnp.sqrt(1 - beta2**step)

    def one(p: Array, m: Array, s: Array) -> Array:
        return p * (1 - told.rate * told.weight_decay) - rate * m / (jnp.sqrt(s) / root + told.epsilon)

    return jax.tree.map(one, params, mean, square), {"step": step, "mean": mean, "square": square}


def one_step(told: Optimizer, apply: Apply) -> Callable[[State, tuple[Array, Array]], tuple[State, Array]]:
    """The function of a state and a batch: the state after it, and the loss."""

    def loss_of(params: Tree, stats: Tree, x: Array, y: Array) -> tuple[Array, Tree]:
        logits, stats = apply(params, stats, x)
        chosen = jnp.take_along_axis(jax.nn.log_softmax(logits), y[..., None], axis=-1)
        return -chosen.mean(), stats

    def step(state: State, batch: tuple[Array, Array]) -> tuple[State, Array]:
        params, stats, optimizer = state
        (loss, stats), gradients = jax.value_and_grad(loss_of, has_aux=True)(params, stats, *batch)
        params, optimizer = updated(told, params, gradients, optimizer)
        return (params, stats, optimizer), loss

    return step


def data(job: Job, steps: int) -> Iterator[Arrays]:
    """Batches one after another, without end; with more than one of `steps`, as many at once, stacked."""
    found = narrow(channels_last(batches(job.model, batch_size=job.batch_size)))
    if job.data == "memory":
        x, y = np.stack([x for x, _ in found]), np.stack([y for _, y in found])
        places: Iterator[int | np.ndarray] = cycle(range(len(x)))
    else:
        x, y = rows(found)
        places = orders(len(x), job.batch_size)
    while True:
        chosen = next(places) if steps == 1 else np.stack(list(islice(places, steps)))
        yield x[chosen], y[chosen]


def train(job: Job, clock: Clock) -> Trained:
    if job.model not in MODELS or job.options:
        raise LacksModelError(f"no {job.model} with {job.options}" if job.options else f"no {job.model}")
    told = WORKLOADS[job.model].optimizer
    params, stats, apply = MODELS[job.model](Numbers())
    state = jax.tree.map(jnp.asarray, (params, stats, first_state(told, params)))
    step = one_step(told, apply)
    steps, function = (1, step) if job.side == "jax-step" else (job.sink_size, partial(lax.scan, step))
    compiled, batch = jax.jit(function, donate_argnums=0), data(job, steps)
    clock.begin()
    for done in range(steps, job.steps + 1, steps):
        state, losses = compiled(state, next(batch))
        if clock.due(done):
            losses.block_until_ready()
            clock.reached(done)
    parameters = sum(p.size for p in jax.tree.leaves(params))
    return Trained(loss=float(losses.ravel()[-1]), parameters=parameters, threads=cores())


if __name__ == "__main__":
    run(train, ("jax",), lambda: None)
