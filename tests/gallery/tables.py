"""What steps collect in the lists of a dictionary: `self.history["loss"].append(loss.detach())`."""

import copy
import pickle
from collections import OrderedDict, defaultdict
from functools import partial

import lightning as L
import torch

from gallery.case import Small, case, numbers


class Tabled(Small):
    def __init__(self):
        super().__init__()
        self.history = {"loss": [], "weight": []}

    def training_step(self, batch, batch_idx):
        loss = self.loss(batch)
        self.history["loss"].append(loss.detach())
        return loss


@case()
class ListsInADictionary(Tabled):
    def on_train_epoch_end(self):
        assert type(self.history["loss"]) is list
        self.log("epoch", torch.stack(self.history["loss"]).mean())


@case(size=8)
class ListsInADictionaryOfDefaults(Tabled):
    """A key comes with the first batch of an epoch."""

    def __init__(self):
        super().__init__()
        self.history = defaultdict(list)

    def training_step(self, batch, batch_idx):
        loss = self.loss(batch)
        for name, value in {"loss": loss, "twice": 2 * loss}.items():
            self.history[name].append(value.detach())
        return loss

    def on_train_epoch_end(self):
        self.log("epoch", torch.stack(self.history["twice"]).mean())
        self.history.clear()


@case(**numbers())
class NumbersInTheListsOfADictionary(Tabled):
    def training_step(self, batch, batch_idx):
        loss, name = self.loss(batch), "weight"
        self.history["loss"].append(loss.item())
        self.history[name] += [self.net[0].bias.sum().item(), batch_idx]
        return loss

    def on_train_epoch_end(self):
        assert {type(item) for items in self.history.values() for item in items} == {float, int}


@case()
class OnlyOneOfTheListsGrows(Tabled):
    """The other one is read."""

    def __init__(self):
        super().__init__()
        self.history["weight"] = [0.5, 0.25]

    def training_step(self, batch, batch_idx):
        return super().training_step(batch, batch_idx) * sum(self.history["weight"])

    def on_train_epoch_end(self):
        self.history["weight"].append(0.1)


class Empties(L.Callback):
    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        if trainer.is_last_batch:
            pl_module.history = {"loss": [torch.zeros(())], "weight": []}


@case(options={"callbacks": lambda: [Empties()]})
class TheDictionaryIsAnotherOneInEachEpoch(Tabled):
    pass


@case()
class TheDictionaryIsAnotherObjectsToo(Tabled):
    def __init__(self):
        super().__init__()
        self.net[0].of_all = self.history


@case(eager="`history['loss']`, which it reads, too, or changes otherwise than by appending")
class HowLongAListOfTheDictionaryIsDecides(Tabled):
    def training_step(self, batch, batch_idx):
        return super().training_step(batch, batch_idx) * (1 + 0.1 * len(self.history["loss"]))


@case(eager="`history['loss']`, which it reads, too, or changes otherwise than by appending")
class TheDictionaryIsCopied(Tabled):
    def training_step(self, batch, batch_idx):
        loss = super().training_step(batch, batch_idx)
        return loss * len(copy.deepcopy(self.history))


@case(eager="the step changes Python state: `history`")
class AListOfTheDictionaryIsReplaced(Tabled):
    def training_step(self, batch, batch_idx):
        loss = self.loss(batch)
        self.history["loss"] = [*self.history["weight"], loss.detach()]
        if batch_idx % 2:
            self.history["loss"].append(loss.detach())
        return loss


class Elsewhere(Tabled):
    """A list of the dictionary's is read past it, at some steps only."""

    def training_step(self, batch, batch_idx):
        loss = super().training_step(batch, batch_idx)
        return 2 * loss if self.count() > 20 else loss


@case(eager="the step changes Python state")
class AListHoldsAListOfTheDictionary(Elsewhere):
    def __init__(self):
        super().__init__()
        self.other = [self.history["loss"]]

    def count(self):
        return len(self.other[0])


@case(eager="the step changes Python state")
class AnotherDictionaryHoldsAListOfTheDictionary(Elsewhere):
    def __init__(self):
        super().__init__()
        self.other = {"inside": {"loss": self.history["loss"]}}

    def count(self):
        return len(self.other["inside"]["loss"])


@case(eager="the step changes Python state")
class AFunctionHoldsAListOfTheDictionary(Elsewhere):
    def __init__(self):
        super().__init__()
        self.count = partial(len, self.history["loss"])


@case(eager="`history['loss']`, which it reads, too, or changes otherwise than by appending")
class TheDictionaryIsPickled(Elsewhere):
    def count(self):
        return len(pickle.loads(pickle.dumps(self.history))["loss"])


@case(eager="`history['loss']`, in the place of which it puts another one")
class AListOfTheDictionaryIsReplacedNowAndThen(Tabled):
    def training_step(self, batch, batch_idx):
        loss = super().training_step(batch, batch_idx)
        if batch_idx % 3 == 2:
            self.history["loss"] = []
        return loss


@case(eager="the step changes Python state")
class TheDictionaryGetsMoreKeys(Tabled):
    def training_step(self, batch, batch_idx):
        loss = super().training_step(batch, batch_idx)
        self.history[f"at {batch_idx}"] = []
        return loss


@case(eager="the step changes Python state: `history`")
class ListsInADictionaryOfAnotherKind(Tabled):
    def __init__(self):
        super().__init__()
        self.history = OrderedDict(loss=[])
