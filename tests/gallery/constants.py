"""Tensors that a step makes of numbers, and what Python, or the shape of others, takes of them."""

import torch

from gallery.case import Small, case


@case()
class RepeatsByAConstant(Small):
    """How NHiTS has it."""

    def loss(self, batch):
        x, y = batch
        out = self(x).unsqueeze(1).repeat_interleave(torch.tensor([2]), dim=1)
        return torch.nn.functional.cross_entropy(out.mean(1), y)


@case()
class SumsOverDimensionsInAList(Small):
    """How MONAI's losses have it."""

    def loss(self, batch):
        x, y = batch
        out = self(x)[:, :, None, None]
        dimensions = torch.arange(2, len(out.shape)).tolist()
        return torch.nn.functional.cross_entropy(out.sum(dim=dimensions), y)


class OfABuffer(Small):
    def __init__(self):
        super().__init__()
        self.register_buffer("repeats", torch.tensor([1, 3, 2]))

    def loss(self, batch):
        x, y = batch
        repeated = self(x).repeat_interleave(self.repeats, dim=1)
        repeated = repeated * torch.tensor(self.repeats.tolist()).repeat_interleave(self.repeats)
        return super().loss(batch) + 0.001 * repeated.square().mean()


@case()
class RepeatsByABuffer(OfABuffer):
    pass


@case()
class RepeatsByABufferThatAnEpochChanges(OfABuffer):
    def on_train_epoch_end(self):
        self.repeats.add_(1)


@case(eager="a value of a tensor decides")
class RepeatsByABufferThatStepsChange(OfABuffer):
    def training_step(self, batch, batch_idx):
        loss = self.loss(batch)
        self.repeats.add_(1)
        return loss


@case()
class TakesTheSamePlacesEachTime(Small):
    """Writes to what it has found, too."""

    def loss(self, batch):
        x, y = batch
        places = torch.eye(6).flip(0).nonzero()
        picked, counts = torch.unique(torch.tensor([3, 1, 3, 2]), return_counts=True)
        places[:, 0] += 1
        out = self(x[:, places[:, 1]]) * (places.sum() / 30) + counts.sum() * picked.sum() / 100
        return torch.nn.functional.cross_entropy(out, y)


@case(eager="takes values out of the step")
class AListOfTheBatchs(Small):
    def loss(self, batch):
        x, y = batch
        return super().loss(batch) * (1 + sum(y.tolist()) / 100)
