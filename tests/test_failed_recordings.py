"""A step that cannot be recorded, which is noticed in its midst, is undone and run again, and nothing of it shows."""

import io
import itertools
import json
import random
from array import array

import numpy as np
import pytest
import torch
from torch import nn

from lightning_sink import SinkStrategy
from parity import Net, assert_parity, both, loader, once

WARNED = "recording it failed"


class Fails(Net):
    """Gives the batch's index to code in C that takes nothing but whole numbers, behind a change of something."""

    def __init__(self, change):
        super().__init__()
        self.net[3] = nn.Identity()
        self.change = change
        self.python, self.numpy = [random.Random(1)], {"of": np.random.default_rng(1)}
        self.old, self.torch = np.random.RandomState(1), torch.Generator().manual_seed(1)
        self.numbers, self.bytes, self.array = np.zeros(1), bytearray(1), array("d", [0.0])
        self.count = itertools.count()

    def training_step(self, batch, batch_idx):
        x, y = batch
        x = x * (1.0 + 0.1 * CHANGES[self.change](self))
        self.line = json.dumps({"batch": batch_idx})
        return super().training_step((x, y), batch_idx)


def counts(held):
    def change(module):
        getattr(module, held)[0] += 1
        return float(getattr(module, held)[0])

    return change


def scales(module):
    with torch.no_grad():
        module.net[0].weight.data = module.net[0].weight.data * 0.9
    return 1.0


def freezes(module):
    for parameter in module.net[4].parameters():
        parameter.requires_grad_(not parameter.requires_grad)
    return float(module.net[4].weight.requires_grad)


CHANGES = {
    "Python's generator": lambda module: module.python[0].random(),
    "numpy's generator": lambda module: float(module.numpy["of"].random()),
    "numpy's older one": lambda module: module.old.rand(),
    "torch's generator": lambda module: torch.rand((), generator=module.torch),
    "an array of numpy's": counts("numbers"),
    "bytes": counts("bytes"),
    "an array": counts("array"),
    "`.data`": scales,
    "`requires_grad`": freezes,
}


@pytest.mark.narrow(11)
@pytest.mark.parametrize("change", CHANGES)
def test_what_a_step_changes_in_place(change):
    plain, sink = both(lambda: Fails(change), loader, SinkStrategy(-1, epoch="dataset", engine="traced"), max_epochs=2)
    assert_parity(plain, sink)
    assert sink.engine == "eager"
    assert plain.module.bytes == sink.module.bytes
    assert any(WARNED in text or "draws from a generator of its own" in text for text in sink.warned)


def test_what_cannot_be_undone_is_named_and_not_tried_again(monkeypatch):
    monkeypatch.setitem(CHANGES, "an iterator", lambda module: next(module.count))
    strategy = SinkStrategy(-1, epoch="dataset", engine="traced")
    plain, sink = both(lambda: Fails("an iterator"), lambda: loader(last=8), strategy, max_epochs=2)
    (warned,) = [text for text in sink.warned if WARNED in text]
    assert "changed twice: `count`" in warned
    assert next(sink.module.count) == next(plain.module.count) + 1


class Toggles(Net):
    def __init__(self, error):
        super().__init__()
        self.automatic_optimization, self.error = False, error

    def training_step(self, batch, batch_idx):
        head, body = self.optimizers()
        for optimizer in (head, body):
            self.toggle_optimizer(optimizer)
            if optimizer is body:
                json.dumps({"batch": batch_idx})
                if self.error and self.trainer.current_epoch:
                    raise ValueError("the user's own")
            loss = nn.functional.cross_entropy(self.net(batch[0]), batch[1])
            optimizer.zero_grad()
            self.manual_backward(loss)
            optimizer.step()
            self.untoggle_optimizer(optimizer)

    def configure_optimizers(self):
        return [torch.optim.SGD(part.parameters(), lr=0.05) for part in (self.net[4], self.net[:2])]


def test_optimizers_that_are_toggled_in_the_step():
    strategy = SinkStrategy(-1, epoch="dataset", engine="traced")
    plain, sink = both(lambda: Toggles(error=False), loader, strategy, max_epochs=2)
    assert_parity(plain, sink)


def test_an_error_of_the_users_behind_a_toggle():
    with pytest.raises(ValueError, match="the user's own"):
        both(lambda: Toggles(error=True), loader, SinkStrategy(-1, epoch="dataset", engine="traced"), max_epochs=2)


class Connects(Net):
    """Asks a service that is gone once."""

    def __init__(self, at, error):
        super().__init__()
        self.net[3] = nn.Identity()
        self.at, self.error = at, error

    def training_step(self, batch, batch_idx):
        ASKED.append(batch_idx)
        if len(ASKED) == self.at:
            raise self.error("gone")
        return super().training_step(batch, batch_idx)


ASKED = []


class GoneError(RuntimeError):
    """A user's own."""


@pytest.mark.narrow(11)
@pytest.mark.parametrize("error", [GoneError, ConnectionError])
@pytest.mark.parametrize("at", [1, 2, 3, 5, 20])
def test_an_error_of_the_users_that_comes_once_ends_the_training(at, error):
    for strategy in ("auto", SinkStrategy(-1, epoch="dataset", engine="traced")):
        ASKED.clear()
        with pytest.raises(error, match="gone"):
            once(lambda: Connects(at, error), lambda: loader(100), strategy, max_epochs=1)
        assert len(ASKED) == at


@pytest.mark.parametrize("at", [2, 3])
def test_an_error_that_may_be_of_recording_is_named_where_it_is_gone_the_second_time(at):
    ASKED.clear()
    strategy = SinkStrategy(-1, epoch="dataset", engine="traced")
    run = once(lambda: Connects(at, RuntimeError), lambda: loader(100), strategy, max_epochs=1)
    (warned,) = [text for text in run.warned if WARNED in text]
    assert "recording it failed" in warned
    assert "test_failed_recordings.py" in warned


class Writes(Net):
    """Writes somewhere else, behind which recording fails."""

    def __init__(self, where):
        super().__init__()
        self.where = where

    def training_step(self, batch, batch_idx):
        if self.where == "a file":
            self.file.write("x")
        elif self.where == "a logger":
            self.logger.log_metrics({"by hand": 1.0}, step=self.global_step)
        else:
            print("x", file=self.file)
        json.dumps({"batch": batch_idx})
        return super().training_step(batch, batch_idx)

    def on_fit_start(self):
        self.file = io.StringIO()


@pytest.mark.parametrize("where", ["a file", "a logger", "print"])
def test_what_is_done_twice_outside_is_named_and_not_tried_again(where):
    strategy = SinkStrategy(-1, epoch="dataset", engine="traced")
    plain, sink = both(lambda: Writes(where), lambda: loader(30, last=8), strategy, max_epochs=1)
    (warned,) = [text for text in sink.warned if WARNED in text]
    assert "it was run again, and with it what it had done before" in warned
    if where == "a logger":
        assert len(sink.rows) == len(plain.rows) + 1
    else:
        plainly, found = plain.module.file.getvalue(), sink.module.file.getvalue()
        assert found.count("x") == plainly.count("x") + 1


def test_an_error_in_both_runs_says_that_there_were_two():
    class Both(Net):
        def training_step(self, batch, batch_idx):
            if batch_idx == 2:
                raise ValueError("the user's own")
            return super().training_step(batch, batch_idx)

    with pytest.raises(ValueError, match="the user's own") as raised:
        once(Both, loader, SinkStrategy(-1, epoch="dataset", engine="traced"), max_epochs=1)
    assert "second of two runs of the step: recording it failed: ValueError" in " ".join(raised.value.__notes__)
