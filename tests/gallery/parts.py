"""Parts of a model that only some steps use: their gradients, who clears them, and their counts of steps."""

import random

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from gallery.case import Small, case


def tasks(sequence):
    """Batches of tasks by their letters, in this order."""

    def load():
        generator, count = torch.Generator().manual_seed(1), 8 * len(sequence)
        x, y = torch.randn(count, 6, generator=generator), torch.randint(0, 3, (count,), generator=generator)
        of = torch.tensor([*map("NABC".index, sequence)]).repeat_interleave(8)
        return DataLoader(TensorDataset(x, y, of), 8)

    return load


class Heads(Small):
    """Batches of task A are for two heads, of B for the second one, of C for the first, and of N for none."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(6, 3), nn.Linear(6, 3)

    def training_step(self, batch, batch_idx):
        x, y, of = batch
        out = self(x)
        if ((of == 1) | (of == 3)).all():
            out = out + self.first(x)
        if ((of == 1) | (of == 2)).all():
            out = out + self.second(x)
        return nn.functional.cross_entropy(out, y)

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=0.02)


# Both heads' counts are equal when each of these has its program, and differ later.
case(size=-1, data=tasks("NN" + "A" * 5 + "B" * 5 + "C" * 5 + "ABABABACACAABBCCA"))(Heads)


@case(size=-1, data=tasks("NN" + "A" * 6 + "ABC" * 24 + "AB" * 12 + "ABACABA"), options={"max_epochs": 1})
class HeadsInTurns(Heads):
    pass


class ClearsTheNet(torch.optim.SGD):
    """Clears the gradients of a net, and of nothing else."""

    def __init__(self, net, parameters):
        super().__init__(parameters, lr=0.05)
        self.net = net

    def zero_grad(self, set_to_none=True):
        self.net.zero_grad(set_to_none)


@case(size=-1, data=tasks("AB" * 4 + "C" * 6 + "AC" * 5))
class AnOptimizerThatClearsTheNetOnly(Heads):
    """The step clears the head at batches of task B."""

    def training_step(self, batch, batch_idx):
        x, y, of = batch
        out = self(x)
        if (of == 2).all():
            self.first.zero_grad()
        if (of == 1).all():
            out = out + self.first(x)
        return nn.functional.cross_entropy(out, y)

    def configure_optimizers(self):
        return ClearsTheNet(self.net, self.parameters())


@case(size=-1, data=tasks("BA" * 8 + "A" * 10 + "BAAAA"))
class TheNormOfGradientsBeforeTheyAreCleared(Heads):
    """Which are there is what the step before has left."""

    def on_before_zero_grad(self, optimizer):
        self.log("norm", nn.utils.clip_grad_norm_(self.parameters(), 1e9))

    def training_step(self, batch, batch_idx):
        x, y, of = batch
        out = self(x)
        if (of == 1).all():
            out = out + self.first(x)
        return nn.functional.cross_entropy(out, y)


class AtRandom(Heads):
    def training_step(self, batch, batch_idx):
        x, y, _ = batch
        out = self(x)
        for head in (self.first, self.second):
            if random.random() > 0.4:
                out = out + head(x)
        return nn.functional.cross_entropy(out, y)


@case(size=20, data=tasks("A" * 60))
class AHeadInNoOptimizerThatIsClearedNowAndThen(AtRandom):
    def on_before_optimizer_step(self, optimizer):
        if random.random() < 0.5:
            self.second.zero_grad()

    def configure_optimizers(self):
        return torch.optim.Adam([*self.net.parameters(), *self.first.parameters()], lr=0.02)


class ClearsEveryOtherTime(torch.optim.SGD):
    times = 0

    def zero_grad(self, set_to_none=True):
        self.times += 1
        if self.times % 2:
            super().zero_grad(set_to_none)


@case(size=20, data=tasks("A" * 60))
class AnOptimizerThatClearsEveryOtherTime(Heads):
    def configure_optimizers(self):
        return ClearsEveryOtherTime(self.parameters(), lr=0.02)
