"""Parameters and layers of every kind: tied, frozen, lazy, parametrized, of other types."""

import torch
from lightning.pytorch.callbacks import BackboneFinetuning, BaseFinetuning
from torch import nn
from torch.nn.utils import parametrizations, prune, spectral_norm, weight_norm

from gallery.case import Small, add, case


class Words(Small):
    """Takes its input for numbers of words."""

    def __init__(self, **options):
        super().__init__()
        self.table = nn.Embedding(9, 6, **options)

    def forward(self, x):
        return self.net(self.table((x * 3).abs().long().clamp(max=8)).sum(1))


add("embedding with a padding index", lambda: Words(padding_idx=0))
add("embedding with a largest norm", lambda: Words(max_norm=0.5), inductor=True)
add("embedding with gradients by frequency", lambda: Words(scale_grad_by_freq=True))


@case()
class TiedWeights(Words):
    """The output layer is the embedding."""

    def __init__(self):
        super().__init__()
        self.net = nn.Linear(6, 9, bias=False)
        self.net.weight = self.table.weight


def with_first(change, name):
    def make():
        module = Small()
        module.net[0] = change(module.net[0])
        return module

    make.__name__ = name
    return make


PARAMETRIZED = {
    "weight norm": parametrizations.weight_norm,
    "weight norm of the old kind": weight_norm,
    "spectral norm": parametrizations.spectral_norm,
    "spectral norm of the old kind": spectral_norm,
    "orthogonal by the exponential": lambda layer: parametrizations.orthogonal(layer, orthogonal_map="matrix_exp"),
    "orthogonal by Cayley": lambda layer: parametrizations.orthogonal(layer, orthogonal_map="cayley"),
    "orthogonal by reflections": lambda layer: parametrizations.orthogonal(layer, orthogonal_map="householder"),
    "pruned": lambda layer: prune.l1_unstructured(layer, "weight", amount=0.3),
}
for name, change in PARAMETRIZED.items():
    add(name, with_first(change, name), inductor=name.startswith("spectral norm of"))


@case()
class PrunedBetweenEpochs(Small):
    def on_train_epoch_start(self):
        prune.random_unstructured(self.net[0], "weight", amount=0.2)


# -- who is trained ---------------------------------------------------------------------------------------------------


@case()
class ParametersOutsideTheOptimizer(Small):
    """Their gradients add up and nobody clears them."""

    def configure_optimizers(self):
        return torch.optim.Adam(self.net[2].parameters(), lr=0.01)


@case()
class ParametersThatAreNeverUsed(Small):
    def __init__(self):
        super().__init__()
        self.spare = nn.Linear(4, 4)


@case()
class ParametersFrozenFromTheStart(Small):
    def __init__(self):
        super().__init__()
        self.net[0].requires_grad_(False)


@case()
class ParametersOfWhichTheOptimizerKnowsAlone(Small):
    """A weight of the loss that is no attribute of the module."""

    def __init__(self):
        super().__init__()
        self.weights = [nn.Parameter(torch.zeros(()))]

    def training_step(self, batch, batch_idx):
        return self.loss(batch) * torch.exp(-self.weights[0]) + self.weights[0]

    def configure_optimizers(self):
        return torch.optim.SGD([*self.parameters(), *self.weights], lr=0.05, momentum=0.9)


@case()
class FrozenAndThawedByTheModule(Small):
    def on_train_epoch_start(self):
        self.net[0].requires_grad_(self.current_epoch % 2 == 1)


@case(options={"max_epochs": 3})
class ParametersAddedToTheOptimizerLater(Small):
    def on_train_epoch_start(self):
        if self.current_epoch == 1:
            self.optimizers().add_param_group({"params": self.net[2].parameters(), "lr": 0.01})

    def configure_optimizers(self):
        return torch.optim.Adam(self.net[0].parameters(), lr=0.05)


class Thaw(BaseFinetuning):
    def freeze_before_training(self, pl_module):
        self.freeze(pl_module.net[0])

    def finetune_function(self, pl_module, epoch, optimizer):
        if epoch == 1:
            self.unfreeze_and_add_param_group(pl_module.net[0], optimizer, lr=0.01)


@case(options={"max_epochs": 3, "callbacks": lambda: [Thaw()]})
class ThawedByACallback(Small):
    def configure_optimizers(self):
        return torch.optim.SGD([p for p in self.parameters() if p.requires_grad], lr=0.05, momentum=0.9)


@case(options={"max_epochs": 3, "callbacks": lambda: [BackboneFinetuning(1, lambda epoch: 1.5)]})
class ThawedByLightningsCallback(ThawedByACallback):
    def __init__(self):
        super().__init__()
        self.backbone = nn.Linear(6, 6)

    def forward(self, x):
        return self.net(self.backbone(x))

    def configure_optimizers(self):
        optimizer = super().configure_optimizers()
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.9)]


@case(options={"max_epochs": 3})
class LayerReplacedBetweenEpochs(Small):
    """A new head, known to the optimizer by a new group."""

    def on_train_epoch_start(self):
        if self.current_epoch == 1:
            self.net[2] = nn.Linear(8, 3)
            self.optimizers().add_param_group({"params": self.net[2].parameters(), "lr": 0.01})


@case(options={"max_epochs": 3})
class WeightsReplacedThroughDataBetweenEpochs(Small):
    def on_train_epoch_start(self):
        for parameter in self.parameters():
            parameter.data = parameter.data * 0.9


# -- containers, types and layers -------------------------------------------------------------------------------------


@case()
class LayersMadeLazily(Small):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.LazyLinear(8, bias=False), nn.LazyBatchNorm1d(), nn.ReLU(), nn.LazyLinear(3))


@case()
class ListsAndDictionariesOfParameters(Small):
    def __init__(self):
        super().__init__()
        self.gains = nn.ParameterList([torch.ones(6), torch.ones(6)])
        self.shifts = nn.ParameterDict({"in": torch.zeros(6), "out": torch.zeros(3)})
        self.layers = nn.ModuleList(nn.Linear(6, 6) for _ in range(3))
        self.heads = nn.ModuleDict({"a": nn.Linear(6, 3), "b": nn.Linear(6, 3)})

    def forward(self, x):
        for gain, layer in zip([*self.gains, 1.0], self.layers, strict=True):
            x = torch.tanh(layer(x * gain + self.shifts["in"]))
        return sum(head(x) for head in self.heads.values()) + self.shifts["out"]


@case()
class ComplexParameters(Small):
    def __init__(self):
        super().__init__()
        self.spectrum = nn.Parameter(torch.randn(4, 8, dtype=torch.complex64) * 0.1)

    def forward(self, x):
        return self.net[2](torch.tanh((torch.fft.rfft(x) @ self.spectrum).abs()))

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=0.01)


@case()
class DoublePrecisionInOneLayer(Small):
    def __init__(self):
        super().__init__()
        self.net[2].double()

    def forward(self, x):
        return self.net[2](self.net[1](self.net[0](x)).double())

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=0.01)


class Image(Small):
    """Convolutions over the six numbers of a sample, taken for an image."""

    def __init__(self):
        super().__init__()
        self.convolutions = nn.Sequential(
            nn.Conv2d(1, 4, 2, padding=1, bias=False), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(4, 3, 1)
        )

    def forward(self, x):
        return self.convolutions(x.reshape(-1, 1, 2, 3)).mean((2, 3))


add("convolutions", Image, inductor=True)


@case()
class ConvolutionsInChannelsLast(Image):
    def __init__(self):
        super().__init__()
        self.convolutions.to(memory_format=torch.channels_last)


@case()
class Attention(Small):
    def __init__(self):
        super().__init__()
        self.block = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True, norm_first=True)
        self.into, self.out = nn.Linear(1, 8), nn.Linear(8, 3)

    def forward(self, x):
        mask = nn.Transformer.generate_square_subsequent_mask(6)
        return self.out(self.block(self.into(x.unsqueeze(2)), src_mask=mask, is_causal=True).mean(1))


@case()
class Lstm(Small):
    def __init__(self):
        super().__init__()
        self.cell, self.out = nn.LSTM(1, 8, num_layers=2, batch_first=True, bidirectional=True), nn.Linear(16, 3)

    def forward(self, x):
        return self.out(self.cell(x.unsqueeze(2))[0][:, -1])


class Cleared(Small):
    """Gradients are gone behind an epoch, as they are behind each validation."""

    def on_train_epoch_start(self):
        self.zero_grad()


@case(size=8)
class AsksForGradientsBeforeTheyAreCleared(Cleared):
    def training_step(self, batch, batch_idx):
        loss = super().training_step(batch, batch_idx)
        return 3 * loss if self.net[0].weight.grad is None else loss


@case(size=8)
class AsksForGradientsByTheirName(Cleared):
    def training_step(self, batch, batch_idx):
        gradients = [getattr(parameter, "grad") for parameter in self.parameters()]  # noqa: B009
        return super().training_step(batch, batch_idx) * (1 + gradients.count(None))


@case(size=8, options={"accumulate_grad_batches": 2})
class CountsGradientsBeforeTheyAreCleared(Cleared):
    def training_step(self, batch, batch_idx):
        return super().training_step(batch, batch_idx) * (1 + sum(each.grad is None for each in self.parameters()))


@case(size=8)
class AsksForGradientsBehindTheBackwardPass(Cleared):
    def on_before_optimizer_step(self, optimizer):
        for parameter in self.parameters():
            if parameter.grad is not None:
                parameter.grad.mul_(0.5)
