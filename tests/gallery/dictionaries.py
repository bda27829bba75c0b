"""Numbers that steps keep in the dictionaries of attributes: `self.sums["loss"] += loss.item()`."""

import copy
from collections import Counter, defaultdict

import torch

from gallery.case import Small, case


class Summed(Small):
    def __init__(self):
        super().__init__()
        self.sums, self.epochs = {"loss": 0.0, "seen": 0}, []

    def training_step(self, batch, batch_idx):
        loss = self.loss(batch)
        self.sums["loss"] += loss.item() * len(batch[1])
        self.sums["seen"] += len(batch[1])
        return loss

    def on_train_epoch_end(self):
        self.epochs.append(dict(self.sums))
        assert {kind.__name__ for kind in map(type, self.sums.values())} <= {"float", "int"}
        for name, value in self.sums.items():
            self.log(name, float(value))


@case(size=7, inductor=True, options={"max_epochs": 4})
class SumsInADictionaryThatIsMadeAnew(Summed):
    def on_train_epoch_end(self):
        super().on_train_epoch_end()
        self.log("mean", self.sums["loss"] / self.sums["seen"])
        self.sums = {"loss": 0.0, "seen": 0}


@case(size=5, options={"max_epochs": 4})
class SumsInADictionaryThatIsCleared(Summed):
    def __init__(self):
        super().__init__()
        self.sums = defaultdict(float)

    def on_train_epoch_end(self):
        super().on_train_epoch_end()
        self.sums.clear()


@case()
class SumsByNames(Summed):
    def training_step(self, batch, batch_idx):
        loss = self.loss(batch)
        for name, value in {"loss": loss, "twice": loss * 2}.items():
            self.add(name, value.item())
        return loss

    def add(self, name, value):
        self.sums[name] = self.sums.get(name, 0.0) + value


@case(inductor=True, size=-1)
class NumbersOfADictionaryThatStepsUse(Summed):
    """By arithmetic, to log them, and to decide."""

    def __init__(self):
        super().__init__()
        self.sums = {"mean": 1.0, "least": float("inf"), "right": 0, "steps": 0}

    def training_step(self, batch, batch_idx):
        loss, sums = self.loss(batch), self.sums["steps"]
        self.sums["mean"] = 0.9 * self.sums["mean"] + 0.1 * loss.item()
        self.sums["least"] = min(self.sums["least"], loss.item())
        self.sums["right"] += (self(batch[0]).argmax(1) == batch[1]).sum().item()
        self.log("mean", self.sums["mean"] / self.sums["least"])
        if sums % 3 == 0:
            loss = loss * (1 + self.sums["steps"] / 50)
        return loss

    def on_after_backward(self):
        self.sums["steps"] += 1
        self.log_dict({f"of {name}": value for name, value in self.sums.items()})


@case(size=6)
class CountsOfACounter(Summed):
    def __init__(self):
        super().__init__()
        self.sums = Counter()

    def training_step(self, batch, batch_idx):
        self.sums["seen"] += len(batch[1])
        self.sums["odd"] += batch_idx % 2
        return self.loss(batch)


@case(size=6)
class NumbersBesideLists(Summed):
    def __init__(self):
        super().__init__()
        self.sums = {"loss": 0.0, "all": [], "last": torch.zeros(())}

    def training_step(self, batch, batch_idx):
        loss = self.loss(batch)
        self.sums["loss"] += loss.item()
        self.sums["all"].append(loss.item())
        self.sums["last"] = loss.detach()
        return loss

    def on_train_epoch_end(self):
        self.log("sum", sum(self.sums["all"]) - self.sums["loss"] + self.sums["last"])


@case(size=6)
class NumbersBesideOnesOfAHook(Summed):
    """What a hook puts into the dictionary between two steps is seen by the second."""

    def __init__(self):
        super().__init__()
        self.sums, self.batches = {"loss": 0.0, "way": "long"}, 0

    def on_after_batch_transfer(self, batch, dataloader_idx):
        self.batches += 1
        self.sums["way"] = "long" if self.batches // 8 % 2 else "short"
        return batch

    def training_step(self, batch, batch_idx):
        loss = self.loss(batch)
        self.sums["loss"] += loss.item()
        return loss * 2 if self.sums["way"] == "long" else loss

    def on_train_epoch_end(self):
        self.log("sum", self.sums["loss"])


@case(eager="`sums", size=6)
class ADictionaryOfTwoAttributes(Summed):
    def __init__(self):
        super().__init__()
        self.others = self.sums

    def training_step(self, batch, batch_idx):
        self.others["seen"] += 1
        return self.loss(batch) * (1 + self.sums["seen"] / 50)


@case(eager="changes Python state: `sums`", size=6)
class TypesInADictionary(Summed):
    def training_step(self, batch, batch_idx):
        self.sums["seen"] += 1
        if batch_idx == 5:
            kinds = [value for value in self.sums.values() if type(value) is int]
            self.sums["loss"] += len(kinds)
        return self.loss(batch)


@case(eager="which it reads, too", size=6)
class ADictionaryInAList(Summed):
    """It is the same one each time, and holds what it does in the end."""

    def training_step(self, batch, batch_idx):
        self.sums["seen"] += 1
        self.epochs.append(self.sums)
        return self.loss(batch)

    def on_train_epoch_end(self):
        assert all(each is self.sums for each in self.epochs)
        self.log("all", float(sum(each["seen"] for each in self.epochs)))


@case(eager="`kept`", size=6)
class ACopyOfADictionary(Summed):
    def training_step(self, batch, batch_idx):
        self.sums["seen"] += 1
        self.kept = copy.copy(self.sums)
        return self.loss(batch)

    def on_train_epoch_end(self):
        super().on_train_epoch_end()
        self.log("kept", float(self.kept["seen"]))


@case(eager="is needed as a plain number", size=6)
class ADictionaryThatAFunctionGets(Summed):
    def training_step(self, batch, batch_idx):
        loss = self.loss(batch)
        add(self.sums, "loss", loss.item())
        return loss


def add(sums, name, value):
    sums[name] += value


@case(eager="decides what Python does", size=6)
class ADictionaryThatEachStepMakes(Summed):
    def training_step(self, batch, batch_idx):
        loss = self.loss(batch)
        self.sums = {"loss": loss.item(), "seen": self.sums["seen"] + 1}
        return loss
