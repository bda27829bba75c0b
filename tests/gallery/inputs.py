"""Gradients of the batches themselves: saliency, penalties, adversarial examples."""

import torch
from torch import nn
from torch.utils.data import DataLoader

from gallery.case import Kept, Small, add, case
from parity import loader

LEFT = "leaves a gradient, or what asks for one, on a tensor of the batch"


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


@case(data=OneBatch, eager=LEFT)
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
add("adversarial examples of batches that come again", Adversarial, data=Kept, eager=LEFT)


@case(data=Kept)
class AdversarialExamplesOfBatchesInTheirOwnMemory(Adversarial):
    def started(self, x):
        return x.detach().requires_grad_()


@case(data=Kept, eager=LEFT)
class AdversarialExamplesOfBatchesWhoseGradientIsTakenAway(Adversarial):
    def started(self, x):
        x.grad = None
        return x.requires_grad_()


@case(data=Kept, eager=LEFT)
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


add("gradients on batches that come again", Embedded, data=Kept, eager=LEFT)


class Late(Adversarial):
    """Leaves a gradient in each step, and looks at it in later ones."""

    def training_step(self, batch, batch_idx):
        return (
            Embedded.training_step(self, batch, batch_idx)
            if self.is_early()
            else super().training_step(batch, batch_idx)
        )

    def is_early(self):
        return self.current_epoch < 2


add("adversarial examples late", Late, options={"max_epochs": 4})
add("adversarial examples late, of batches that come again", Late, data=Kept, options={"max_epochs": 4}, eager=LEFT)


class Read(Embedded):
    def on_train_epoch_end(self):
        first = next(iter(self.trainer.train_dataloader))
        self.log("slope", first[0].grad.norm())


add("gradients on batches, read behind the epoch", Read, data=Kept, eager=LEFT)


class Hooked(Small):
    def training_step(self, batch, batch_idx):
        x = batch[0].requires_grad_()
        x.register_hook(lambda slope: 0.5 * slope)
        loss = self.loss((x, batch[1]))
        (slope,) = torch.autograd.grad(loss, x, create_graph=True)
        return loss + slope.square().sum()


add("hooks on batches", Hooked)
add("hooks on batches that come again", Hooked, data=Kept, eager=LEFT)


class Changes(Adversarial):
    """The first loader's batches are made anew, the second one's come again."""

    def train_dataloader(self):
        return loader(9, last=8) if self.current_epoch < 2 else DataLoader(Kept().batches, batch_size=None)


def none():
    return None


add(
    "adversarial examples of another loader",
    Changes,
    data=none,
    options={"max_epochs": 6, "reload_dataloaders_every_n_epochs": 1},
    eager=LEFT,
)


class Again(Adversarial):
    """Insists on a text where the gradient is there already, which a recorded step has no text for."""

    def training_step(self, batch, batch_idx):
        loss = super().training_step(batch[:2], batch_idx)
        return loss * (1 + len(",".join(batch[2])) % 7)


def named():
    x, y = loader(9, last=8).dataset.tensors
    return DataLoader([(*both, f"{number}.png") for number, both in enumerate(zip(x, y, strict=True))], batch_size=8)


add("adversarial examples, with texts", Again, data=named, few=True)
