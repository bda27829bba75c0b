"""What a training_step may look like and return, and the hooks of tensors, layers and optimizers."""

import functools
from collections import OrderedDict

from torch import nn

from gallery.case import Small, add, case

# -- what a step takes ------------------------------------------------------------------------------------------------


@case()
class TakesOnlyABatch(Small):
    def training_step(self, batch):
        return self.loss(batch)


@case()
class TakesArgumentsOfOtherNames(Small):
    def training_step(self, pair, number):
        return self.loss(pair)


@case()
class TakesStarredArguments(Small):
    def training_step(self, *arguments):
        return self.loss(arguments[0])


@case(refused="dataloader_iter")
class TakesTheLoadersIterator(Small):
    def training_step(self, dataloader_iter):
        batch, _, _ = next(dataloader_iter)
        return self.loss(batch)


def doubled(function):
    @functools.wraps(function)
    def call(*arguments, **options):
        return 2 * function(*arguments, **options)

    return call


@case()
class ADecoratedStep(Small):
    @doubled
    def training_step(self, batch, batch_idx):
        return self.loss(batch)


@case()
def a_step_put_on_the_instance():
    module = Small()
    module.training_step = lambda batch, batch_idx: 0.5 * module.loss(batch)
    return module


# -- what a step returns ----------------------------------------------------------------------------------------------


@case(eager="`batch_idx` is read")
class ReturnsNoneAtSomeBatches(Small):
    def training_step(self, batch, batch_idx):
        return None if batch_idx % 5 == 2 else self.loss(batch)


@case(eager="a value of a tensor decides")
class ReturnsNoneForSomeData(Small):
    def training_step(self, batch, batch_idx):
        if batch[1].float().mean() > 1.2:
            return None
        return self.loss(batch)


@case(eager="the step returned no loss")
class ReturnsNoneAtEachBatch(Small):
    """Nothing is trained, and the steps are counted."""

    def training_step(self, batch, batch_idx):
        return None


@case()
class ReturnsADictionary(Small):
    def training_step(self, batch, batch_idx):
        return {"loss": self.loss(batch)}


@case()
class ReturnsTensorsAndValues(Small):
    def training_step(self, batch, batch_idx):
        logits = self(batch[0])
        loss = nn.functional.cross_entropy(logits, batch[1])
        return {"loss": loss, "logits": logits.detach(), "kind": "train", "sizes": [8, {"classes": 3}], "none": None}


@case()
class ReturnsTensorsWithTheirGraph(Small):
    def training_step(self, batch, batch_idx):
        logits = self(batch[0])
        return {"loss": nn.functional.cross_entropy(logits, batch[1]), "logits": logits, "weight": self.net[0].weight}


@case()
class ReturnsAnOrderedDictionary(Small):
    def training_step(self, batch, batch_idx):
        return OrderedDict(extra=batch[0].mean(), loss=self.loss(batch))


@case(eager="`batch_idx` is read")
class ReturnsItsIndex(Small):
    def training_step(self, batch, batch_idx):
        return {"loss": self.loss(batch), "index": batch_idx + 1}


@case()
class ReturnsEarlyForASmallBatch(Small):
    def training_step(self, batch, batch_idx):
        if len(batch[0]) < 8:
            return 0.1 * self.loss(batch)
        return self.loss(batch)


@case()
class ReturnsALossOfOneElement(Small):
    def training_step(self, batch, batch_idx):
        return self.loss(batch).reshape(1)


@case()
class ReturnsALossInDouble(Small):
    def training_step(self, batch, batch_idx):
        return self.loss(batch).double()


@case()
class ReturnsALossThatItChangesAfterwards(Small):
    def training_step(self, batch, batch_idx):
        loss = self.loss(batch)
        self.log("loss", loss)
        loss = loss.clone()
        loss.mul_(2)
        return {"loss": loss, "detached": loss.detach()}


@case()
class ReturnsASumOfWeights(Small):
    """The batch plays no part."""

    def training_step(self, batch, batch_idx):
        return sum(parameter.square().sum() for parameter in self.parameters())


@case()
class ReturnsTheSameTensorTwice(Small):
    def training_step(self, batch, batch_idx):
        loss = self.loss(batch)
        return {"loss": loss, "again": loss, "batch": batch[0]}


@case(raises="training_step")
class ReturnsANumber(Small):
    def training_step(self, batch, batch_idx):
        return 1.0


@case(raises="loss")
class ReturnsADictionaryWithoutLoss(Small):
    def training_step(self, batch, batch_idx):
        return {"value": self.loss(batch)}


@case(raises="does not require grad")
class ReturnsALossWithoutGradient(Small):
    def training_step(self, batch, batch_idx):
        return self.loss(batch).detach()


@case(raises="scalar outputs")
class ReturnsALossOfManyElements(Small):
    def training_step(self, batch, batch_idx):
        return self(batch[0])


@case(raises="in the step")
class RaisesInTheStep(Small):
    def training_step(self, batch, batch_idx):
        if len(batch[0]) < 8:
            raise ValueError("in the step")
        return self.loss(batch)


@case(raises="closure")
class NeverCallsTheClosure(Small):
    def optimizer_step(self, epoch, batch_idx, optimizer, optimizer_closure=None):
        pass


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


@case()
class AnActivationKeepsItsGradient(Small):
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
