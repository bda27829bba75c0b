"""Manual optimization: the step calls its optimizers itself."""

import torch
from torch import nn

from gallery.case import Small, case


class Manual(Small):
    """Base: optimization is the step's own."""

    def __init__(self):
        super().__init__()
        self.automatic_optimization = False

    def training_step(self, batch, batch_idx):
        optimizer = self.optimizers()
        optimizer.zero_grad()
        loss = self.loss(batch)
        self.manual_backward(loss)
        optimizer.step()
        self.log("loss", loss)


@case()
class OneOptimizer(Manual):
    pass


@case()
class TwoOptimizersThatToggle(Manual):
    """A GAN: each optimizer in its turn, the other's parameters frozen meanwhile."""

    def __init__(self):
        super().__init__()
        self.generator, self.critic = nn.Linear(6, 6), nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 1))

    def training_step(self, batch, batch_idx):
        x, _ = batch
        first, second = self.optimizers()
        self.toggle_optimizer(first)
        loss = nn.functional.softplus(-self.critic(self.generator(x))).mean()
        first.zero_grad()
        self.manual_backward(loss)
        first.step()
        self.untoggle_optimizer(first)
        self.toggle_optimizer(second)
        fake = self.generator(x).detach()
        critic_loss = nn.functional.softplus(self.critic(fake)).mean() + nn.functional.softplus(-self.critic(x)).mean()
        second.zero_grad()
        self.manual_backward(critic_loss)
        second.step()
        self.untoggle_optimizer(second)
        self.log_dict({"generator": loss, "critic": critic_loss}, on_step=True, on_epoch=True)

    def configure_optimizers(self):
        return [torch.optim.Adam(self.generator.parameters(), 0.01), torch.optim.SGD(self.critic.parameters(), 0.05)]
