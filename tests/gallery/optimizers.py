"""Optimizers: all of torch's with their main options."""

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
EAGER = {"Adafactor": "a value of a tensor decides"}

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
    + [{"momentum": 0.9, "nesterov": True, "foreach": True, "weight_decay": 0.1}]
    + [{"weight_decay": 0.1}],
}

for kind in KINDS.values():
    if kind not in (optim.LBFGS, optim.SparseAdam, optim.Muon):
        add(
            f"{kind.__name__} as it comes",
            partial(Optimized, kind),
            eager=EAGER.get(kind.__name__),
            inductor=kind is optim.NAdam,
        )
        for options in OPTIONS.get(kind.__name__, []):
            words = " ".join(f"{key}={value}" for key, value in options.items())
            make = partial(kind, **{"lr": 0.01, **options})
            add(f"{kind.__name__} {words}", partial(Optimized, make), eager=EAGER.get(kind.__name__))
        make = partial(kind, lr=torch.tensor(0.01))
        add(
            f"{kind.__name__} rate in a tensor",
            partial(Optimized, make),
            eager="decides" if kind is optim.Adafactor else None,
        )


DOUBLE = {"precision": "64-true", "max_epochs": 1}


# Rounding grows a thousandfold in a few steps of LBFGS, so it is compared in double precision.
@case(eager="lbfgs.py:", options=DOUBLE)
class LbfgsWithItsClosure(Small):
    def configure_optimizers(self):
        return optim.LBFGS(self.parameters(), lr=0.1, max_iter=3, history_size=4)


@case(eager="lbfgs.py:", options=DOUBLE)
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


add("Muon as it comes", Matrices, eager=EAGER.get("Muon"), tolerance=5e-2)


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
