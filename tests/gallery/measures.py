"""Metrics of torchmetrics, updated in the step and logged in every way that there is."""

import torch
import torchmetrics
from torchmetrics.aggregation import CatMetric, MeanMetric, SumMetric
from torchmetrics.classification import MulticlassAccuracy, MulticlassConfusionMatrix, MulticlassF1Score

from gallery.case import Small, add, case

# What is found first: the flag of a mean is a tensor that Python asks, and accuracy counts with `bincount`.
ASKS = "a value of a tensor decides"
COUNTS = "`aten::bincount` gives a shape that depends on the data"


class Measured(Small):
    """Updates a metric and logs the object, which Lightning then computes and resets."""

    def __init__(self, make=MeanMetric, takes="loss", **options):
        super().__init__()
        self.metric, self.takes, self.options = make(), takes, options

    def training_step(self, batch, batch_idx):
        logits = self(batch[0])
        loss = torch.nn.functional.cross_entropy(logits, batch[1])
        self.measure(loss.detach(), logits.detach(), batch[1])
        return loss

    def measure(self, loss, logits, labels):
        self.metric.update(*((loss,) if self.takes == "loss" else (logits, labels)))
        self.log("metric", self.metric, **self.options)


def accuracy():
    return MulticlassAccuracy(num_classes=3)


def cheap_accuracy():
    return MulticlassAccuracy(num_classes=3, validate_args=False)


OBJECTS = {
    "a mean": lambda: Measured(),
    "a mean at each step": lambda: Measured(on_step=True, on_epoch=True),
    "a sum over the epoch": lambda: Measured(SumMetric, on_step=False, on_epoch=True),
    "accuracy over the epoch": lambda: Measured(accuracy, "logits", on_step=False, on_epoch=True),
    "accuracy that checks nothing": lambda: Measured(cheap_accuracy, "logits", on_step=True, on_epoch=True),
    "a metric that keeps a list": lambda: Measured(torchmetrics.aggregation.RunningMean, on_step=True, on_epoch=True),
}
for name, make in OBJECTS.items():
    add(f"logged as an object: {name}", make, eager=COUNTS if "accuracy" in name else ASKS)


@case(eager=COUNTS)
class SeveralMetricsTogether(Measured):
    def __init__(self):
        super().__init__()
        self.metric = torchmetrics.MetricCollection([accuracy(), MulticlassF1Score(num_classes=3)])

    def measure(self, loss, logits, labels):
        self.metric.update(logits, labels)
        self.log_dict(self.metric, on_step=False, on_epoch=True)


@case(eager=COUNTS)
class MetricCalledAndLogged(Measured):
    def __init__(self):
        super().__init__(accuracy)

    def measure(self, loss, logits, labels):
        self.metric(logits, labels)
        self.log("metric", self.metric, on_step=True, on_epoch=True)


@case(eager=COUNTS)
class MetricCalledAndItsValueLogged(Measured):
    def __init__(self):
        super().__init__(accuracy)

    def measure(self, loss, logits, labels):
        self.log("metric", self.metric(logits, labels), on_step=True, on_epoch=True)

    def on_train_epoch_end(self):
        self.log("whole", self.metric.compute())
        self.metric.reset()


@case(eager=ASKS)
class MetricComputedByHand(Measured):
    def __init__(self):
        super().__init__()
        self.matrix = MulticlassConfusionMatrix(num_classes=3, validate_args=False)

    def measure(self, loss, logits, labels):
        self.metric.update(loss)
        self.matrix.update(logits, labels)

    def on_train_epoch_end(self):
        self.log_dict({"mean": self.metric.compute(), "right": self.matrix.compute().diagonal().sum().float()})
        self.metric.reset()
        self.matrix.reset()


@case(eager=ASKS)
class MetricThatKeepsEveryValue(Measured):
    def __init__(self):
        super().__init__(CatMetric)

    def measure(self, loss, logits, labels):
        self.metric.update(logits)

    def on_train_epoch_end(self):
        self.log("mean", self.metric.compute().mean())
        self.metric.reset()


@case()
class FunctionalMetrics(Measured):
    def measure(self, loss, logits, labels):
        value = torchmetrics.functional.accuracy(
            logits, labels, task="multiclass", num_classes=3, average="micro", validate_args=False
        )
        self.log("accuracy", value, on_step=True, on_epoch=True)


@case(eager=ASKS)
class MetricHeldInADictionaryOfModules(Measured):
    def __init__(self):
        super().__init__()
        self.metrics = torch.nn.ModuleDict({"train_loss": MeanMetric(), "val_loss": MeanMetric()})

    def measure(self, loss, logits, labels):
        self.metrics["train_loss"](loss)
