"""Data that depends on the present weights is fetched when it is due."""

import random
from collections import deque
from functools import partial

import lightning as L
import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import ConcatDataset, DataLoader, Dataset, IterableDataset, TensorDataset

from lightning_sink import SinkStrategy
from lightning_sink.data import holding_training
from lightning_sink.trainer import demands
from parity import Net, assert_parity, loader, once


def trainer_with(module):
    trainer = L.Trainer(accelerator="cpu", logger=False, enable_checkpointing=False)
    trainer.strategy.connect(module)
    return trainer


def holds(loaders, trainer):
    return "holds the module" in demands.have_come_to_hold(holding_training.Holding(), trainer, loaders)


class Holding(Dataset):
    def __init__(self, **held):
        vars(self).update(held)

    def __len__(self):
        return 8

    def __getitem__(self, index):
        return torch.zeros(6)


class Data(L.LightningDataModule):
    def setup(self, stage):
        self.rows = self.trainer.max_epochs

    def collate(self, rows):
        return torch.stack(rows)


def shared(module):
    other = nn.Linear(6, 8, bias=False)
    other.weight = module.net[0].weight
    return other


def closes_over(module):
    class Closes(Holding):
        def __getitem__(self, index):
            return module(torch.zeros(1, 6))

    return Closes()


class Asks(L.LightningDataModule):
    """Puts batches together by what its trainer says."""

    def collate(self, rows):
        return torch.stack(rows) * 0.9**self.trainer.global_step


class AsksOf(Holding):
    def __getitem__(self, index):
        return torch.zeros(6) + self.data.trainer.global_step


def by_datamodule(trainer, data=None):
    data = data or Asks()
    data.trainer = trainer
    return data


HELD = {
    "the module": lambda module, trainer: Holding(model=module),
    "a layer in a dict": lambda module, trainer: Holding(parts={"first": [module.net[0]]}),
    "a parameter": lambda module, trainer: Holding(weight=module.net[0].weight),
    "another model with the same weights": lambda module, trainer: Holding(other=shared(module)),
    "a buffer": lambda module, trainer: Holding(mean=module.net[1].running_mean),
    "a view of a weight": lambda module, trainer: Holding(row=module.net[0].weight.detach()[2:]),
    "the state dict": lambda module, trainer: Holding(state=module.state_dict()),
    "the trainer": lambda module, trainer: Holding(trainer=trainer),
    "a function that closes over it": lambda module, trainer: Holding(act=lambda x: module(x)),
    "part of a function": lambda module, trainer: Holding(act=partial(print, module)),
    "its own method": lambda module, trainer: Holding(act=module.forward),
    "a dataset inside": lambda module, trainer: Holding(inner=Holding(model=module)),
    "a class that closes over it": lambda module, trainer: closes_over(module),
    "a datamodule that asks its trainer": lambda module, trainer: Holding(collate=by_datamodule(trainer).collate),
    "who asks a datamodule's trainer": lambda module, trainer: AsksOf(data=by_datamodule(trainer, Data())),
}


@pytest.mark.parametrize("held", HELD)
def test_what_is_held_is_found(held):
    module = Net()
    trainer = trainer_with(module)
    assert holds([DataLoader(HELD[held](module, trainer))], trainer)


def test_a_replay_buffer_that_the_module_fills():
    module = Net()
    module.memory = Holding(kept=deque(maxlen=4), names=["a"])
    trainer = trainer_with(module)
    assert holds([DataLoader(Holding(memory=module.memory))], trainer)
    assert holds([DataLoader(Holding(rows=module.memory.kept))], trainer)
    assert not holds([DataLoader(Holding(names=module.memory.names, kept=deque()))], trainer)


def test_a_method_of_the_module_collates():
    module = Net()
    assert holds([DataLoader(Holding(), collate_fn=module.forward)], trainer_with(module))


def test_control_ordinary_loaders_hold_nothing():
    module, data = Net(), Data()
    data.trainer = trainer = trainer_with(module)
    rows = [Holding(other=nn.Linear(2, 2)), Holding(many=list(range(100_000)))]
    loaders = [loader(), *map(DataLoader, rows), DataLoader(Holding(), collate_fn=data.collate), [torch.zeros(3)]]
    assert not holds(loaders, trainer)


class Draws(Net):
    """Draws from a generator of its own in steps, and has another one for an order."""

    def __init__(self, make=np.random.default_rng):
        super().__init__()
        self.source, self.order = make(3), torch.Generator()
        self.noise = Holding(source=torch.Generator())

    def training_step(self, batch, batch_idx):
        return super().training_step(batch, batch_idx) * self.source.random()

    def train_dataloader(self):
        return DataLoader(Holding(), generator=self.order)


def test_generators_that_steps_draw_from():
    module = Draws()
    trainer = trainer_with(module)
    assert holds([DataLoader(Holding(source=module.source))], trainer)
    assert not holds([DataLoader(Holding(source=module.noise.source))], trainer)
    assert not holds([module.train_dataloader()], trainer)
    module.on_after_batch_transfer = lambda batch, index: batch + torch.rand(6, generator=module.noise.source)
    assert holds([DataLoader(Holding(source=module.noise.source))], trainer)


class Mixes(L.LightningDataModule):
    """Draws from one generator where rows are read, and behind the transfer."""

    def __init__(self, make):
        super().__init__()
        self.source = make(3)

    def train_dataloader(self):
        rows = [*zip(*loader(40).dataset.tensors, strict=True)]
        return DataLoader(rows, batch_size=8, collate_fn=self.collate)

    def collate(self, rows):
        x, y = (torch.stack(part) for part in zip(*rows, strict=True))
        return x + 0.1 * self.source.random(), y

    def on_after_batch_transfer(self, batch, dataloader_idx):
        x, y = batch
        return x * self.source.random(), y


@pytest.mark.narrow(11)
@pytest.mark.parametrize("engine", ["eager", "traced"])
@pytest.mark.parametrize("make", [np.random.default_rng, random.Random])
def test_a_generator_that_rows_and_transfer_hooks_share(make, engine):
    strategies = "auto", SinkStrategy(8, epoch="dataset", engine=engine)
    plain, sink = (once(Net, lambda: Mixes(make), each, max_epochs=2) for each in strategies)
    assert_parity(plain, sink, exact=engine == "eager")
    assert plain.trainer.datamodule.source.random() == sink.trainer.datamodule.source.random()


class Anything(dict):
    __getattr__ = dict.__getitem__


class Settled(Holding):
    settings = Anything(rate=1)


class Helped(Data):
    def per_device(self):
        return 8 // self.trainer.world_size


def test_control_what_a_datamodule_does_beside_is_its_own_affair():
    module = Net()
    trainer = trainer_with(module)
    data = by_datamodule(trainer, Helped())
    assert not holds([DataLoader(Settled(), collate_fn=data.collate)], trainer)


def test_lazy_layers_are_known_before_they_have_memory():
    module = L.LightningModule()
    module.layer = nn.LazyLinear(3)
    trainer = trainer_with(module)
    assert holds([DataLoader(Holding(weight=module.layer.weight))], trainer)
    assert not holds([DataLoader(Holding(other=nn.LazyLinear(3)))], trainer)


class Mined(IterableDataset):
    """Gives the batches with the present weights in them."""

    def __init__(self, module, batches=40):
        self.module, self.batches = module, batches

    def __iter__(self):
        for x, y in TensorDataset(*loader(self.batches, last=8).dataset.tensors):
            yield x + self.module.net[0].weight.detach().mean(), y


class Mining(Net):
    def __init__(self):
        super().__init__()
        self.net[3] = nn.Identity()

    def train_dataloader(self):
        return DataLoader(Mined(self), batch_size=8)


def test_a_training_on_what_the_present_weights_give_is_the_same():
    plain, sink = (
        once(Mining, lambda: None, strategy, max_epochs=2)
        for strategy in ("auto", SinkStrategy(-1, epoch="dataset", engine="traced"))
    )
    assert sink.engine == "traced"
    assert_parity(plain, sink, tolerance=1e-4)


def test_control_fetched_ahead_it_is_another_one(monkeypatch):
    monkeypatch.setattr(holding_training, "holds_training", lambda *given: False)
    plain, sink = (
        once(Mining, lambda: None, strategy, max_epochs=2)
        for strategy in ("auto", SinkStrategy(-1, epoch="dataset", engine="traced"))
    )
    with pytest.raises(AssertionError):
        assert_parity(plain, sink, tolerance=1e-4)


class Labelled(Dataset):
    """Has the present weights in its rows, once it has been given the model."""

    def __init__(self, model=None):
        self.rows, self.model = loader(16, last=8).dataset, model

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        x, y = self.rows[index]
        return (x if self.model is None else x + 5.0 * self.model.net[0].weight.detach()[0]), y


class LabelsFromTheStart(Mining):
    def train_dataloader(self):
        return DataLoader(Labelled(), batch_size=8)

    def on_train_start(self):
        self.trainer.train_dataloader.dataset.model = self


class LabelsLater(LabelsFromTheStart):
    def train_dataloader(self):
        return DataLoader(ConcatDataset([Labelled()]), batch_size=8)

    def on_train_start(self):
        pass

    def on_train_epoch_start(self):
        if self.current_epoch == 2:
            self.trainer.train_dataloader.dataset.datasets[0].model = self


class LabelsAnew(Mining):
    def train_dataloader(self):
        return DataLoader(Labelled(self if self.trainer.current_epoch else None), batch_size=8)


GIVEN_LATE = [(LabelsFromTheStart, {}), (LabelsLater, {}), (LabelsAnew, {"reload_dataloaders_every_n_epochs": 1})]


@pytest.mark.narrow(11)
@pytest.mark.parametrize(("make", "options"), GIVEN_LATE)
@pytest.mark.parametrize("engine", ["eager", "traced"])
def test_a_dataset_that_is_given_the_model_while_the_training_is_under_way(make, options, engine):
    strategies = "auto", SinkStrategy(-1, epoch="dataset", engine=engine)
    plain, sink = (once(make, lambda: None, strategy, max_epochs=4, **options) for strategy in strategies)
    assert sink.engine == engine
    assert_parity(plain, sink, exact=engine == "eager")


def test_control_not_looked_at_again_they_are_other_trainings(monkeypatch):
    """Whether anything is fetched ahead in one of them is decided by the clock."""
    monkeypatch.setattr(holding_training.Holding, "look", lambda *given: False)
    others = 0
    for make, options in GIVEN_LATE:
        strategies = "auto", SinkStrategy(-1, epoch="dataset", engine="traced")
        plain, sink = (once(make, lambda: None, strategy, max_epochs=4, **options) for strategy in strategies)
        others += not torch.allclose(plain.module.net[0].weight, sink.module.net[0].weight, rtol=1e-3)
    assert others


class Stream(IterableDataset):
    def __init__(self, make):
        self.make = make

    def __iter__(self):
        return self.make()


class Plays(L.LightningModule):
    """Makes its batches itself, and uses what it counts as it does: reinforcement learning."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 1)
        self.played, self.episodes = 0.0, [0]

    def play(self):
        for number in range(160):
            if number % 40 == 39:
                self.played += 1.0
                self.episodes.append(number)
            yield torch.full((4,), number / 160)
        self.played += 5.0

    def train_dataloader(self):
        return DataLoader(Stream(self.play), batch_size=8)

    def training_step(self, batch, batch_idx):
        self.log("played", self.played, on_step=True, on_epoch=True)
        return self.layer(batch).square().mean() * (1 + 0.1 * self.played) + 0.01 * len(self.episodes)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


@pytest.mark.parametrize("engine", ["eager", "traced"])
def test_what_a_fetch_changes_is_what_the_step_finds(engine):
    """A loader that holds the module may change it, between any two steps."""
    strategies = "auto", SinkStrategy(8, epoch="dataset", engine=engine)
    plain, sink = (once(Plays, lambda: None, each, max_epochs=3, log_every_n_steps=1) for each in strategies)
    assert_parity(plain, sink, exact=engine == "eager")
    assert sink.module.played == plain.module.played == 27.0


class Collates(Net):
    """Puts its batches together itself."""

    def __init__(self, collate):
        super().__init__()
        self.scale, self.seen, self.ring = 2.0, 0, deque([1.0, 2.0, 3.0])
        self.chosen = collate

    def train_dataloader(self):
        return DataLoader(loader(60).dataset, batch_size=8, collate_fn=getattr(self, self.chosen))

    def training_step(self, batch, batch_idx):
        self.log("seen", float(self.seen) + self.ring[0])
        return super().training_step(batch, batch_idx) * self.ring[0]

    def read(self, rows):
        x, y = (torch.stack(part) for part in zip(*rows, strict=True))
        return self.scaled(x).float(), y

    def scaled(self, x):
        return x * self.scale + torch.tensor([row * 0 for row in range(6)])

    def counts(self, rows):
        self.seen += 1
        return self.read(rows)

    def turns_a_ring(self, rows):
        if rows[0][0][0] > 1:  # now and then
            self.ring.rotate()
        return self.read(rows)


@pytest.mark.parametrize("collate", ["read", "counts", "turns_a_ring"])
def test_a_method_that_puts_batches_together(collate):
    """It is looked at behind each fetch what it may have changed."""
    strategies = "auto", SinkStrategy(8, epoch="dataset", engine="traced")
    plain, sink = (once(lambda: Collates(collate), lambda: None, each, max_epochs=2) for each in strategies)
    assert_parity(plain, sink)
