"""The modules that the benchmarks train: ordinary Lightning, and batches for them that are ready in memory.

Each takes `log_loss`: whether `training_step` logs its loss, as most modules do. `batches(n, seed)` gives `n` distinct
batches; their values are random, since only the speed is of interest here.
"""

from __future__ import annotations

import lightning as L
import torch
import torch.nn.functional as F
from torch import Tensor, nn

Batch = tuple[Tensor, Tensor]


class _Classifier(L.LightningModule):
    def __init__(self, log_loss: bool = False) -> None:
        super().__init__()
        self.log_loss = log_loss

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        x, y = batch
        logits = self(x)
        loss = F.cross_entropy(logits.flatten(0, -2), y.flatten())
        if self.log_loss:
            self.log("loss", loss, prog_bar=True, batch_size=len(x))
        return loss


class MLP(_Classifier):
    """64-64-64-10, batch 32, Adam."""

    def __init__(self, log_loss: bool = False) -> None:
        super().__init__(log_loss)
        self.net = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=1e-3)

    @staticmethod
    def batches(n: int, seed: int = 0) -> list[Batch]:
        g = torch.Generator().manual_seed(seed)
        return [(torch.randn(32, 64, generator=g), torch.randint(10, (32,), generator=g)) for _ in range(n)]


class LeNet(_Classifier):
    """LeNet-5, batch 32 of 1x32x32, SGD with momentum."""

    def __init__(self, log_loss: bool = False) -> None:
        super().__init__(log_loss)
        self.net = nn.Sequential(
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

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.01, momentum=0.9)

    @staticmethod
    def batches(n: int, seed: int = 0) -> list[Batch]:
        g = torch.Generator().manual_seed(seed)
        return [(torch.randn(32, 1, 32, 32, generator=g), torch.randint(10, (32,), generator=g)) for _ in range(n)]


class _Block(nn.Module):
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


class SmallGPT(_Classifier):
    """4 layers, width 64, 4 heads, context 32, vocabulary 65, batch 8x32, AdamW."""

    def __init__(self, log_loss: bool = False, vocab: int = 65, context: int = 32, width: int = 64) -> None:
        super().__init__(log_loss)
        self.tokens = nn.Embedding(vocab, width)
        self.positions = nn.Parameter(0.02 * torch.randn(context, width))
        self.blocks = nn.Sequential(*(_Block(width, heads=4) for _ in range(4)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocab, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.tokens(tokens) + self.positions[: tokens.shape[1]]
        return self.head(self.norm(self.blocks(x)))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=3e-4)

    @staticmethod
    def batches(n: int, seed: int = 0) -> list[Batch]:
        g = torch.Generator().manual_seed(seed)
        windows = [torch.randint(65, (8, 33), generator=g) for _ in range(n)]
        return [(w[:, :-1].contiguous(), w[:, 1:].contiguous()) for w in windows]


MODELS: dict[str, type[_Classifier]] = {"MLP": MLP, "LeNet": LeNet, "SmallGPT": SmallGPT}
