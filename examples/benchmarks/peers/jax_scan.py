"""JAX: `jax.jit` around `lax.scan` over the steps of a sink. `python peers/jax_scan.py JOB.json`.

The batches of a sink are stacked by numpy and handed over in one call, which is timed too. From "memory" they are
gathered out of the 200 that lie ready; the nearest to a shuffled loader is a gather of permuted examples. The
optimizers are written by hand. XLA compiles anew in each process: its cache on disk is off, as it is by default.

XLA's convolutions on a CPU are several times slower inside a loop such as `scan` than outside; `keras_fit.py`, whose
steps are called from Python, shows the difference.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
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


def one_sink(told: Optimizer, apply: Apply) -> Callable[[State, Array, Array], tuple[State, Array]]:
    """The compiled function of a state and stacked batches: the state after them, and the loss of each step."""

    def loss_of(params: Tree, stats: Tree, x: Array, y: Array) -> tuple[Array, Tree]:
        logits, stats = apply(params, stats, x)
        chosen = jnp.take_along_axis(jax.nn.log_softmax(logits), y[..., None], axis=-1)
        return -chosen.mean(), stats

    def step(state: State, batch: tuple[Array, Array]) -> tuple[State, Array]:
        params, stats, optimizer = state
        (loss, stats), gradients = jax.value_and_grad(loss_of, has_aux=True)(params, stats, *batch)
        params, optimizer = updated(told, params, gradients, optimizer)
        return (params, stats, optimizer), loss

    return jax.jit(lambda state, xs, ys: lax.scan(step, state, (xs, ys)), donate_argnums=0)


def stacked(job: Job) -> Iterator[Arrays]:
    """The batches of one sink after another."""
    found = narrow(channels_last(batches(job.model, batch_size=job.batch_size)))
    if job.data == "memory":
        xs, ys = np.stack([x for x, _ in found]), np.stack([y for _, y in found])
        first = 0
        while True:
            chosen = np.arange(first, first + job.sink_size) % len(xs)
            yield xs[chosen], ys[chosen]
            first += job.sink_size
    x, y = rows(found)
    order = orders(len(x), job.batch_size)
    while True:
        chosen = np.stack(list(islice(order, job.sink_size)))
        yield x[chosen], y[chosen]


def train(job: Job, clock: Clock) -> Trained:
    if job.model not in MODELS or job.options:
        raise LacksModelError(f"no {job.model} with {job.options}" if job.options else f"no {job.model}")
    told = WORKLOADS[job.model].optimizer
    params, stats, apply = MODELS[job.model](Numbers())
    state = jax.tree.map(jnp.asarray, (params, stats, first_state(told, params)))
    sink, data = one_sink(told, apply), stacked(job)
    clock.begin()
    for done in range(job.sink_size, job.steps + 1, job.sink_size):
        state, losses = sink(state, *next(data))
        if clock.due(done):
            losses.block_until_ready()
            clock.reached(done)
    parameters = sum(p.size for p in jax.tree.leaves(params))
    return Trained(loss=float(losses[-1]), parameters=parameters, threads=cores())


if __name__ == "__main__":
    run(train, ("jax",), lambda: None)
