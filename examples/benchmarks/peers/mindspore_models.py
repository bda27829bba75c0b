"""The models in MindSpore. Images are channels, height, width, which is MindSpore's own order."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from mindspore import Parameter, Tensor, nn, ops


def mlp() -> nn.Cell:
    return nn.SequentialCell(nn.Dense(64, 64), nn.ReLU(), nn.Dense(64, 64), nn.ReLU(), nn.Dense(64, 10))


def lenet() -> nn.Cell:
    return nn.SequentialCell(
        nn.Conv2d(1, 6, 5, pad_mode="valid", has_bias=True),
        nn.ReLU(),
        nn.MaxPool2d(2, 2),
        nn.Conv2d(6, 16, 5, pad_mode="valid", has_bias=True),
        nn.ReLU(),
        nn.MaxPool2d(2, 2),
        nn.Flatten(),
        nn.Dense(16 * 5 * 5, 120),
        nn.ReLU(),
        nn.Dense(120, 84),
        nn.ReLU(),
        nn.Dense(84, 10),
    )


class Attention(nn.Cell):
    """Pre-norm transformer block; attention is written out, since there is no fused one on a CPU."""

    def __init__(self, width: int, heads: int, context: int) -> None:
        super().__init__()
        self.heads, self.scale = heads, (width // heads) ** -0.5
        self.norm1, self.norm2 = nn.LayerNorm((width,), epsilon=1e-5), nn.LayerNorm((width,), epsilon=1e-5)
        self.qkv, self.out = nn.Dense(width, 3 * width), nn.Dense(width, width)
        self.mlp = nn.SequentialCell(nn.Dense(width, 4 * width), nn.GELU(approximate=False), nn.Dense(4 * width, width))
        self.hidden = Tensor(np.triu(np.full((context, context), -1e9, np.float32), k=1))

    def construct(self, x: Tensor) -> Tensor:
        batch, time, width = x.shape
        split = self.qkv(self.norm1(x)).reshape(batch, time, 3, self.heads, -1).transpose(2, 0, 3, 1, 4)
        scores = ops.matmul(split[0], split[1].swapaxes(-1, -2)) * self.scale + self.hidden
        attended = ops.matmul(ops.softmax(scores, axis=-1), split[2]).swapaxes(1, 2).reshape(batch, time, width)
        x = x + self.out(attended)
        return x + self.mlp(self.norm2(x))


class SmallGPT(nn.Cell):
    def __init__(self, vocab: int = 65, context: int = 32, width: int = 64) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocab, width)
        first = 0.02 * np.random.default_rng(0).standard_normal((context, width))
        self.positions = Parameter(Tensor(first.astype(np.float32)), name="positions")
        self.blocks = nn.SequentialCell(*(Attention(width, 4, context) for _ in range(4)))
        self.norm = nn.LayerNorm((width,), epsilon=1e-5)
        self.head = nn.Dense(width, vocab, has_bias=False)

    def construct(self, tokens: Tensor) -> Tensor:
        return self.head(self.norm(self.blocks(self.tokens(tokens) + self.positions)))


def convolved(inputs: int, outputs: int, size: int, stride: int = 1) -> nn.Cell:
    convolution = nn.Conv2d(inputs, outputs, size, stride, pad_mode="pad", padding=size // 2)
    return nn.SequentialCell(convolution, nn.BatchNorm2d(outputs, eps=1e-5, momentum=0.9))


class Residual(nn.Cell):
    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.first, self.second = convolved(inputs, outputs, 3, stride), convolved(outputs, outputs, 3)
        self.shortcut = nn.Identity() if inputs == outputs else convolved(inputs, outputs, 1, stride)

    def construct(self, x: Tensor) -> Tensor:
        return ops.relu(self.second(ops.relu(self.first(x))) + self.shortcut(x))


class SmallResNet(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.stem = convolved(3, 16, 3)
        self.blocks = nn.SequentialCell(Residual(16, 16, 1), Residual(16, 32, 2), Residual(32, 64, 2))
        self.head = nn.Dense(64, 10)

    def construct(self, x: Tensor) -> Tensor:
        return self.head(self.blocks(ops.relu(self.stem(x))).mean((2, 3)))


class LSTM(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(32, 64, batch_first=True)
        self.head = nn.Dense(64, 10)

    def construct(self, x: Tensor) -> Tensor:
        return self.head(self.lstm(x)[0][:, -1])


MODELS: dict[str, Callable[[], nn.Cell]] = {
    "MLP": mlp,
    "LeNet": lenet,
    "SmallGPT": SmallGPT,
    "SmallResNet": SmallResNet,
    "LSTM": LSTM,
}
