"""LeNet-5 on handwritten digits in a loop written by hand, over a `DatasetHelper`, as in MindSpore.

    python examples/custom_loop.py --sink-size 100 --epochs 10

In sink mode the loop meets one empty input for each sink, and the connected step takes its batches from the queue.
"""

from __future__ import annotations

import argparse

import torch
from digits import accuracy, digits, lenet5, step_of
from torch.utils.data import DataLoader

from lightning_sink import DatasetHelper, connect_network_with_dataset


def main(argv: list[str] | None = None) -> float:
    parser = argparse.ArgumentParser(description="LeNet-5 on handwritten digits in a loop over a DatasetHelper.")
    parser.add_argument("--sink-size", type=int, default=100, help="steps in a sink; -1: one pass over the dataset")
    parser.add_argument("--epochs", type=int, default=10, help="sinks")
    parser.add_argument("--engine", default="auto", help="what runs the steps")
    args = parser.parse_args(argv)

    torch.manual_seed(0)
    train_set, test_set = digits()
    loader = DataLoader(train_set, batch_size=32, shuffle=True, drop_last=True)
    model = lenet5()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)

    helper = DatasetHelper(loader, dataset_sink_mode=True, sink_size=args.sink_size, epoch_num=args.epochs)
    net = connect_network_with_dataset(step_of(model, optimizer), helper, engine=args.engine)
    for epoch in range(args.epochs):
        for inputs in helper:
            output = net(*inputs)
            print(f"epoch: {epoch + 1}/{args.epochs}, losses: {output.item()}")
    helper.release()
    reached = accuracy(model, test_set)
    print(f"test accuracy {reached:.4f}")
    return reached


if __name__ == "__main__":
    main()
