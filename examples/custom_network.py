"""A training network of one's own on handwritten digits, and one call of it, as in MindSpore's guide to training.

    python examples/custom_network.py --sink-size 1000

The network, its loss and the step around both are written by hand; the step scales its gradients. What MindSpore builds
of cells (`WithLossCell`, `TrainOneStepCell`) is a function here.
"""

from __future__ import annotations

import argparse

import torch
import torch.nn.functional as F
from digits import accuracy, digits
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from lightning_sink import data_sink


class ReLUReduceMeanDense(nn.Module):
    """Rectifies its inputs, takes each channel's mean, and reads the class off these by one dense layer."""

    def __init__(self, kernel: Tensor, bias: Tensor) -> None:
        super().__init__()
        self.kernel, self.bias = nn.Parameter(kernel), nn.Parameter(bias)

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x.relu().mean((2, 3)), self.kernel, self.bias)


def in_channels(data: TensorDataset) -> TensorDataset:
    """Images as 64 channels of 4x4 pixels, a patch of the image in each."""
    images, labels = data.tensors
    return TensorDataset(F.unfold(images, 4, stride=4).transpose(1, 2).reshape(-1, 64, 4, 4), labels)


def main(argv: list[str] | None = None) -> float:
    parser = argparse.ArgumentParser(description="A dense layer over means of handwritten digits, trained in one call.")
    parser.add_argument("--sink-size", type=int, default=1000, help="steps of the call")
    parser.add_argument("--engine", default="auto", help="what runs the steps")
    args = parser.parse_args(argv)

    torch.manual_seed(0)
    train_set, test_set = map(in_channels, digits())
    net = ReLUReduceMeanDense(torch.ones(10, 64), torch.ones(10))
    optimizer = torch.optim.SGD((p for p in net.parameters() if p.requires_grad), lr=0.1, momentum=0.1)
    sens = torch.tensor(2.0)  # what the gradients are multiplied with

    def train_network(images: Tensor, labels: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(net(images), labels)
        loss.backward(sens)
        optimizer.step()
        return loss

    loader = DataLoader(train_set, batch_size=32, shuffle=True, drop_last=True)
    with data_sink(train_network, loader, args.sink_size, engine=args.engine) as sink:
        print("-------loss------", sink().item())
        print("the first and the last of the call:", sink.history["loss"][[0, -1]].tolist())
    reached = accuracy(net, test_set)
    print(f"test accuracy {reached:.4f}")
    return reached


if __name__ == "__main__":
    main()
