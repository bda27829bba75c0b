"""What a training_step may look like and return."""

import functools
import math
from collections import OrderedDict

from torch import nn

from gallery.case import Small, case
from parity import loader

# -- what a step takes ------------------------------------------------------------------------------------------------


@case()
class TakesOnlyABatch(Small):
    def training_step(self, batch):
        return self.loss(batch)


@case()
class TakesArgumentsOfOtherNames(Small):
    def training_step(self, pair, number):
        return self.loss(pair)


@case()
class TakesStarredArguments(Small):
    def training_step(self, *arguments):
        return self.loss(arguments[0])


@case(refused="dataloader_iter")
class TakesTheLoadersIterator(Small):
    def training_step(self, dataloader_iter):
        batch, _, _ = next(dataloader_iter)
        return self.loss(batch)


def doubled(function):
    @functools.wraps(function)
    def call(*arguments, **options):
        return 2 * function(*arguments, **options)

    return call


@case()
class ADecoratedStep(Small):
    @doubled
    def training_step(self, batch, batch_idx):
        return self.loss(batch)


@case()
def a_step_put_on_the_instance():
    module = Small()
    module.training_step = lambda batch, batch_idx: 0.5 * module.loss(batch)
    return module


# -- what a step returns ----------------------------------------------------------------------------------------------


@case(eager="the step returned no loss", data=loader)
class ReturnsNoneAtSomeBatches(Small):
    def training_step(self, batch, batch_idx):
        return None if batch_idx % 5 == 2 else self.loss(batch)


@case(eager="the step returned no loss")
class ReturnsNoneForSomeData(Small):
    def training_step(self, batch, batch_idx):
        if batch[1].float().mean() > 1.2:
            return None
        return self.loss(batch)


@case(eager="the step returned no loss", data=loader)
class ReturnsNoneAtEachBatch(Small):
    """Nothing is trained, and the steps are counted."""

    def training_step(self, batch, batch_idx):
        return None


@case()
class ReturnsADictionary(Small):
    def training_step(self, batch, batch_idx):
        return {"loss": self.loss(batch)}


@case()
class ReturnsTensorsAndValues(Small):
    def training_step(self, batch, batch_idx):
        logits = self(batch[0])
        loss = nn.functional.cross_entropy(logits, batch[1])
        return {"loss": loss, "logits": logits.detach(), "kind": "train", "sizes": [8, {"classes": 3}], "none": None}


@case()
class ReturnsTensorsWithTheirGraph(Small):
    def training_step(self, batch, batch_idx):
        logits = self(batch[0])
        return {"loss": nn.functional.cross_entropy(logits, batch[1]), "logits": logits, "weight": self.net[0].weight}


@case()
class ReturnsAnOrderedDictionary(Small):
    def training_step(self, batch, batch_idx):
        return OrderedDict(extra=batch[0].mean(), loss=self.loss(batch))


@case()
class ReturnsItsIndex(Small):
    def training_step(self, batch, batch_idx):
        return {"loss": self.loss(batch), "index": batch_idx + 1}


@case()
class ReturnsEarlyForASmallBatch(Small):
    def training_step(self, batch, batch_idx):
        if len(batch[0]) < 8:
            return 0.1 * self.loss(batch)
        return self.loss(batch)


@case()
class ReturnsALossOfOneElement(Small):
    def training_step(self, batch, batch_idx):
        return self.loss(batch).reshape(1)


@case()
class ReturnsALossInDouble(Small):
    def training_step(self, batch, batch_idx):
        return self.loss(batch).double()


@case()
class ReturnsALossThatItChangesAfterwards(Small):
    def training_step(self, batch, batch_idx):
        loss = self.loss(batch)
        self.log("loss", loss)
        loss = loss.clone()
        loss.mul_(2)
        return {"loss": loss, "detached": loss.detach()}


@case()
class ReturnsASumOfWeights(Small):
    """The batch plays no part."""

    def training_step(self, batch, batch_idx):
        return sum(parameter.square().sum() for parameter in self.parameters())


@case()
class ReturnsTheSameTensorTwice(Small):
    def training_step(self, batch, batch_idx):
        loss = self.loss(batch)
        return {"loss": loss, "again": loss, "batch": batch[0]}


@case(raises="training_step")
class ReturnsANumber(Small):
    def training_step(self, batch, batch_idx):
        return 1.0


@case(raises="loss")
class ReturnsADictionaryWithoutLoss(Small):
    def training_step(self, batch, batch_idx):
        return {"value": self.loss(batch)}


@case(raises="does not require grad")
class ReturnsALossWithoutGradient(Small):
    def training_step(self, batch, batch_idx):
        return self.loss(batch).detach()


@case(raises="scalar outputs")
class ReturnsALossOfManyElements(Small):
    def training_step(self, batch, batch_idx):
        return self(batch[0])


@case(raises="in the step", data=loader)
class RaisesInTheStep(Small):
    def training_step(self, batch, batch_idx):
        if len(batch[0]) < 8:
            raise ValueError("in the step")
        return self.loss(batch)


@case(raises="closure")
class NeverCallsTheClosure(Small):
    def optimizer_step(self, epoch, batch_idx, optimizer, optimizer_closure=None):
        pass


@case(inductor=True)
class ACosineOfTheStep(Small):
    """As BYOL has it, for the weight of an average."""

    def training_step(self, batch, batch_idx):
        weight = 1 - 0.5 * (math.cos(math.pi * self.global_step / 20) + 1) / 2
        self.log("weight", weight)
        return self.loss(batch) * weight


@case(raises="expected a nonnegative input|math domain error")
class ARootThatHasNoValue(Small):
    def training_step(self, batch, batch_idx):
        return self.loss(batch) * math.sqrt(9 - self.global_step)
