"""The models in plain PyTorch, their loss and their optimizer; `models.py` makes LightningModules of them."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from job import Trained
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset
from workload import WORKLOADS
from workload import batches as arrays

Batch = tuple[Tensor, Tensor]


class MLP(nn.Sequential):
    """64 to `width`, `depth` hidden layers, to 10."""

    def __init__(self, width: int = 64, depth: int = 2) -> None:
        widths = [64] + [width] * depth
        hidden = [layer for a, b in zip(widths, widths[1:], strict=False) for layer in (nn.Linear(a, b), nn.ReLU())]
        super().__init__(*hidden, nn.Linear(widths[-1], 10))


class LeNet(nn.Sequential):
    """LeNet-5 for 1x32x32."""

    def __init__(self) -> None:
        super().__init__(
            nn.Conv2d(1, 6, 5),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(6, 16, 5),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(16 * 5 * 5, 120),
            nn.ReLU(),
            nn.Linear(120, 84),
            nn.ReLU(),
            nn.Linear(84, 10),
        )


class _Attention(nn.Module):
    """Pre-norm transformer block: causal self-attention, then an MLP, each added to its input."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        # (batch, time, 3 * width) -> three of (batch, heads, time, width / heads)
        q, k, v = self.qkv(self.norm1(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).flatten(2))
        return x + self.mlp(self.norm2(x))


class SmallGPT(nn.Module):
    """4 layers, width 64, 4 heads, context 32, vocabulary 65."""

    def __init__(self, vocab: int = 65, context: int = 32, width: int = 64) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocab, width)
        self.positions = nn.Parameter(0.02 * torch.randn(context, width))
        self.blocks = nn.Sequential(*(_Attention(width, heads=4) for _ in range(4)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocab, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.tokens(tokens) + self.positions[: tokens.shape[1]]
        return self.head(self.norm(self.blocks(x)))


def _convolved(inputs: int, outputs: int, size: int, stride: int = 1) -> nn.Sequential:
    convolution = nn.Conv2d(inputs, outputs, size, stride, padding=size // 2, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(outputs))


class _Residual(nn.Module):
    """A basic block: two convolutions beside a shortcut, which is one of 1x1 where the shape changes."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.first = _convolved(inputs, outputs, 3, stride)
        self.second = _convolved(outputs, outputs, 3)
        self.shortcut = nn.Identity() if inputs == outputs else _convolved(inputs, outputs, 1, stride)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.second(F.relu(self.first(x))) + self.shortcut(x))


class SmallResNet(nn.Module):
    """For 3x32x32: a stem of 16 channels, three blocks of 16, 32 and 64, the mean over the image, a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = _convolved(3, 16, 3)
        self.blocks = nn.Sequential(_Residual(16, 16, 1), _Residual(16, 32, 2), _Residual(32, 64, 2))
        self.head = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.blocks(F.relu(self.stem(x))).mean((2, 3)))


class LSTM(nn.Module):
    """One layer of 64 over 32 time steps of 32 features, a linear layer on the last."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(32, 64, batch_first=True)
        self.head = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.lstm(x)[0][:, -1])


NETS: dict[str, type[nn.Module]] = {
    "MLP": MLP,
    "LeNet": LeNet,
    "SmallGPT": SmallGPT,
    "SmallResNet": SmallResNet,
    "LSTM": LSTM,
}


def loss(net: nn.Module, batch: Batch) -> Tensor:
    """The mean cross-entropy, over the batch and, of tokens, over time."""
    x, y = batch
    return F.cross_entropy(net(x).flatten(0, -2), y.flatten())


def optimizer(model: str, net: nn.Module) -> torch.optim.Optimizer:
    """The optimizer that the model's workload names."""
    told = WORKLOADS[model].optimizer
    if told.kind == "sgd":
        return torch.optim.SGD(net.parameters(), lr=told.rate, momentum=told.momentum)
    kind = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}[told.kind]
    return kind(net.parameters(), told.rate, told.betas, told.epsilon, told.weight_decay)


def batches(model: str, count: int, batch_size: int | None = None, seed: int = 0) -> list[Batch]:
    """The workload's batches as tensors."""
    return [(torch.from_numpy(x), torch.from_numpy(y)) for x, y in arrays(model, count, batch_size, seed)]


def shuffled(found: list[Batch]) -> DataLoader:
    """A loader that draws the same examples in another order each time."""
    dataset = TensorDataset(torch.cat([x for x, _ in found]), torch.cat([y for _, y in found]))
    return DataLoader(dataset, batch_size=len(found[0][0]), shuffle=True)


def synchronize() -> None:
    """Waits for the work that an accelerator still has to do."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def trained(net: nn.Module, loss: float, accelerator: str) -> Trained:
    """What a training of the net reports."""
    parameters = sum(p.numel() for p in net.parameters() if p.requires_grad)
    device = torch.cuda.get_device_name() if accelerator == "cuda" else "CPU"
    return Trained(loss=loss, parameters=parameters, threads=torch.get_num_threads(), device=device)
