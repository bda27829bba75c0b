"""Products of small matrices in a compiled step on one thread: our kernels beside the library's.

Each product is a step of its own, run many times in one call; both sides take turns. `python small_products.py`
"""

from __future__ import annotations

import statistics
import time

import torch
from torch import fx

from lightning_sink.engine import inductor
from lightning_sink.engine.loop import CompiledStep
from lightning_sink.engine.recording import Recording

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
STEPS, REPEATS = 500, 7


def compiled(left: torch.Tensor, right: torch.Tensor, products: dict[str, bool]) -> CompiledStep:
    graph = fx.Graph()
    nodes = graph.placeholder("left"), graph.placeholder("right")
    product = graph.call_function(torch.ops.aten.mm.default, nodes)
    # One number is put out as well: steps without one are not run in a row.
    one = graph.call_function(torch.ops.aten.full.default, ([], 1.0))
    graph.output((product, one))
    present, inductor._CALLS = inductor._CALLS, products
    try:
        return inductor.compile_inductor(Recording(graph, inputs=[left, right], largest=1))
    finally:
        inductor._CALLS = present


def seconds(step: CompiledStep, left: torch.Tensor, right: torch.Tensor) -> float:
    row = step.row([left, right], [], [[]] * STEPS, [])
    began = time.perf_counter()
    row.launch()
    row.wait()
    seconds = (time.perf_counter() - began) / STEPS
    step.rest()
    return seconds


def main() -> None:
    print("| rows, columns, depth | transposed | ours, us | library, us | library / ours |\n|---|---|--:|--:|--:|")
    for (m, n, k), a, b in PRODUCTS:
        left = torch.randn(k, m).t() if a else torch.randn(m, k)
        right = torch.randn(n, k).t() if b else torch.randn(k, n)
        steps = [compiled(left, right, products) for products in (inductor._CALLS, {})]
        for step in steps:
            step(left, right)
        pairs = [[seconds(step, left, right) for step in steps] for _ in range(REPEATS)]
        ours, library = (statistics.median(column) * 1e6 for column in zip(*pairs, strict=True))
        ratio = statistics.median(other / own for own, other in pairs)
        which = " and ".join(name for name, is_so in (("left", a), ("right", b)) if is_so) or "none"
        print(f"| {m}, {n}, {k} | {which} | {ours:.2f} | {library:.2f} | {ratio:.2f} |")


if __name__ == "__main__":
    main()
