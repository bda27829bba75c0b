"""Parts of a model that only some steps use: their gradients, who clears them, and their counts of steps."""

import random

import torch
from lightning.pytorch.utilities import grad_norm
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


class CountsAnew(torch.optim.Optimizer):
    """Puts another tensor in the place of each count, and asks for its number."""

    def __init__(self, parameters):
        super().__init__(parameters, {"lr": 0.1})

    @torch.no_grad()
    def step(self, closure=None):
        loss = None if closure is None else torch.enable_grad()(closure)()
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    state = self.state[parameter]
                    state["step"] = state.get("step", torch.zeros(())) + 1
                    parameter -= group["lr"] / state["step"].item() ** 0.5 * parameter.grad
        return loss


@case(size=-1, data=tasks("NN" + "A" * 5 + "B" * 5 + "C" * 5 + "ABABABACACAABBCCA"))
class HeadsWithCountsAnew(Heads):
    def configure_optimizers(self):
        return CountsAnew(self.parameters())


@case(size=-1, data=tasks("NN" + "A" * 6 + "ABC" * 24 + "AB" * 12 + "ABACABA"), options={"max_epochs": 1})
class HeadsInTurnsWithCountsAnew(HeadsWithCountsAnew):
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


class MeasuresItsHead(Heads):
    """Measures what the step before has left of the first head's gradients, by a function of a library."""

    def measured(self):
        return nn.utils.clip_grad_norm_(self.first.parameters(), 0.5)

    def training_step(self, batch, batch_idx):
        x, y, of = batch
        out = self(x)
        self.log("norm", self.measured())
        if (of == 1).all():
            out = out + self.first(x)
        return nn.functional.cross_entropy(out, y)


# Where both are recorded, there are no such gradients.
case(size=-1, data=tasks("BBBB" + "A" + "B" * 4 + "ABB" * 4))(MeasuresItsHead)


@case(size=-1, data=tasks("BBBB" + "A" + "B" * 4 + "ABB" * 4))
class MeasuresItsHeadByLightnings(MeasuresItsHead):
    def measured(self):
        return sum(value for name, value in grad_norm(self.first, 2).items() if "total" in name)


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


def of_sizes(*sizes):
    """Batches of so many samples each."""

    def load():
        generator = torch.Generator().manual_seed(1)
        return DataLoader([some(size, generator) for size in sizes], batch_size=None)

    def some(size, generator):
        return torch.randn(size, 6, generator=generator), torch.randint(0, 3, (size,), generator=generator)

    return load


class HeadsBySize(Heads):
    """Batches of 4 are for the first head, of 5 for the second one, others for none."""

    def training_step(self, batch, batch_idx):
        x, y = batch
        out = self(x)
        if len(x) in (4, 5):
            out = out + (self.first if len(x) == 4 else self.second)(x)
        return nn.functional.cross_entropy(out, y)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.05)


# The first program is made before any step has cleared the second head's gradients.
case(size=20, data=of_sizes(*[4] * 6, *[5] * 6, 6, 4, 4, 5, 5, 4, 5, 4))(HeadsBySize)


@case(
    size=20,
    data=of_sizes(*[4] * 12, *[5] * 12, 6, 6, 4, 4, 5, 5, 4, 5, 4, 5),
    options={"accumulate_grad_batches": 2},
)
class HeadsBySizeOfAccumulatedGradients(HeadsBySize):
    pass


@case(size=20, data=of_sizes(*[4, 5] * 30))
class OptimizersThatAreSteppedInAnotherOrder(HeadsBySize):
    """Their counts are the same; which is asked first is not."""

    def __init__(self):
        super().__init__()
        self.automatic_optimization = False

    def training_step(self, batch, batch_idx):
        optimizers = self.optimizers()
        loss = self.loss(batch) + self.second(batch[0]).square().mean()
        for optimizer in optimizers:
            optimizer.zero_grad()
        self.manual_backward(loss)
        for optimizer in optimizers if len(batch[0]) == 4 else reversed(optimizers):
            optimizer.step()

    def configure_optimizers(self):
        return torch.optim.Adam(self.net.parameters(), lr=0.01), torch.optim.Adam(self.second.parameters(), lr=0.01)
