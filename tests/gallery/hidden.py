"""Python state that a step depends on, in places where nobody expects it."""

import array
import contextvars
import functools
import itertools
import multiprocessing
import types
import weakref

import lightning as L
import numpy as np
import torch
from torch import nn

from gallery.case import Small, add, carried, case

ANY = "runs eagerly"


class Tripled(Small):
    """Every seventh step counts thrice; who counts differs."""

    def __init__(self, begin, count):
        super().__init__()
        self.count = count
        begin(self)

    def training_step(self, batch, batch_idx):
        return self.loss(batch) * (3.0 if self.count(self) % 7 == 6 else 1.0)


class Counter:
    def __init__(self):
        self.steps = 0

    def up(self):
        self.steps += 1
        return self.steps


VARIABLE = contextvars.ContextVar("steps", default=0)


def in_variable(module):
    VARIABLE.set(VARIABLE.get() + 1)
    return VARIABLE.get()


def in_array(module):
    module.numbers[0] += 1
    return module.numbers[0]


def in_shared_number(module):
    module.number.value += 1
    return module.number.value


def in_turn():
    """Gives a 6 after six times nothing, which is what any two recorded steps find."""
    return itertools.chain.from_iterable(itertools.repeat([0] * 6 + [6]))


def generated():
    for count in ([0] * 6 + [6]) * 9:
        yield int(count)


def holding(name, make):
    return lambda module: setattr(module, name, make())


COUNTED = {
    "by a bound method": (holding("call", lambda: Counter().up), lambda module: module.call()),
    "by part of a bound method": (holding("call", lambda: functools.partial(Counter().up)), lambda m: m.call()),
    "by an object": (holding("counter", Counter), lambda module: module.counter.up()),
    "by an object in a list": (holding("counters", lambda: [Counter()]), lambda module: module.counters[0].up()),
    "in an array of Python's": (holding("numbers", lambda: array.array("l", [0])), in_array),
    "in an array of bytes": (holding("numbers", lambda: bytearray([0])), in_array),
    "in an array of numpy's": (holding("numbers", lambda: np.zeros(4)), in_array),
    "in a variable of the context": (lambda module: VARIABLE.set(0), in_variable),
    "in a number that processes share": (holding("number", lambda: multiprocessing.Value("i")), in_shared_number),
    "by an iterator": (holding("counts", in_turn), lambda module: next(module.counts)),
    "by a generator": (holding("counts", generated), lambda module: next(module.counts)),
    "by a method of C": (holding("ask", lambda: iter(([0] * 6 + [6]) * 9).__next__), lambda module: module.ask()),
    "by an old generator of numpy's": (
        holding("random", lambda: np.random.RandomState(3)),
        lambda module: 6 if module.random.rand() < 0.1 else 0,
    ),
}
for name, (begin, count) in COUNTED.items():
    about = carried() if name == "by an object" else {"eager": ANY}
    add(f"counted {name}", lambda begin=begin, count=count: Tripled(begin, count), **about)


class Layer(nn.Module):
    """Counts its calls."""

    def __init__(self):
        super().__init__()
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        return x * (3.0 if self.calls % 7 == 6 else 1.0)


class Holder:
    def __init__(self, layer):
        self.layer = layer


class Held(Small):
    """A layer that the module does not know as its own."""

    def __init__(self, hold, get):
        super().__init__()
        self.held, self.get = hold(Layer()), get

    def training_step(self, batch, batch_idx):
        return self.get(self.held)(self.loss(batch))


HOLDERS = {
    "a list": (lambda layer: [layer], lambda held: held[0]),
    "a tuple": (lambda layer: (layer,), lambda held: held[0]),
    "a dictionary": (lambda layer: {"it": layer}, lambda held: held["it"]),
    "an object": (Holder, lambda held: held.layer),
}
for name, (hold, get) in HOLDERS.items():
    add(f"a layer that counts, in {name}", lambda hold=hold, get=get: Held(hold, get), eager=ANY)


@case(eager=ANY)
class LayerThatCountsInAGlobalModule(Small):
    def __init__(self):
        super().__init__()
        GLOBAL.calls = 0

    def training_step(self, batch, batch_idx):
        return GLOBAL(self.loss(batch))


GLOBAL = Layer()


# -- constant within an epoch -----------------------------------------------------------------------------------------


@case()
class ModeOfALayerInAList(Small):
    """A part is kept out of the checkpoint by a list, and is switched to evaluation in the second epoch."""

    def __init__(self):
        super().__init__()
        self.parts = [nn.Dropout(0.5)]

    def on_train_epoch_start(self):
        self.parts[0].train(self.current_epoch == 0)

    def training_step(self, batch, batch_idx):
        return self.loss((self.parts[0](batch[0]), batch[1]))


CONFIG = types.ModuleType("config")


class Smoothed(Small):
    """The loss takes a number that changes from epoch to epoch."""

    def loss(self, batch):
        return nn.functional.cross_entropy(self(batch[0]), batch[1], label_smoothing=self.number())


@case()
class NumberInAnotherModuleOfPythons(Smoothed):
    """As with `import config`."""

    def on_train_epoch_start(self):
        CONFIG.hardness = 0.2 * self.current_epoch

    def number(self):
        return CONFIG.hardness


@case()
class MethodOfTheClassIsReplaced(Smoothed):
    def on_train_epoch_start(self):
        type(self).number = (lambda self: 0.2) if self.current_epoch else (lambda self: 0.0)


@case()
class MethodOfTheModuleIsReplaced(Smoothed):
    def on_train_epoch_start(self):
        self.number = (lambda: 0.2) if self.current_epoch else (lambda: 0.0)


@case(options={"gradient_clip_val": 1.0})
class ClippingIsChangedOnTheTrainer(Small):
    def on_train_epoch_start(self):
        self.trainer.gradient_clip_val = 0.1 if self.current_epoch else 1.0


@case()
class WeightsOfClassesOnTheTrainer(Small):
    """A tensor that another object holds is replaced between epochs."""

    def on_train_epoch_start(self):
        self.trainer.class_weights = torch.ones(3) + self.current_epoch * torch.arange(3.0)

    def loss(self, batch):
        return nn.functional.cross_entropy(self(batch[0]), batch[1], weight=self.trainer.class_weights)


class Gone:
    """What proxies were of that are kept."""


def _dead():
    return weakref.proxy(Gone())


class Node:
    def __init__(self):
        self.parent = _dead()


DEAD = _dead()
DEAD_IN = {"parent": _dead()}

DEAD_PROXIES = {
    "an attribute": _dead,
    "a tuple": lambda: (_dead(),),
    "a list": lambda: [_dead()],
    "a dictionary": lambda: {"parents": [_dead()]},
    "an object": Node,
    "nothing else": lambda: None,
}
for where, make in DEAD_PROXIES.items():

    class HoldsADeadProxy(Small):
        made = staticmethod(make)

        def __init__(self):
            super().__init__()
            self.__dict__["kept"] = self.made()  # torch takes no dead one

        def on_after_batch_transfer(self, batch, dataloader_idx):
            return batch

        def training_step(self, batch, batch_idx):
            return super().training_step(batch, batch_idx) * (1.0 if DEAD is not None and DEAD_IN is not None else 2.0)

    add(f"dead proxies in globals and in {where}", HoldsADeadProxy)


class ThroughItems:
    """A proxy: what it has no slot for is an item."""

    cannot_be_looked_at = True
    __slots__ = ("held", "never")

    def __init__(self):
        self.held = {"a": 1}

    def __getattr__(self, name):
        return object.__getattribute__(self, "held")[name]


class WithoutADictionary:
    cannot_be_looked_at = True
    __slots__ = ()

    @property
    def __dict__(self):
        raise RuntimeError("there is none")


class LoadedLate(dict):
    cannot_be_looked_at = True

    def values(self):
        raise RuntimeError("not here")

    items = keys = __iter__ = values


class ListLoadedLate(list):
    cannot_be_looked_at = True

    def __iter__(self):
        raise RuntimeError("not here")


OF_NO_MODULE = type("OfNoModule", (), {"__module__": None, "cannot_be_looked_at": True})
ODD = [ThroughItems, WithoutADictionary, LoadedLate, ListLoadedLate, OF_NO_MODULE]


class Odd(Small):
    """Keeps an object that raises where it is looked at."""

    def __init__(self, kind):
        super().__init__()
        self.odd, self.several = kind(), [kind()]


class Keeping(L.Callback):
    def __init__(self, kept):
        self.kept = kept


for kind in ODD:
    options = {"callbacks": lambda kind=kind: [Keeping(kind())]}
    add(f"object {kind.__name__}", lambda kind=kind: Odd(kind), options=options)


@case(options={"max_epochs": 3})
class WeightInAPrivateSlot(Small):
    class Weight:
        __slots__ = ("__dict__", "__value")

        def __init__(self, value):
            self.__value = value

        def of(self, loss):
            return self.__value * loss

        def set(self, value):
            self.__value = value

    def __init__(self):
        super().__init__()
        self.weight = self.Weight(1.0)

    def training_step(self, batch, batch_idx):
        return self.weight.of(self.loss(batch))

    def on_train_epoch_start(self):
        self.weight.set(1.0 + self.current_epoch)
