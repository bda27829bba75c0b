"""What is trained, without any framework: models by name, their batches and optimizers.

Every side of the suite builds its model from this description and trains it on these batches, so a row of a table
compares the same work. The values are random, since only the speed is of interest; all numbers are float32, labels and
tokens are integers.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

Arrays = tuple[np.ndarray, np.ndarray]

DISTINCT = 200  # batches in memory; a training cycles through them
ROWS = ("bare", "defaults")
DATA = ("memory", "loader")


@dataclass(frozen=True)
class Optimizer:
    """`kind` is "adam", "adamw" or "sgd"; what is not given is PyTorch's default, on every side."""

    kind: str
    rate: float
    momentum: float = 0.0
    weight_decay: float = 0.0
    betas: tuple[float, float] = (0.9, 0.999)
    epsilon: float = 1e-8


@dataclass(frozen=True)
class Workload:
    """One model: the shape of an example, its classes, and sizes that take some seconds each on a small machine."""

    shape: tuple[int, ...]  # of one example; images as channels, height, width
    classes: int
    batch_size: int
    optimizer: Optimizer
    sink_size: int
    steps: int  # of the sides that make many steps in one call
    other_steps: int
    tokens: bool = False  # examples are windows of token numbers, labels the tokens after them


ADAM, SGD = Optimizer("adam", 1e-3), Optimizer("sgd", 0.01, momentum=0.9)
ADAMW = Optimizer("adamw", 3e-4, weight_decay=0.01)
WORKLOADS = {
    "MLP": Workload((64,), 10, 32, ADAM, 1000, 20_000, 3000),
    "LeNet": Workload((1, 32, 32), 10, 32, SGD, 100, 2000, 500),
    "SmallGPT": Workload((32,), 65, 8, ADAMW, 100, 1000, 300, tokens=True),
    "SmallResNet": Workload((3, 32, 32), 10, 16, SGD, 100, 1000, 300),
    "LSTM": Workload((32, 32), 10, 16, ADAM, 100, 2000, 500),  # 32 time steps of 32 features
}


def batches(model: str, count: int = DISTINCT, batch_size: int | None = None, seed: int = 0) -> list[Arrays]:
    """`count` distinct batches: float32 examples and int64 labels, or int64 tokens and the tokens after them."""
    work = WORKLOADS[model]
    size = batch_size or work.batch_size
    random = np.random.default_rng(seed)
    if work.tokens:
        windows = [random.integers(work.classes, size=(size, work.shape[0] + 1)) for _ in range(count)]
        return [(np.ascontiguousarray(w[:, :-1]), np.ascontiguousarray(w[:, 1:])) for w in windows]
    return [
        (random.standard_normal((size, *work.shape), dtype=np.float32), random.integers(work.classes, size=size))
        for _ in range(count)
    ]


def channels_last(found: list[Arrays]) -> list[Arrays]:
    """Images as height, width, channels, which is how XLA's convolutions on a CPU want them; the rest as it is."""
    return [(np.ascontiguousarray(np.moveaxis(x, 1, -1)) if x.ndim == 4 else x, y) for x, y in found]


def narrow(found: list[Arrays]) -> list[Arrays]:
    """Integers in 32 bits, for frameworks that have no others by default."""
    return [tuple(a.astype(np.int32) if a.dtype == np.int64 else a for a in pair) for pair in found]  # type: ignore[misc]


def rows(found: list[Arrays]) -> Arrays:
    """All batches as one dataset of examples."""
    return np.concatenate([x for x, _ in found]), np.concatenate([y for _, y in found])


def orders(examples: int, batch_size: int, seed: int = 0) -> Iterator[np.ndarray]:
    """The examples of batch after batch, without end: each pass in a new order, whole batches only."""
    random = np.random.default_rng(seed)
    while True:
        order = random.permutation(examples)
        yield from order[: examples - examples % batch_size].reshape(-1, batch_size)
