"""Is the loader fast enough? Its speed alone, the training's without it, and both together, as in PopTorch's guide.

    python examples/find_bottleneck.py --sinks 20

A training can be no faster than its loader, nor than its steps: the speed of the steps alone is that of a training on
one batch again and again (PopTorch's synthetic data). The first case takes digits as they lie in memory, the second
turns each by a random angle, as a loader with an expensive transform does.
"""

from __future__ import annotations

import argparse
import math
from statistics import median
from time import perf_counter

import lightning as L
import torch
import torch.nn.functional as F
from digits import digits
from lenet_digits import LeNet5
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from lightning_sink import SinkReport, SinkStrategy


class Turned(Dataset):
    """Images turned by up to 15 degrees, another angle each time."""

    def __init__(self, images: Dataset) -> None:
        self.images = images

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        image, label = self.images[index]
        angle = (torch.rand(()).item() - 0.5) * math.pi / 6
        matrix = torch.tensor([[math.cos(angle), -math.sin(angle), 0], [math.sin(angle), math.cos(angle), 0]])
        grid = F.affine_grid(matrix.unsqueeze(0), [1, *image.shape], align_corners=False)
        return F.grid_sample(image.unsqueeze(0), grid, align_corners=False).squeeze(0), label


class Reports(L.Callback):
    """Keeps the report of each sink."""

    def __init__(self) -> None:
        self.found: list[SinkReport] = []

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx) -> None:
        self.found.append(trainer.strategy.sink_report())


def training_speed(loader: DataLoader, sink_size: int, sinks: int, engine: str) -> tuple[float, float]:
    """Items a second in the median sink, and the share of its time in which the steps waited for data."""
    L.seed_everything(0, verbose=False)
    reports = Reports()
    trainer = L.Trainer(
        accelerator="cpu",
        max_epochs=sinks,
        strategy=SinkStrategy(sink_size, engine=engine),
        callbacks=[reports],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(LeNet5(), loader)
    late = reports.found[sinks // 2 :]  # compiled by then
    return median(each.items / each.seconds for each in late), median(each.data_seconds / each.seconds for each in late)


def validate_performance(dataset: Dataset, args: argparse.Namespace) -> None:
    """Prints the three speeds."""
    options = {"batch_size": 32, "shuffle": True, "drop_last": True}
    loader = DataLoader(dataset, num_workers=args.workers, persistent_workers=args.workers > 0, **options)
    began = perf_counter()
    items = sum(len(labels) for _, labels in loader)
    print(f"DataLoader alone: {items / (perf_counter() - began):.0f} items/s")

    batch = next(iter(loader))
    speed, _ = training_speed(DataLoader([batch] * 10, batch_size=None), args.sink_size, args.sinks, args.engine)
    print(f"training on one batch again and again: {speed:.0f} items/s")
    speed, waits = training_speed(loader, args.sink_size, args.sinks, args.engine)
    print(f"training from the DataLoader: {speed:.0f} items/s, {waits:.0%} of the time waiting for data")


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="The speed of a loader, of a training, and of both together.")
    parser.add_argument("--sink-size", type=int, default=50, help="steps in a sink")
    parser.add_argument("--sinks", type=int, default=20, help="sinks of each training; the later half is measured")
    parser.add_argument("--workers", type=int, default=0, help="the DataLoader's processes")
    parser.add_argument("--engine", default="auto", help="what runs the steps")
    args = parser.parse_args(argv)

    train_set, _ = digits()
    print("== digits in memory ==")
    validate_performance(train_set, args)
    print("== each digit turned when it is loaded ==")
    validate_performance(Turned(train_set), args)


if __name__ == "__main__":
    main()
