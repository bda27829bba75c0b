"""Metrics of torchmetrics, updated in the step and logged in every way that there is."""

import torch
import torchmetrics
from torch import nn
from torchmetrics.aggregation import CatMetric, MeanMetric, SumMetric
from torchmetrics.classification import MulticlassAccuracy, MulticlassConfusionMatrix, MulticlassF1Score

from gallery.case import Small, add, case
from parity import loader


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
    add(f"logged as an object: {name}", make)


@case()
class SeveralMetricsTogether(Measured):
    def __init__(self):
        super().__init__()
        self.metric = torchmetrics.MetricCollection([accuracy(), MulticlassF1Score(num_classes=3)])

    def measure(self, loss, logits, labels):
        self.metric.update(logits, labels)
        self.log_dict(self.metric, on_step=False, on_epoch=True)


@case()
class MetricCalledAndLogged(Measured):
    def __init__(self):
        super().__init__(accuracy)

    def measure(self, loss, logits, labels):
        self.metric(logits, labels)
        self.log("metric", self.metric, on_step=True, on_epoch=True)


@case()
class MetricCalledAndItsValueLogged(Measured):
    def __init__(self):
        super().__init__(accuracy)

    def measure(self, loss, logits, labels):
        self.log("metric", self.metric(logits, labels), on_step=True, on_epoch=True)

    def on_train_epoch_end(self):
        self.log("whole", self.metric.compute())
        self.metric.reset()


@case()
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


@case()
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


@case()
class MetricHeldInADictionaryOfModules(Measured):
    def __init__(self):
        super().__init__()
        self.metrics = torch.nn.ModuleDict({"train_loss": MeanMetric(), "val_loss": MeanMetric()})

    def measure(self, loss, logits, labels):
        self.metrics["train_loss"](loss)


# -- other ways to use one --------------------------------------------------------------------------------------------


@case()
class MetricComputedAndResetEveryFifthStep(Measured):
    def measure(self, loss, logits, labels):
        self.metric.update(loss)
        self.count = getattr(self, "count", 0)
        if (self.trainer.fit_loop.epoch_loop.batch_idx + 1) % 5 == 0:
            self.log("of five", self.metric.compute())
            self.metric.reset()


@case()
class OneMetricForTwoNames(Measured):
    """What it measured is logged right after each call, so the two names have values of their own."""

    def measure(self, loss, logits, labels):
        self.metric(loss)
        self.log("whole", self.metric, on_step=True, on_epoch=True)
        self.metric(0.5 * loss)
        self.log("half", self.metric, on_step=True, on_epoch=True)


@case(options={"limit_val_batches": 3})
class MetricOfValidationToo(Measured):
    """It changes between two sinks, which is no reason to record anew."""

    def __init__(self):
        super().__init__(accuracy, "logits", on_step=False, on_epoch=True)
        self.measured = accuracy()

    def validation_step(self, batch, batch_idx):
        self.measured(self(batch[0]), batch[1])
        self.log("measured", self.measured)

    def val_dataloader(self):
        return loader()


@case(options={"precision": "bf16-mixed"}, tolerance=5e-2)
class MetricInHalfPrecision(Measured):
    def measure(self, loss, logits, labels):
        self.metric.update(logits @ logits.T)
        self.log("metric", self.metric, on_step=False, on_epoch=True)


@case()
class MetricCalledWhenABatchHasEnded(Measured):
    def measure(self, loss, logits, labels):
        pass

    def on_train_batch_end(self, outputs, batch, batch_idx):
        self.metric.update(outputs["loss"])
        self.log("metric", self.metric, on_step=True, on_epoch=True)


@case()
class MetricThatNamesItsClasses(Measured):
    def __init__(self):
        super().__init__()
        by_class = MulticlassAccuracy(num_classes=3, average=None)
        self.metric = torchmetrics.wrappers.ClasswiseWrapper(by_class, labels=["a", "b", "c"])

    def measure(self, loss, logits, labels):
        self.log_dict(self.metric(logits, labels), on_step=True, on_epoch=True)


class Own(torchmetrics.Metric):
    """The user's: it counts in Python."""

    def __init__(self):
        super().__init__()
        self.add_state("total", torch.zeros(()), dist_reduce_fx="sum")
        self.seen = 0

    def update(self, value):
        self.seen += 1
        self.total += value / self.seen

    def compute(self):
        return self.total

    def change(self):
        self.seen += 1


@case()
class MetricOfTheUsers(Measured):
    def __init__(self):
        super().__init__(Own, on_step=True, on_epoch=True)


@case(eager="the step changes a metric past its methods")
class MetricChangedByAMethodOfItsOwn(MetricOfTheUsers):
    def measure(self, loss, logits, labels):
        super().measure(loss, logits, labels)
        self.metric.change()


@case(eager="the step looks into the state of a `Own`", line="self.metric.total")
class MetricLookedInto(MetricOfTheUsers):
    def measure(self, loss, logits, labels):
        super().measure(loss, logits, labels)
        self.log("total", self.metric.total * 2)


@case()
class LossScaledByAMetric(Measured):
    def training_step(self, batch, batch_idx):
        loss = self.loss(batch)
        return loss / (1 + self.metric(loss)).detach()


@case()
class ComputesWithAMetricBehindAnotherOne(Measured):
    def __init__(self):
        super().__init__()
        self.other = MeanMetric()

    def measure(self, loss, logits, labels):
        found = self.metric(loss)
        self.other(loss)
        self.log("one less", 1 - found)


class AMetricIsTheLoss(Small):
    """What it measures has gradients; what it has seen goes on to be its own."""

    make, scale = torchmetrics.MeanSquaredError, 1.0

    def __init__(self):
        super().__init__()
        self.metric = self.make()

    def training_step(self, batch, batch_idx):
        loss = self.measure(self(batch[0]), nn.functional.one_hot(batch[1], 3).float())
        self.log("loss", loss, on_step=True, on_epoch=True)
        self.log("metric", self.metric, on_step=True, on_epoch=True)
        return self.scale * loss

    def measure(self, out, wanted):
        return self.metric(out, wanted)


case(inductor=True)(AMetricIsTheLoss)
add("a metric is the loss of accumulated gradients", AMetricIsTheLoss, options={"accumulate_grad_batches": 2})


@case()
class AMetricWithListsIsTheLoss(AMetricIsTheLoss):
    """It keeps what it measured of each image."""

    scale = -1.0

    def make(self):
        return torchmetrics.image.StructuralSimilarityIndexMeasure(data_range=1.0, kernel_size=3)

    def measure(self, out, wanted):
        out, wanted = (side.repeat(1, 12).view(-1, 1, 6, 6) for side in (out.sigmoid(), wanted))
        return self.metric(out, wanted)


@case()
class AMetricIsTheLossOfTwoParts(AMetricIsTheLoss):
    def measure(self, out, wanted):
        with torch.no_grad():
            before = self.metric(out * 2, wanted)
        return self.metric(out, wanted) + before * self.metric(out * 3, wanted)


class Weighted(torchmetrics.Metric):
    """It holds more than its state."""

    full_state_update = False

    def __init__(self):
        super().__init__()
        self.register_buffer("weights", torch.tensor([1.0, 2.0, 3.0]))
        self.add_state("total", torch.tensor(0.0), "sum")
        self.add_state("count", torch.tensor(0), "sum")
        self.power = 2

    def update(self, out, wanted):
        self.total += ((out - wanted).abs() ** self.power * self.weights).sum()
        self.count += len(out)

    def compute(self):
        return self.total / self.count


@case()
class AMetricOfTheUsersIsTheLoss(AMetricIsTheLoss):
    make = Weighted


@case()
class EachEpochHasWeightsOfItsOwn(AMetricOfTheUsersIsTheLoss):
    def on_train_epoch_start(self):
        if self.current_epoch:
            self.metric.weights = torch.tensor([3.0, 2.0, 1.0])


@case()
class AnEpochHasWrittenIntoItsWeights(AMetricOfTheUsersIsTheLoss):
    def on_train_epoch_start(self):
        self.metric.weights.mul_(0.5)


@case()
class EachEpochHasAPowerOfItsOwn(AMetricOfTheUsersIsTheLoss):
    def on_train_epoch_start(self):
        self.metric.power = 2 + self.current_epoch


class Counting(Weighted):
    def update(self, out, wanted):
        self.power += 0.01
        super().update(out, wanted)


class Drawing(Weighted):
    def update(self, out, wanted):
        super().update(out + torch.rand(()), wanted)


class Holding(Weighted):
    def __init__(self):
        super().__init__()
        self.inner = torchmetrics.MeanMetric()

    def update(self, out, wanted):
        self.inner.update((out - wanted).square().mean())
        super().update(out, wanted)


class Marking(Weighted):
    def __init__(self):
        super().__init__()
        self.marks = torch.zeros(())

    def update(self, out, wanted):
        self.marks += 1
        super().update(out, wanted)


class Training(Weighted):
    def __init__(self):
        super().__init__()
        self.weights = nn.Parameter(self._buffers.pop("weights"))


@case(eager="may depend on parameters of its own")
class AMetricWithAParameterIsLogged(AMetricIsTheLoss):
    make = Training

    def training_step(self, batch, batch_idx):
        loss = self.loss(batch) * self.metric.weights.sum()
        self.metric.update(self(batch[0]).detach(), nn.functional.one_hot(batch[1], 3).float())
        self.log("metric", self.metric, on_epoch=True)
        return loss


for kind in (Counting, Drawing, Holding, Marking):
    made = type(f"AMetricThatIs{kind.__name__}IsTheLoss", (AMetricIsTheLoss,), {"make": kind})
    case(eager="`Drawing.forward()` draws" if kind is Drawing else "computes with what")(made)


@case(eager="the step looks into the state of a `Weighted`")
class TheStepWritesIntoItsWeights(AMetricOfTheUsersIsTheLoss):
    def on_train_batch_end(self, outputs, batch, batch_idx):
        self.metric.weights.mul_(0.99)


@case(eager="the step computes with what `MetricCollection.forward()` returns")
class ACollectionIsTheLoss(AMetricIsTheLoss):
    def make(self):
        return torchmetrics.MetricCollection([torchmetrics.MeanSquaredError(), torchmetrics.MeanAbsoluteError()])

    def training_step(self, batch, batch_idx):
        return sum(self.metric(self(batch[0]), nn.functional.one_hot(batch[1], 3).float()).values())


class Twice(torchmetrics.MeanSquaredError):
    def forward(self, out, wanted):
        return 2 * super().forward(out, wanted)


@case(eager="the step computes with what `Twice.forward()` returns")
class AMetricWithAForwardOfItsOwnIsTheLoss(AMetricIsTheLoss):
    make = Twice


@case(eager="the step computes with what `MeanMetric.compute()` returns", line="self.metric.compute() > 1")
class MetricThatDecides(Measured):
    def training_step(self, batch, batch_idx):
        loss = self.loss(batch)
        self.metric.update(loss.detach())
        return loss * 2 if self.metric.compute() > 1 else loss


@case(eager="depends on the training's state")
class MetricOfTheWeights(Measured):
    """It holds the layers that are trained, and sees them before the optimizer's step."""

    def __init__(self):
        super().__init__()

        class Norm(Own):
            def update(metric, value):
                metric.total += self.net[0].weight.norm()

        self.metric = Norm()


@case(eager="draws random numbers")
class MetricThatDraws(Measured):
    def __init__(self):
        super().__init__()
        self.metric = torchmetrics.wrappers.BootStrapper(MeanMetric(), num_bootstraps=2)

    def measure(self, loss, logits, labels):
        self.metric.update(logits.mean(1))

    def on_train_epoch_end(self):
        self.log_dict(self.metric.compute())
        self.metric.reset()


@case(eager="gets a `Own`")
class MetricThatGetsAnObject(Measured):
    def __init__(self):
        super().__init__()

        class Taking(Own):
            def update(self, value, other):
                self.total += value

        self.metric, self.other = Taking(), [Own()]

    def measure(self, loss, logits, labels):
        self.metric.update(loss, self.other[0])


@case(eager="changes Python state: `unseen`")
class MetricInAPlainList(Measured):
    """It is no part of the module: nobody moves, saves or resets it either."""

    def __init__(self):
        super().__init__()
        self.unseen = [MeanMetric()]

    def measure(self, loss, logits, labels):
        self.unseen[0].update(loss)


class ByFunctions(Small):
    """Logs what functions of torchmetrics give for predictions, with their checks."""

    def __init__(self, measure):
        super().__init__()
        self.measure = measure

    def training_step(self, batch, batch_idx):
        logits = self(batch[0])
        self.log("measured", self.measure(logits.detach(), batch[1]), on_step=True, on_epoch=True)
        return torch.nn.functional.cross_entropy(logits, batch[1])


OF_CLASSES = {"task": "multiclass", "num_classes": 3}
FUNCTIONS = {
    "accuracy of classes": lambda x, y: torchmetrics.functional.accuracy(x.argmax(1), y, **OF_CLASSES),
    "average f1": lambda x, y: torchmetrics.functional.f1_score(x.argmax(1), y, average="macro", **OF_CLASSES),
    "accuracy of logits of truths": lambda x, y: torchmetrics.functional.accuracy(
        x[:, 0], (y > 0).long(), task="binary"
    ),
    "accuracy of truths": lambda x, y: torchmetrics.functional.accuracy(x[:, 0] > 0, y > 0, task="binary"),
}
for name, measure in FUNCTIONS.items():
    add(f"by a function: {name}", lambda measure=measure: ByFunctions(measure), inductor=name == "average f1")


@case(raises="Detected the following values in `target`")
class FunctionThatRefusesItsTargets(ByFunctions):
    def __init__(self):
        super().__init__(lambda x, y: torchmetrics.functional.accuracy(x[:, 0] > 0, y, task="binary"))


@case(eager="gives a shape that depends on the data")
class FunctionThatLeavesValuesOut(ByFunctions):
    def __init__(self):
        super().__init__(
            lambda x, y: torchmetrics.functional.f1_score(x.argmax(1), y, average="macro", ignore_index=0, **OF_CLASSES)
        )
