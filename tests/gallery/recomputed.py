"""What is computed twice, with the same random numbers both times: activation checkpointing, generators set back."""

from contextlib import ExitStack

import torch
from torch import nn
from torch.nn.functional import cross_entropy, dropout, scaled_dot_product_attention
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

from gallery.case import Small, add, case

SET_BACK = "a random generator is set back"


class Checkpointed(Small):
    """Two halves that are not kept for the backward pass, each with random draws of its own."""

    reentrant = False

    def __init__(self):
        super().__init__()
        self.first = nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.3), nn.Tanh(), nn.Linear(8, 8), nn.Dropout(0.2))
        self.second = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5), nn.Tanh())
        self.last = nn.Sequential(nn.Dropout(0.1), nn.Linear(8, 3))

    def again(self, part, x):
        return checkpoint(part, x, use_reentrant=self.reentrant)

    def training_step(self, batch, batch_idx):
        hidden = self.again(self.second, self.again(self.half, batch[0]))
        return cross_entropy(self.last(hidden), batch[1])

    def half(self, x):
        return self.first(x)


add("dropout in checkpoints", Checkpointed, inductor=True)
add("dropout in checkpoints, batches accumulated", Checkpointed, options={"accumulate_grad_batches": 2})


@case()
class DropoutInCheckpointsOfTheFormerKind(Checkpointed):
    reentrant = True

    def training_step(self, batch, batch_idx):
        hidden = self.again(self.second, self.again(self.half, batch[0].detach().requires_grad_()))
        return cross_entropy(self.last(hidden), batch[1])


@case()
class DropoutInASequenceOfCheckpoints(Checkpointed):
    def training_step(self, batch, batch_idx):
        both = nn.Sequential(*self.first, *self.second)
        return cross_entropy(self.last(checkpoint_sequential(both, 3, batch[0], use_reentrant=False)), batch[1])


@case()
class CheckpointsInACheckpoint(Checkpointed):
    def half(self, x):
        return dropout(self.again(self.first, dropout(x, 0.4)), 0.3)


@case()
class NoDropoutInACheckpoint(Small):
    def training_step(self, batch, batch_idx):
        hidden = checkpoint(nn.Sequential(*self.net[:2]), batch[0], use_reentrant=False)
        return cross_entropy(self.net[2](hidden), batch[1])


@case()
class NoiseOfManyKindsInACheckpoint(Checkpointed):
    def half(self, x):
        hidden = self.first(x + 0.1 * torch.randn_like(x)) * torch.rand(8)
        hidden = hidden + torch.empty_like(hidden).exponential_().clamp(max=3) + torch.randint(0, 3, (8,))
        return nn.functional.alpha_dropout(hidden[:, torch.randperm(8)], 0.2, training=True)


@case()
class WhatIsDrawnIsWrittenToInACheckpoint(Checkpointed):
    def half(self, x):
        noise = torch.randn_like(x).mul_(0.2)
        hidden = self.first(x + noise)
        noise.add_(hidden[:, :6].detach())
        return hidden + noise.sum()


@case()
class AttentionWithDropoutInACheckpoint(Checkpointed):
    def half(self, x):
        hidden = self.first(x).view(1, 2, -1, 4)
        return scaled_dot_product_attention(hidden, hidden, hidden, dropout_p=0.3).reshape(-1, 8)


@case()
class CheckpointWhoseEndIsNotComputedAgain(Checkpointed):
    """The second time ends where all is there that the backward pass needs: before the last draw."""

    def half(self, x):
        return self.first(x) + torch.rand(8)


@case(eager="what is drawn again depends on a tensor")
class ProbabilitiesInACheckpoint(Checkpointed):
    def half(self, x):
        hidden = self.first(x)
        return hidden * torch.bernoulli(hidden.detach().sigmoid())


@case(eager="something else is drawn than before")
class AnotherDrawTheSecondTime(Checkpointed):
    """A checkpoint with an end of its own each time."""

    def __init__(self):
        super().__init__()
        self.evaluated = False

    def half(self, x):
        hidden = self.first[0](x)
        return hidden * (torch.rand(8) if torch.is_grad_enabled() and self.times() else torch.randn(8))

    def times(self):
        return torch._C._current_graph_task_id() < 0  # in the backward pass, there is one


class Fork(Small):
    """Draws that nothing behind them is to notice."""

    def training_step(self, batch, batch_idx):
        with torch.random.fork_rng(devices=[]):
            noise = torch.randn_like(batch[0])
        return self.behind(batch[0] + 0.1 * noise, batch[1])

    def behind(self, x, y):
        return cross_entropy(self(x), y)


add("generator set back at the end", Fork, eager=SET_BACK)


@case(eager="something else is drawn than before")
class GeneratorSetBackAndDrawnFromOtherwise(Fork):
    def behind(self, x, y):
        return cross_entropy(self(dropout(x, 0.2)), y) + torch.randn(9, 6).sum()


@case()
class GeneratorSetBackAndDrawnFromLikewise(Fork):
    def behind(self, x, y):
        return cross_entropy(self(x + 0.1 * torch.randn_like(x)), y)


@case(eager="torch.manual_seed()` is called")
class SeedInAFork(Fork):
    def behind(self, x, y):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(3)
            noise = torch.randn_like(x)
        return cross_entropy(self(x + noise), y) + torch.randn(8, 6).sum()


class ForkOverTwoSteps(Fork):
    def __init__(self):
        super().__init__()
        self.fork = ExitStack()

    def training_step(self, batch, batch_idx):
        if batch_idx % 2 == 0:
            self.fork.enter_context(torch.random.fork_rng(devices=[]))
        loss = self.loss((dropout(batch[0], 0.3), batch[1]))
        if batch_idx % 2 == 1:
            self.fork.close()
        return loss

    def on_train_epoch_end(self):
        self.fork.close()


class ForkThatIsLeftBehindTheEpoch(ForkOverTwoSteps):
    def training_step(self, batch, batch_idx):
        self.fork.enter_context(torch.random.fork_rng(devices=[]))
        return self.loss((dropout(batch[0], 0.3), batch[1]))


class ForkThatIsLeftInTheNextStep(ForkOverTwoSteps):
    def training_step(self, batch, batch_idx):
        entered = ExitStack()
        entered.enter_context(torch.random.fork_rng(devices=[]))
        loss = self.loss((dropout(batch[0], 0.3), batch[1]))
        self.fork.close()
        self.fork = entered.pop_all()
        return loss


OPEN = "is entered in one step and left in another"
add("fork over two steps", ForkOverTwoSteps, eager=OPEN)
add("fork that is left behind the epoch", ForkThatIsLeftBehindTheEpoch, eager=OPEN)
add("fork that is left in the next step", ForkThatIsLeftInTheNextStep, eager=OPEN)


@case(eager="torch.get_rng_state()` is called")
class StateThatTheStepItselfAsksFor(Small):
    def training_step(self, batch, batch_idx):
        state = torch.get_rng_state()
        return cross_entropy(self(dropout(batch[0], 0.2)), batch[1]) + float(state[0]) * 1e-6


@case(eager="state of another step")
class GraphOfAnEarlierStep(Checkpointed):
    """Its backward pass goes through the checkpoint of the step before, and draws what that drew."""

    def __init__(self):
        super().__init__()
        self.before = None

    def training_step(self, batch, batch_idx):
        loss = checkpoint(self.loss, batch, use_reentrant=False)
        before, self.before = self.before, loss
        return self.last[1].weight.sum() if before is None else before

    def loss(self, batch):
        return cross_entropy(self.last(self.second(self.first(batch[0]))), batch[1])
