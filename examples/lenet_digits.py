"""LeNet-5 on handwritten digits, trained by plain Lightning and then in sinks.

    python examples/lenet_digits.py --sink-size 100 --epochs 10

The module and the data module are ordinary Lightning; the second run differs from the first in one argument of the
Trainer. In sinks an epoch is one sink of `sink_size` batches and the dataset is traversed endlessly, so the plain run
gets the same number of steps through `max_steps`. The data are the 1,797 real images that come with scikit-learn.
"""

from __future__ import annotations

import argparse
from itertools import pairwise
from statistics import median
from time import perf_counter

import lightning as L
import torch
import torch.nn.functional as F
from digits import digits, lenet5
from torch.utils.data import DataLoader

from lightning_sink import LossMonitor, SinkStrategy


class LeNet5(L.LightningModule):
    def __init__(self, lr: float = 0.01, momentum: float = 0.9) -> None:
        super().__init__()
        self.lr = lr
        self.momentum = momentum
        self.net = lenet5()

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.net(images)

    def training_step(self, batch: list[torch.Tensor], batch_idx: int) -> torch.Tensor:
        images, labels = batch
        return F.cross_entropy(self(images), labels)

    def test_step(self, batch: list[torch.Tensor], batch_idx: int) -> None:
        images, labels = batch
        hits = (self(images).argmax(dim=1) == labels).float().mean()
        self.log("test_accuracy", hits, batch_size=len(labels))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=self.lr, momentum=self.momentum)


class Digits(L.LightningDataModule):
    def __init__(self, batch_size: int = 32) -> None:
        super().__init__()
        self.batch_size = batch_size

    def setup(self, stage: str) -> None:
        self.train_set, self.test_set = digits()

    def train_dataloader(self) -> DataLoader:
        return DataLoader(self.train_set, batch_size=self.batch_size, shuffle=True)

    def test_dataloader(self) -> DataLoader:
        return DataLoader(self.test_set, batch_size=self.batch_size)


class Clock(L.Callback):
    """Notes the time at the start and whenever the host is told of finished steps."""

    def __init__(self) -> None:
        self.marks: list[tuple[int, float]] = []  # (optimizer steps done, seconds)

    def on_train_start(self, trainer, pl_module) -> None:
        self.marks.append((trainer.global_step, perf_counter()))

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx) -> None:
        self.marks.append((trainer.global_step, perf_counter()))

    def speed(self, first: int = 0) -> float:
        """Steps per second from mark `first` to the last one."""
        (step0, time0), (step1, time1) = self.marks[first], self.marks[-1]
        return (step1 - step0) / (time1 - time0) if time1 > time0 else float("nan")

    def typical_speed(self) -> float:
        """The median over the visits to the host after the first: what a long run comes to."""
        speeds = [(step1 - step0) / (time1 - time0) for (step0, time0), (step1, time1) in pairwise(self.marks[1:])]
        return median(speeds) if speeds else float("nan")


def train(callbacks: list[L.Callback], **options) -> tuple[Clock, float]:
    """Train LeNet-5 from the one seed and test it: the clock of the run, and the accuracy."""
    L.seed_everything(0, verbose=False)
    clock = Clock()
    trainer = L.Trainer(
        accelerator="cpu",
        callbacks=[clock, *callbacks],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        **options,
    )
    module, data = LeNet5(), Digits()
    trainer.fit(module, datamodule=data)
    (result,) = trainer.test(module, datamodule=data, verbose=False)
    return clock, result["test_accuracy"]


def main(argv: list[str] | None = None) -> dict[str, float]:
    parser = argparse.ArgumentParser(description="LeNet-5 on handwritten digits, plain and in sinks.")
    parser.add_argument("--sink-size", type=int, default=100, help="steps per sink; -1: one pass over the dataset")
    parser.add_argument("--epochs", type=int, default=10, help="epochs; in sinks an epoch is one sink")
    parser.add_argument("--engine", default="auto", help="what runs the steps of a sink")
    args = parser.parse_args(argv)

    print("== plain Lightning ==")
    length = {"max_epochs": args.epochs} if args.sink_size == -1 else {"max_steps": args.epochs * args.sink_size}
    plain, plain_accuracy = train([], **length)

    print("== the same, in sinks ==")
    strategy = SinkStrategy(sink_size=args.sink_size, engine=args.engine)
    sink, sink_accuracy = train([LossMonitor()], max_epochs=args.epochs, strategy=strategy)

    figures = {
        "steps": plain.marks[-1][0],
        "sink_steps": sink.marks[-1][0],
        "accuracy": plain_accuracy,
        "sink_accuracy": sink_accuracy,
        "steps_per_s": plain.speed(),
        "sink_steps_per_s": sink.speed(),
        "sink_steps_per_s_after_first": sink.speed(first=1),
        "sink_steps_per_s_typical": sink.typical_speed(),
        "first_sink_s": sink.marks[1][1] - sink.marks[0][1],
    }
    print("== results ==")
    print(f"plain: {figures['steps']} steps, test accuracy {plain_accuracy:.4f}, {figures['steps_per_s']:.0f} steps/s")
    print(
        f"sinks: {figures['sink_steps']} steps, test accuracy {sink_accuracy:.4f}, "
        f"{figures['sink_steps_per_s']:.0f} steps/s in all"
    )
    print(
        f"  the first sink took {figures['first_sink_s']:.1f} s with recording and compiling; "
        f"{figures['sink_steps_per_s_after_first']:.0f} steps/s after it, "
        # The last batch of a pass is smaller and has a program of its own, often compiled in the second sink.
        f"{figures['sink_steps_per_s_typical']:.0f} steps/s in the median sink"
    )
    return figures


if __name__ == "__main__":
    main()
