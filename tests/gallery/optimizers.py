"""Optimizers: all of torch's with their main options, and users' own."""

from functools import partial

import torch
from torch import nn, optim

from gallery.case import Small, add, case


class Optimized(Small):
    """The small module with an optimizer, and maybe a scheduler, given from outside."""

    def __init__(self, make_optimizer, make_scheduler=None, **config):
        super().__init__()
        self.make_optimizer, self.make_scheduler, self.config = make_optimizer, make_scheduler, config

    def training_step(self, batch, batch_idx):
        loss = self.loss(batch)
        self.log("loss", loss, on_step=True, on_epoch=True)
        return loss

    def configure_optimizers(self):
        optimizer = self.make_optimizer(self.parameters())
        if self.make_scheduler is None:
            return optimizer
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": self.make_scheduler(optimizer), **self.config}}


# -- every optimizer of torch -----------------------------------------------------------------------------------------

KINDS = {
    name: kind
    for name, kind in vars(optim).items()
    if isinstance(kind, type) and issubclass(kind, optim.Optimizer) and kind is not optim.Optimizer
}

# Why some are not compiled.
BRANCHES = "a comparison of a number that changes with the step"
EAGER = {"Adafactor": BRANCHES, "ASGD": BRANCHES, "RAdam": BRANCHES}

OPTIONS = {
    "Adadelta": [{"weight_decay": 0.1}, {"maximize": True}],
    "Adafactor": [{"lr": 0.1, "weight_decay": 0.1}],
    "Adagrad": [{"lr_decay": 0.1}, {"fused": True}, {"initial_accumulator_value": 0.1}],
    "Adam": [{"amsgrad": True}, {"maximize": True}, {"fused": True}, {"weight_decay": 0.1}]
    + [{"amsgrad": True, "foreach": True}, {"decoupled_weight_decay": True, "weight_decay": 0.1}],
    "AdamW": [{"amsgrad": True}, {"fused": True}, {"foreach": True}, {"betas": (0.5, 0.6), "eps": 1e-4}],
    "Adamax": [{"weight_decay": 0.1}, {"foreach": True}],
    "NAdam": [{"decoupled_weight_decay": True, "weight_decay": 0.1}, {"momentum_decay": 0.1}],
    "RAdam": [{"decoupled_weight_decay": True, "weight_decay": 0.1}],
    "RMSprop": [{"centered": True}, {"momentum": 0.9}, {"centered": True, "momentum": 0.9, "foreach": True}],
    "Rprop": [{"etas": (0.4, 1.1)}],
    "SGD": [{"momentum": 0.9}, {"momentum": 0.9, "nesterov": True}, {"momentum": 0.9, "dampening": 0.5}]
    + [{"momentum": 0.9, "fused": True}, {"momentum": 0.9, "foreach": True}, {"maximize": True}]
    + [{"weight_decay": 0.1}],
}

for kind in KINDS.values():
    if kind not in (optim.LBFGS, optim.SparseAdam, optim.Muon):
        add(
            f"{kind.__name__} as it comes",
            partial(Optimized, kind),
            eager=EAGER.get(kind.__name__),
            inductor=kind.__name__ in ("NAdam", "Adadelta"),
        )
        for options in OPTIONS.get(kind.__name__, []):
            words = " ".join(f"{key}={value}" for key, value in options.items())
            make = partial(kind, **{"lr": 0.01, **options})
            add(f"{kind.__name__} {words}", partial(Optimized, make), eager=EAGER.get(kind.__name__))
        make = partial(kind, lr=torch.tensor(0.01))
        add(f"{kind.__name__} rate in a tensor", partial(Optimized, make), eager=EAGER.get(kind.__name__))


# Rounding grows a thousandfold in a few steps of LBFGS, so it is compared in double precision.
@case(eager="a value of a tensor decides", options={"precision": "64-true"})
class LbfgsWithItsClosure(Small):
    def configure_optimizers(self):
        return optim.LBFGS(self.parameters(), lr=0.1, max_iter=3, history_size=4)


@case(eager="a value of a tensor decides", options={"precision": "64-true"})
class LbfgsWithALineSearch(Small):
    def configure_optimizers(self):
        return optim.LBFGS(self.parameters(), lr=0.1, max_iter=3, line_search_fn="strong_wolfe")


class Words(Small):
    """Looks its input up in a table whose gradients are sparse."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(9, 6, sparse=True)

    def forward(self, x):
        return self.net(self.table((x[:, 0].abs() * 4).long().clamp(max=8)))


@case(eager="layout")
class SparseAdamWithSparseGradients(Words):
    def configure_optimizers(self):
        self.net.requires_grad_(False)
        return optim.SparseAdam(self.table.parameters(), lr=0.01)


@case(eager="layout")
class PlainDescentWithSparseGradients(Words):
    def configure_optimizers(self):
        return optim.SGD(self.parameters(), lr=0.05)


class Matrices(Small):
    def configure_optimizers(self):
        return optim.Muon([parameter for parameter in self.parameters() if parameter.dim() == 2], lr=0.01)


add("Muon as it comes", Matrices, eager=EAGER.get("Muon"), inductor=True, tolerance=5e-2)


@case()
class AClosureOfTheUsersOwn(Small):
    """The step of the optimizer is overridden and looks at the gradients in between."""

    def optimizer_step(self, epoch, batch_idx, optimizer, optimizer_closure):
        def closure():
            loss = optimizer_closure()
            for parameter in self.parameters():
                parameter.grad.mul_(0.5)
            return loss

        optimizer.step(closure=closure)


# -- users' own -------------------------------------------------------------------------------------------------------


class Sign(optim.Optimizer):
    """The sign of the gradient, in plain Python."""

    def __init__(self, parameters, lr=0.01):
        super().__init__(parameters, {"lr": lr})

    @torch.no_grad()
    def step(self, closure=None):
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self.update(parameter, group)
        return loss

    def update(self, parameter, group):
        parameter.add_(parameter.grad.sign(), alpha=-group["lr"])


class Counting(Sign):
    """Counts its steps in Python, in the state of each parameter."""

    def update(self, parameter, group):
        state = self.state[parameter]
        state["step"] = state.get("step", 0) + 1
        parameter.add_(parameter.grad, alpha=-group["lr"] / state["step"] ** 0.5)


class CountingItself(Sign):
    """Counts its steps in an attribute."""

    def __init__(self, parameters, lr=0.01):
        super().__init__(parameters, lr)
        self.count = 0

    def step(self, closure=None):
        self.count += 1
        return super().step(closure)


class CountingInItsGroup(Sign):
    """Counts its steps in the parameter group."""

    def update(self, parameter, group):
        group["step"] = group.get("step", 0) + 1
        super().update(parameter, group)


class Lion(Sign):
    """State tensors that it makes at the first step and writes in place."""

    def update(self, parameter, group):
        state = self.state[parameter]
        if not state:
            state["average"] = torch.zeros_like(parameter)
        update = state["average"].mul(0.9).add(parameter.grad, alpha=0.1).sign_()
        parameter.mul_(1 - group["lr"] * 0.1).add_(update, alpha=-group["lr"])
        state["average"].lerp_(parameter.grad, 0.01)


class Replacing(Sign):
    """State tensors that it replaces at each step."""

    def update(self, parameter, group):
        state = self.state[parameter]
        state["average"] = 0.9 * state.get("average", 0.0) + 0.1 * parameter.grad
        parameter.sub_(group["lr"] * state["average"])


class Nested(Sign):
    """State in a dictionary of its own below the parameter's."""

    def update(self, parameter, group):
        inner = self.state[parameter].setdefault("inner", {"average": torch.zeros_like(parameter)})
        inner["average"] = 0.9 * inner["average"] + 0.1 * parameter.grad
        parameter.sub_(group["lr"] * inner["average"])


class KeepingItsNorm(Sign):
    """A tensor in an attribute, replaced at each step."""

    norm = torch.zeros(())

    def step(self, closure=None):
        loss = super().step(closure)
        squares = [p.grad.square().sum() for group in self.param_groups for p in group["params"]]
        self.norm = 0.9 * self.norm + 0.1 * torch.stack(squares).sum().sqrt()
        return loss


class WritingThroughData(Sign):
    """An old style: `.data` everywhere."""

    def update(self, parameter, group):
        parameter.data = parameter.data - group["lr"] * parameter.grad.data


class WritingInDataInPlace(Sign):
    def update(self, parameter, group):
        parameter.data.add_(parameter.grad.data, alpha=-group["lr"])


class Centralized(optim.Adam):
    """A subclass of torch's that changes the gradients first."""

    def step(self, closure=None):
        loss = None if closure is None else closure()
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad.dim() > 1:
                    parameter.grad.sub_(parameter.grad.mean(1, keepdim=True))
        super().step()
        return loss


class Lookahead(optim.Optimizer):
    """Wraps another optimizer and goes back to slow weights every fifth step."""

    def __init__(self, parameters):
        self.inner, self.count = optim.SGD(parameters, lr=0.05, momentum=0.9), 0
        super().__init__(self.inner.param_groups, {"lr": 0.05})
        self.param_groups = self.inner.param_groups
        self.slow = [parameter.detach().clone() for parameter in self.param_groups[0]["params"]]

    def step(self, closure=None):
        loss = self.inner.step(closure)
        self.count += 1
        if self.count % 5 == 0:
            for slow, parameter in zip(self.slow, self.param_groups[0]["params"], strict=True):
                slow.lerp_(parameter.detach(), 0.5)
                parameter.data.copy_(slow)
        return loss


class SharpnessAware(optim.SGD):
    """Two gradients for each step: the closure is called twice."""

    def step(self, closure=None):
        with torch.enable_grad():
            loss = closure()
        parameters = [p for group in self.param_groups for p in group["params"]]
        norm = torch.stack([p.grad.norm() for p in parameters]).norm() + 1e-12
        moves = [0.05 * p.grad / norm for p in parameters]
        with torch.no_grad():
            torch._foreach_add_(parameters, moves)
        with torch.enable_grad():
            closure()
        with torch.no_grad():
            torch._foreach_sub_(parameters, moves)
        super().step()
        return loss


OWN = {
    Sign: None,
    Counting: "changes Python state",
    CountingItself: "changes Python state",
    CountingInItsGroup: "sets the optimizer's 'step'",
    Lion: None,
    Replacing: None,
    Nested: "changes Python state",
    KeepingItsNorm: "changes Python state",
    WritingThroughData: "replaces `.data`",
    WritingInDataInPlace: None,
    Centralized: None,
    Lookahead: "changes Python state",
    SharpnessAware: None,
}
for kind, eager in OWN.items():
    add(f"own optimizer {kind.__name__}", partial(Optimized, kind), eager=eager, inductor=kind is SharpnessAware)
