"""Random numbers that a step draws from torch's generator; the run is plain Lightning's."""

import lightning as L
import torch
from torch import nn
from torch.distributions import Categorical, Normal, kl_divergence

from gallery.case import Small, add, case
from lightning_sink.engine.private import draws_otherwise


class Dropping(Small):
    """One dropout."""

    def __init__(self, *layers):
        super().__init__()
        layers = layers or (nn.Dropout(0.3),)
        self.net = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), *layers, nn.Linear(8, 3))


add("dropout", Dropping)
add("two dropouts", lambda: Dropping(nn.Dropout(0.2), nn.Linear(8, 8), nn.Dropout(0.4)), inductor=True)
add("dropout of self-normalizing networks", lambda: Dropping(nn.AlphaDropout(0.2), nn.FeatureAlphaDropout(0.1)))
add("dropout of nothing and of all", lambda: Dropping(nn.Dropout(0.0), nn.Linear(8, 8), nn.Dropout(1.0)))
COMPILED = not draws_otherwise(torch.ops.aten.rrelu_with_noise.default)  # which torch 2.11 leaves to the step itself
add("activations with random slopes", lambda: Dropping(nn.RReLU()), inductor=COMPILED)
add("random slopes of what is negative", lambda: Dropping(nn.Linear(8, 8), nn.RReLU()))
add("dropout before the loss of a smaller last batch", lambda: Dropping(nn.Dropout(0.3)))


@case(inductor=True)
class DropoutInAttention(Small):
    def __init__(self):
        super().__init__()
        self.into, self.out = nn.Linear(1, 8), nn.Linear(8, 3)
        self.attention = nn.MultiheadAttention(8, 2, dropout=0.2, batch_first=True)

    def forward(self, x):
        tokens = self.into(x.unsqueeze(2))
        return self.out(self.attention(tokens, tokens, tokens, need_weights=False)[0].mean(1))


@case()
class DropoutInATransformer(Small):
    def __init__(self):
        super().__init__()
        self.into, self.out = nn.Linear(1, 8), nn.Linear(8, 3)
        self.block = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.2, batch_first=True)

    def forward(self, x):
        return self.out(self.block(self.into(x.unsqueeze(2))).mean(1))


@case()
class DropoutBetweenTheLayersOfAnLstm(Small):
    def __init__(self):
        super().__init__()
        self.cell, self.out = nn.LSTM(1, 8, num_layers=2, dropout=0.3, batch_first=True), nn.Linear(8, 3)

    def forward(self, x):
        return self.out(self.cell(x.unsqueeze(2))[0][:, -1])


class Changed(Small):
    """The batch is changed at random before it is used."""

    def __init__(self, change=None):
        super().__init__()
        self.change = change

    def training_step(self, batch, batch_idx):
        loss = self.loss((self.change(batch[0]), batch[1]))
        self.log("loss", loss)
        return loss


def mixed(x):
    return 0.7 * x + 0.3 * x[torch.randperm(len(x))]


def beta(x):
    return x * torch.distributions.Beta(0.4, 0.4, validate_args=False).sample()


def erased(x):
    x = x.clone()
    x[:, torch.randint(6, (2,))] = 0.0
    return x


def several(x):
    noise = torch.empty_like(x).uniform_(-0.1, 0.1)
    return torch.where(torch.bernoulli(torch.full_like(x, 0.8)).bool(), x + noise, torch.randn_like(x))


DRAWN = {
    "noise of the batch's shape": lambda x: x + 0.1 * torch.randn_like(x),
    "noise of a size that depends on the batch": lambda x: x + 0.1 * torch.randn(len(x), 1),
    "uniform noise, made in place": lambda x: x + torch.empty(6).uniform_(-0.1, 0.1),
    "other distributions in place": lambda x: x + 0.01 * torch.empty(6).exponential_() * torch.empty(6).geometric_(0.5),
    "random integers": lambda x: x.roll(1, 0) * torch.randint(0, 2, (1, 6)),
    "a mask of coin tosses": lambda x: x * torch.bernoulli(torch.full((6,), 0.7)),
    "coin tosses whose chances depend on the data": lambda x: x * torch.bernoulli(torch.sigmoid(x)),
    "mixed with a permutation of itself": mixed,
    "rows sampled by weight": lambda x: x[torch.multinomial(x[:, 0].abs() + 0.1, len(x), replacement=True)],
    "a distribution that checks nothing": lambda x: x + Normal(0.0, 0.1, validate_args=False).sample(x.shape),
    "a weight from a beta distribution": beta,
    "columns erased": erased,
    "several draws after each other": several,
    "normal numbers with given means": lambda x: torch.normal(x, 0.1),
    "poisson numbers": lambda x: x + 0.1 * torch.poisson(x.abs()),
    "soft samples": lambda x: x * nn.functional.gumbel_softmax(x, tau=0.5, hard=True),
}
for name, change in DRAWN.items():
    add(f"drawn: {name}", lambda change=change: Changed(change), inductor=name.startswith("rows"))


@case(inductor=True)
class DistributionThatChecks(Changed):
    def training_step(self, batch, batch_idx):
        return self.loss(batch) + 0.1 * Categorical(logits=self(batch[0]), validate_args=True).log_prob(batch[1]).mean()


@case()
class VariationalByDistributions(Small):
    def training_step(self, batch, batch_idx):
        hidden = Normal(self.net[0](batch[0]), 0.5)
        prior = Normal(torch.zeros_like(hidden.mean), torch.ones_like(hidden.stddev))
        loss = nn.functional.cross_entropy(self.net[2](hidden.rsample()), batch[1])
        return loss + 0.01 * kl_divergence(hidden, prior).mean()


@case()
class Variational(Small):
    """Samples its hidden state from a normal distribution, whose parameters it learns."""

    def __init__(self):
        super().__init__()
        self.encode, self.decode = nn.Linear(6, 8), nn.Linear(4, 6)

    def training_step(self, batch, batch_idx):
        mean, log_variance = self.encode(batch[0]).chunk(2, 1)
        hidden = mean + torch.exp(0.5 * log_variance) * torch.randn_like(mean)
        divergence = -0.5 * (1 + log_variance - mean.square() - log_variance.exp()).mean()
        return nn.functional.mse_loss(self.decode(hidden), batch[0]) + 0.1 * divergence


@case()
class Diffusion(Small):
    """Each sample has a random time, and learns to see the noise of that time."""

    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(7, 16), nn.SiLU(), nn.Linear(16, 6))
        self.register_buffer("kept", torch.linspace(0.99, 0.01, 100))

    def training_step(self, batch, batch_idx):
        time = torch.randint(0, 100, (len(batch[0]),))
        kept, noise = self.kept[time].unsqueeze(1), torch.randn_like(batch[0])
        noisy = kept.sqrt() * batch[0] + (1 - kept).sqrt() * noise
        return nn.functional.mse_loss(self(torch.cat([noisy, time.unsqueeze(1) / 100], 1)), noise)


@case()
class NoiseOnTheGradients(Small):
    def on_before_optimizer_step(self, optimizer):
        for parameter in self.parameters():
            parameter.grad.add_(torch.randn_like(parameter.grad), alpha=0.01)


@case()
class NoiseOnTheWeightsAfterAStep(Small):
    @torch.no_grad()
    def on_train_batch_end(self, outputs, batch, batch_idx):
        for parameter in self.parameters():
            parameter += 0.001 * torch.randn_like(parameter)


@case()
class NoiseInABuffer(Small):
    """The memory for it is made once."""

    def __init__(self):
        super().__init__()
        self.register_buffer("noise", torch.zeros(6))

    def training_step(self, batch, batch_idx):
        self.noise.normal_()
        return self.loss((batch[0] + 0.1 * self.noise, batch[1]))


@case(options={"accumulate_grad_batches": 2})
class DropoutWithAccumulation(Dropping):
    pass


@case(options={"deterministic": True})
class DeterministicTraining(Dropping):
    def forward(self, x):
        rows = torch.zeros(9, 8).index_add(0, (x[:, 0].abs() * 3).long().clamp(max=8), self.net[:3](x))
        return self.net[3:](rows[torch.randperm(9)[: len(x)]])


@case()
class SeededWhereTheOptimizerIsMade(Dropping):
    def configure_optimizers(self):
        L.seed_everything(5, verbose=False)
        return super().configure_optimizers()


@case()
class SeededAtEachEpoch(Dropping):
    def on_train_epoch_start(self):
        torch.manual_seed(self.current_epoch)


@case(inductor=True)
class TorchsMixup(Small):
    """A share by a distribution of numbers, and an order, beside dropout."""

    def training_step(self, batch, batch_idx):
        x, y = batch
        share = torch.distributions.Beta(0.4, 0.4).sample()
        order = torch.randperm(len(x))
        out = nn.functional.dropout(self(share * x + (1 - share) * x[order]), 0.2)
        return share * nn.functional.cross_entropy(out, y) + (1 - share) * nn.functional.cross_entropy(out, y[order])


@case()
class ADistributionThatChangesWithTheEpoch(Small):
    def training_step(self, batch, batch_idx):
        share = torch.distributions.Beta(0.4 + self.current_epoch, 0.4).sample()
        return self.loss(batch) * (1 + share * torch.rand(()))


@case()
class ADistributionOfAnAttribute(Small):
    concentration = 0.4

    def on_train_epoch_start(self):
        self.concentration = 0.4 + self.current_epoch

    def training_step(self, batch, batch_idx):
        share = torch.distributions.Beta(self.concentration, 0.4).sample()
        return self.loss(batch) * (1 + share * torch.rand(()))
