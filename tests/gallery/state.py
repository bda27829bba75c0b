"""State that a module keeps: buffers, counters, lists, hidden states."""

import importlib
import sys
from types import SimpleNamespace

import lightning as L
import numpy as np
import torch
from torch import nn

from gallery.case import Small, add, case
from parity import loader


def even():
    """Batches that are all of one size."""
    return loader(batches=16, last=8)


# -- normalization and buffers ----------------------------------------------------------------------------------------


class Normalized(Small):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(6, 8, bias=False), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))


case()(Normalized)


@case()
class NormalizationFrozen(Normalized):
    """The statistics stay as they are."""

    def on_train_epoch_start(self):
        self.net[1].eval()


@case()
class NormalizationFrozenInTheSecondEpoch(Normalized):
    def on_train_epoch_start(self):
        if self.current_epoch == 1:
            self.net[1].eval()


@case(eager="a value of a tensor decides what Python does")
class NormalizationWithACumulativeAverage(Normalized):
    """Without a momentum the number of batches is read and decides the weight of each."""

    def __init__(self):
        super().__init__()
        self.net[1] = nn.BatchNorm1d(8, momentum=None)


@case()
class NormalizationsOfOtherKinds(Small):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.LayerNorm(6), nn.Linear(6, 8), nn.GroupNorm(2, 8), nn.RMSNorm(8), nn.Linear(8, 3))


@case(inductor=True)
class BuffersThatAreUpdated(Small):
    """An average of the activations, one that is saved and one that is not; both written in place."""

    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(6))
        self.register_buffer("largest", torch.zeros(6), persistent=False)

    def training_step(self, batch, batch_idx):
        x, y = batch
        self.mean.mul_(0.9).add_(x.mean(0), alpha=0.1)
        torch.maximum(self.largest, x.amax(0), out=self.largest)
        return nn.functional.cross_entropy(self((x - self.mean) / (1 + self.largest)), y)


@case()
class BufferThatIsReplaced(BuffersThatAreUpdated):
    def training_step(self, batch, batch_idx):
        x, y = batch
        self.mean = 0.9 * self.mean + 0.1 * x.mean(0)
        self.largest = torch.maximum(self.largest, x.amax(0))
        return nn.functional.cross_entropy(self((x - self.mean) / (1 + self.largest)), y)


@case()
class BufferReplacedThroughData(BuffersThatAreUpdated):
    def training_step(self, batch, batch_idx):
        x, y = batch
        self.mean.data.copy_(0.9 * self.mean + 0.1 * x.mean(0))
        return nn.functional.cross_entropy(self(x - self.mean), y)


@case()
class TensorAttributeThatIsNoBuffer(Small):
    """A plain attribute, replaced in each step."""

    def __init__(self):
        super().__init__()
        self.average = torch.zeros(())

    def training_step(self, batch, batch_idx):
        loss = self.loss(batch)
        self.average = 0.9 * self.average + 0.1 * loss.detach()
        self.log("average", self.average)
        return loss / (0.5 + self.average)


@case()
class TensorsInADictionary(Small):
    def __init__(self):
        super().__init__()
        self.seen = {"loss": torch.zeros(()), "count": torch.zeros((), dtype=torch.long)}

    def training_step(self, batch, batch_idx):
        loss = self.loss(batch)
        self.seen["loss"] = self.seen["loss"] + loss.detach()
        self.seen["count"] += 1
        return loss


@case()
class CountersInIntegerBuffers(Small):
    def __init__(self):
        super().__init__()
        self.register_buffer("steps", torch.tensor(0))
        self.register_buffer("labels", torch.zeros(3, dtype=torch.long))

    def training_step(self, batch, batch_idx):
        self.steps += 1
        self.labels.index_add_(0, batch[1], torch.ones_like(batch[1]))
        return self.loss(batch) / (1 + 0.1 * self.steps)


@case()
class CounterThatDecides(CountersInIntegerBuffers):
    def training_step(self, batch, batch_idx):
        self.steps += 1
        if self.steps % 3 == 0:
            return 2 * self.loss(batch)
        return self.loss(batch)


@case()
class ValueOfABufferThatAnEpochChanges(Small):
    """Python reads it in each step; it is written between epochs, in a way that torch counts."""

    def __init__(self):
        super().__init__()
        self.register_buffer("smoothing", torch.tensor(0.0))

    def on_train_epoch_start(self):
        self.smoothing.fill_(0.2 * self.current_epoch)

    def loss(self, batch):
        return nn.functional.cross_entropy(self(batch[0]), batch[1], label_smoothing=self.smoothing.item())


@case()
class ValueOfABufferWrittenThroughData(ValueOfABufferThatAnEpochChanges):
    """The same, written past what torch counts."""

    def on_train_epoch_start(self):
        self.smoothing.data.fill_(0.2 * self.current_epoch)


# -- lists and hidden states ------------------------------------------------------------------------------------------


@case()
class CounterInPython(Small):
    def __init__(self):
        super().__init__()
        self.count = 0

    def training_step(self, batch, batch_idx):
        self.count += 1
        return self.loss(batch)


@case(eager="changes Python state")
class CountsInALongList(Small):
    """More numbers than anyone looks at one by one."""

    def __init__(self):
        super().__init__()
        self.counts = [0] * 3000

    def training_step(self, batch, batch_idx):
        self.counts[7] += 1
        return self.loss(batch)


@case(eager="changes Python state")
class CountsInALargeArray(Small):
    def __init__(self):
        super().__init__()
        self.counts = np.zeros((64, 64))

    def training_step(self, batch, batch_idx):
        self.counts[0, 0] += 1
        return self.loss(batch)


@case(eager="changes Python state")
class CountsInAnObjectOfTheUsers(Small):
    class Meter:
        count = 0

    def __init__(self):
        super().__init__()
        self.meter = self.Meter()

    def training_step(self, batch, batch_idx):
        self.meter.count += 1
        return self.loss(batch)


class Recurrent(Small):
    """The hidden state goes on from batch to batch, cut off from the graph."""

    def __init__(self):
        super().__init__()
        self.cell = nn.GRU(6, 8, batch_first=True)
        self.out = nn.Linear(8, 3)
        self.hidden = None

    def on_train_epoch_start(self):
        self.hidden = None

    def training_step(self, batch, batch_idx):
        x, y = batch
        if self.hidden is None:
            self.hidden = self.fresh(len(x))
        states, hidden = self.cell(x.unsqueeze(1), self.hidden)
        self.hidden = self.cut(hidden)
        return nn.functional.cross_entropy(self.out(states[:, -1]), y)

    def fresh(self, size):
        return torch.zeros(1, size, 8)

    def cut(self, hidden):
        return hidden.detach()


case(data=even, inductor=True)(Recurrent)


@case(data=even)
class RecurrentWithTwoStates(Recurrent):
    def __init__(self):
        super().__init__()
        self.cell = nn.LSTM(6, 8, batch_first=True)

    def fresh(self, size):
        return torch.zeros(1, size, 8), torch.zeros(1, size, 8)

    def cut(self, hidden):
        return tuple(state.detach() for state in hidden)


@case(data=even)
class RecurrentStateIsZeroedInPlace(Recurrent):
    def on_train_epoch_start(self):
        self.hidden = torch.zeros(1, 8, 8) if self.hidden is None else self.hidden.zero_()


@case(eager="recording it failed")
class NormalizedStepsThatCannotBeRecorded(Small):
    """What a normalization keeps is put back before the step runs again."""

    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(6, 8, bias=False), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 3))

    def on_after_backward(self):
        if torch._C._len_torch_dispatch_stack():
            raise RuntimeError("not where operations are looked at")


# -- attributes that somebody puts on tensors and on torch's own objects -----------------------------------------------


def counted(item):
    """Counts the steps on something, and weighs the loss of those behind the first ten otherwise."""
    item.seen = getattr(item, "seen", 0) + 1
    return 1.0 if item.seen <= 10 else 3.0


LATER = {"max_epochs": 3}
"""In the third epoch there are programs, which what a hook does between epochs makes stale."""

ON_WHAT = {
    "a buffer": lambda module: module.mean,
    "a tensor": lambda module: module.kept,
    "a tensor in a list": lambda module: module.several[1],
    "a tensor of an object": lambda module: module.held.tensor,
    "a dataset of torch's": lambda module: module.trainer.train_dataloader.dataset,
}


class Weighing(Small):
    """The weight of the loss is found on something that the module reaches."""

    def __init__(self, find):
        super().__init__()
        self.register_buffer("mean", torch.zeros(6))
        self.kept = torch.zeros(1)
        self.several = [torch.zeros(1), torch.ones(1)]
        self.held = Holder()
        self.find = find


class Holder:
    def __init__(self):
        self.tensor = torch.zeros(1)


class Counting(Weighing):
    def training_step(self, batch, batch_idx):
        return self.loss(batch) * counted(self.find(self))


class CountingOnADataset(Weighing):
    def training_step(self, batch, batch_idx):
        return self.loss(batch) * counted(self.trainer.train_dataloader.dataset)


class WeighingByEpochs(Weighing):
    """What is found there changes between the epochs."""

    def training_step(self, batch, batch_idx):
        return self.loss(batch) * self.find(self).weight

    def on_train_epoch_start(self):
        self.find(self).weight = 1.0 + self.current_epoch


class WeighingByEpochsOfADataset(WeighingByEpochs):
    def training_step(self, batch, batch_idx):
        return self.loss(batch) * self.trainer.train_dataloader.dataset.weight


for what, find in ON_WHAT.items():
    is_data = what.startswith("a dataset")
    count, weigh = (CountingOnADataset, WeighingByEpochsOfADataset) if is_data else (Counting, WeighingByEpochs)
    add(f"steps counted on {what}", lambda find=find, kind=count: kind(find), eager="changes Python state")
    add(f"a weight by epochs on {what}", lambda find=find, kind=weigh: kind(find), options=LATER)


@case(options=LATER)
class AMarkThatMoves(Small):
    """An attribute moves from one tensor of a list to another between the epochs."""

    def __init__(self):
        super().__init__()
        self.several = [torch.ones(1), torch.full((1,), 3.0)]
        self.several[0].chosen = True

    def training_step(self, batch, batch_idx):
        return self.loss(batch) * next(tensor for tensor in self.several if hasattr(tensor, "chosen"))

    def on_train_epoch_start(self):
        if self.current_epoch == 1:
            del self.several[0].chosen
            self.several[1].chosen = True


@case(eager="the step puts a tensor with attributes of its own into")
class AnAverageWithItsDecay(Small):
    """The tensor is another one in each step, and what is on it goes from one to the next."""

    def __init__(self):
        super().__init__()
        self.average = torch.zeros(6)
        self.average.decay = 0.9

    def training_step(self, batch, batch_idx):
        decay = self.average.decay
        self.average = decay * self.average + (1 - decay) * batch[0].mean(0)
        self.average.decay = decay
        return self.loss(batch) + self.average.sum()


@case(eager="a tensor with attributes of its own")
class LossesWithALabel(Small):
    def __init__(self):
        super().__init__()
        self.losses = []

    def training_step(self, batch, batch_idx):
        loss = self.loss(batch)
        kept = loss.detach()
        kept.label = "loss"
        self.losses.append(kept)
        return loss

    def on_train_epoch_end(self):
        assert all(loss.label == "loss" for loss in self.losses)


class SeesALabel(L.Callback):
    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        assert outputs["kept"].label == "loss"


@case(eager="attributes of its own into what it returns", options={"callbacks": lambda: [SeesALabel()]})
class ALabelOnWhatIsReturned(Small):
    def training_step(self, batch, batch_idx):
        loss = self.loss(batch)
        kept = loss.detach()
        kept.label = "loss"
        return {"loss": loss, "kept": kept}


@case()
class BuffersMadeAnew(Small):
    """What torch itself puts on each is nobody's."""

    def __init__(self):
        super().__init__()
        self.average = nn.Buffer(torch.zeros(6))

    def training_step(self, batch, batch_idx):
        self.average = nn.Buffer(0.9 * self.average + 0.1 * batch[0].mean(0))
        return self.loss(batch) + self.average.sum()


@case()
class NamesLikeThoseThatReachGlobals(Small):
    def __init__(self):
        super().__init__()
        self.globals, self._version = 2.0, 3.0

    def training_step(self, batch, batch_idx):
        layers = sum(isinstance(module, nn.Linear) for module in self.modules())
        return self.loss(batch) * (self.globals + self._version + layers) / min(sys.maxsize, 5)


# -- globals that are reached by other names ---------------------------------------------------------------------------

OTHER_WAYS = {
    "globals()": lambda: globals()["counts"],
    "importlib": lambda: importlib.import_module(__name__).counts,
    "__import__": lambda: getattr(__import__(__name__, fromlist=["counts"]), "counts"),  # noqa: B009
    "sys.modules": lambda: sys.modules[__name__].counts,
    "globals() by another name": lambda looked_up=globals: looked_up()["counts"],
    "eval": lambda: eval("counts"),
}
counts: SimpleNamespace


class CountingInAGlobal(Small):
    def __init__(self, find):
        super().__init__()
        globals()["counts"] = SimpleNamespace()
        self.find = find

    def training_step(self, batch, batch_idx):
        return self.loss(batch) * counted(self.find())


for way, find in OTHER_WAYS.items():
    told = way.split("()")[0]
    add(f"steps counted in a global found by {way}", lambda find=find: CountingInAGlobal(find), eager=told)


# -- gradients of what is kept ----------------------------------------------------------------------------------------


class Saliency(Small):
    """Asks for the gradient of what the last step has kept, behind the epoch."""

    def keep(self, hidden):
        hidden.retain_grad()
        return hidden

    def training_step(self, batch, batch_idx):
        hidden = self.keep(torch.tanh(self.net[0](batch[0])))
        self.kept = hidden
        return nn.functional.cross_entropy(self.net[2](hidden), batch[1])

    def on_train_epoch_end(self):
        self.log("saliency", self.kept.grad.norm())


add("gradient of what is kept", Saliency, eager="has a gradient of its own in `kept`", data=even)


@case(eager="has a gradient of its own in `kept`", data=even)
class GradientOfAKeptInput(Saliency):
    def keep(self, hidden):
        return hidden.detach().requires_grad_()


@case(data=even)
class KeptWithItsGraph(Saliency):
    """Whose values alone are looked at."""

    def keep(self, hidden):
        return hidden

    def on_train_epoch_end(self):
        self.log("norm", self.kept.detach().norm())


class AddsABufferThatAsks(Small):
    """As vector-quantize-pytorch does with its loss; nobody clears that gradient."""

    def __init__(self):
        super().__init__()
        self.register_buffer("zero", torch.tensor(0.0), persistent=False)

    def training_step(self, batch, batch_idx):
        penalty = self.zero
        if self.training:
            penalty.requires_grad_()
        return self.loss(batch) + (1 + self.current_epoch) * penalty

    def on_train_epoch_end(self):
        self.log("gathered", self.zero.grad.clone())


class AddsABufferThatIsCleared(AddsABufferThatAsks):
    def on_train_epoch_end(self):
        super().on_train_epoch_end()
        self.zero.grad = None


add("a buffer gathers a gradient", AddsABufferThatAsks)
add("a buffer gathers a gradient that is cleared", AddsABufferThatIsCleared)
add("a buffer gathers a gradient of windows", AddsABufferThatAsks, options={"accumulate_grad_batches": 2})


class KeepsWhatItDrew(Small):
    """In containers in each other, as kornia's augmentations keep their parameters."""

    def keep(self, drawn, x):
        return (("factor", drawn, 0),)

    def loss(self, batch):
        x, y = batch
        drawn = torch.rand(len(x))
        self.drawn = self.keep(drawn, x)
        return super().loss((x * drawn[:, None], y))

    def on_train_epoch_end(self):
        assert all(torch.is_tensor(item) for item in self.kept())
        self.log("kept", torch.stack([item.sum() for item in self.kept()]).sum())

    def kept(self):
        return [self.drawn[0][1]]


class KeepsItInDictionaries(KeepsWhatItDrew):
    def keep(self, drawn, x):
        return {"all": {"factor": [drawn, drawn + 1]}, "shape": (8, [6])}

    def kept(self):
        return self.drawn["all"]["factor"]


class KeepsItInTheSameContainers(KeepsWhatItDrew):
    def __init__(self):
        super().__init__()
        self.table = {"last": [{"factor": None}], "count": 0}

    def keep(self, drawn, x):
        before = self.table["last"][0]["factor"]
        self.table["last"][0]["factor"] = drawn if before is None else 0.5 * (before + drawn)
        return self.table

    def kept(self):
        return [self.table["last"][0]["factor"]]


class KeepsMoreAndMore(KeepsWhatItDrew):
    def keep(self, drawn, x):
        return [*getattr(self, "drawn", []), [drawn]][-5:]

    def kept(self):
        return [drawn for (drawn,) in self.drawn]


add("keeps what it drew in a tuple of tuples", KeepsWhatItDrew)
add("keeps what it drew in dictionaries", KeepsItInDictionaries)
add("keeps what it drew in the same containers", KeepsItInTheSameContainers)
add("keeps what it drew last", KeepsMoreAndMore, data=lambda: loader(9, last=8))


class KeepsItsLastStates(Small):
    """In containers that each step makes anew: who keeps one finds it as it was."""

    def __init__(self):
        super().__init__()
        self.last = {"all": (torch.zeros(6), [torch.zeros(6)])}
        self.best = self.last

    def loss(self, batch):
        x, y = batch
        mean, (total,) = self.last["all"]
        mean = 0.9 * mean + 0.1 * x.mean(0)
        self.last = {"all": (mean, [total + mean])}
        return super().loss(batch) * (1 + 0.1 * self.last["all"][1][0].mean())

    def on_train_epoch_end(self):
        if self.current_epoch % 2:
            self.last = self.best
        else:
            self.best = self.last


class TwoPlacesHaveOneDictionary(Small):
    def __init__(self):
        super().__init__()
        self.one = {"x": {"mean": torch.zeros(6)}}
        self.other = self.one["x"]

    def loss(self, batch):
        x, y = batch
        self.one["x"]["mean"] = 0.9 * self.one["x"]["mean"] + 0.1 * x.mean(0)
        return super().loss(batch) * (1 + self.other["mean"].mean())

    def on_train_epoch_end(self):
        if self.current_epoch == 1:
            self.other = dict(self.other)


class WritesToAListInATuple(Small):
    def __init__(self):
        super().__init__()
        self.pair = (torch.zeros(6), [torch.zeros(6)])
        self.held = self.pair

    def loss(self, batch):
        self.pair[1][0] = 0.9 * self.pair[1][0] + batch[0].mean(0)
        return super().loss(batch)

    def on_train_epoch_end(self):
        assert self.pair is self.held
        self.log("mean", self.held[1][0].mean())


class KeepsMeansOfItsLayers(Small):
    """By the layers, two of which look alike."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(6, 6), nn.Linear(6, 6)])
        self.means = {layer: torch.zeros(6) for layer in self.layers}

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
            self.means[layer] = x.detach().mean(0)
        return self.net(x)

    def on_train_epoch_end(self):
        for number, mean in enumerate(self.means.values()):
            self.log(f"mean {number}", mean.mean())


add("keeps states in containers that are made anew", KeepsItsLastStates, options={"max_epochs": 5})
add("two places have one dictionary", TwoPlacesHaveOneDictionary, options={"max_epochs": 4})
add("writes to a list in a tuple", WritesToAListInATuple)
add("keeps means of layers that look alike", KeepsMeansOfItsLayers)


class MakesTheInnerListAnew(Small):
    """And leaves the dictionary that holds it."""

    def __init__(self):
        super().__init__()
        self.table = {"mean": [torch.zeros(6)], "last": torch.zeros(6)}
        self.held = self.table

    def loss(self, batch):
        self.table["mean"] = [0.9 * self.table["mean"][0] + batch[0].mean(0)]
        return super().loss(batch)

    def on_train_epoch_end(self):
        assert self.table is self.held
        self.log("mean", self.held["mean"][0].sum())


class KeepsTheInnerList(MakesTheInnerListAnew):
    def loss(self, batch):
        inner = self.table["mean"]
        inner[0] = 0.9 * inner[0] + batch[0].mean(0)
        self.table = {"mean": inner, "last": batch[0].mean(0)}
        return Small.loss(self, batch)

    def on_train_epoch_end(self):
        assert self.table["mean"] is self.held["mean"]
        self.log("mean", self.held["mean"][0].sum())


class PutsOneListIntoTwoPlaces(Small):
    def __init__(self):
        super().__init__()
        self.one = self.other = [torch.zeros(6)]

    def loss(self, batch):
        self.one = self.other = [0.9 * self.one[0] + batch[0].mean(0)]
        return super().loss(batch)

    def on_train_epoch_end(self):
        self.one[0] = torch.ones(6)
        self.log("other", self.other[0].sum())


add("makes the inner list anew", MakesTheInnerListAnew)
add("keeps the inner list", KeepsTheInnerList)
add("puts one list into two places", PutsOneListIntoTwoPlaces, eager="one new list or dictionary into two places")
