"""What steps take from elsewhere than their module, and what changes in the middle of a sink."""

import copy
import csv
import functools
import hashlib
import io
import os
import queue
import sqlite3
import types
import zlib
from functools import partial

import lightning as L
import torch
from lightning.pytorch.callbacks import EarlyStopping
from torch import nn, optim
from torch.optim import lr_scheduler

from gallery.callbacks import DIFFERS
from gallery.case import Kept, Small, add, case
from gallery.optimizers import Optimized
from gallery.state import even

# -- changed by one step of many --------------------------------------------------------------------------------------


class Acting(Small):
    """Its thirteenth step does something that all later ones depend on; it lies in the middle of a sink."""

    scale = 1.0

    def __init__(self, act):
        super().__init__()
        self.net.insert(1, nn.Dropout(0.3))
        self.act = act

    def training_step(self, batch, batch_idx):
        if self.global_step == 13:
            self.act(self)
        return self.loss(batch) * self.scale


def add_a_group(module):
    extra = nn.Parameter(torch.ones(6))
    module.extra = extra
    module.optimizers().optimizer.add_param_group({"params": [extra]})


ACTS = {
    "sets an attribute": lambda module: setattr(module, "scale", 3.0),
    "freezes a layer": lambda module: module.net[0].requires_grad_(False),
    "switches dropout off": lambda module: module.net[1].eval(),
    "puts a hook on a layer": lambda module: module.net[0].register_forward_hook(lambda layer, given, out: 2 * out),
    "appends a layer": lambda module: module.net.append(nn.Tanh()),
    "takes a layer away": lambda module: module.net.__delitem__(1),
    "clips from then on": lambda module: setattr(module.trainer, "gradient_clip_val", 0.01),
    "adds a group of parameters": add_a_group,
}
for name, act in ACTS.items():
    add(f"one step {name}", lambda act=act: Acting(act))


class Holder:
    start = None


@case()
class StartKeptInAnObject(Small):
    """The number is kept from the very first step, which is recorded."""

    def __init__(self):
        super().__init__()
        self.holder = Holder()

    def training_step(self, batch, batch_idx):
        if self.holder.start is None:
            self.holder.start = self.global_step
        return self.loss(batch) * (1 + (self.global_step - self.holder.start) / 10)


@case(eager="the step keeps `current_epoch`")
class EpochKeptInAnObject(StartKeptInAnObject):
    def training_step(self, batch, batch_idx):
        self.holder.start = self.current_epoch
        return self.loss(batch)


@case()
class StepKeptInADictionary(Small):
    def __init__(self):
        super().__init__()
        self.weights = {"loss": 1.0}

    def training_step(self, batch, batch_idx):
        self.weights["loss"] = 1 / (1 + self.global_step)
        return self.loss(batch) * self.weights["loss"]


class Unspeakable:
    """A key whose text nobody may ask for, as it takes long to make."""

    def __repr__(self):
        raise AssertionError


class Guarded(dict):
    """Lets nobody but the step in."""

    is_open = False

    def __getitem__(self, key):
        assert self.is_open
        return super().__getitem__(key)

    def __setitem__(self, key, value):
        assert self.is_open
        super().__setitem__(key, value)


@case(eager="`global_step` in `weights['loss']`")
class StepKeptInADictionaryOfTheUsers(StepKeptInADictionary):
    def __init__(self):
        super().__init__()
        self.weights = Guarded({"loss": 1.0, Unspeakable(): 2.0})

    def training_step(self, batch, batch_idx):
        self.weights.is_open = True
        loss = super().training_step(batch, batch_idx)
        self.weights.is_open = False
        return loss


@case()
class StepKeptInAnAttribute(Small):
    def training_step(self, batch, batch_idx):
        self.last = self.global_step
        return self.loss(batch)


class Api:
    calls = 0

    def ask(self):
        self.calls += 1
        if self.calls == 4:
            raise ConnectionError("the line is dead")


@case(raises="the line is dead")
class AsksOverALine(Small):
    """A second try would go through."""

    def __init__(self):
        super().__init__()
        self.api = Api()

    def training_step(self, batch, batch_idx):
        self.api.ask()
        return self.loss(batch)


# -- changed between epochs -------------------------------------------------------------------------------------------

WEIGHTS = {"loss": 1.0}


def doubled(loss):
    return 2 * loss


class Config:
    scale = 1.0


class History(list):
    scale = 1.0


class Weighing(Small):
    """Its loss has a weight from somewhere, which is another one in each epoch."""

    def __init__(self, prepare, weight, change):
        super().__init__()
        self.weight_of, self.change = weight, change
        prepare(self)

    def training_step(self, batch, batch_idx):
        return self.loss(batch) * self.weight_of(self)

    def on_train_epoch_end(self):
        self.change(self, 1.5 + self.current_epoch)


class WeighingByAGlobal(Small):
    def __init__(self):
        super().__init__()
        WEIGHTS["loss"] = 1.0

    def training_step(self, batch, batch_idx):
        return sum(WEIGHTS[name] * value for name, value in {"loss": self.loss(batch)}.items())

    def on_train_epoch_end(self):
        WEIGHTS["loss"] = 1.5 + self.current_epoch


add("weighing by a global in a generator", WeighingByAGlobal)


def from_configuration(**names):
    exec(compile("def weighed(loss):\n    return weight * loss", "<configuration>", "exec"), names)
    return names["weighed"]


class OfTheSameText(Small):
    """Both functions are in each step; only what the second one sees changes."""

    def __init__(self):
        super().__init__()
        self.first, self.second = from_configuration(weight=0.5), from_configuration(weight=0.5)

    def training_step(self, batch, batch_idx):
        loss = self.loss(batch)
        return self.first(loss) + self.second(loss)

    def on_train_epoch_end(self):
        self.second.__globals__["weight"] = 1.5 + self.current_epoch


add("two functions of the same text, each with globals of its own", OfTheSameText)


def halved(loss):
    return 0.5 * loss


HALVED = halved.__code__


class OfOtherCode(Small):
    """A tool that reloads code as it is edited puts it into the functions that are there."""

    def __init__(self):
        super().__init__()
        halved.__code__ = HALVED

    def training_step(self, batch, batch_idx):
        return halved(self.loss(batch))

    def on_train_epoch_end(self):
        halved.__code__ = (lambda loss: 2.0 * loss).__code__


add("a function with other code", OfOtherCode)


def keep(**made):
    def prepare(module):
        module.kept = types.SimpleNamespace(**{name: make() for name, make in made.items()})

    return prepare


def set_class(module, value):
    module.kept.made.scale = value


def parameter_attribute(module):
    module.net[0].weight.scale = 1.0


def replaced_teacher(module, value):
    module.kept.made[0] = copy.deepcopy(module.net)


def teach(module):
    return 1 + module.kept.made[0](torch.ones(6)).sum().detach().abs()


def replaced_weight(module, value):
    module.kept.made[0][0].weight = nn.Parameter(torch.full((8, 6), value / 10))


PLACES = {
    "a class": (keep(made=lambda: type("Own", (Config,), {})), lambda m: m.kept.made.scale, set_class),
    "a method of a class": (
        keep(made=lambda: type("Own", (), {"scale": lambda self: 1.0})()),
        lambda m: m.kept.made.scale(),
        lambda m, value: setattr(type(m.kept.made), "scale", lambda self: value),
    ),
    "a list with attributes": (keep(made=History), lambda m: m.kept.made.scale, set_class),
    "a parameter's attribute": (
        parameter_attribute,
        lambda m: m.net[0].weight.scale,
        lambda m, value: setattr(m.net[0].weight, "scale", value),
    ),
    "a teacher in a list, replaced": (keep(made=lambda: [Small().net]), teach, replaced_teacher),
    "a teacher in a list, its weight replaced": (keep(made=lambda: [Small().net]), teach, replaced_weight),
    "a distribution": (
        keep(made=lambda: torch.distributions.Normal(1.0, 1.0)),
        lambda m: m.kept.made.loc,
        lambda m, value: setattr(m.kept.made, "loc", torch.tensor(value)),
    ),
    "the trainer under another name": (
        lambda m: None,
        lambda m: 1 + (trainer := m.trainer).num_training_batches / trainer.max_epochs,
        lambda m, value: setattr(m.trainer.fit_loop, "max_epochs", m.trainer.max_epochs),
    ),
}
for name, (prepare, weight, change) in PLACES.items():
    add(f"weight from {name}", lambda made=(prepare, weight, change): Weighing(*made))


def nothing(module):
    pass


def of_progress(module):
    progress = module.trainer.fit_loop.epoch_progress
    return 1 / (1 + progress.current.completed)


def of_a_callback(module):
    for callback in module.trainer.callbacks:
        if isinstance(callback, EarlyStopping):
            return 1 / (1 + callback.wait_count)
    return None


def set_wait(module, value):
    module.trainer.early_stopping_callback.wait_count = value


def of_an_item(module):
    return 1 / (1 + module.trainer.early_stopping_callbacks[0].wait_count)


def of_a_name_in_quotes(module):
    return getattr(module.trainer, "weight_of_loss", 1.0)


def set_on_trainer(module, value):
    module.trainer.weight_of_loss = value


def of_a_scheduler(module):
    return module.lr_schedulers().base_lrs[0] * 20


def set_base_rate(module, value):
    module.lr_schedulers().base_lrs[0] = value / 20


def of_what_a_wrapper_has(module):
    return getattr(module.optimizers(), "weight_of_loss", 1.0)


def set_on_wrapper(module, value):
    module.optimizers().weight_of_loss = value


def of_an_option_that_comes(module):
    return module.trainer.optimizers[0].param_groups[0].get("weight_of_loss", 1.0)


def set_option(module, value):
    module.trainer.optimizers[0].param_groups[0].setdefault("weight_of_loss", value)


def function_with_a_number(module):
    module.kept = lambda: 0
    module.kept.weight = 1.0


def partial_with_a_number(module):
    module.kept = functools.partial(min, 0)
    module.kept.weight = 1.0


def set_on_kept(module, value):
    module.kept.weight = value


def set_on_doubled(module, value):
    doubled.weight = value


def not_yet_doubled(module):
    vars(doubled).pop("weight", None)


WAYS = {
    "a part of the trainer with a name": (nothing, of_progress, lambda m, value: None),
    "a callback in a loop": (nothing, of_a_callback, set_wait),
    "one of the trainer's callbacks": (nothing, of_an_item, set_wait),
    "the trainer by a name in quotes": (nothing, of_a_name_in_quotes, set_on_trainer),
    "a scheduler": (nothing, of_a_scheduler, set_base_rate),
    "a wrapper of an optimizer": (nothing, of_what_a_wrapper_has, set_on_wrapper),
    "an option that comes": (nothing, of_an_option_that_comes, set_option),
    "a function's attribute": (function_with_a_number, lambda m: m.kept.weight, set_on_kept),
    "a partial's attribute": (partial_with_a_number, lambda m: m.kept.weight, set_on_kept),
    "a global function's attribute": (not_yet_doubled, lambda m: getattr(doubled, "weight", 1.0), set_on_doubled),
}


class WeighingByAScheduler(Weighing):
    def configure_optimizers(self):
        optimizer = super().configure_optimizers()
        return [optimizer], [lr_scheduler.StepLR(optimizer, 5)]


for name, made in WAYS.items():
    stops = {"callbacks": lambda: [EarlyStopping("loss", strict=False, check_on_train_epoch_end=False)]}
    add(f"weight from {name}", lambda made=made: WeighingByAScheduler(*made), options=stops)


@case()
class AFunctionRebound(Small):
    def __init__(self):
        super().__init__()
        globals()["doubled"] = lambda loss: 2 * loss

    def training_step(self, batch, batch_idx):
        return doubled(self.loss(batch))

    def on_train_epoch_end(self):
        globals()["doubled"] = lambda loss: 5 * loss


@case()
class PrecisionOfProductsFromAnEpochOn(Small):
    def on_train_epoch_start(self):
        torch.set_float32_matmul_precision("high" if self.current_epoch else "highest")

    def on_fit_end(self):
        torch.set_float32_matmul_precision("highest")


# -- changed between steps, by code on the host -----------------------------------------------------------------------


@case()
class NestedNumberSetInTransfer(Small):
    def __init__(self):
        super().__init__()
        self.options, self.seen = {"scale": 1.0}, 0

    def on_after_batch_transfer(self, batch, dataloader_idx):
        self.options["scale"] = 1.0 if self.global_step < 11 else 2.0
        return batch

    def training_step(self, batch, batch_idx):
        return self.loss(batch) * self.options["scale"]


@case()
class RateOfARunningLoss(Small):
    """The schedule looks at a tensor that the step before it has just replaced."""

    def __init__(self):
        super().__init__()
        self.register_buffer("running", torch.ones(()))

    def training_step(self, batch, batch_idx):
        loss = self.loss(batch)
        self.running = 0.9 * self.running + 0.1 * loss.detach()
        return loss

    def configure_optimizers(self):
        optimizer = optim.SGD(self.parameters(), lr=0.1)
        schedule = lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + float(self.running)))
        return [optimizer], [{"scheduler": schedule, "interval": "step"}]


@case(eager="last_epoch")
class CountOfASchedulerRead(Small):
    def training_step(self, batch, batch_idx):
        return self.loss(batch) / (1 + self.lr_schedulers().last_epoch)

    def configure_optimizers(self):
        optimizer = optim.SGD(self.parameters(), lr=0.1)
        return [optimizer], [{"scheduler": lr_scheduler.StepLR(optimizer, 5), "interval": "step"}]


@case(eager="batch_progress")
class ProgressOfBatchesRead(Small):
    """Which decides nothing in the steps that are recorded."""

    def training_step(self, batch, batch_idx):
        completed = self.trainer.fit_loop.epoch_loop.batch_progress.current.completed
        return self.loss(batch) * (2.0 if completed >= 6 else 1.0)


@case(eager="epoch_loop.done")
class LastBatchToldByTheLoop(Small):
    def training_step(self, batch, batch_idx):
        return self.loss(batch) * (1 + self.trainer.fit_loop.epoch_loop.done)


# -- left by a step ---------------------------------------------------------------------------------------------------


@case(eager="writes or reads outside of the step", line="writerow")
class WritesRows(Small):
    def __init__(self):
        super().__init__()
        self.file = io.StringIO()
        self.writer = csv.writer(self.file)

    def training_step(self, batch, batch_idx):
        self.writer.writerow([1, 2])
        return self.loss(batch)


class KeepsInC(Small):
    """Hands something to an object in C at each step, which nobody sees in it; at the end it says what it has."""

    def __init__(self, make, left):
        super().__init__()
        self.make, self.left = make, left

    def on_train_start(self):
        self.kept = self.make()

    def training_step(self, batch, batch_idx):
        self.keep(self.kept)
        return self.loss(batch)

    def on_train_end(self):
        self.found = self.left(self.kept)
        self.kept = None


def database():
    made = sqlite3.connect(":memory:", isolation_level=None)
    made.execute("create table kept (a)")
    return made


def rows_of(made):
    (rows,) = made.execute("select count(*) from kept").fetchone()
    made.close()
    return rows


def lengthen(environment):
    environment["OF_STEPS"] = environment.get("OF_STEPS", "") + "."


KEPT_IN_C = {
    "a queue in C": (queue.SimpleQueue, lambda kept: kept.put(1), lambda kept: kept.qsize(), "SimpleQueue.put"),
    "a digest": (hashlib.md5, lambda kept: kept.update(b"a"), lambda kept: kept.hexdigest(), "HASH.update"),
    "a compressor": (zlib.compressobj, lambda kept: kept.compress(b"a"), lambda kept: kept.flush(), "compress"),
    "a database": (database, lambda kept: kept.execute("insert into kept values (1)"), rows_of, "execute"),
    "the environment": (lambda: os.environ, lengthen, lambda kept: kept.pop("OF_STEPS"), "putenv"),
}
for name, (make, keep, left, told) in KEPT_IN_C.items():
    kind = type("KeepsInC", (KeepsInC,), {"keep": staticmethod(keep)})
    add(f"keeps something in {name}", partial(kind, make, left), eager=told, data=even)


@case(eager="`torch.save()` is called", line="torch.save")
class SavesTensors(Small):
    def training_step(self, batch, batch_idx):
        torch.save(batch[0], io.BytesIO())
        return self.loss(batch)


@case(eager="`torch.default_generator.manual_seed()` is called")
class SeedsTheGenerator(Small):
    def training_step(self, batch, batch_idx):
        torch.default_generator.manual_seed(4)
        return self.loss((batch[0] + torch.randn(6), batch[1]))


@case(eager="shares its memory")
class KeepsAViewOfAWeight(Small):
    def training_step(self, batch, batch_idx):
        self.seen = self.net[0].weight.detach()
        return self.loss(batch) + self.seen.square().sum()


@case(eager="gets a gradient")
class GradientOfATensorThatIsNoParameter(Small):
    def __init__(self):
        super().__init__()
        self.direction = torch.zeros(6, requires_grad=True)

    def training_step(self, batch, batch_idx):
        return self.loss((batch[0] + self.direction, batch[1]))

    def on_train_epoch_end(self):
        self.log("slope", self.direction.grad.norm())
        self.direction.grad = None


@case(eager="replaces `.data` of a tensor")
class ReplacesDataOfAHiddenTeacher(Small):
    def __init__(self):
        super().__init__()
        self.teacher = [Small().net]

    def training_step(self, batch, batch_idx):
        for mine, other in zip(self.teacher[0].parameters(), self.net.parameters(), strict=True):
            mine.data = mine.data * 0.9 + other.data * 0.1
        return self.loss(batch) + (self.teacher[0](batch[0]).detach() - self(batch[0])).square().mean()


@case()
class ReductionsInCapitals(Small):
    def training_step(self, batch, batch_idx):
        loss = self.loss(batch)
        for name in ("SUM", "MAX", "MIN"):
            self.log(name, loss, on_step=False, on_epoch=True, reduce_fx=name)
        return loss


def with_a_plain_entry(parameters):
    optimizer = optim.SGD(parameters, lr=0.05, momentum=0.9)
    optimizer.state["steps"] = 0
    return optimizer


add("an entry in the optimizer's state that is a number", lambda: Optimized(with_a_plain_entry))


class Record:
    """A batch of the user's own."""

    def __init__(self, x, y):
        self.x, self.y, self.weight = x.clone(), y, 1.0


@case(data=lambda: Kept(Record))
class BatchesThatAreObjects(Small):
    def training_step(self, batch, batch_idx):
        return super().training_step((batch.x, batch.y), batch_idx) * batch.weight

    def on_train_epoch_end(self):
        for batch in self.trainer.train_dataloader.batches:
            batch.weight += 0.5


# -- callbacks --------------------------------------------------------------------------------------------------------


class Annealed(Small):
    def __init__(self):
        super().__init__()
        self.options = types.SimpleNamespace(scale=1.0)

    def training_step(self, batch, batch_idx):
        return self.loss(batch) * self.options.scale


class AnnealsAnObject(L.Callback):
    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        pl_module.options.scale = 1 + trainer.global_step / 20


class ClampsWeights(L.Callback):
    """As the critic of a Wasserstein GAN is held."""

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        for parameter in pl_module.parameters():
            parameter.data.clamp_(-0.1, 0.1)


for words, kind in (("anneals what an object holds", AnnealsAnObject), ("clamps weights through data", ClampsWeights)):
    add(f"a callback that {words}", Annealed, warns=DIFFERS, options={"callbacks": lambda kind=kind: [kind()]})


class HalvesGradients(L.Callback):
    def on_after_backward(self, trainer, pl_module):
        pl_module.net[0].weight.grad.mul_(0.5)


class ComesAndGoes(L.Callback):
    """Puts a callback that is part of the step among the Trainer's in one epoch, and takes it away behind that."""

    def on_train_epoch_start(self, trainer, pl_module):
        if trainer.current_epoch == 1:
            trainer.callbacks.append(HalvesGradients())
        if trainer.current_epoch == 2:
            trainer.callbacks.pop()


add("a callback in the step comes and goes", Small, options={"callbacks": lambda: [ComesAndGoes()], "max_epochs": 3})
