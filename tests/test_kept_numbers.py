"""Attributes that hold what a step computed of tensors' values, under a Trainer: rows, errors, checkpoints, devices."""

import pytest
import torch
from torch.utils.data import DataLoader

import positions
from lightning_sink import SinkStrategy
from lightning_sink.engine.state.tensor_watch import TensorWatch
from lightning_sink.errors import VerificationError
from parity import Net, assert_parity, loader, once

pytestmark = positions.needed


class Keeps(Net):
    """Scales its loss by the mean of those before, and keeps the last one."""

    def __init__(self):
        super().__init__()
        self.last, self.mean, self.right = None, 1.0, 0

    def training_step(self, batch, batch_idx):
        loss = super().training_step(batch, batch_idx)
        self.last = loss.item()
        self.mean = 0.9 * self.mean + 0.1 * self.last
        self.right = (batch[1] == 1).sum().item()
        return loss / (1 + self.mean)

    def on_save_checkpoint(self, checkpoint):
        checkpoint["kept"] = kept(self)

    def on_load_checkpoint(self, checkpoint):
        self.last, self.mean, self.right = checkpoint["kept"]


def kept(module):
    return module.last, module.mean, module.right


def many():
    return loader(64, last=8)


def sinks(size=-1, engine="traced", **options):
    return SinkStrategy(size, epoch="dataset", engine=engine, **options)


def assert_kept(plain, sink):
    assert kept(plain) == pytest.approx(kept(sink), rel=1e-4)
    assert [type(number) for number in kept(sink)] == [float, float, int]


@pytest.mark.narrow(11)
@pytest.mark.parametrize("engine", ["traced", "inductor"])
@pytest.mark.parametrize("size", [-1, 1, 5, 48])
def test_they_hold_what_plain_lightning_leaves(size, engine, chunks):
    if engine == "inductor" and size != 48:
        pytest.skip("one size is compiled")
    plain, sink = once(Keeps, many, max_epochs=3), once(Keeps, many, sinks(size, engine), max_epochs=3)
    assert_parity(plain, sink)
    assert sink.engine == engine
    assert_kept(plain.module, sink.module)
    assert size == 1 or sum(chunks) > 80, "steps run in rows"


def test_control_programs_that_leave_them_alone_train_otherwise(monkeypatch):
    plain = once(Keeps, many, max_epochs=3)
    monkeypatch.setattr(TensorWatch, "leave", lambda self: [])
    sink = once(Keeps, many, sinks(verify=0), max_epochs=3)
    with pytest.raises(AssertionError):
        assert_parity(plain, sink)
    assert kept(plain.module) != pytest.approx(kept(sink.module), rel=1e-2)


def test_they_are_verified(monkeypatch):
    """A program that leaves out what is behind its step gives something else than an eager step."""
    monkeypatch.setattr(TensorWatch, "leave", lambda self: [])
    with pytest.raises(VerificationError):
        once(Keeps, many, sinks(), max_epochs=3)


def test_a_checkpoint_has_them(tmp_path):
    found = []
    for strategy in ("auto", sinks()):
        path = tmp_path / f"{len(found)}.ckpt"
        first = once(Keeps, many, strategy, max_epochs=2)
        first.trainer.save_checkpoint(path)
        again = sinks() if strategy != "auto" else "auto"
        found.append(once(Keeps, many, again, max_epochs=4, checkpoint=path))
    assert_parity(*found)
    assert_kept(*(run.module for run in found))


@pytest.mark.parametrize("at", [40, 47, 55])
def test_an_error_comes_with_those_of_the_step_before(at):
    batches = [(x, y.clone()) for x, y in many()]
    batches[at][1][3] = 99
    left = []

    def make():
        left.append(Keeps())
        return left[-1]

    for strategy in ("auto", sinks()):
        with pytest.raises(IndexError):
            once(make, lambda: DataLoader(batches, batch_size=None), strategy, max_epochs=2)
    assert_kept(*left)
    torch.testing.assert_close(left[0].state_dict(), left[1].state_dict(), rtol=1e-4, atol=1e-6)


class Deletes(Keeps):
    def on_train_epoch_end(self):
        del self.last


class Renames(Keeps):
    def on_train_epoch_end(self):
        self.last, self.mean = "the last one", int(self.mean)


class TooLarge(Keeps):
    def on_train_epoch_end(self):
        self.right = 1 << 70


@pytest.mark.parametrize("kind", [Deletes, Renames, TooLarge])
def test_what_others_do_with_them_between_epochs(kind):
    plain, sink = once(kind, many, max_epochs=4), once(kind, many, sinks(), max_epochs=4)
    assert_parity(plain, sink)
    assert sink.engine == "traced"
    assert plain.module.right == sink.module.right


class Sum(Net):
    """Is behind others by then: the number is one that float64 has not."""

    def __init__(self):
        super().__init__()
        self.total = (1 << 53) + 1

    def training_step(self, batch, batch_idx):
        self.total = batch[1].sum().item() + self.total
        return super().training_step(batch, batch_idx)


@pytest.mark.filterwarnings("ignore:.*runs eagerly")
def test_whole_numbers_that_floats_have_not():
    plain, sink = once(Sum, many, max_epochs=2), once(Sum, many, sinks(), max_epochs=2)
    assert_parity(plain, sink)
    assert plain.module.total == sink.module.total


class Grows(Net):
    """Counts what becomes too large to be computed with, in a step of which nobody knows that before."""

    each = 625_000

    def __init__(self, steps):
        super().__init__()
        self.register_buffer("cost", torch.tensor(self.each))
        self.total = (1 << 45) - (steps * 8 - 1) * self.each
        self.totals = {"all": self.total}

    def training_step(self, batch, batch_idx):
        self.total = self.total * 1 + ((batch[1] >= 0).sum() * self.cost).item()
        self.totals["all"] += ((batch[1] >= 0).sum() * self.cost).item()
        return super().training_step(batch, batch_idx)


@pytest.mark.narrow(11)
@pytest.mark.filterwarnings("ignore:.*runs eagerly")
@pytest.mark.parametrize("steps", range(3, 8))
def test_a_number_becomes_too_large_in_a_step_that_is_verified(steps):
    trained = [once(lambda: Grows(steps), many, strategy, max_epochs=1) for strategy in ("auto", sinks())]
    assert_parity(*trained)
    assert [run.module.total for run in trained] == [run.module.totals["all"] for run in trained]
    assert trained[0].module.total == trained[1].module.total
    assert (trained[1].engine == "traced") == (steps > 4)  # the fifth step is the first that is verified
