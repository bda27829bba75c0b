"""Gradients of the batches themselves: saliency, penalties, adversarial examples."""

import torch
from torch import nn

from gallery.case import Kept, Small, add, case
from parity import loader

LEFT = "the gradient that steps leave on a batch"


class Penalized(Small):
    """A penalty on the slope. Its backward pass leaves a gradient on the batch, which nobody looks at."""

    def training_step(self, batch, batch_idx):
        x = batch[0].requires_grad_()
        loss = self.loss((x, batch[1]))
        (slope,) = torch.autograd.grad(loss, x, create_graph=True)
        return loss + slope.square().sum()


add("penalty on the slope at the batch", Penalized)


class OneBatch(Kept):
    def __init__(self):
        super().__init__()
        self.batches = self.batches[:1] * 9


@case(data=OneBatch)
class PenaltyOnTheSlopeAtTheOneBatchThereIs(Penalized):
    """As where a network is fitted to an equation: all points in one batch, which comes again and again."""


class Adversarial(Small):
    """Trains at points that are a little worse."""

    def training_step(self, batch, batch_idx):
        x = self.started(batch[0])
        self.loss((x, batch[1])).backward()
        worse = x.detach() + 0.1 * x.grad.sign()
        self.zero_grad()
        return self.loss((worse, batch[1]))

    def started(self, x):
        return x.requires_grad_()


add("adversarial examples", Adversarial)
add("adversarial examples of batches that come again", Adversarial, data=Kept, eager=LEFT, line="x.grad.sign()")


@case(data=Kept)
class AdversarialExamplesOfBatchesInTheirOwnMemory(Adversarial):
    def started(self, x):
        return x.detach().requires_grad_()


@case(data=Kept)
class AdversarialExamplesOfBatchesWhoseGradientIsTakenAway(Adversarial):
    def started(self, x):
        x.grad = None
        return x.requires_grad_()


@case(data=Kept, eager=LEFT, line="if x.grad is not None")
class LooksAtWhatIsLeftOnTheBatch(Small):
    def training_step(self, batch, batch_idx):
        x = batch[0].requires_grad_()
        loss = self.loss((x, batch[1]))
        if x.grad is not None:
            loss = loss * (1 + x.grad.square().sum())
        return loss


@case(data=loader)
class LooksAtWhatIsLeftOnBatchesOfALoaders(LooksAtWhatIsLeftOnTheBatch):
    """Nothing is: they are made anew."""


class Embedded(Small):
    def training_step(self, batch, batch_idx):
        x = batch[0].requires_grad_()
        hidden = self.net[1](self.net[0](x))
        return nn.functional.cross_entropy(self.net[2](hidden), batch[1])


add("gradients on batches that come again", Embedded, data=Kept, eager="comes with a gradient that a step before")
