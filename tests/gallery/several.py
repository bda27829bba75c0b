"""Manual optimization with several optimizers, and what it does not allow."""

from torch import nn
from torch.optim import SGD, Adam, lr_scheduler

from gallery.case import case
from gallery.manual import Manual

# -- several optimizers -----------------------------------------------------------------------------------------------


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
        return [Adam(self.generator.parameters(), 0.01), SGD(self.critic.parameters(), 0.05)]


class Several(Manual):
    """An optimizer for each of its layers."""

    number = 2

    def configure_optimizers(self):
        layers = [self.net[0], self.net[2], self.net[1]][: self.number]
        return [Adam(list(layer.parameters()), 0.01) for layer in layers]

    def due(self, batch_idx):
        """The optimizers that step at a batch."""
        return range(len(self.optimizers()))

    def training_step(self, batch, batch_idx):
        optimizers = self.optimizers()
        for index in self.due(batch_idx):
            loss = self.loss(batch)
            self.zero_grad()
            self.manual_backward(loss)
            optimizers[index].step()
        self.log("loss", self.loss(batch).detach(), on_step=True, on_epoch=True)


case()(Several)


@case()
class OneOfTwoAtEveryOtherBatch(Several):
    def due(self, batch_idx):
        return (0,) if batch_idx % 2 else (0, 1)


@case()
class TheCriticFiveTimesAsOften(Several):
    """As a Wasserstein GAN is trained."""

    def due(self, batch_idx):
        return (1, 0) if batch_idx % 5 == 4 else (1,)


@case()
class ThreeOptimizers(Several):
    number = 3

    def __init__(self):
        super().__init__()
        self.net[1] = nn.PReLU()


@case()
class SchedulersOfTwoOptimizers(Several):
    def configure_optimizers(self):
        optimizers = super().configure_optimizers()
        return optimizers, [lr_scheduler.StepLR(optimizer, 3, gamma=0.5) for optimizer in optimizers]

    def training_step(self, batch, batch_idx):
        super().training_step(batch, batch_idx)
        first, second = self.lr_schedulers()
        first.step()
        if self.trainer.is_last_batch:
            second.step()


@case()
class OptimizersWithSchedulersByFrequency(Several):
    """As dictionaries; manual optimization leaves frequencies to the step."""

    def configure_optimizers(self):
        first, second = super().configure_optimizers()
        return {"optimizer": first}, {"optimizer": second, "lr_scheduler": lr_scheduler.StepLR(second, 1)}


# -- what manual optimization does not allow --------------------------------------------------------------------------


@case(raises="Automatic gradient clipping is not supported", options={"gradient_clip_val": 0.1})
class ClippingOfTheTrainer(Manual):
    pass


@case(raises="Automatic gradient accumulation is not supported", options={"accumulate_grad_batches": 2})
class AccumulationOfTheTrainer(Manual):
    pass


@case(raises="Training with multiple optimizers is only supported with manual optimization")
class TwoOptimizersWithoutIt(Several):
    def __init__(self):
        super().__init__()
        self.automatic_optimization = True
