"""Attributes that Python carries from step to step, under a Trainer: checkpoints, errors, rows, what comes between."""

import datetime

import pytest
import torch
from torch import nn

import positions
from lightning_sink import SinkStrategy, StepCallback
from lightning_sink.engine.programs.program import Program
from lightning_sink.engine.state.carried import Carry
from parity import Net, assert_parity, loader, once

pytestmark = positions.needed


class Ramps(Net):
    """Weighs the loss by the steps that it has counted itself."""

    def __init__(self):
        super().__init__()
        self.seen, self.weight = 0, 1.0

    def training_step(self, batch, batch_idx):
        self.seen += 1
        self.weight = 0.99 * self.weight + 0.01 * (self.seen % 7)
        return self.weight * super().training_step(batch, batch_idx)

    def on_save_checkpoint(self, checkpoint):
        checkpoint["seen"] = self.seen, self.weight

    def on_load_checkpoint(self, checkpoint):
        self.seen, self.weight = checkpoint["seen"]


def many():
    return loader(64, last=8)


def sinks(size=-1, engine="traced"):
    return SinkStrategy(size, epoch="dataset", engine=engine)


@pytest.mark.narrow(11)
@pytest.mark.parametrize("engine", ["traced", "inductor"])
@pytest.mark.parametrize("size", [-1, 1, 5, 48])
def test_they_hold_what_plain_lightning_leaves(size, engine):
    if engine == "inductor" and size != 48:
        pytest.skip("one size is compiled")
    plain, sink = once(Ramps, many, max_epochs=3), once(Ramps, many, sinks(size, engine), max_epochs=3)
    assert_parity(plain, sink)
    assert sink.engine == engine
    assert (plain.module.seen, plain.module.weight) == (sink.module.seen, sink.module.weight)
    assert type(sink.module.seen) is int
    assert type(sink.module.weight) is float


def test_control_rows_that_leave_them_alone_train_otherwise(monkeypatch):
    plain = once(Ramps, many, max_epochs=3)
    monkeypatch.setattr(Carry, "set", lambda self, value: None)
    sink = once(Ramps, many, sinks(), max_epochs=3)
    assert plain.module.seen != sink.module.seen
    with pytest.raises(AssertionError):
        assert_parity(plain, sink)


def test_steps_run_in_rows(monkeypatch):
    lengths, in_row = [], Program.in_row

    def counted(self, columns, numbers, steps):
        lengths.append(steps)
        return in_row(self, columns, numbers, steps)

    monkeypatch.setattr(Program, "in_row", counted)
    once(Ramps, many, sinks(), max_epochs=3)
    assert sum(lengths) > 80


def test_a_checkpoint_has_them(tmp_path):
    found = []
    for strategy in ("auto", sinks()):
        path = tmp_path / f"{len(found)}.ckpt"
        first = once(Ramps, many, strategy, max_epochs=2)
        first.trainer.save_checkpoint(path)
        again = sinks() if strategy != "auto" else "auto"
        found.append(once(Ramps, many, again, max_epochs=4, checkpoint=path))
    assert_parity(*found)
    assert found[0].module.seen == found[1].module.seen == 4 * 64
    assert found[0].module.weight == found[1].module.weight


class Fails(Ramps):
    """Fails by what it has counted."""

    def training_step(self, batch, batch_idx):
        loss = super().training_step(batch, batch_idx)
        if self.seen == 50:
            raise ValueError(f"step {self.seen}")
        return loss


def test_an_error_by_a_count_comes_at_its_step():
    left = []
    for strategy in ("auto", sinks()):
        made = []
        with pytest.raises(ValueError, match="^step 50"):
            once(lambda: made.append(Fails()) or made[0], many, strategy, max_epochs=2)  # noqa: B023
        left += made
    plain, sink = left
    assert (plain.seen, plain.weight) == (sink.seen, sink.weight)
    torch.testing.assert_close(plain.state_dict(), sink.state_dict(), rtol=1e-4, atol=1e-6)


class Reads(StepCallback):
    """Reads the module's count in a hook of each step, and counts by itself."""

    def __init__(self):
        self.mine = 0

    def on_before_optimizer_step(self, trainer, module, optimizer):
        self.mine += 3
        for parameter in (each for each in module.parameters() if each.grad is not None):
            parameter.grad.mul_(1 / (1 + module.seen % 3 + self.mine % 2))


def test_callbacks_may_read_and_count():
    plain, sink = (once(Ramps, many, each, callbacks=lambda: [Reads()], max_epochs=2) for each in ("auto", sinks()))
    assert_parity(plain, sink)
    assert sink.engine == "traced"


class ScheduledByItself(Ramps):
    """The schedule asks for the module's count."""

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=0.1)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + self.seen % 5))
        return [optimizer], [{"scheduler": schedule, "interval": "step"}]


class SetsItsRate(Ramps):
    """So does a hook that sets the rate before each step."""

    def on_train_batch_start(self, batch, batch_idx):
        for group in self.optimizers().param_groups:
            group["lr"] = 0.1 / (1 + self.seen % 5)


class TransfersByItself(Ramps):
    """And what is done with a batch before its step."""

    def on_after_batch_transfer(self, batch, dataloader_idx):
        return batch[0] * (1 + self.seen % 5), batch[1]


@pytest.mark.filterwarnings("ignore:.*runs eagerly")
@pytest.mark.parametrize("kind", [ScheduledByItself, SetsItsRate, TransfersByItself])
def test_code_that_is_run_before_steps_finds_them_as_in_plain_lightning(kind):
    plain, sink = once(kind, many, max_epochs=3), once(kind, many, sinks(), max_epochs=3)
    assert_parity(plain, sink)
    assert (plain.module.seen, plain.module.weight) == (sink.module.seen, sink.module.weight)


class Replaced(Net):
    """Replaces the part that counts, between epochs."""

    class Part(nn.Module):
        def __init__(self):
            super().__init__()
            self.calls = 0

        def forward(self, x):
            self.calls += 1
            return x * (1 + self.calls % 3)

    def __init__(self):
        super().__init__()
        self.part = self.Part()

    def training_step(self, batch, batch_idx):
        return self.part(super().training_step(batch, batch_idx))

    def on_train_epoch_start(self):
        self.part = self.Part()


def test_an_object_that_is_replaced():
    plain, sink = once(Replaced, many, max_epochs=4), once(Replaced, many, sinks(), max_epochs=4)
    assert_parity(plain, sink)
    assert plain.module.part.calls == sink.module.part.calls == 64


class CountsSteps(torch.optim.SGD):
    """Counts its steps, and does every third one twice."""

    steps = 0

    def step(self, closure=None):
        loss = super().step(closure)
        self.steps += 1
        if self.steps % 3 == 0:
            super().step()
        return loss


class FailsToBeRecordedLater(Ramps):
    """Gives late indices to code in C that takes nothing but whole numbers, behind the step of the optimizer."""

    def configure_optimizers(self):
        return CountsSteps(self.parameters(), lr=0.05)

    def optimizer_step(self, epoch, batch_idx, optimizer, closure=None):
        optimizer.step(closure)
        if batch_idx > 30:
            datetime.timedelta(batch_idx)


def test_what_a_failed_recording_has_counted_is_not_counted_twice():
    plain = once(FailsToBeRecordedLater, many, max_epochs=2)
    sink = once(FailsToBeRecordedLater, many, sinks(), max_epochs=2)
    assert any("recording it failed" in text for text in sink.warned)
    assert not any("changed twice" in text for text in sink.warned)
    assert plain.trainer.optimizers[0].steps == sink.trainer.optimizers[0].steps == 2 * 64
    assert (plain.module.seen, plain.module.weight) == (sink.module.seen, sink.module.weight)
    assert_parity(plain, sink)


class Repeats(Ramps):
    """Uses the attribute twice in its own update, many times."""

    def training_step(self, batch, batch_idx):
        self.weight = 0.3
        for _ in range(40):
            self.weight = 3.9 * self.weight * (1.0 - self.weight)
        for _ in range(1500):
            self.seen += 1
        return Net.training_step(self, batch, batch_idx)


@pytest.mark.filterwarnings("ignore:.*runs eagerly")
def test_long_expressions_take_no_longer_than_python():
    plain, sink = once(Repeats, many, max_epochs=1), once(Repeats, many, sinks(), max_epochs=1)
    assert_parity(plain, sink)
    assert (plain.module.seen, plain.module.weight) == (sink.module.seen, sink.module.weight)
