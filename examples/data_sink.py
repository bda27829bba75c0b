"""LeNet-5 on handwritten digits by `data_sink`, without a Trainer: a step, an epoch, and all epochs in one call.

    python examples/data_sink.py --epochs 10

The step is an ordinary PyTorch function. The three ways train the same steps in the same order, from the same seed.
"""

from __future__ import annotations

import argparse
from time import perf_counter

import torch
from digits import accuracy, digits, lenet5, step_of
from torch.utils.data import DataLoader

from lightning_sink import data_sink

WAYS = ("a step", "an epoch", "all epochs")


def train(epochs: int, way: str, engine: str) -> dict[str, float]:
    """Trains from the one seed, with a step, an epoch or all epochs in a call."""
    torch.manual_seed(0)
    train_set, test_set = digits()
    loader = DataLoader(train_set, batch_size=32, shuffle=True, drop_last=True)
    model = lenet5()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)

    steps = epochs * len(loader)
    sink_size = {"a step": 1, "an epoch": len(loader), "all epochs": steps}[way]
    marks = [perf_counter()]
    with data_sink(step_of(model, optimizer), loader, sink_size, engine=engine) as sink_process:
        for call in range(1, steps // sink_size + 1):
            loss = sink_process()
            marks.append(perf_counter())
            if call * sink_size % len(loader) == 0:
                print(f"step {call * sink_size}, loss is {loss.item()}")
    seconds = marks[-1] - marks[0]
    return {"calls": len(marks) - 1, "steps": steps, "seconds": seconds, "accuracy": accuracy(model, test_set)}


def main(argv: list[str] | None = None) -> list[dict[str, float]]:
    parser = argparse.ArgumentParser(description="LeNet-5 on handwritten digits by data_sink, in three ways.")
    parser.add_argument("--epochs", type=int, default=10, help="traversals of the data")
    parser.add_argument("--engine", default="auto", help="what runs the steps")
    args = parser.parse_args(argv)
    figures = []
    for way in WAYS:
        print(f"== {way} in a call ==")
        figures.append(train(args.epochs, way, args.engine))
    print("== results ==")
    for way, each in zip(WAYS, figures, strict=True):
        speed = each["steps"] / each["seconds"]
        print(
            f"{way} in a call: {each['steps']:.0f} steps in {each['seconds']:.1f} s ({speed:.0f} steps/s),"
            f" test accuracy {each['accuracy']:.4f}"
        )
    return figures


if __name__ == "__main__":
    main()
