"""Steps that draw from Python's and numpy's generators, under a Trainer: rows, data that draws, errors, callbacks."""

import random

import lightning as L
import numpy as np
import pytest
import torch
import torchmetrics
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import positions
from lightning_sink import SinkStrategy
from lightning_sink.engine.state.positions import Stream
from parity import QUIET, Net, assert_parity, both, loader, once


class Mixup(Net):
    """Mixes samples, and leaves some of them out."""

    def training_step(self, batch, batch_idx):
        x, y = batch
        weight = np.random.beta(0.4, 0.4)
        order = torch.randperm(len(x))
        self.log("weight", weight, on_step=True, on_epoch=True)
        noise = random.gauss(0.0, 0.1)
        return super().training_step(((1 - weight) * x + weight * x[order] + noise, y), batch_idx)


class Drawing(TensorDataset):
    """Data that draws as steps do, where no worker fetches it."""

    def __getitem__(self, index):
        x, y = super().__getitem__(index)
        return x + np.random.normal(0.0, 0.1) * random.random(), y


def many():
    return loader(64, last=8)


def many_that_draw(workers=0):
    return DataLoader(Drawing(*many().dataset.tensors), batch_size=8, shuffle=True, num_workers=workers)


def sinks(size=-1, engine="traced"):
    return SinkStrategy(size, epoch="dataset", engine=engine)


def assert_alike(plain, sink):
    assert_parity(plain, sink)
    assert plain.generators == sink.generators


@pytest.mark.narrow(13)
@pytest.mark.parametrize("engine", ["eager", "traced", "inductor"])
@pytest.mark.parametrize("size", [-1, 1, 5, 48])
@pytest.mark.parametrize("data", [many, many_that_draw])
def test_they_get_the_numbers_of_plain_lightning(data, size, engine):
    if engine == "inductor" and size != 48:
        pytest.skip("one size is compiled")
    plain, sink = both(Mixup, data, sinks(size, engine), max_epochs=3)
    assert_alike(plain, sink)
    assert sink.engine == engine
    assert not any("runs eagerly" in text for text in sink.warned)


def test_data_with_workers():
    assert_alike(*both(Mixup, lambda: many_that_draw(workers=1), sinks(16), max_epochs=2))


def test_steps_run_in_rows(chunks):
    once(Mixup, many, sinks(), max_epochs=3)
    assert sum(chunks) > 80
    assert max(chunks) > 8


def test_control_generators_that_stay_where_they_are_train_otherwise(monkeypatch):
    plain = once(Mixup, many, max_epochs=3)
    monkeypatch.setattr(Stream, "set", lambda self, value: None)
    sink = once(Mixup, many, sinks(), max_epochs=3)
    assert plain.generators != sink.generators
    with pytest.raises(AssertionError):
        assert_parity(plain, sink)


class DrawsBetween(L.Callback):
    """Draws where sinks meet their callbacks, and seeds where an epoch begins."""

    def on_train_epoch_start(self, trainer, module):
        np.random.seed(trainer.current_epoch)

    def on_train_epoch_end(self, trainer, module):
        module.log("drawn", random.random() + np.random.rand())

    def on_validation_batch_end(self, *args):
        random.random()


def test_callbacks_and_validation_draw_between_sinks():
    options = {"max_epochs": 3, "callbacks": lambda: [DrawsBetween()], "validation": loader(3)}
    assert_alike(*both(Mixup, many, sinks(), **options))


class Refuses(Mixup):
    """Has an index that is out of bounds in one batch of a row."""

    def __init__(self):
        super().__init__()
        self.seen = nn.Embedding(100, 6)

    def training_step(self, batch, batch_idx):
        x, y = batch
        return super().training_step((x + self.seen(y * 20 + (x[:, 0] > 90).long() * 1000), y), batch_idx)


def test_an_error_in_a_row_leaves_them_where_plain_lightning_does():
    states = []
    for strategy in ("auto", sinks()):
        torch.manual_seed(7)
        random.seed(7)
        np.random.seed(7)
        module, data = Refuses(), many()
        data.dataset.tensors[0][8 * 45 + 3] = 100.0
        trainer = L.Trainer(strategy=strategy, max_epochs=1, logger=False, **QUIET)
        with pytest.raises(IndexError):
            trainer.fit(module, DataLoader(data.dataset, batch_size=8))
        states.append((random.getstate(), np.random.get_state()[1].tolist(), np.random.get_state()[2:]))
        states[-1] += (trainer.global_step,)
    assert states[0] == states[1]


class KeepsItsWeight(Net):
    """Keeps what it has drawn in an attribute, which a callback reads."""

    weight = 0.0

    def training_step(self, batch, batch_idx):
        self.weight = np.random.beta(0.4, 0.4)
        return self.weight * super().training_step(batch, batch_idx)


@positions.needed
def test_an_attribute_has_the_last_one():
    plain, sink = both(KeepsItsWeight, many, sinks(), max_epochs=3)
    assert_alike(plain, sink)
    assert sink.engine == "traced"
    assert plain.module.weight == sink.module.weight
    assert type(sink.module.weight) is float


class Flips(Net):
    """Goes one of four ways in each step."""

    def training_step(self, batch, batch_idx):
        x, y = batch
        if random.random() < 0.3:
            x = -x
        loss = super().training_step((x, y), batch_idx)
        return loss * random.uniform(0.5, 1.5) if np.random.rand() < 0.5 else loss


def test_they_decide():
    plain, sink = both(Flips, many, sinks(16), max_epochs=3)
    assert_alike(plain, sink)
    assert sink.engine == "traced"


class LateMetric(torchmetrics.Metric):
    """Keeps a sample of what it sees, and draws once it has as much as it keeps."""

    def __init__(self, draw):
        super().__init__()
        self.draw, self.seen = draw, 0
        self.add_state("total", torch.zeros(()), dist_reduce_fx="sum")

    def update(self, value):
        self.seen += 1
        self.total += value * (self.draw() if self.seen > 40 else 0.5)

    def compute(self):
        return self.total


class Samples(Net):
    def __init__(self, draw=random.random):
        super().__init__()
        self.metric = LateMetric(draw)

    def training_step(self, batch, batch_idx):
        loss = super().training_step(batch, batch_idx) * (1 + 0.1 * random.random())
        self.metric.update(loss.detach())
        return loss


class AddsAnew(LateMetric):
    """Has another tensor as its state behind each step: its hash is another one, too."""

    def update(self, value):
        self.total = self.total.clone()
        super().update(value)


class SamplesAnew(Samples):
    def __init__(self, draw):
        super().__init__()
        self.metric = AddsAnew(draw)


@pytest.mark.narrow(11)
@pytest.mark.parametrize("make", [Samples, SamplesAnew])
@pytest.mark.parametrize("draw", [random.random, np.random.rand, lambda: torch.rand(())])
def test_a_metric_that_draws_late_is_named(draw, make):
    sink = once(lambda: make(draw), many, sinks(), max_epochs=3)
    assert sink.engine == "traced"
    said = [text for text in sink.warned if text.startswith("A metric (") and "draws random numbers" in text]
    assert len(said) == 1


def test_a_metric_that_draws_none_is_not():
    plain, sink = both(lambda: Samples(lambda: 0.3), many, sinks(), max_epochs=3)
    assert_alike(plain, sink)
    assert not any("draws random numbers" in text for text in sink.warned)
