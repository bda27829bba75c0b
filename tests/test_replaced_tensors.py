"""Steps that put new tensors into attributes and dictionaries, beside hooks that may put others there."""

import pytest
import torch
from torch import nn

from gallery.case import Small
from lightning_sink import SinkStrategy
from lightning_sink.engine.programs.maker import ProgramMaker
from lightning_sink.engine.programs.registry import Programs
from lightning_sink.engine.state.granted import Granted
from parity import assert_parity, both, loader, once


class Keeps(Small):
    """Keeps a hidden state in an attribute, and a weight in a dictionary, as scvi-tools does."""

    def __init__(self, interferes=0):
        super().__init__()
        self.hidden, self.options, self.interferes = torch.zeros(8), {"weight": torch.ones(())}, interferes

    def training_step(self, batch, batch_idx):
        hidden = torch.tanh(self.net[0](batch[0]) + self.hidden)
        self.hidden = hidden.mean(0).detach()
        self.options["weight"] = 0.9 * self.options["weight"] + 0.1 * self.hidden.mean()
        return (1 + self.options["weight"]) * nn.functional.cross_entropy(self.net[2](hidden), batch[1])

    def on_after_batch_transfer(self, batch, dataloader_idx):
        self.interferes -= 1
        if self.interferes in (0, 15):
            self.hidden, self.options["weight"] = torch.full((8,), 0.5), torch.tensor(2.0)
        if self.interferes == 7:
            self.options = {"weight": torch.tensor(0.5)}
        return batch


def sinks():
    return SinkStrategy(-1, epoch="dataset", engine="traced")


def many():
    return loader(40, last=8)


@pytest.mark.parametrize("interferes", [0, 30, 42])
def test_they_are_plain_lightnings(interferes):
    plain, sink = both(lambda: Keeps(interferes), many, sinks(), max_epochs=2)
    assert_parity(plain, sink)
    assert torch.allclose(plain.module.hidden, sink.module.hidden, rtol=1e-4)
    assert torch.allclose(plain.module.options["weight"], sink.module.options["weight"], rtol=1e-4)
    assert sink.engine == "traced"


def test_what_steps_put_there_has_nothing_looked_at_again(monkeypatch):
    def looks():
        found, state = [], Granted.state
        with monkeypatch.context() as patch:
            patch.setattr(Granted, "state", lambda self: found.append(None) or state(self))
            once(Keeps, many, sinks(), max_epochs=2)
        return len(found)

    assert looks() < 40
    monkeypatch.setattr(Programs, "replaced", lambda self: ())
    assert looks() > 70  # the control


class Sized(Small):
    """Has a mask of its batch's size, as darts' TFT has: the smaller batch at the end of an epoch leaves its own."""

    def __init__(self):
        super().__init__()
        self.size, self.mask = -1, torch.empty(0)

    def training_step(self, batch, batch_idx):
        if len(batch[0]) != self.size:
            self.mask = torch.linspace(0.5, 1.5, len(batch[0]))
            self.size = len(batch[0])
        losses = nn.functional.cross_entropy(self(batch[0]), batch[1], reduction="none")
        return (losses * self.mask).mean()


class MaskedAnew(Small):
    """Hooks replace a tensor in each epoch, which the steps of other epochs have never seen."""

    def on_train_epoch_start(self):
        self.mask = torch.rand(8)

    def training_step(self, batch, batch_idx):
        losses = nn.functional.cross_entropy(self(batch[0]), batch[1], reduction="none")
        return (losses * self.mask).mean()


class Sums(Small):
    """Steps write to what a hook puts there in each epoch."""

    def on_train_epoch_start(self):
        self.total = torch.zeros(())

    def training_step(self, batch, batch_idx):
        loss = super().training_step(batch, batch_idx)
        self.total += loss.detach()
        return loss


class Decides(Small):
    """Python decides by it."""

    def on_train_epoch_start(self):
        self.sign = torch.tensor(1.0)

    def training_step(self, batch, batch_idx):
        return super().training_step(batch, batch_idx) * (2 if self.sign > 0 else 1)


class SumsOnce(Sums):
    def on_train_epoch_start(self):
        if self.current_epoch in (0, 2):
            super().on_train_epoch_start()


@pytest.fixture
def recorded(monkeypatch):
    """The steps before which others were recorded."""
    steps, record = [], ProgramMaker._record

    def recording(self, sink, step, candidate):
        steps.append(self._patience.steps)
        return record(self, sink, step, candidate)

    monkeypatch.setattr(ProgramMaker, "_record", recording)
    return steps


def in_epochs(make, last, accumulate=1):
    plain, sink = both(
        make,
        lambda: loader(40, last=last),
        SinkStrategy(20, epoch="dataset", engine="traced"),
        max_epochs=10,
        accumulate_grad_batches=accumulate,
    )
    assert_parity(plain, sink)
    assert sink.engine == "traced"


@pytest.mark.narrow(11)
@pytest.mark.parametrize(("make", "last"), [(Sized, 5), (MaskedAnew, 8)])
@pytest.mark.parametrize("accumulate", [1, 3])
def test_what_is_replaced_in_each_epoch_is_read_from_its_place_in_the_end(chunks, recorded, make, last, accumulate):
    in_epochs(make, last, accumulate)
    assert max(recorded) < 5 * 40
    assert sum(chunks) > 2 * 40


@pytest.mark.narrow(11)
@pytest.mark.parametrize("make", [Sums, Decides, SumsOnce])
@pytest.mark.parametrize("accumulate", [1, 4])
def test_what_steps_write_to_or_decide_by_stays_compiled(chunks, make, accumulate):
    in_epochs(make, 8, accumulate)
    assert sum(chunks) > 3 * 40


def test_control_programs_that_read_no_place_are_made_in_each_epoch(recorded, monkeypatch):
    monkeypatch.setattr(ProgramMaker, "_take_anew", lambda self, names: None)
    in_epochs(MaskedAnew, 8)
    assert max(recorded) > 8 * 40 - 40
