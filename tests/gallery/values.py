"""Numbers that a step takes out of its tensors, and functions that look at values to refuse wrong ones."""

from collections import deque

import numpy as np
import torch
from torch import nn

from gallery.case import Small, case


@case(inductor=True)
class LogsTheItemOfItsLoss(Small):
    def training_step(self, batch, batch_idx):
        loss = self.loss(batch)
        self.log("loss", loss.item(), on_step=True, on_epoch=True)
        return loss


@case()
class LogsItemsWhenABatchEnds(Small):
    def on_train_batch_end(self, outputs, batch, batch_idx):
        self.log_dict({"loss": outputs["loss"].item(), "of class 0": (batch[1] == 0).sum().item()})


@case(inductor=True)
class ComputesWithItems(Small):
    def training_step(self, batch, batch_idx):
        x, y = batch
        scale, count = x.std().item(), (y > 0).sum().item()
        losses = nn.functional.cross_entropy(self(x / scale) * (scale**2 + 0.5), y, reduction="none")
        self.log("mean", (count // 2 + scale) / 2)
        return (losses * (y > 0)).sum() / (count + 1) + torch.tensor(scale)


@case(eager="a value of a tensor decides")
class TakesAnItemOfWhatItWritesToLater(Small):
    def __init__(self):
        super().__init__()
        self.register_buffer("seen", torch.zeros(()))

    def training_step(self, batch, batch_idx):
        seen = self.seen.item()
        self.seen += batch[0].mean()
        self.log("seen before", seen)
        return self.loss(batch) * (1 + 0.1 * seen)


@case()
class MeanOfItemsByNumpy(Small):
    def training_step(self, batch, batch_idx):
        loss = self.loss(batch)
        self.log("mean", float(np.float64(0.5)) * (loss.item() + batch[0].mean().item()))
        return loss


@case(eager="the step keeps a value of a tensor")
class KeepsItemsInADeque(Small):
    def __init__(self):
        super().__init__()
        self.losses = deque(maxlen=4)

    def training_step(self, batch, batch_idx):
        loss = self.loss(batch)
        self.losses.append(loss.item())
        self.log("of late", sum(self.losses) / len(self.losses))
        return loss


@case(eager="the step keeps a value of a tensor")
class AddsItemsUp(Small):
    total = 0.0

    def training_step(self, batch, batch_idx):
        loss = self.loss(batch)
        self.total += loss.item()
        return loss


@case(eager="a value of a tensor decides")
class CutsItsLossByAnItem(Small):
    def training_step(self, batch, batch_idx):
        loss = self.loss(batch)
        return loss * min(1.0, 1 / loss.item())


@case(eager="a value of a tensor is read")
class TakesAsManyRowsAsAnItemSays(Small):
    def training_step(self, batch, batch_idx):
        most = 1 + batch[1].max().item()
        return self.loss((batch[0][:most], batch[1][:most]))


@case(inductor=True)
class OneHotTargets(Small):
    def training_step(self, batch, batch_idx):
        wanted = nn.functional.one_hot(batch[1], num_classes=3)
        return nn.functional.mse_loss(self(batch[0]), wanted.to(self.dtype))


@case(eager="a value of a tensor decides")
class AsManyClassesAsThereAre(Small):
    def training_step(self, batch, batch_idx):
        return self.loss(batch) + nn.functional.one_hot(batch[1]).sum()
