"""The hook `optimizer_step`: when, how often and around what the optimizer steps."""

import torch

from gallery.case import Small, case
from gallery.hooks import gradients

# -- optimizer_step ---------------------------------------------------------------------------------------------------


@case()
class WarmsUpByHand(Small):
    def optimizer_step(self, epoch, batch_idx, optimizer, optimizer_closure=None):
        optimizer.step(closure=optimizer_closure)
        if self.trainer.global_step < 10:
            for group in optimizer.param_groups:
                group["lr"] = 0.05 * (self.trainer.global_step + 1) / 10


@case()
class SkipsAStepThatIsNotFinite(Small):
    def training_step(self, batch, batch_idx):
        return self.loss(batch) / (batch[1].sum() != 7)

    def optimizer_step(self, epoch, batch_idx, optimizer, optimizer_closure=None):
        optimizer_closure()
        if all(torch.isfinite(gradient).all() for gradient in gradients(self)):
            optimizer.step()


@case()
class CallsTheClosureTwice(Small):
    """The gradients of the second call are the ones that count; both clear what was there."""

    def optimizer_step(self, epoch, batch_idx, optimizer, optimizer_closure=None):
        optimizer_closure()
        optimizer.step(closure=optimizer_closure)


@case()
class CallsTheClosureFirst(Small):
    def optimizer_step(self, epoch, batch_idx, optimizer, optimizer_closure=None):
        optimizer_closure()
        optimizer.step()


@case()
class StepsTwiceForABatch(Small):
    """Plain Lightning counts one step."""

    def optimizer_step(self, epoch, batch_idx, optimizer, optimizer_closure=None):
        optimizer.step(closure=optimizer_closure)
        optimizer.step()


@case()
class NeverSteps(Small):
    """Plain Lightning counts the steps all the same."""

    def optimizer_step(self, epoch, batch_idx, optimizer, optimizer_closure=None):
        optimizer_closure()


@case(inductor=True)
class SharpnessAwareMinimization(Small):
    """Climbs, looks at the gradient there, and steps from where it was."""

    def optimizer_step(self, epoch, batch_idx, optimizer, optimizer_closure=None):
        optimizer_closure()
        with torch.no_grad():
            climbed = [0.05 * gradient / (gradient.norm() + 1e-6) for gradient in gradients(self)]
            for parameter, way in zip(self.parameters(), climbed, strict=True):
                parameter.add_(way)
        optimizer_closure()
        with torch.no_grad():
            for parameter, way in zip(self.parameters(), climbed, strict=True):
                parameter.sub_(way)
        optimizer.step()


@case()
class StepsAtEveryOtherBatch(Small):
    def optimizer_step(self, epoch, batch_idx, optimizer, optimizer_closure=None):
        if batch_idx % 2:
            optimizer.step(closure=optimizer_closure)
        else:
            optimizer_closure()


@case()
class ShrinksWeightsAroundTheStep(Small):
    """Decoupled weight decay by hand."""

    def optimizer_step(self, epoch, batch_idx, optimizer, optimizer_closure=None):
        super().optimizer_step(epoch, batch_idx, optimizer, optimizer_closure)
        with torch.no_grad():
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    parameter.mul_(1 - group["lr"] * 0.1)


@case()
class KeepsWeightsInABall(Small):
    def optimizer_step(self, *arguments, **options):
        super().optimizer_step(*arguments, **options)
        with torch.no_grad():
            self.net[0].weight.clamp_(-0.3, 0.3)
