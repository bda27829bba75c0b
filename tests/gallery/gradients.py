"""Gradients that are looked at in hooks of a backward pass, put there by hand, or left on tensors that nobody knows."""

import copy

import torch
from torch import nn
from torch.nn import functional as F

from gallery.case import Small, case
from gallery.parts import tasks

SOME = {"size": -1, "data": tasks("NNNNANNNN" * 8), "options": {"max_epochs": 2}}
"""Few steps go another way than the others, and these have their programs by then."""


class Headed(Small):
    """Batches of task A are for the head too."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(6, 3)

    def out(self, x, of):
        return self(x) + self.head(x) if (of == 1).all() else self(x)

    def training_step(self, batch, batch_idx):
        x, y, of = batch
        return F.cross_entropy(self.out(x, of), y)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.05)


@case(**SOME)
class AStepInTheBackwardPassThatIsLeftOutNowAndThen(Headed):
    """The head is frozen where the step ends, and was not before."""

    def __init__(self):
        super().__init__()
        self.automatic_optimization = False

    def configure_optimizers(self):
        for parameter in self.head.parameters():
            parameter.register_post_accumulate_grad_hook(self.step)
        return torch.optim.SGD(self.net.parameters(), lr=0.05)

    def step(self, parameter):
        if self.steps:
            with torch.no_grad():
                parameter -= 0.05 * parameter.grad
            parameter.grad = None

    def training_step(self, batch, batch_idx):
        x, y, of = batch
        self.steps = batch_idx % 9 != 4
        self.head.requires_grad_(True)
        self.manual_backward(F.cross_entropy(self.head(x), y))
        self.head.requires_grad_(False)
        optimizer = self.optimizers()
        optimizer.zero_grad()
        self.manual_backward(F.cross_entropy(self(x) + self.head(x), y))
        optimizer.step()


@case(size=-1, data=tasks("N" * 30), options={"max_epochs": 4})
class AHookOfTheBackwardPassAsksForAGradient(Headed):
    """That of a frozen head, which some epochs put there."""

    def __init__(self):
        super().__init__()
        self.head.requires_grad_(False)
        self.net.register_full_backward_pre_hook(self.scale)

    def scale(self, module, found):
        return found if self.head.weight.grad is None else (2 * found[0],)

    def on_train_epoch_start(self):
        self.head.weight.grad = torch.ones(3, 6) if self.current_epoch % 2 else None

    def configure_optimizers(self):
        return torch.optim.SGD(self.net.parameters(), lr=0.05)


@case(**SOME)
class AFunctionThatTorchCallsAsksForAGradient(Headed):
    def distance(self, one, other):
        found = F.pairwise_distance(one, other)
        return found if self.head.weight.grad is None else 2 * found

    def training_step(self, batch, batch_idx):
        x, y, of = batch
        out = self(x)
        triplet = out, out.roll(1, 0), out.roll(2, 0)
        loss = F.cross_entropy(self.out(x, of), y)
        return loss + 0.1 * F.triplet_margin_with_distance_loss(*triplet, distance_function=self.distance)


class Zeros:
    """Holds what nobody looks through."""

    def __init__(self, module):
        self.of = {name: torch.zeros_like(parameter) for name, parameter in module.named_parameters()}


@case(**SOME)
class ZerosInThePlaceOfGradientsThatAreNotThere(Headed):
    """The optimizer finds them, and no step makes them."""

    def __init__(self):
        super().__init__()
        self.zeros = Zeros(self)

    def on_after_backward(self):
        for name, parameter in self.named_parameters():
            if parameter.grad is None:
                parameter.grad = self.zeros.of[name]

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.05, momentum=0.9)


MASKS = [torch.tensor([1.0, 0.0, 1.0, 1.0, 0.0, 1.0]), torch.tensor([0.0, 1.0, 1.0, 0.0, 1.0, 1.0])]


@case(**SOME)
class AMaskThatIsPutIntoABuffer(Headed):
    def __init__(self):
        super().__init__()
        self.register_buffer("mask", MASKS[0])

    def training_step(self, batch, batch_idx):
        x, y, of = batch
        self.mask = MASKS[1] if (of == 1).all() else MASKS[0]
        return F.cross_entropy(self(x * self.mask), y)


@case(**SOME)
class AMaskThatIsPutIntoAList(AMaskThatIsPutIntoABuffer):
    def __init__(self):
        super().__init__()
        self.masks = [MASKS[0]]

    def training_step(self, batch, batch_idx):
        x, y, of = batch
        self.masks[0] = MASKS[1] if (of == 1).all() else MASKS[0]
        return F.cross_entropy(self(x * self.masks[0]), y)


@case(**SOME)
class AMeanThatSomeStepsReplace(Headed):
    """The others read it where it is."""

    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(6))

    def training_step(self, batch, batch_idx):
        x, y, of = batch
        if (of == 1).all():
            self.mean = 0.9 * self.mean + 0.1 * x.mean(0)
        return F.cross_entropy(self(x - self.mean), y)


@case(**SOME, eager="gets a gradient")
class AWeightThatIsNoParameter(Headed):
    """Some steps leave its gradient, to which the next one adds."""

    def __init__(self):
        super().__init__()
        self.automatic_optimization = False
        self.weight = torch.zeros(3, requires_grad=True)

    def training_step(self, batch, batch_idx):
        x, y, of = batch
        optimizer = self.optimizers()
        optimizer.zero_grad()
        self.manual_backward(F.cross_entropy(self(x) + self.weight, y))
        self.log("weight", self.weight.detach()[0])
        if (of == 1).all():
            return
        optimizer.step()
        with torch.no_grad():
            self.weight -= 0.05 * self.weight.grad
        self.weight.grad = None


@case(**SOME, eager="gets a gradient")
class AProbeThatHasGradientsForAMoment(Headed):
    def __init__(self):
        super().__init__()
        self.register_buffer("probe", torch.zeros(6))

    def training_step(self, batch, batch_idx):
        x, y, of = batch
        self.probe.requires_grad_(True)
        self.probe.grad = None
        F.cross_entropy(self(x + self.probe), y).backward()
        self.probe.requires_grad_(False)
        return F.cross_entropy(self(x + 0.1 * self.probe.grad.sign()), y)

    def on_train_epoch_end(self):
        self.log("probe", self.probe.grad.sum())


@case(**SOME, eager="a tensor")
class AHiddenModuleThatHasAGradientNowAndThen(Headed):
    def __init__(self):
        super().__init__()
        self.hidden = [copy.deepcopy(self.head)]

    def training_step(self, batch, batch_idx):
        self.index = batch_idx
        x, y, of = batch
        out, hidden = self(x) + self.head(x), self.hidden[0]
        if hidden.weight.grad is not None:
            out = out + 0.1 * (x @ hidden.weight.grad.T)
        return F.cross_entropy(out, y)

    def on_before_optimizer_step(self, optimizer):
        if self.index % 9 == 4:
            self.hidden[0].weight.grad = self.head.weight.grad.clone()
        elif self.index % 9 == 6:
            self.hidden[0].zero_grad()


class Frozen(Headed):
    """The head is trained by hand now and then, and frozen else."""

    def __init__(self):
        super().__init__()
        self.automatic_optimization = False
        self.head.requires_grad_(False)

    def configure_optimizers(self):
        return torch.optim.SGD(self.net.parameters(), lr=0.05)

    def clear(self):
        for parameter in self.head.parameters():
            del parameter.grad

    def training_step(self, batch, batch_idx):
        x, y, of = batch
        optimizer = self.optimizers()
        optimizer.zero_grad()
        if (of == 1).all():
            self.head.requires_grad_(True)
            self.manual_backward(F.cross_entropy(self.head(x), y))
            self.head.requires_grad_(False)
            with torch.no_grad():
                for parameter in self.head.parameters():
                    parameter -= 0.5 * parameter.grad
            return
        self.clear()
        self.manual_backward(F.cross_entropy(self(x) + self.head(x), y))
        optimizer.step()
        self.clear_behind()

    def clear_behind(self):
        pass


@case(**SOME)
class AFrozenHeadsGradientIsDeleted(Frozen):
    pass


@case(**SOME)
class AFrozenHeadsGradientIsClearedBehindTheStep(Frozen):
    def clear(self):
        pass

    def clear_behind(self):
        for parameter in self.head.parameters():
            parameter.grad = None


class Hidden(Headed):
    """A critic that nobody finds."""

    def __init__(self):
        super().__init__()
        self.automatic_optimization = False
        self.critics = [copy.deepcopy(self.head)]

    def clear(self, critic):
        critic.zero_grad()

    def training_step(self, batch, batch_idx):
        x, y, of = batch
        optimizer, critic = self.optimizers(), self.critics[0]
        if (of == 1).all():
            self.manual_backward(F.cross_entropy(critic(x), y))
            with torch.no_grad():
                for parameter in critic.parameters():
                    parameter -= 0.5 * parameter.grad
            return
        self.clear(critic)
        optimizer.zero_grad()
        self.manual_backward(F.cross_entropy(self(x), y) + F.mse_loss(self(x), critic(x).detach()))
        optimizer.step()


@case(**SOME, eager="gets a gradient")
class AHiddenModulesGradientsAreCleared(Hidden):
    pass


@case(**SOME, eager="gets a gradient")
class AHiddenModulesGradientsAreTakenAway(Hidden):
    def clear(self, critic):
        for parameter in critic.parameters():
            parameter.grad = None


@case(**SOME)
class AMaskThatIsRegistered(AMaskThatIsPutIntoABuffer):
    def training_step(self, batch, batch_idx):
        x, y, of = batch
        self.register_buffer("mask", MASKS[1] if (of == 1).all() else MASKS[0])
        return F.cross_entropy(self(x * self.mask), y)


@case(**SOME)
class AMaskThatIsPutPastTheModule(AMaskThatIsPutIntoABuffer):
    def training_step(self, batch, batch_idx):
        x, y, of = batch
        self._buffers["mask"] = MASKS[1] if (of == 1).all() else MASKS[0]
        return F.cross_entropy(self(x * self.mask), y)


@case(size=-1, data=tasks("N" * 30), options={"max_epochs": 4})
class AHookThatAsksUnderAnotherMode(AHookOfTheBackwardPassAsksForAGradient):
    def scale(self, module, found):
        with torch.device("cpu"):
            return super().scale(module, found)


@case(size=-1, data=tasks("N" * 30), options={"max_epochs": 4})
class AHookThatAsksByANameThatIsElsewhere(AHookOfTheBackwardPassAsksForAGradient):
    NAME = "grad"

    def scale(self, module, found):
        return found if getattr(self.head.weight, self.NAME) is None else (2 * found[0],)
