"""From the loader to the step, and from the training to validation and back."""

import random
from collections import Counter, OrderedDict, defaultdict, deque
from dataclasses import dataclass

import torch
from torch import nn
from torch.utils.data import DataLoader

from gallery.around import Scheduled
from gallery.case import Kept, Small, add, case, from_3_11
from parity import loader

# -- transfer ---------------------------------------------------------------------------------------------------------


@case()
class AddsNoiseBeforeTransfer(Small):
    def on_before_batch_transfer(self, batch, dataloader_idx):
        return batch[0] + 0.1 * torch.randn_like(batch[0]), batch[1]


@case()
class MixesAfterTransfer(Small):
    def on_after_batch_transfer(self, batch, dataloader_idx):
        x, y = batch
        return 0.7 * x + 0.3 * x[torch.randperm(len(x))], y


@case()
class LooksAtTheTrainerInTransfer(Small):
    def on_after_batch_transfer(self, batch, dataloader_idx):
        return batch[0] * (1 + 0.01 * self.trainer.global_step), batch[1]


@case(size=-1, **from_3_11("what the step takes as constant"))
class KeepsANumberInTransfer(Small):
    """Mixing as many write it: how much is drawn for each batch and kept for the loss."""

    def on_after_batch_transfer(self, batch, dataloader_idx):
        self.much = random.uniform(0.5, 1.0)
        self.order = torch.randperm(len(batch[0]))
        return batch[0] * self.much + batch[0][self.order] * (1 - self.much), batch[1]

    def loss(self, batch):
        x, y = batch
        logits = self(x)
        first, second = nn.functional.cross_entropy(logits, y), nn.functional.cross_entropy(logits, y[self.order])
        return self.much * first + (1 - self.much) * second


@case()
class KeepsATensorInTransfer(Small):
    def on_before_batch_transfer(self, batch, dataloader_idx):
        self.weights = 1 + batch[0].abs().mean(dim=1)
        return batch

    def loss(self, batch):
        return (nn.functional.cross_entropy(self(batch[0]), batch[1], reduction="none") * self.weights).mean()


@case(eager="keeps changing", size=-1)
class CountsBatchesInTransfer(Small):
    def __init__(self):
        super().__init__()
        self.seen = 0

    def on_after_batch_transfer(self, batch, dataloader_idx):
        self.seen += 1
        return batch

    def training_step(self, batch, batch_idx):
        return self.loss(batch) / (1 + 0.1 * self.seen)


@case(eager="keeps changing", size=-1)
class LooksUpANumberByACountOfTransfers(CountsBatchesInTransfer):
    factors = torch.linspace(0.5, 1.0, 100).tolist()

    def training_step(self, batch, batch_idx):
        return self.loss(batch) * self.factors[self.seen]


@case(size=-1)
class ChangesANumberInTransfer(CountsBatchesInTransfer):
    """Now and then, so that many steps in a row are the same."""

    def on_after_batch_transfer(self, batch, dataloader_idx):
        self.total += 1
        self.seen = 5 * (self.total // 8)
        return batch

    def __init__(self):
        super().__init__()
        self.total = 0


class FreezesALayerInTransfer(CountsBatchesInTransfer):
    def on_after_batch_transfer(self, batch, dataloader_idx):
        self.seen += 1
        self.net[0].requires_grad_(self.seen < 12)
        return batch

    def training_step(self, batch, batch_idx):
        return self.loss(batch)


class ChangesANumberWithItsScheduler(Scheduled):
    number = 0

    def lr_scheduler_step(self, scheduler, metric):
        scheduler.step()
        self.number = scheduler.last_epoch // 8

    def training_step(self, batch, batch_idx):
        return self.loss(batch) / (1 + self.number)


class FreezesALayerWithItsScheduler(Scheduled):
    def lr_scheduler_step(self, scheduler, metric):
        scheduler.step()
        self.net[0].requires_grad_(scheduler.last_epoch < 12)


KINDS = [ChangesANumberInTransfer, FreezesALayerInTransfer]  # whose counter changes at every batch, and no step reads
for kind in [*KINDS, ChangesANumberWithItsScheduler, FreezesALayerWithItsScheduler]:
    for size in (4, -1):
        add(f"{kind.__name__}, sinks of {size}", kind, size=size)


class ChangesNow(Small):
    """Its hook changes now and then what each step reads, and nothing at the other batches."""

    def on_train_start(self):
        self.change(0)

    def on_after_batch_transfer(self, batch, dataloader_idx):
        if self.trainer.global_step % 8 == 0:
            self.change(self.trainer.global_step // 8)
        return batch

    def change(self, number):
        raise NotImplementedError

    def read(self):
        raise NotImplementedError

    def training_step(self, batch, batch_idx):
        return self.loss(batch) / (1 + self.read())


def in_a(kind, put, read):
    """Makes a module that holds a container, into which its hook puts a number."""

    class Changes(ChangesNow):
        def __init__(self):
            super().__init__()
            self.number = kind()

        def change(self, number):
            put(self.number, number)

        def read(self):
            return read(self.number)

    return Changes


def in_the_first(container, number):
    container[0][0] = number


def renamed(container, number):
    container.clear()
    container[number] = True


CONTAINERS = {
    "list": (lambda: [0], lambda held, number: held.__setitem__(0, number), lambda held: held[0]),
    "deque": (lambda: deque([0], 1), deque.append, lambda held: held[0]),
    "set": (set, set.add, len),
    "Counter": (Counter, lambda held, number: held.update(n=number), lambda held: held["n"]),
    "OrderedDict": (OrderedDict, lambda held, number: held.update(n=number), lambda held: held.get("n", 0)),
    "defaultdict": (lambda: defaultdict(int), lambda held, number: held.update(n=number), lambda held: held["n"]),
    "dict under another name": (dict, renamed, lambda held: next(iter(held))),
    "list in a tuple": (lambda: ([0], 1), in_the_first, lambda held: held[0][0]),
    "set in tuples in a dict": (
        lambda: {"a": ((set(),),)},
        lambda held, number: held["a"][0][0].add(number),
        lambda held: len(held["a"][0][0]),
    ),
}
for kind, container in CONTAINERS.items():
    add(f"changes a {kind} in transfer", in_a(*container), size=-1)

scale = 0
scales = {"now": [0]}


class Settings:
    """What users keep their numbers in."""

    scale = 0


class Globals(ChangesNow):
    def change(self, number):
        global scale
        scale = number

    def read(self):
        return scale


class ContentsOfGlobals(ChangesNow):
    def change(self, number):
        scales["now"][0] = number

    def read(self):
        return scales["now"][0]


class AttributesOfGlobalClasses(ChangesNow):
    def change(self, number):
        Settings.scale = number

    def read(self):
        return Settings.scale


class AttributesOfItsClass(ChangesNow):
    number = 0

    def change(self, number):
        type(self).number = number

    def read(self):
        return self.number


class AttributesOfTheTrainer(ChangesNow):
    def change(self, number):
        self.trainer.number = number

    def read(self):
        return self.trainer.number


class AttributesOfFunctions(ChangesNow):
    def change(self, number):
        read_attribute.number = number

    def read(self):
        return read_attribute()


def read_attribute():
    return read_attribute.number


def closures():
    number = 0

    class Closures(ChangesNow):
        def change(self, new):
            nonlocal number
            number = new

        def read(self):
            return number

    return Closures()


ELSEWHERE = [Globals, ContentsOfGlobals, AttributesOfGlobalClasses, AttributesOfItsClass]
for kind in [*ELSEWHERE, AttributesOfTheTrainer, AttributesOfFunctions]:
    add(f"changes {kind.__name__} in transfer", kind, size=-1)
add("changes closures in transfer", closures, size=-1)


class ModulesOfGlobals(ChangesNow):
    def change(self, number):
        OUTSIDE.number = number

    def read(self):
        return OUTSIDE.number


OUTSIDE = nn.Identity()
add("changes a module that a global holds in transfer", ModulesOfGlobals, size=-1)


@case()
class HasASparseBufferAndTransfers(Small):
    def __init__(self):
        super().__init__()
        self.register_buffer("adjacency", torch.eye(6).to_sparse())

    def on_after_batch_transfer(self, batch, dataloader_idx):
        return torch.sparse.mm(self.adjacency, batch[0].T).T, batch[1]


@dataclass
class Pair:
    x: torch.Tensor
    y: torch.Tensor


class Pairs(Small):
    """A batch of a class of the user's."""

    def loss(self, batch):
        return super().loss((batch.x, batch.y))


case(data=lambda: Kept(Pair))(Pairs)


@case(data=lambda: Kept(Pair))
class TransfersItsOwnKindOfBatch(Pairs):
    def transfer_batch_to_device(self, batch, device, dataloader_idx):
        return Pair(batch.x.to(device) * 2, batch.y.to(device))


# -- validation and the fit -------------------------------------------------------------------------------------------


class Validated(Small):
    def validation_step(self, batch, batch_idx):
        self.log("val_loss", self.loss(batch))

    def val_dataloader(self):
        return DataLoader(loader(3).dataset, 8)


case(options={"val_check_interval": 5})(Validated)


@case(options={"val_check_interval": 5})
class DecaysTheRateAfterValidation(Validated):
    def on_validation_epoch_end(self):
        if not self.trainer.sanity_checking:
            self.trainer.optimizers[0].param_groups[0]["lr"] *= 0.8


@case(options={"val_check_interval": 5})
class ChangesWeightsInValidation(Validated):
    def on_validation_end(self):
        with torch.no_grad():
            self.net[0].weight.mul_(0.9)


@case(options={"val_check_interval": 5})
class StaysInEvaluationAfterValidation(Validated):
    def __init__(self):
        super().__init__()
        self.net.insert(1, nn.Dropout(0.5))

    def on_validation_model_train(self):
        pass


@case(options={"val_check_interval": 5, "accumulate_grad_batches": 2})
class KeepsGradientsInValidation(Validated):
    def on_validation_model_zero_grad(self):
        pass


@case()
class MakesItsLayersLate(Small):
    def __init__(self):
        super().__init__()
        del self.net

    def configure_model(self):
        if not hasattr(self, "net"):
            self.net = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))


@case()
class ChangesWeightsWhenTrainingStarts(Small):
    def on_train_start(self):
        nn.init.orthogonal_(self.net[0].weight)


@case()
class ConfiguresCallbacks(Small):
    def configure_callbacks(self):
        from lightning.pytorch.callbacks import GradientAccumulationScheduler

        return [GradientAccumulationScheduler({0: 1, 1: 3})]
