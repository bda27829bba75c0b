"""Modules, parameters and buffers under two names, of which one moves on; and the order in which a module has them."""

import torch
from torch import nn
from torchmetrics import MeanMetric

from gallery.case import Small, case
from parity import loader


def long():
    return loader(40)


class Experts(Small):
    """The active one has a name of its own."""

    def __init__(self):
        super().__init__()
        self.experts = nn.ModuleList(nn.Linear(6, 6) for _ in range(3))
        self.active = self.experts[0]

    def forward(self, x):
        return self.net(self.active(x).tanh() + self.experts[1](x))


@case(data=long)
class AnExpertForEachEpoch(Experts):
    def on_train_epoch_start(self):
        self.active = self.experts[2 * (self.current_epoch % 2)]


@case(data=long)
class AnExpertThatStepsChoose(Experts):
    def training_step(self, batch, batch_idx):
        if batch_idx % 10 == 0:
            self.active = self.experts[batch_idx // 10 % 3]
        return super().training_step(batch, batch_idx)


@case(data=long)
class AnExpertThatAFunctionReaches(Small):
    """Frozen, and in a list: of no module's."""

    def __init__(self):
        super().__init__()
        self.teachers = [Experts().requires_grad_(False)]

    def training_step(self, batch, batch_idx):
        return super().training_step(batch, batch_idx) + (self(batch[0]) - self.teachers[0](batch[0])).square().mean()

    def on_train_epoch_start(self):
        teacher = self.teachers[0]
        teacher.active = teacher.experts[2 * (self.current_epoch % 2)]


@case(data=long)
class AMetricForEachEpoch(Small):
    def __init__(self):
        super().__init__()
        self.first, self.second = MeanMetric(), MeanMetric()
        self.present = self.first

    def on_train_epoch_start(self):
        self.present = self.second if self.current_epoch % 2 else self.first

    def training_step(self, batch, batch_idx):
        loss = self.loss(batch)
        self.present.update(loss)
        return loss

    def on_train_epoch_end(self):
        self.log("mean", self.present.compute())


@case(data=long)
class OneParameterUnderTwoNames(Small):
    def __init__(self):
        super().__init__()
        self.one, self.two = nn.Parameter(torch.ones(6)), nn.Parameter(torch.full((6,), 2.0))
        self.present = self.one

    def forward(self, x):
        return self.net(x * self.one + x.tanh() * self.two + x.sin() * self.present)

    def on_train_epoch_start(self):
        self.present = self.two if self.current_epoch % 2 else self.one


@case(data=long, options={"max_epochs": 3})
class ATieThatIsUndone(OneParameterUnderTwoNames):
    def on_train_epoch_start(self):
        if self.current_epoch == 1:
            self.present = nn.Parameter(torch.zeros(6))


@case(data=long, eager="")
class BuffersThatBecomeOneAndTwoAgain(Small):
    def __init__(self):
        super().__init__()
        self.register_buffer("fast", torch.zeros(()))
        self.register_buffer("slow", torch.zeros(()))

    def training_step(self, batch, batch_idx):
        self.fast.add_(0.01)
        if batch_idx % 20 == 3:
            self.slow = self.fast
        if batch_idx % 20 == 7:
            self.slow = self.fast.clone()
        return self.loss(batch) * (1 + self.slow)


class InOrder(Small):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleDict({"a": nn.Linear(6, 6), "b": nn.Tanh(), "c": nn.Linear(6, 6)})
        self.register_buffer("shift", torch.full((6,), 0.5))
        self.register_buffer("scale", torch.full((6,), 2.0))

    def forward(self, x):
        for layer in self.layers.values():
            x = layer(x)
        for buffer in self.buffers():
            x = torch.tanh(x * buffer + 0.3)
        return self.net(x)


@case(data=long)
class StepsThatChangeTheOrderOfLayers(InOrder):
    def training_step(self, batch, batch_idx):
        if batch_idx % 9 == 4:
            self.layers["a"] = self.layers.pop("a")
        return super().training_step(batch, batch_idx)


@case(data=long)
class StepsThatChangeTheOrderOfBuffers(InOrder):
    def training_step(self, batch, batch_idx):
        if batch_idx % 9 == 4:
            shift = self.shift
            del self.shift
            self.register_buffer("shift", shift)
        return super().training_step(batch, batch_idx)


@case(data=long, eager="keeps changing: `potential.requires_grad`")
class ABufferThatGetsWhatHasAGraph(Small):
    """As snntorch's neurons have it: the step asks for its shape alone."""

    def __init__(self):
        super().__init__()
        self.register_buffer("potential", torch.zeros(6), persistent=False)
        self.layer = nn.Linear(6, 6)

    def forward(self, x):
        self.potential = 0.9 * torch.zeros_like(self.potential) + self.layer(x).mean(0)
        return self.net(x + self.potential)


@case(data=long)
class ABufferThatHasAGraphForTwoSteps(Small):
    """The sum keeps nothing for the backward pass, which may go through it again."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(6))
        self.register_buffer("shift", torch.zeros(6))

    def training_step(self, batch, batch_idx):
        if batch_idx % 8 == 4:
            self.shift = self.weight + torch.ones(6)
        if batch_idx % 8 == 6:
            self.shift = self.shift.detach()
        return nn.functional.cross_entropy(self(batch[0] + self.shift), batch[1])


@case(data=long)
class ABufferThatIsSavedInSomeEpochs(Small):
    """The step goes through all that would be."""

    def __init__(self):
        super().__init__()
        self.register_buffer("factor", torch.ones(6))

    def on_train_epoch_start(self):
        self.register_buffer("factor", self.factor, persistent=self.current_epoch != 1)

    def training_step(self, batch, batch_idx):
        saved = sum(value.sum() for value in self.state_dict().values())
        return self.loss(batch) * (1 + saved.detach() / 10)
