"""Convolutions in a compiled step: images as they lie beside Inductor's choice, channels last.

The same step is compiled both ways, and the two take turns. `python layouts.py`
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import lightning as L
import nets
import torch
from fitting import OFF, Cycle
from torch import Tensor, nn
from torch.nn import functional as F

from lightning_sink import SinkStrategy
from lightning_sink.engine import make as engines
from lightning_sink.engine.compiler import inductor
from lightning_sink.engine.tracing.recording import Recording

SECONDS, REPEATS = 0.4, 9


def stage(inputs: int, outputs: int, groups: int = 1) -> list[nn.Module]:
    return [nn.Conv2d(inputs, outputs, 3, padding=1, groups=groups), nn.BatchNorm2d(outputs), nn.ReLU()]


def pooled(*widths: int) -> nn.Sequential:
    pairs = pairwise((3, *widths))
    layers = [layer for pair in pairs for layer in (*stage(*pair), nn.MaxPool2d(2))]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(widths[-1], 10))


def mnist() -> nn.Sequential:
    convolved = [nn.Conv2d(1, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()]
    return nn.Sequential(*convolved, nn.Linear(9216, 128), nn.ReLU(), nn.Linear(128, 10))


def depthwise(*widths: int) -> nn.Sequential:
    layers = stage(3, widths[0])
    for inputs, outputs in pairwise(widths):
        layers += [*stage(inputs, inputs, groups=inputs), nn.Conv2d(inputs, outputs, 1), nn.AvgPool2d(2)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(widths[-1], 10))


def transposed() -> nn.Sequential:
    down = [nn.Conv2d(1, 16, 3, 2, 1), nn.ReLU(), nn.Conv2d(16, 32, 3, 2, 1), nn.ReLU()]
    up = [nn.ConvTranspose2d(32, 16, 3, 2, 1, 1), nn.ReLU(), nn.ConvTranspose2d(16, 10, 3, 2, 1, 1)]
    return nn.Sequential(*down, *up, nn.AdaptiveAvgPool2d(1), nn.Flatten())


NETS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "LeNet-5": (nets.LeNet, (32, 1, 32, 32)),
    "small ResNet": (nets.SmallResNet, (16, 3, 32, 32)),
    "MNIST, 32 and 64 channels": (mnist, (64, 1, 28, 28)),
    "16, 32, 64 channels, pooled": (lambda: pooled(16, 32, 64), (32, 3, 32, 32)),
    "64, 128, 256 channels, pooled": (lambda: pooled(64, 128, 256), (16, 3, 32, 32)),
    "depthwise, 32 to 128 channels": (lambda: depthwise(32, 64, 128), (16, 3, 32, 32)),
    "transposed, 16 and 32 channels": (transposed, (32, 1, 28, 28)),
}


class Module(L.LightningModule):
    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        return F.cross_entropy(self.net(batch[0]), batch[1])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), 1e-3)


def recorded(net: nn.Module, shape: tuple[int, ...]) -> Recording:
    """The recording of a training step, as the compiler gets it."""
    found: list[Recording] = []

    def take(recording: Recording) -> Any:
        found.append(recording)
        return inductor.compile_traced(recording)

    present, engines.compile_inductor = engines.compile_inductor, take
    try:
        trainer = L.Trainer(accelerator="cpu", max_epochs=1, strategy=SinkStrategy(), **OFF)
        trainer.fit(Module(net), Cycle([(torch.randn(shape), torch.randint(10, shape[:1])) for _ in range(4)], 8))
    finally:
        engines.compile_inductor = present
    return found[0]


def seconds(step: Callable[..., Any], inputs: list[Tensor]) -> float:
    step(*inputs)
    steps, began = 0, time.perf_counter()
    while time.perf_counter() - began < SECONDS:
        step(*inputs)
        steps += 1
    return (time.perf_counter() - began) / steps


def compare(net: nn.Module, shape: tuple[int, ...]) -> list[list[float]]:
    """Pairs of seconds a step: channels last, and as they lie."""
    recording, rule, steps = recorded(net, shape), inductor.keeps_layouts, []
    try:
        for keeps in (False, True):
            inductor.keeps_layouts = lambda graph, keeps=keeps: keeps
            steps.append(inductor.compile_inductor(recording))
    finally:
        inductor.keeps_layouts = rule
    inputs = [tensor.detach() for tensor in recording.inputs]
    return [[seconds(step, inputs) for step in steps] for _ in range(REPEATS)]


def main() -> None:
    print("| net | batch | channels last, ms | as they lie, ms | last / as they lie |\n|---|---|--:|--:|--:|")
    for name, (make, shape) in NETS.items():
        pairs = compare(make(), shape)
        last, kept = (statistics.median(column) * 1e3 for column in zip(*pairs, strict=True))
        ratios = [a / b for a, b in pairs]
        spread = f"{statistics.median(ratios):.2f} ({min(ratios):.2f}-{max(ratios):.2f})"
        print(f"| {name} | {'x'.join(map(str, shape))} | {last:.2f} | {kept:.2f} | {spread} |", flush=True)


if __name__ == "__main__":
    main()
