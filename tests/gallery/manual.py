"""Manual optimization: the step calls its optimizers itself."""

import torch
from torch import nn
from torch.optim import lr_scheduler

from gallery.case import Small, case, from_3_11


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


# -- one optimizer ----------------------------------------------------------------------------------------------------


@case()
class OneOptimizer(Manual):
    pass


@case()
class DecaysItsWeights(Manual):
    """Multiples of weights are added to gradients, which are products of matrices that nobody keeps."""

    def training_step(self, batch, batch_idx):
        optimizer = self.optimizers()
        self.manual_backward(self.loss(batch))
        optimizer.step()
        optimizer.zero_grad()

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=0.01, weight_decay=0.1)


@case()
class ReturnsItsLoss(Manual):
    def training_step(self, batch, batch_idx):
        optimizer = self.optimizers()
        loss = self.loss(batch)
        optimizer.zero_grad()
        self.manual_backward(loss)
        optimizer.step()
        return {"loss": loss.detach(), "extra": 3} if batch_idx % 2 else loss


@case()
class GoesBackwardTwice(Manual):
    def training_step(self, batch, batch_idx):
        optimizer = self.optimizers()
        optimizer.zero_grad()
        self.manual_backward(self.loss(batch), retain_graph=True)
        self.manual_backward(sum(parameter.square().sum() for parameter in self.parameters()) * 0.01)
        optimizer.step()


@case()
class PenalizesGradients(Manual):
    """A second derivative, through gradients that have a graph."""

    def training_step(self, batch, batch_idx):
        x, y = batch
        x = x.clone().requires_grad_()
        loss = nn.functional.cross_entropy(self(x), y)
        (slope,) = torch.autograd.grad(loss, x, create_graph=True)
        optimizer = self.optimizers()
        optimizer.zero_grad()
        self.manual_backward(loss + slope.norm(dim=1).sub(0.1).square().mean())
        optimizer.step()
        self.log("slope", slope.norm())


@case()
class StepsThreeTimesInABatch(Manual):
    def training_step(self, batch, batch_idx):
        for _ in range(3):
            super().training_step(batch, batch_idx)


@case()
class StepsAsOftenAsTheBatchSays(Manual):
    def training_step(self, batch, batch_idx):
        for _ in range(batch_idx % 3):
            super().training_step(batch, batch_idx)


@case()
class NeverStepsByHand(Manual):
    def training_step(self, batch, batch_idx):
        self.manual_backward(self.loss(batch))


@case()
class AccumulatesByHand(Manual):
    def training_step(self, batch, batch_idx):
        optimizer = self.optimizers()
        self.manual_backward(self.loss(batch) / 4)
        if (batch_idx + 1) % 4 == 0 or self.trainer.is_last_batch:
            self.clip_gradients(optimizer, gradient_clip_val=0.2, gradient_clip_algorithm="norm")
            optimizer.step()
            optimizer.zero_grad()


@case()
class ClipsByValue(Manual):
    def training_step(self, batch, batch_idx):
        optimizer = self.optimizers()
        optimizer.zero_grad()
        self.manual_backward(self.loss(batch))
        self.clip_gradients(optimizer, gradient_clip_val=0.01, gradient_clip_algorithm="value")
        optimizer.step()


# Rounding grows in LBFGS, so it is compared in double precision.
@case(eager="a value of a tensor decides", options={"precision": "64-true", "max_epochs": 1})
class StepsWithAClosure(Manual):
    def configure_optimizers(self):
        return torch.optim.LBFGS(self.parameters(), lr=0.1, max_iter=3)

    def training_step(self, batch, batch_idx):
        optimizer = self.optimizers()

        def closure():
            loss = self.loss(batch)
            optimizer.zero_grad()
            self.manual_backward(loss)
            return loss

        optimizer.step(closure=closure)


@case()
class TogglesTheModel(Manual):
    """Synchronization is blocked while gradients gather."""

    def training_step(self, batch, batch_idx):
        optimizer = self.optimizers()
        with optimizer.toggle_model(sync_grad=bool(batch_idx % 2)):
            self.manual_backward(self.loss(batch))
            if batch_idx % 2:
                optimizer.step()
                optimizer.zero_grad()


@case()
class ARawOptimizer(Manual):
    """Lightning sees no step of it and counts none."""

    def training_step(self, batch, batch_idx):
        optimizer = self.optimizers(use_pl_optimizer=False)
        optimizer.zero_grad()
        self.manual_backward(self.loss(batch))
        optimizer.step()


@case(**from_3_11("`global_step` is needed as a plain number"))
class ReadsTheGlobalStep(Manual):
    """Warm-up by the number of optimizer steps, in the middle of a batch."""

    def training_step(self, batch, batch_idx):
        for _ in range(2):
            self.optimizers().param_groups[0]["lr"] = 0.05 * min(1.0, (self.global_step + 1) / 20)
            super().training_step(batch, batch_idx)
        self.log("step", float(self.global_step))


@case()
class UsesItsHooks(Manual):
    def on_before_optimizer_step(self, optimizer):
        self.net[0].weight.grad.mul_(0.5)

    def on_after_backward(self):
        self.net[2].weight.grad.mul_(0.5)

    def on_before_backward(self, loss):
        self.log("before", loss)


@case()
class EndsEpochsItself(Manual):
    def on_train_batch_start(self, batch, batch_idx):
        return -1 if batch_idx == 6 else None


@case()
class StepsItsSchedulerAtEachEpochsEnd(Manual):
    def configure_optimizers(self):
        optimizer = super().configure_optimizers()
        return {"optimizer": optimizer, "lr_scheduler": lr_scheduler.ReduceLROnPlateau(optimizer, patience=0)}

    def on_train_epoch_end(self):
        self.lr_schedulers().step(self.trainer.callback_metrics["loss"])
