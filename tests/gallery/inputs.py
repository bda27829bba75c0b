"""Gradients of the batches themselves: saliency, penalties, adversarial examples."""

from dataclasses import dataclass

import lightning as L
import torch
from torch import nn
from torch.utils.data import DataLoader, default_collate

from gallery.case import Kept, Small, add, case
from graphs import Data, GraphLoader, Mine
from parity import loader

LEFT = "leaves a gradient, or what asks for one, on a tensor of the batch"


class Penalized(Small):
    """A penalty on the slope. Its backward pass leaves a gradient on the batch, which nobody looks at."""

    def training_step(self, batch, batch_idx):
        x = batch[0].requires_grad_()
        loss = self.loss((x, batch[1]))
        (slope,) = torch.autograd.grad(loss, x, create_graph=True)
        return loss + slope.square().sum()


add("penalty on the slope at the batch", Penalized)


class OneBatch(Kept):
    def __init__(self):
        super().__init__()
        self.batches = self.batches[:1] * 9


@case(data=OneBatch, eager=LEFT)
class PenaltyOnTheSlopeAtTheOneBatchThereIs(Penalized):
    """As where a network is fitted to an equation: all points in one batch, which comes again and again."""


class Adversarial(Small):
    """Trains at points that are a little worse."""

    def training_step(self, batch, batch_idx):
        x = self.started(batch[0])
        self.loss((x, batch[1])).backward()
        worse = x.detach() + 0.1 * x.grad.sign()
        self.zero_grad()
        return self.loss((worse, batch[1]))

    def started(self, x):
        return x.requires_grad_()


add("adversarial examples", Adversarial)
add("adversarial examples of batches that come again", Adversarial, data=Kept, eager=LEFT)


@case(data=Kept)
class AdversarialExamplesOfBatchesInTheirOwnMemory(Adversarial):
    def started(self, x):
        return x.detach().requires_grad_()


@case(data=Kept, eager=LEFT)
class AdversarialExamplesOfBatchesWhoseGradientIsTakenAway(Adversarial):
    def started(self, x):
        x.grad = None
        return x.requires_grad_()


@case(data=Kept, eager=LEFT)
class LooksAtWhatIsLeftOnTheBatch(Small):
    def training_step(self, batch, batch_idx):
        x = batch[0].requires_grad_()
        loss = self.loss((x, batch[1]))
        if x.grad is not None:
            loss = loss * (1 + x.grad.square().sum())
        return loss


@case(data=loader)
class LooksAtWhatIsLeftOnBatchesOfALoaders(LooksAtWhatIsLeftOnTheBatch):
    """Nothing is: they are made anew."""


class Embedded(Small):
    def training_step(self, batch, batch_idx):
        x = batch[0].requires_grad_()
        hidden = self.net[1](self.net[0](x))
        return nn.functional.cross_entropy(self.net[2](hidden), batch[1])


add("gradients on batches that come again", Embedded, data=Kept, eager=LEFT)


class Late(Adversarial):
    """Leaves a gradient in each step, and looks at it in later ones."""

    def training_step(self, batch, batch_idx):
        return (
            Embedded.training_step(self, batch, batch_idx)
            if self.is_early()
            else super().training_step(batch, batch_idx)
        )

    def is_early(self):
        return self.current_epoch < 2


add("adversarial examples late", Late, options={"max_epochs": 4})
add("adversarial examples late, of batches that come again", Late, data=Kept, options={"max_epochs": 4}, eager=LEFT)


class Read(Embedded):
    def on_train_epoch_end(self):
        first = next(iter(self.trainer.train_dataloader))
        self.log("slope", first[0].grad.norm())


add("gradients on batches, read behind the epoch", Read, data=Kept, eager=LEFT)


class Hooked(Small):
    def training_step(self, batch, batch_idx):
        x = batch[0].requires_grad_()
        x.register_hook(lambda slope: 0.5 * slope)
        loss = self.loss((x, batch[1]))
        (slope,) = torch.autograd.grad(loss, x, create_graph=True)
        return loss + slope.square().sum()


add("hooks on batches", Hooked)
add("hooks on batches that come again", Hooked, data=Kept, eager=LEFT)


class Changes(Adversarial):
    """The first loader's batches are made anew, the second one's come again."""

    def train_dataloader(self):
        return loader(9, last=8) if self.current_epoch < 2 else DataLoader(Kept().batches, batch_size=None)


def none():
    return None


add(
    "adversarial examples of another loader",
    Changes,
    data=none,
    options={"max_epochs": 6, "reload_dataloaders_every_n_epochs": 1},
    eager=LEFT,
)


class Again(Adversarial):
    """Insists on a text where the gradient is there already, which a recorded step has no text for."""

    def training_step(self, batch, batch_idx):
        loss = super().training_step(batch[:2], batch_idx)
        return loss * (1 + len(",".join(batch[2])) % 7)


def named():
    x, y = loader(9, last=8).dataset.tensors
    return DataLoader([(*both, f"{number}.png") for number, both in enumerate(zip(x, y, strict=True))], batch_size=8)


add("adversarial examples, with texts", Again, data=named, few=True)


# -- what steps put into their batches --------------------------------------------------------------------------------


INTO = "the step puts something into its batch"


class Graph:
    """Moves itself, as graphs of other libraries do; it stays the same object."""

    def __init__(self, x, y):
        self.x, self.y = x, y

    def to(self, device):
        return self

    def __call__(self):
        return self.x


class Graphs(Kept):
    def __init__(self):
        super().__init__(lambda x, y: Graph(x.clone(), y))


@case(data=Graphs, eager=INTO)
class ShrinksTheFeaturesOfItsGraphs(Small):
    def training_step(self, graph, batch_idx):
        graph.x = graph.x * 0.9
        return self.loss((graph.x, graph.y))


def graphs_of(kind, has_tags=False):
    """A loader of torch_geometric's, of graphs of one kind, one for each row; each may have a list of its own."""

    def make():
        x, y = loader(9, last=8).dataset.tensors
        lists = [{"tags": []} if has_tags else {} for _ in x]
        rows = zip(x[:, None], y[:, None], lists, strict=True)
        return GraphLoader([kind(x=one, y=other, **tags) for one, other, tags in rows], batch_size=8)

    return make


# Its batches are made anew, unless they hold what a sample holds, or are of a user's own class.
add("shrinks the features of torch_geometric's graphs", ShrinksTheFeaturesOfItsGraphs, data=graphs_of(Data))
add("shrinks its own kind of graphs", ShrinksTheFeaturesOfItsGraphs, data=graphs_of(Mine), eager=INTO)


@case(data=graphs_of(Data, has_tags=True), eager=INTO)
class AppendsToAListOfASample(Small):
    def training_step(self, graph, batch_idx):
        tags = graph.tags[0]
        tags.append("seen")
        return self.loss((graph.x, graph.y)) / len(tags)


@case(data=Graphs, eager=INTO)
class CountsHowOftenItHasSeenAGraph(Small):
    def training_step(self, graph, batch_idx):
        graph.seen = getattr(graph, "seen", 0) + 1
        return self.loss((graph.x, graph.y)) / graph.seen


@case(data=Graphs, eager=INTO)
class KeepsAFeatureOnItsGraph(Small):
    def training_step(self, graph, batch_idx):
        if not hasattr(graph, "shift"):
            graph.shift = self.net[0].bias.detach()[:6].clone()
        return self.loss((graph.x + graph.shift, graph.y))


@case(data=lambda: Kept(lambda x, y: (x.clone(), y.clone())), eager=INTO)
class CountsOnATensor(Small):
    def training_step(self, batch, batch_idx):
        batch[0].seen = getattr(batch[0], "seen", 0) + 1
        return self.loss(batch) / batch[0].seen


class LeavesItsBatchAsItIs(Small):
    def transfer_batch_to_device(self, batch, device, dataloader_idx):
        return batch


@case(data=lambda: Kept(lambda x, y: [x.clone(), y]), eager=INTO)
class ReplacesAPartOfAList(LeavesItsBatchAsItIs):
    def training_step(self, batch, batch_idx):
        batch[0] = batch[0] * 0.9
        return self.loss(batch)


@case(data=lambda: Kept(lambda x, y: {"batch": (x.clone(), y), "losses": []}), eager=INTO)
class AppendsToAListInItsBatch(LeavesItsBatchAsItIs):
    def training_step(self, batch, batch_idx):
        loss = self.loss(batch["batch"]) / (1 + len(batch["losses"]))
        batch["losses"].append(loss.detach())
        return loss


def by_names():
    """What a DataLoader's own collating has made is nobody else's."""
    x, y = loader(9, last=8).dataset.tensors
    return DataLoader([{"x": one, "y": other} for one, other in zip(x, y, strict=True)], batch_size=8)


class Normalizes(Small):
    def training_step(self, batch, batch_idx):
        batch["x"] = batch["x"] * 0.5
        batch["scores"] = self(batch["x"])
        return nn.functional.cross_entropy(batch["scores"], batch["y"])


class ReadsTheBatch(L.Callback):
    def __init__(self):
        self.last = None

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        self.last = batch["scores"].mean() + batch["x"].mean()

    def on_train_epoch_end(self, trainer, module):
        module.log("last", self.last)


class ReadsTheOutputs(L.Callback):
    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        self.last = outputs["loss"]


add("puts its scores into its batch", Normalizes, data=by_names)
add(
    "puts its scores into its batch, for a callback",
    Normalizes,
    data=by_names,
    options={"callbacks": lambda: [ReadsTheBatch()]},
    eager=INTO,
)
add(
    "puts its scores into its batch, and a callback reads the loss",
    Normalizes,
    data=by_names,
    options={"callbacks": lambda: [ReadsTheOutputs()]},
)


def collated_by_hand():
    return DataLoader(by_names().dataset, batch_size=8, collate_fn=lambda samples: default_collate(samples))


add("puts its scores into its batch, which a function of the user's has collated", Normalizes, data=collated_by_hand)


class Dictionaries(Kept):
    def __init__(self):
        super().__init__(lambda x, y: {"x": x.clone(), "y": y})


# Lightning makes a dictionary for each step.
add("puts its scores into its batch, a copy of what a list holds", Normalizes, data=Dictionaries)


@case(data=Graphs, eager=INTO)
class TakesTheFeaturesOfItsGraphs(Small):
    def training_step(self, graph, batch_idx):
        x = graph.__dict__.pop("x")
        loss = self.loss((x, graph.y))
        graph.x = x * 0.9
        return loss


@dataclass(slots=True)
class Inner:
    x: torch.Tensor


class NestedGraph(Graph):
    def __init__(self, x, y):
        super().__init__(Inner(x), y)


@case(data=lambda: Kept(lambda x, y: NestedGraph(x.clone(), y)), eager=INTO)
class ShrinksWhatHasSlots(Small):
    def training_step(self, graph, batch_idx):
        graph.x.x = graph.x.x * 0.9
        return self.loss((graph.x.x, graph.y))


@case(data=lambda: Kept(lambda x, y: torch.tensor([int(y.sum())])), eager=INTO)
class ShrinksWhatAHookHasGiven(Small):
    def __init__(self):
        super().__init__()
        self.__dict__["graphs"] = {}

    def on_after_batch_transfer(self, batch, dataloader_idx):
        number = int(batch)
        x = torch.arange(48.0).reshape(8, 6).sin() * number
        return GIVEN.setdefault((id(self), number), Graph(x, torch.arange(8) % 3))

    def training_step(self, graph, batch_idx):
        graph.x = graph.x * 0.9
        return self.loss((graph.x, graph.y))


GIVEN = {}


class KeepsTheFirst(L.Callback):
    def on_train_batch_start(self, trainer, module, batch, batch_idx):
        if batch_idx == 0:
            self.first = batch

    def on_train_epoch_end(self, trainer, module):
        module.log("first", self.first["scores"].mean())


add(
    "puts its scores into its batch, for a callback that keeps it",
    Normalizes,
    data=by_names,
    options={"callbacks": lambda: [KeepsTheFirst()]},
    eager=INTO,
)


class MovesItself(dict):
    """As what tokenizers give."""

    def to(self, device):
        return self


def tokenized(samples):
    return MovesItself(default_collate(samples))


class Pops(Small):
    def training_step(self, batch, batch_idx):
        y = batch.pop("y")
        return self.loss((batch["x"], y))


def of_workers(workers):
    return lambda: DataLoader(
        by_names().dataset, batch_size=8, collate_fn=tokenized, num_workers=workers, persistent_workers=workers > 0
    )


add("takes the labels out of its batch, which moves itself", Pops, data=of_workers(0), eager=INTO)
add("takes the labels out of its batch, which a worker has made", Pops, data=of_workers(1))


class Bag:
    """Knows its parts by a method, which fails in a way of its own for what it does not know."""

    __slots__ = ("parts",)

    def __init__(self, x, y):
        self.parts = {"x": x, "y": y}

    def __getattr__(self, name):
        return self.parts[name]


@case(data=lambda: Kept(Bag), few=True)
class LooksIntoABag(Small):
    def training_step(self, bag, batch_idx):
        return self.loss((bag.x, bag.y))


class AddsAPenalty(Normalizes):
    """Leaves a gradient on a tensor that comes again, and puts something into a dictionary that does not."""

    def training_step(self, batch, batch_idx):
        batch["x"].requires_grad_()
        loss = super().training_step(batch, batch_idx)
        (slope,) = torch.autograd.grad(loss, batch["x"], create_graph=True)
        return loss + slope.square().sum()


add("penalty in a dictionary, a copy of what a list holds", AddsAPenalty, data=Dictionaries, eager=LEFT)


# -- the same tensor twice --------------------------------------------------------------------------------------------


class Pairs(Kept):
    """In some batches both are one tensor: none of the first ones."""

    def __init__(self):
        super().__init__(lambda x, y: (x.clone(), x.clone(), y))
        self.batches = [
            (x, x, y) if place % 3 == 2 else (x, other, y) for place, (x, other, y) in enumerate(self.batches)
        ]


@case(data=Pairs)
class AsksWhetherTwoPartsAreOne(Small):
    def training_step(self, batch, batch_idx):
        x, other, y = batch
        loss = self.loss((x, y))
        return loss if x is other else loss + self.loss((other * 0.5, y))


@case(data=Pairs)
class DrawsOnceForWhatIsOne(Small):
    def training_step(self, batch, batch_idx):
        *parts, y = batch
        noisy = {id(part): nn.functional.dropout(part, 0.3) for part in parts}
        return sum(self.loss((noisy[id(part)], y)) for part in parts)
