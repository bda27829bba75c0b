"""What a step asks of things with which it computes nothing, and what becomes another answer late."""

import copy
import math
import operator
import weakref

import torch
from torch import nn
from torch.utils.data import DataLoader, Subset

from gallery.case import Small, add, case
from parity import loader


class Asks(Small):
    """Halves the loss from the last epoch on, where a question has another answer then."""

    def __init__(self):
        super().__init__()
        self.set_up()

    def set_up(self):
        """What is there first."""

    def asks(self):
        """The question."""
        return False

    def change(self):
        """What changes behind the third epoch."""

    def training_step(self, batch, batch_idx):
        loss = self.loss(batch)
        return loss * 0.5 if self.asks() else loss

    def on_train_epoch_end(self):
        if self.current_epoch == 2:
            self.change()


FOUR = {"options": {"max_epochs": 4}}


class Bank(Asks):
    def set_up(self):
        self.register_buffer("bank", torch.zeros(0, 3))

    def change(self):
        self.bank = torch.ones(4, 3)


@case(inductor=True, **FOUR)
class ABankThatIsEmptyAtFirst(Bank):
    def training_step(self, batch, batch_idx):
        out = self(batch[0])
        loss = nn.functional.cross_entropy(out, batch[1])
        return loss + torch.cdist(out, self.bank).mean() if len(self.bank) else loss


@case(options={"max_epochs": 4})
class ABankThatAStepFillsLate(Bank):
    def training_step(self, batch, batch_idx):
        out = self(batch[0])
        loss = nn.functional.cross_entropy(out, batch[1])
        if self.bank.shape[0]:
            loss = loss + torch.cdist(out, self.bank).mean()
        if self.global_step == 22:
            self.bank = out.detach()
        return loss

    def change(self):
        pass


QUESTIONS = {
    "how long": len,
    "how many": lambda bank: bank.numel() > 0,
    "its size": lambda bank: bank.size(0) > 2,
    "its shape": lambda bank: bank.shape == (4, 3),
}
for name, question in QUESTIONS.items():
    kind = type("AsksTheBank", (Bank,), {"asks": lambda self, question=question: question(self.bank)})
    add(f"asked of a bank, {name}", kind, **FOUR)


class Held(Asks):
    def set_up(self):
        self.gates = [torch.ones(3)]

    @property
    def gate(self):
        return self.gates[0]


CHANGES = {
    "its dimensions": (lambda gate: gate.dim() == 2, lambda gates: gates.__setitem__(0, torch.ones(1, 3))),
    "its type": (lambda gate: gate.dtype == torch.float64, lambda gates: gates.__setitem__(0, gates[0].double())),
    "whether it asks for gradients": (lambda gate: gate.requires_grad, lambda gates: gates[0].requires_grad_()),
    "whether it is a parameter": (
        lambda gate: isinstance(gate, nn.Parameter),
        lambda gates: gates.__setitem__(0, nn.Parameter(torch.ones(3))),
    ),
    "its strides": (lambda gate: gate.stride() == (2,), lambda gates: gates.__setitem__(0, torch.ones(6)[::2])),
    "where it begins": (lambda gate: gate.storage_offset() > 0, lambda gates: gates.__setitem__(0, torch.ones(4)[1:])),
    "its data": (lambda gate: gate.numel() > 3, lambda gates: setattr(gates[0], "data", torch.ones(5))),
}
for name, (question, change) in CHANGES.items():
    held = {
        "asks": lambda self, question=question: question(self.gate),
        "change": lambda self, change=change: change(self.gates),
    }
    add(f"asked of a tensor in a list, {name}", type("AsksInAList", (Held,), held), **FOUR)


class Holder:
    def __init__(self):
        self.bank = torch.zeros(0, 3)


@case(**FOUR)
class AskedOfATensorThatAnObjectHolds(Asks):
    def set_up(self):
        self.holder = Holder()

    def asks(self):
        return self.holder.bank.numel() > 0

    def change(self):
        self.holder.bank.data = torch.ones(2, 3)


@case(**FOUR)
class AskedWhetherTwoAreOne(Asks):
    def set_up(self):
        self.first, self.second = nn.Linear(3, 3), nn.Linear(3, 3)

    def asks(self):
        return self.first.weight is self.second.weight

    def change(self):
        self.second.weight = self.first.weight


class Banks(Asks):
    def set_up(self):
        self.banks = nn.ParameterList([nn.Parameter(torch.zeros(2), requires_grad=False)])
        self.register_buffer("bank", torch.zeros(0, 6))

    def change(self):
        self.banks[0] = nn.Parameter(torch.zeros(4), requires_grad=False)
        self.bank = torch.zeros(2, 6)


BY = {
    "a number": lambda module: len(module.banks[0]) > 2,
    "going through them": lambda module: any(len(bank) > 2 for bank in module.banks),
    "a method of torch's": lambda module: len(module.get_buffer("bank")) > 0,
    "an operator": lambda module: len(operator.attrgetter("bank")(module)) > 0,
}
for name, question in BY.items():
    add(f"asked by {name}", type("AsksBy", (Banks,), {"asks": lambda self, question=question: question(self)}), **FOUR)


@case(**FOUR)
class AskedHowManyParametersThereAre(Asks):
    def set_up(self):
        self.head = nn.Linear(3, 3)

    def asks(self):
        return sum(parameter.numel() for parameter in self.parameters()) > 100

    def change(self):
        self.head.weight.data = torch.ones(3, 30)


@case(**FOUR)
class AskedHowManyStepsThereWillBe(Asks):
    def training_step(self, batch, batch_idx):
        done = self.global_step / self.trainer.estimated_stepping_batches
        return self.loss(batch) * (1 + math.cos(math.pi * done))

    def change(self):
        self.trainer.fit_loop.max_epochs = 8


def growing():
    return DataLoader(Subset(loader().dataset, range(64)), batch_size=8)


@case(data=growing, **FOUR)
class AskedHowMuchDataThereIs(Asks):
    def training_step(self, batch, batch_idx):
        return self.loss(batch) * 64 / len(self.trainer.train_dataloader.dataset)

    def change(self):
        self.trainer.train_dataloader.dataset.indices = range(72)


@case(**FOUR)
class AskedWhatIsAlive(Asks):
    def set_up(self):
        self.heads = {"first": nn.Linear(2, 2), "second": nn.Linear(2, 2)}
        self.alive = weakref.WeakValueDictionary(self.heads)

    def training_step(self, batch, batch_idx):
        return self.loss(batch) * (1 + 0.1 * len(self.alive))

    def change(self):
        del self.heads["second"]


class General:
    scale = 1.0


class Special(General):
    pass


@case(**FOUR)
class AClassThatInheritsAnAttribute(Asks):
    def set_up(self):
        General.scale = 1.0

    def training_step(self, batch, batch_idx):
        return self.loss(batch) * Special.scale

    def change(self):
        General.scale = 0.5


class Decaying(torch.optim.SGD):
    def step(self, closure=None):
        loss = super().step(closure)
        for group in self.param_groups:
            torch._foreach_mul_([parameter.data for parameter in group["params"]], 0.99)
        return loss


@case(**FOUR)
class AnOptimizerOfAnotherClass(Asks):
    def change(self):
        self.trainer.optimizers[0].__class__ = Decaying


@case(**FOUR)
class AnOptimizersStateTakenInAStepAndLoaded(Asks):
    def training_step(self, batch, batch_idx):
        if batch_idx == 5:
            self.kept = copy.deepcopy(self.optimizers().optimizer.state_dict())
        return self.loss(batch)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), 1e-2, fused=True)

    def change(self):
        self.trainer.optimizers[0].load_state_dict(self.kept)
