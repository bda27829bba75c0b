"""What the examples train: LeNet-5, and the 1,797 real images of handwritten digits that come with scikit-learn."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import Tensor, nn
from torch.utils.data import TensorDataset


def lenet5() -> nn.Sequential:
    """LeNet-5 without biases in its convolutions, as in MindSpore's examples."""
    return nn.Sequential(
        nn.Conv2d(1, 6, 5, bias=False),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(6, 16, 5, bias=False),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(16 * 5 * 5, 120),
        nn.ReLU(),
        nn.Linear(120, 84),
        nn.ReLU(),
        nn.Linear(84, 10),
    )


def digits() -> tuple[TensorDataset, TensorDataset]:
    """Images and labels for training and for testing, resized from 8x8 to the 32x32 that LeNet-5 reads."""
    found = load_digits()
    images = torch.from_numpy(found.images).float().unsqueeze(1) / 16
    images = F.interpolate(images, size=(32, 32), mode="bilinear", align_corners=False)
    labels = torch.from_numpy(found.target).long()
    rows = torch.arange(len(labels))
    train, test = train_test_split(rows, test_size=0.2, random_state=0, stratify=labels)
    mean, std = images[train].mean(), images[train].std()
    images = (images - mean) / std
    return TensorDataset(images[train], labels[train]), TensorDataset(images[test], labels[test])


def step_of(model: nn.Module, optimizer: torch.optim.Optimizer) -> Callable[[Tensor, Tensor], Tensor]:
    """An ordinary PyTorch step: forward, backward, optimizer; it returns the loss."""

    def train_step(images: Tensor, labels: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        return loss

    return train_step


@torch.no_grad()
def accuracy(model: nn.Module, data: TensorDataset) -> float:
    """The share of images that a model reads right."""
    images, labels = data.tensors
    return (model(images).argmax(1) == labels).float().mean().item()
