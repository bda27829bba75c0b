"""Hooks of tensors, layers and optimizers: attached to them, and run wherever they are used."""

import functools

from torch import nn

from gallery.case import Small, add, case


def _clamp(tensor):
    tensor.grad.clamp_(-0.01, 0.01)


# -- hooks of tensors -------------------------------------------------------------------------------------------------


@case()
class AHookOfAParameter(Small):
    def __init__(self):
        super().__init__()
        self.net[0].weight.register_hook(lambda gradient: 0.5 * gradient)


@case()
class AHookAfterAGradientIsThere(Small):
    def __init__(self):
        super().__init__()
        for parameter in self.parameters():
            parameter.register_post_accumulate_grad_hook(_clamp)


@case()
class AHookOfAnActivation(Small):
    def forward(self, x):
        hidden = self.net[0](x)
        hidden.register_hook(lambda gradient: gradient * 2)
        return self.net[2](self.net[1](hidden))


@case(eager="has a gradient of its own in `hidden`")
class AnActivationKeepsItsGradient(Small):
    """It has it still when the epoch ends."""

    def training_step(self, batch, batch_idx):
        hidden = self.net[0](batch[0])
        hidden.retain_grad()
        self.hidden = hidden
        return nn.functional.cross_entropy(self.net[2](self.net[1](hidden)), batch[1])

    def on_after_backward(self):
        self.log("saliency", self.hidden.grad.abs().mean())


@case(options={"max_epochs": 3})
class AHookOfAParameterComesAndGoes(Small):
    def on_train_epoch_start(self):
        if self.current_epoch == 1:
            self.handle = self.net[0].weight.register_hook(lambda gradient: 0.1 * gradient)
        if self.current_epoch == 2:
            self.handle.remove()


# -- hooks of layers --------------------------------------------------------------------------------------------------

LAYERS = {
    "forward pre": lambda layer: layer.register_forward_pre_hook(lambda _, given: (given[0] * 2,)),
    "forward": lambda layer: layer.register_forward_hook(lambda _, given, out: out * 2),
    "full backward": lambda layer: layer.register_full_backward_hook(lambda _, given, out: (given[0] * 2,)),
    "full backward pre": lambda layer: layer.register_full_backward_pre_hook(lambda _, out: (out[0] * 2,)),
    "global forward": lambda layer: nn.modules.module.register_module_forward_hook(
        lambda module, given, out: out * 2 if module is layer else None
    ),
}


class Hooked(Small):
    """Has a hook from the beginning, or in one epoch of three."""

    def __init__(self, kind, always):
        super().__init__()
        self.kind, self.always, self.handle = kind, always, None

    def on_fit_start(self):
        if self.always:
            self.handle = LAYERS[self.kind](self.net[2])

    def on_train_epoch_start(self):
        if not self.always and self.current_epoch == 1:
            self.handle = LAYERS[self.kind](self.net[2])

    def on_train_epoch_end(self):
        if not self.always and self.current_epoch == 1:
            self.handle.remove()

    def on_fit_end(self):
        self.handle.remove()


for kind in LAYERS:
    for always in (True, False):
        when = "from the beginning" if always else "in one epoch"
        make = functools.partial(Hooked, kind, always)
        add(f"a {kind} hook of a layer {when}", make, options={"max_epochs": 3})


@case()
class AHookThatKeepsActivations(Small):
    """Feature extraction: the step looks at what the hook kept."""

    def __init__(self):
        super().__init__()
        self.kept = {}
        self.net[0].register_forward_hook(lambda _, given, out: self.kept.update(hidden=out))

    def training_step(self, batch, batch_idx):
        return self.loss(batch) + 0.01 * self.kept["hidden"].square().mean()


@case()
class WeightsUnderAParametrization(Small):
    def __init__(self):
        super().__init__()
        nn.utils.parametrizations.weight_norm(self.net[0])


@case()
class WeightsUnderSpectralNorm(Small):
    def __init__(self):
        super().__init__()
        nn.utils.parametrizations.spectral_norm(self.net[0])


# -- hooks of optimizers ----------------------------------------------------------------------------------------------


@case()
class AHookAfterTheOptimizersStep(Small):
    def configure_optimizers(self):
        optimizer = super().configure_optimizers()
        optimizer.register_step_post_hook(lambda *_: self.net[0].weight.data.clamp_(-0.3, 0.3))
        return optimizer


@case()
class AHookBeforeTheOptimizersStep(Small):
    """It runs before the closure."""

    def shrink(self, *_):
        self.net[0].weight.data.mul_(0.99)

    def configure_optimizers(self):
        optimizer = super().configure_optimizers()
        optimizer.register_step_pre_hook(self.shrink)
        return optimizer


@case(options={"max_epochs": 3})
class AHookOfTheOptimizerComesLater(Small):
    def on_train_epoch_start(self):
        if self.current_epoch == 1:
            hook = lambda *_: self.net[0].weight.data.mul_(0.95)  # noqa: E731
            self.trainer.optimizers[0].register_step_post_hook(hook)
