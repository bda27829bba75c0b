"""Hooks of the LightningModule that belong to a step: overridden, they run at every step."""

import torch
from lightning.pytorch.utilities import grad_norm
from torch import nn

from gallery.case import Small, add, case

case()(Small)


def gradients(module):
    return [parameter.grad for parameter in module.parameters() if parameter.grad is not None]


# -- before and after the backward pass -------------------------------------------------------------------------------


@case()
class ShrinksBiasesBeforeZeroGrad(Small):
    """Between the forward and the backward pass, which reads no bias."""

    def on_before_zero_grad(self, optimizer):
        with torch.no_grad():
            self.net[0].bias.mul_(0.9)
            self.net[2].bias.mul_(0.9)


@case()
class RaisesTheLossBeforeBackward(Small):
    """The loss of the next step is larger; the buffer is another tensor then."""

    def __init__(self):
        super().__init__()
        self.register_buffer("scale", torch.ones(()))

    def on_before_backward(self, loss):
        self.scale = self.scale + 0.1 * loss.detach()

    def training_step(self, batch, batch_idx):
        return self.loss(batch) * self.scale


@case()
class CentralizesGradientsAfterBackward(Small):
    def on_after_backward(self):
        for gradient in gradients(self):
            gradient.sub_(gradient.mean())


@case()
class ReplacesGradientsAfterBackward(Small):
    """New tensors in the place of the old ones."""

    def on_after_backward(self):
        for parameter in self.parameters():
            parameter.grad = parameter.grad * 0.5 + 0.01 * parameter.detach()


@case()
class DropsAGradientAfterBackward(Small):
    def on_after_backward(self):
        self.net[0].weight.grad = None


@case()
class AddsNoiseToGradients(Small):
    def on_after_backward(self):
        for gradient in gradients(self):
            gradient.add_(torch.randn_like(gradient), alpha=1e-2)


@case()
class NormalizesGradientsBeforeTheOptimizerStep(Small):
    def on_before_optimizer_step(self, optimizer):
        norm = torch.stack([gradient.norm() for gradient in gradients(self)]).norm()
        torch._foreach_div_(gradients(self), norm + 1e-3)


@case()
class LogsGradientNorms(Small):
    """Lightning's own function makes a tensor of a list of tensors."""

    def on_before_optimizer_step(self, optimizer):
        self.log_dict(grad_norm(self.net, norm_type=2))


@case()
class StopsAtAGradientThatIsNotFinite(Small):
    def on_after_backward(self):
        for gradient in gradients(self):
            if not torch.isfinite(gradient).all():
                gradient.zero_()


@case()
class ReplacesWhatIsNotFinite(Small):
    def on_after_backward(self):
        for gradient in gradients(self):
            torch.nan_to_num_(gradient)


# -- clipping ---------------------------------------------------------------------------------------------------------


@case()
class AdaptiveGradientClipping(Small):
    def configure_gradient_clipping(self, optimizer, gradient_clip_val=None, gradient_clip_algorithm=None):
        for parameter in self.parameters():
            most = parameter.detach().norm().clamp(min=1e-3) * 0.02
            parameter.grad.mul_((most / parameter.grad.norm().clamp(min=1e-6)).clamp(max=1.0))


@case(options={"gradient_clip_val": 0.1})
class ClipsOneLayerOnly(Small):
    def configure_gradient_clipping(self, optimizer, gradient_clip_val=None, gradient_clip_algorithm=None):
        nn.utils.clip_grad_norm_(self.net[0].parameters(), gradient_clip_val)


@case(options={"gradient_clip_val": 0.1})
class LeavesClippingOut(Small):
    def configure_gradient_clipping(self, *arguments, **options):
        pass


@case()
class ClipsFromTheSecondEpochOn(Small):
    def configure_gradient_clipping(self, optimizer, gradient_clip_val=None, gradient_clip_algorithm=None):
        if self.current_epoch > 0:
            self.clip_gradients(optimizer, gradient_clip_val=0.05, gradient_clip_algorithm="norm")


@case(options={"gradient_clip_val": 0.1, "accumulate_grad_batches": 3})
class LogsTheNormThatItClips(Small):
    def configure_gradient_clipping(self, optimizer, gradient_clip_val=None, gradient_clip_algorithm=None):
        self.log("norm", nn.utils.clip_grad_norm_(self.parameters(), gradient_clip_val))


# -- zero_grad and backward -------------------------------------------------------------------------------------------


@case(options={"accumulate_grad_batches": 2})
class KeepsGradientsAsZeros(Small):
    def optimizer_zero_grad(self, epoch, batch_idx, optimizer):
        optimizer.zero_grad(set_to_none=False)


@case()
class NeverClearsGradients(Small):
    def optimizer_zero_grad(self, epoch, batch_idx, optimizer):
        pass


@case()
class HalvesGradientsInsteadOfClearingThem(Small):
    def optimizer_zero_grad(self, epoch, batch_idx, optimizer):
        for gradient in gradients(self):
            gradient.mul_(0.5)


@case()
class ClearsGradientsAtEveryThirdBatch(Small):
    def optimizer_zero_grad(self, epoch, batch_idx, optimizer):
        if batch_idx % 3 == 0:
            optimizer.zero_grad()


@case()
class RetainsTheGraphInBackward(Small):
    """Goes backward twice, so every gradient is there twice."""

    def backward(self, loss, *arguments, **options):
        loss.backward(retain_graph=True)
        loss.backward()


@case()
class ScalesTheLossByHand(Small):
    def backward(self, loss, *arguments, **options):
        super().backward(loss * 64.0, *arguments, **options)

    def on_before_optimizer_step(self, optimizer):
        for gradient in gradients(self):
            gradient.div_(64.0)


@case()
class GradientsByAutogradGrad(Small):
    def backward(self, loss, *arguments, **options):
        parameters = list(self.parameters())
        for parameter, gradient in zip(parameters, torch.autograd.grad(loss, parameters), strict=True):
            parameter.grad = gradient


@case(options={"accumulate_grad_batches": 2, "gradient_clip_val": 0.2})
class EveryHookAtOnce(ShrinksBiasesBeforeZeroGrad, CentralizesGradientsAfterBackward, ScalesTheLossByHand):
    pass


for number, names in enumerate([("on_after_backward",), ("on_before_zero_grad", "on_after_backward")]):
    # A hook that is put on the instance instead of into the class.
    def make(names=names):
        module = Small()
        for name in names:
            setattr(module, name, lambda *_: torch._foreach_mul_(gradients(module), 0.5) if gradients(module) else None)
        return module

    add(f"hooks on the instance {number}", make)
