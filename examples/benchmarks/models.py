"""The modules that the benchmarks train: ordinary Lightning around `nets.py`, and batches that are ready in memory.

Each takes `log_loss`: whether `training_step` logs its loss, as most modules do. `batches(n)` gives `n` distinct
batches.
"""

from __future__ import annotations

import lightning as L
import nets
import torch
from nets import Batch
from torch import Tensor


class Classifier(L.LightningModule):
    """A net of `nets.py`, by the name of the class that is derived from this one; `options` are the net's."""

    name: str

    def __init__(self, log_loss: bool = False, **options: int) -> None:
        super().__init__()
        self.log_loss = log_loss
        self.net = nets.NETS[self.name](**options)

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x)

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        loss = nets.loss(self, batch)
        if self.log_loss:
            self.log("loss", loss, prog_bar=True, batch_size=len(batch[0]))
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return nets.optimizer(self.name, self)

    @classmethod
    def batches(cls, count: int, batch_size: int | None = None) -> list[Batch]:
        return nets.batches(cls.name, count, batch_size)


class MLP(Classifier):
    name = "MLP"


class LeNet(Classifier):
    name = "LeNet"


class SmallGPT(Classifier):
    name = "SmallGPT"


class SmallResNet(Classifier):
    name = "SmallResNet"


class LSTM(Classifier):
    name = "LSTM"


MODELS: dict[str, type[Classifier]] = {kind.name: kind for kind in (MLP, LeNet, SmallGPT, SmallResNet, LSTM)}
