"""Values that change from epoch to epoch, and how a step reads them."""

from dataclasses import dataclass
from operator import attrgetter

import lightning as L
import torch
from torch import nn

from gallery.case import Small, case


class Box:
    def __init__(self, scale=1.0):
        self.scale = scale


@dataclass
class Config:
    scale: float = 1.0


class Dropping(nn.Dropout):
    """Its base class reads `p`."""


def epochs(kind):
    return case(options={"max_epochs": 4})(kind)


class ByEpoch(Small):
    def on_train_epoch_start(self):
        self.begun_at = self.current_epoch * 1.5  # which no step reads
        self.change(1.0 + 0.2 * self.current_epoch)

    def training_step(self, batch, batch_idx):
        return self.loss(batch) * self.scale_now()


@epochs
class ChangesALayerOfTorchsByEpoch(ByEpoch):
    def __init__(self):
        super().__init__()
        self.net.insert(1, Dropping(0.1))

    def change(self, scale):
        self.net[1].p = scale / 4

    def scale_now(self):
        return 1.0


@epochs
class ChangesHyperparametersByEpoch(ByEpoch):
    def __init__(self):
        super().__init__()
        self.save_hyperparameters({"scale": 1.0})

    def change(self, scale):
        self.hparams.scale = scale

    def scale_now(self):
        return self.hparams["scale"]


@epochs
class ChangesADataclassByEpoch(ByEpoch):
    def __init__(self):
        super().__init__()
        self.config = Config()

    def change(self, scale):
        self.config.scale = scale

    def scale_now(self):
        return scale_of(self.config)


def scale_of(config):
    return config.scale


@epochs
class ChangesUnderAnotherNameByEpoch(ByEpoch):
    def __init__(self):
        super().__init__()
        self.one = self.other = Box()

    def change(self, scale):
        self.other.scale = scale

    def scale_now(self):
        return self.one.scale


@epochs
class ReadsByANameMadeUp(ByEpoch):
    def change(self, scale):
        self.scale = scale

    def scale_now(self):
        return getattr(self, "".join(["sc", "ale"]))


@epochs
class ReadsByAnAttrgetter(ByEpoch):
    scale_of = staticmethod(attrgetter("box.scale"))

    def __init__(self):
        super().__init__()
        self.box = Box()

    def change(self, scale):
        self.box.scale = scale

    def scale_now(self):
        return self.scale_of(self)


@epochs
class ReadsWhatComesLater(ByEpoch):
    def change(self, scale):
        if self.current_epoch == 2:
            self.late = scale

    def scale_now(self):
        return self.late if hasattr(self, "late") else 1.0


@case(options={"max_epochs": 4})
class AnnealsAWeight(ByEpoch):
    """Which programs have as an input."""

    def change(self, scale):
        self.weight = scale

    def scale_now(self):
        self.log("weight", self.weight)
        return self.weight if self.weight < 1.5 else 2.0 * self.weight


@case(inductor=True, size=8, options={"max_epochs": 4})
class AnnealsAWeightAndCollects(AnnealsAWeight):
    """By machine code too: the weight is an input, and tensors are collected."""

    def __init__(self):
        super().__init__()
        self.predictions = []

    def loss(self, batch):
        predicted = self(batch[0])
        self.predictions.append(predicted.detach())
        return nn.functional.cross_entropy(predicted, batch[1])

    def scale_now(self):
        return self.weight

    def on_train_epoch_end(self):
        self.log("spread", torch.cat(self.predictions).std())
        self.predictions.clear()


@epochs
class AnnealsAWeightByAVariable(AnnealsAWeight):
    """Which is logged, too."""

    def scale_now(self):
        weight = self.weight
        self.log("weight", weight)
        self.log_dict({"twice": 2 * weight, "same": weight})
        return weight if weight < 1.5 else 2.0 * weight


@epochs
class RemembersEpochs(ByEpoch):
    """In attributes of several kinds; no step asks for any."""

    def __init__(self):
        super().__init__()
        self.history, self.best = [], None

    def change(self, scale):
        self.history.append({"scale": scale, "best": self.best})
        self.best = min(scale, self.best or scale)
        self.title = f"epoch {self.current_epoch}"

    def scale_now(self):
        return 1.0


@epochs
class ReadsWhatACallbackHolds(ByEpoch):
    def configure_callbacks(self):
        self.box = Holds()
        return [self.box]

    def change(self, scale):
        self.box.scale = scale

    def scale_now(self):
        return self.box.scale


class Holds(L.Callback):
    scale = 1.0
