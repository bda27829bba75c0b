"""Functions that look at values: to take them out, or to refuse wrong ones."""

import numpy as np
import torch
from torch import nn

from gallery.case import Small, case


@case(eager="a value of a tensor decides")
class LogsTheItemOfItsLoss(Small):
    def training_step(self, batch, batch_idx):
        loss = self.loss(batch)
        self.log("loss", loss.item(), on_step=True, on_epoch=True)
        return loss


@case()
class AccuracyByTheIndex(Small):
    """Whole numbers divided by one another are none."""

    def training_step(self, batch, batch_idx):
        right = (self(batch[0]).argmax(1) == batch[1]).sum()
        self.log("of all", right / (1 + batch_idx) / 8)
        return self.loss(batch) * (1 + right / (8 + 8 * batch_idx))


@case()
class CountsFromTheFirstIndexThatItSaw(Small):
    """It keeps the index where nothing can put the number in its place."""

    def __init__(self):
        super().__init__()
        self.first = ()

    def training_step(self, batch, batch_idx):
        if not self.first:
            self.first = (batch_idx + 3,)
        return self.loss(batch) * (1 + (batch_idx + 3) / self.first[0])


@case(eager="a value of a tensor decides")
class KeepsItsIndexInATuple(Small):
    def __init__(self):
        super().__init__()
        self.seen = []

    def training_step(self, batch, batch_idx):
        loss = self.loss(batch)
        self.seen.append((batch_idx, loss.item()))
        return loss

    def on_train_end(self):
        assert {type(index) for index, _ in self.seen} == {int}


@case(inductor=True)
class OneHotTargets(Small):
    def training_step(self, batch, batch_idx):
        wanted = nn.functional.one_hot(batch[1], num_classes=3)
        return nn.functional.mse_loss(self(batch[0]), wanted.to(self.dtype))


@case(eager="a value of a tensor decides")
class AsManyClassesAsThereAre(Small):
    def training_step(self, batch, batch_idx):
        return self.loss(batch) + nn.functional.one_hot(batch[1]).sum()


@case(inductor=True)
class NumbersInATensorThatIsWrittenTo(Small):
    """Made anew in each step: what a program writes there must not be found by the next one."""

    def training_step(self, batch, batch_idx):
        weights = torch.tensor([1.0, 2.0, 3.0])
        weights[0] = weights[2] * 2
        weights.mul_(0.1)
        return (self(batch[0]).square().mean(0) * weights).sum()


@case(eager="a tensor that is made anew in each step of numpy's values is written to")
class ANumpyArrayThatIsWrittenTo(Small):
    def training_step(self, batch, batch_idx):
        weights = torch.from_numpy(np.ones(3, dtype=np.float32))
        weights.mul_(0.5)
        return (self(batch[0]).square().mean(0) * weights).sum()
