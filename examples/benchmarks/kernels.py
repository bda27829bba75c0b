"""The kernels of ours in a compiled step on one thread, beside those of the library whose place they take.

Each case is a step of its own, run many times in one call; both sides take turns. Masks of dropout are drawn before the
steps of a call, 16 of each here. `python kernels.py`
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial
from operator import getitem
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, fx

from lightning_sink.engine.compiler import inductor, masks
from lightning_sink.engine.compiler.loop import CompiledStep
from lightning_sink.engine.compiler.masks import RowDraws
from lightning_sink.engine.compiler.row import Turn
from lightning_sink.engine.tracing.draws import Draw
from lightning_sink.engine.tracing.recording import Recording

# Rows, columns, depth; whether the left matrix and the right one lie transposed: forward, weights' gradient, inputs'.
PRODUCTS = [
    ((32, 64, 64), False, True),
    ((64, 64, 32), True, False),
    ((32, 64, 64), False, False),
    ((32, 10, 64), False, True),
    ((10, 64, 32), True, False),
    ((32, 120, 400), False, True),
    ((120, 400, 32), True, False),
    ((128, 128, 128), False, False),
    ((256, 192, 64), False, True),
]
# Images, channels, height, width: pooled 2 x 2, behind a ReLU.
IMAGES = [(32, 6, 28, 28), (32, 16, 10, 10), (16, 64, 32, 32)]
MASKS = [(32, 64), (8, 32, 256)]
STEPS, REPEATS = 500, 7

Case = tuple[str, Callable[..., Any], list[Tensor], tuple[Any, ...]]


def cases() -> Iterator[Case]:
    """Yields what each is called, the operation, its tensors and its other arguments."""
    for (m, n, k), a, b in PRODUCTS:
        left = torch.randn(k, m).t() if a else torch.randn(m, k)
        right = torch.randn(n, k).t() if b else torch.randn(k, n)
        transposed = " and ".join(name for name, is_so in (("left", a), ("right", b)) if is_so)
        name = f"product of {m}, {n}, {k}" + (f", {transposed} transposed" if transposed else "")
        yield name, torch.ops.aten.mm.default, [left, right], ()
    for shape in IMAGES:
        pooling = torch.ops.aten.max_pool2d_with_indices.default
        yield f"max-pooling of {', '.join(map(str, shape))}", pooling, [torch.randn(shape).relu()], ([2, 2], [2, 2])


def compiled(operation: Callable[..., Any], tensors: list[Tensor], options: tuple[Any, ...]) -> CompiledStep:
    graph = fx.Graph()
    nodes = [graph.placeholder(f"tensor_{index}") for index in range(len(tensors))]
    result = graph.call_function(operation, (*nodes, *map(list, options)))
    returned = operation(*tensors, *options)
    if isinstance(returned, tuple):
        results = [graph.call_function(getitem, (result, index)) for index in range(len(returned))]
    else:
        results = [result]
    # One number is put out as well: steps without one are not run in a row.
    one = graph.call_function(torch.ops.aten.full.default, ([], 1.0))
    graph.output((*results, one))
    return inductor.compile_inductor(Recording(graph, inputs=tensors, largest=1))


def seconds(step: CompiledStep, tensors: list[Tensor]) -> float:
    row = step.row([Turn(step, [*tensors], [], [], [])], STEPS)
    began = time.perf_counter()
    row.launch()
    row.wait()
    seconds = (time.perf_counter() - began) / STEPS
    step.rest()
    return seconds


def mask_seconds(draws: RowDraws) -> float:
    began = time.perf_counter()
    draws.make(16)
    return (time.perf_counter() - began) / 16


def compare(name: str, ours: Callable[[], float], librarys: Callable[[], float]) -> None:
    pairs = [(ours(), librarys()) for _ in range(REPEATS)]
    microseconds = [statistics.median(column) * 1e6 for column in zip(*pairs, strict=True)]
    ratio = statistics.median(other / own for own, other in pairs)
    print(f"| {name} | {microseconds[0]:.2f} | {microseconds[1]:.2f} | {ratio:.2f} |")


def main() -> None:
    print("| kernel | ours, us | library, us | library / ours |\n|---|--:|--:|--:|")
    for name, operation, tensors, options in cases():
        steps = [compiled(operation, tensors, options)]
        with patch.object(inductor, "_CALLS", {}):
            steps.append(compiled(operation, tensors, options))
        for step in steps:
            step(*tensors)
        compare(name, *(partial(seconds, step, tensors) for step in steps))
    loop = compiled(torch.ops.aten.mm.default, [torch.ones(2, 2)] * 2, ()).loop
    for shape in MASKS:
        fresh = torch.empty(shape)
        draw = Draw(torch.ops.aten.bernoulli_.float, (0.9,), {}, (shape, fresh.stride(), fresh.dtype, fresh.device))
        ours = RowDraws([draw], loop)
        with patch.object(masks, "draws_alike", lambda loop: False):
            librarys = RowDraws([draw], loop)
        compare(f"mask of {', '.join(map(str, shape))}", partial(mask_seconds, ours), partial(mask_seconds, librarys))


if __name__ == "__main__":
    main()
