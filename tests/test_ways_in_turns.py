"""Ways through a step that come again in the same order are run many steps in one call, and nothing of it shows."""

import itertools
import math

import lightning as L
import pytest
import torch
from lightning.pytorch.callbacks import LearningRateMonitor
from torch import nn

import positions
from lightning_sink import SinkDataModule, SinkStrategy
from lightning_sink.engine.compiler.toolchain import missing_compiler
from lightning_sink.engine.programs.program import Program
from parity import Net, assert_parity, compare, loader, once
from test_manual_counts import Saved
from test_steps_in_a_row import InMemory, assert_left_the_same, failed

missing = pytest.mark.skipif(missing_compiler() is not None, reason="no C++ compiler")

pytestmark = pytest.mark.usefixtures("unhurried")


def in_rows(rows):
    return sum(steps for steps, _ in rows)


def many():
    return loader(61)


class ByHand(Net):
    """Manual optimization."""

    def __init__(self, every=4, **options):
        super().__init__(**options)
        self.every, self.automatic_optimization = every, False

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=0.01)


class Accumulates(ByHand):
    """Steps behind the last batch of each window, as Lightning's documentation has it."""

    def training_step(self, batch, batch_idx):
        self.manual_backward(super().training_step(batch, batch_idx) / self.every)
        if (batch_idx + 1) % self.every == 0:
            optimizer = self.optimizers()
            optimizer.step()
            optimizer.zero_grad()


class Silent(ByHand):
    """Logs nothing and returns nothing."""

    def training_step(self, batch, batch_idx):
        self.manual_backward(nn.functional.cross_entropy(self.net(batch[0]), batch[1]))
        if batch_idx % self.every == 0:
            optimizer = self.optimizers()
            optimizer.step()
            optimizer.zero_grad()


class ClearsBefore(ByHand):
    """Clears in the first step of each window, and clips in the last."""

    def training_step(self, batch, batch_idx):
        optimizer = self.optimizers()
        if batch_idx % self.every == 0:
            optimizer.zero_grad()
        self.manual_backward(super().training_step(batch, batch_idx) / self.every)
        if batch_idx % self.every == self.every - 1:
            self.clip_gradients(optimizer, gradient_clip_val=0.1, gradient_clip_algorithm="norm")
            optimizer.step()


class ClearsByZeros(ByHand):
    def training_step(self, batch, batch_idx):
        self.manual_backward(super().training_step(batch, batch_idx) / self.every)
        if (batch_idx + 1) % self.every == 0:
            optimizer = self.optimizers()
            optimizer.step()
            optimizer.zero_grad(set_to_none=False)


class Critic(L.LightningModule):
    """A critic at each batch, the generator at some."""

    logs = "nothing"

    def __init__(self, every=5):
        super().__init__()
        self.every, self.automatic_optimization = every, False
        self.generator, self.critic = nn.Linear(3, 6), nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1))

    def training_step(self, batch, batch_idx):
        generator, critic = self.optimizers()
        made = self.generator(torch.randn(len(batch[0]), 3, device=self.device))
        loss = self.critic(made.detach()).mean() - self.critic(batch[0]).mean()
        critic.zero_grad()
        self.manual_backward(loss)
        critic.step()
        if self.logs != "nothing":
            self.log("critic", loss, on_step=True, on_epoch=True)
        if batch_idx % self.every == 0:
            loss = -self.critic(made).mean()
            generator.zero_grad()
            self.manual_backward(loss)
            generator.step()
            if self.logs == "own names":
                self.log("generator", loss, on_step=True, on_epoch=True, reduce_fx="max")
                self.log("critic", loss.detach() * 0, on_step=True, on_epoch=True)

    def configure_optimizers(self):
        return torch.optim.RMSprop(self.generator.parameters(), lr=1e-3), torch.optim.Adam(self.critic.parameters())


class LoggingCritic(Critic):
    logs = "alike"


class NamingCritic(Critic):
    logs = "own names"


class Toggling(Critic):
    """Toggles its optimizers, and takes turns with them."""

    def training_step(self, batch, batch_idx):
        which = batch_idx % 3 == 2
        optimizer = self.optimizers()[0 if which else 1]
        self.toggle_optimizer(optimizer)
        made = self.generator(torch.randn(len(batch[0]), 3, device=self.device))
        loss = -self.critic(made).mean() if which else self.critic(made).mean() - self.critic(batch[0]).mean()
        optimizer.zero_grad()
        self.manual_backward(loss)
        optimizer.step()
        self.untoggle_optimizer(optimizer)
        self.log("generator" if which else "critic", loss, prog_bar=True)
        return loss


class Penalizes(Net):
    """Automatic optimization, with a penalty at every third batch, and what it logs."""

    def training_step(self, batch, batch_idx):
        loss = super().training_step(batch, batch_idx)
        if batch_idx % 3 == 0:
            penalty = 1e-2 * self.net[0].weight.square().sum()
            self.log("penalty", penalty, on_step=True, on_epoch=True)
            loss = loss + penalty
        return loss


class Frozen(Net):
    """Of every four steps one leaves the first layer alone."""

    def training_step(self, batch, batch_idx):
        loss = super().training_step(batch, batch_idx)
        if self.global_step % 4 == 3:
            loss = loss + 0.1 * self.net[4](torch.tanh(self.net[0](batch[0]).detach())).square().mean()
        return loss * (1 + 0.01 * batch_idx)


KINDS = [Accumulates, Silent, ClearsBefore, Critic, LoggingCritic, NamingCritic, Toggling, Penalizes, Frozen]
KIND = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)


@pytest.mark.narrow(13)
@KIND
@pytest.mark.parametrize("size", [-1, 23])
def test_training_is_plain_lightnings(rows, kind, size):
    plain, sink = compare(kind, "traced", size, data=many, max_epochs=3)
    assert plain.generators == sink.generators
    assert in_rows(rows) > (40 if size < 0 else 20)


# Of those that differ only in what they log, one: what is compiled differs too, and each costs seconds.
@pytest.mark.narrow(13)
@missing
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in (Silent, Critic, LoggingCritic)])
def test_machine_code_runs_them(rows, kind):
    plain, sink = compare(kind, "inductor", -1, data=lambda: loader(90), max_epochs=2)
    assert plain.generators == sink.generators
    assert in_rows(rows) > 50


@pytest.mark.narrow(11)
@pytest.mark.parametrize("every", [2, 3, 7, 32])
def test_windows_of_any_length(rows, every):
    compare(lambda: Accumulates(every), "traced", -1, data=lambda: loader(140))
    assert {turns for _, turns in rows} == {every}


def test_windows_that_are_too_long_run_one_call_a_step(rows):
    compare(lambda: Accumulates(33), "traced", -1, data=lambda: loader(140))
    assert not rows


@pytest.mark.narrow(11)
@pytest.mark.parametrize("every", [1, 3, 7])
@pytest.mark.parametrize("kind", [NamingCritic, Toggling, Penalizes], ids=lambda kind: kind.__name__)
def test_rows_of_loggers_are_plain_lightnings(rows, kind, every):
    plain, sink = compare(kind, "traced", -1, data=many, max_epochs=2, log_every_n_steps=every)
    assert len(sink.rows) > 10
    assert [row for _, row in plain.rows] == [pytest.approx(row, rel=1e-4, abs=1e-6) for _, row in sink.rows]
    assert in_rows(rows) > 40


def test_the_history_has_what_each_step_logged(rows):
    run = once(NamingCritic, lambda: loader(61), SinkStrategy(-1, engine="traced"), max_epochs=1)
    history = run.trainer.strategy.history
    logged = once(
        NamingCritic, lambda: loader(61), SinkStrategy(-1, engine="eager"), max_epochs=1
    ).trainer.strategy.history
    assert in_rows(rows) >= 15
    for name in ("critic", "generator"):
        found, expected = history[name], logged[name]
        assert [math.isnan(value) for value in found.tolist()] == [math.isnan(value) for value in expected.tolist()]
        torch.testing.assert_close(found, expected, equal_nan=True, rtol=1e-4, atol=1e-6)
    assert sum(not math.isnan(value) for value in history["generator"].tolist()) == 13


class Changes(Accumulates):
    """Windows of three at first, later of two, and of none at the end."""

    def training_step(self, batch, batch_idx):
        self.every = 3
        if batch_idx >= 40:
            return self.other(batch, batch_idx, 2) if batch_idx < 70 else self.other(batch, batch_idx, 1)
        return super().training_step(batch, batch_idx)

    def other(self, batch, batch_idx, every):
        self.manual_backward(Net.training_step(self, batch, batch_idx) / every)
        if (batch_idx + 1) % every == 0:
            optimizer = self.optimizers()
            optimizer.step()
            optimizer.zero_grad()


def test_an_order_that_changes_is_followed(rows):
    compare(Changes, "traced", -1, data=lambda: loader(100), max_epochs=2)
    assert {turns for _, turns in rows} == {2, 3}


@pytest.mark.narrow(11)
@pytest.mark.parametrize("buffer_size", [1, 3, 4, 9])
def test_few_batches_in_line(rows, buffer_size):
    data = lambda: SinkDataModule.from_loaders(loader(61), buffer_size=buffer_size)  # noqa: E731
    plain = once(Accumulates, many, max_epochs=2)
    sink = once(Accumulates, data, SinkStrategy(-1, epoch="dataset", engine="traced"), max_epochs=2)
    assert_parity(plain, sink)
    assert bool(rows) == (buffer_size >= 4)


class Weighs(Net):
    def training_step(self, batch, batch_idx):
        loss = super().training_step(batch, batch_idx)
        return loss * 2 if batch_idx % 8 == 0 else loss


def test_steps_alike_run_in_rows_where_a_window_is_longer_than_the_line(rows, chunks):
    data = lambda: SinkDataModule.from_loaders(loader(61), buffer_size=4)  # noqa: E731
    plain = once(Weighs, many, max_epochs=2)
    sink = once(Weighs, data, SinkStrategy(-1, epoch="dataset", engine="traced"), max_epochs=2)
    assert_parity(plain, sink)
    assert not rows
    assert sum(chunks) > 60
    assert max(chunks) == 4


@pytest.mark.narrow(11)
@pytest.mark.parametrize("steps", [5, 9, 24])
@pytest.mark.parametrize("kind", [Accumulates, Critic, ClearsBefore], ids=lambda kind: kind.__name__)
def test_max_steps_ends_at_plain_lightnings_batch(rows, kind, steps):
    plain, sink = compare(kind, "traced", -1, data=many, max_steps=3 * steps, max_epochs=4)
    assert plain.events.ends[-1] == sink.events.ends[-1]
    assert plain.trainer.fit_loop.state_dict() == sink.trainer.fit_loop.state_dict()
    assert in_rows(rows) > 4 or steps < 24


@pytest.mark.narrow(11)
@pytest.mark.parametrize("every", [3, 7])
@pytest.mark.parametrize("kind", [Accumulates, Critic, Penalizes], ids=lambda kind: kind.__name__)
def test_checkpoints_are_saved_where_plain_lightning_saves_them(rows, kind, every, tmp_path):
    saved = []
    for strategy in ("auto", SinkStrategy(-1, epoch="dataset", engine="traced")):
        save = Saved(every, tmp_path / str(len(saved)))
        callbacks = [save, *([LearningRateMonitor("step")] if kind is Penalizes else [])]
        once(kind, many, strategy, callbacks=lambda all=callbacks: all, max_epochs=2, enable_checkpointing=True)
        saved.append(save.saved)
    plain, sink = saved
    assert [entry[:2] for entry in plain] == [entry[:2] for entry in sink]
    assert [entry[2] for entry in sink] == pytest.approx([entry[2] for entry in plain], rel=1e-4)
    assert len(plain) > 3


@pytest.mark.parametrize("schedule", ["onecycle", "step"])
def test_schedules_go_on_in_each_step(rows, schedule):
    compare(lambda: Penalizes(schedule=schedule, total_steps=200), "traced", -1, data=many, max_epochs=3)
    assert in_rows(rows) > 60


@pytest.mark.narrow(13)
@pytest.mark.parametrize(
    ("kind", "engine", "at"),
    [
        *itertools.product([Accumulates, ClearsBefore, Silent, Critic, Penalizes], ["traced"], [173, 174, 175]),
        *(pytest.param(kind, "inductor", 174, marks=missing) for kind in (Accumulates, Critic, Penalizes)),
    ],
)
def test_a_step_that_fails_in_a_row(rows, kind, engine, at):
    """Those before it have been trained, as in plain Lightning, and left their gradients; none is trained again."""
    batches = [(x, y.clone()) for x, y in loader(200, last=8)]
    batches[at] = (batches[at][0], batches[at][1].clone())
    batches[at][1][3] = 99
    made = []

    def make():
        made.append(Checks() if kind is Critic else quiet(kind))
        return made[-1]

    plain, sink = failed(make, lambda: InMemory(batches), IndexError, engine)
    assert rows
    names = [name for name in plain[0] if "running" not in name and "tracked" not in name]
    assert_left_the_same(*(({name: left[0][name] for name in names}, *left[1:]) for left in (plain, sink)))
    assert f"in a compiled step, of batch {at} of epoch 0" in sink[3]
    assert torch.equal(sink[4], plain[4]), "the random generator"
    for one, other in zip(made[0].parameters(), made[1].parameters(), strict=True):
        assert (one.grad is None) == (other.grad is None)
        if one.grad is not None:
            torch.testing.assert_close(other.grad, one.grad, rtol=1e-4, atol=1e-5)


def quiet(kind):
    """One that draws nothing, and measures nothing that a failing step would leave behind."""
    module = kind()
    module.net = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
    return module


class Checks(Critic):
    """Looks labels up first."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(3, 1)

    def training_step(self, batch, batch_idx):
        generator, critic = self.optimizers()
        looked_up = torch.arange(3.0)[batch[1]].mean()
        made = self.generator(batch[0][:, :3])
        loss = self.critic(made.detach()).mean() - self.critic(batch[0]).mean() * looked_up
        critic.zero_grad()
        self.manual_backward(loss)
        critic.step()
        if batch_idx % self.every == 0:
            loss = -self.critic(made).mean()
            generator.zero_grad()
            self.manual_backward(loss)
            generator.step()


class CountsItself(Accumulates):
    """Decides by a number of its own."""

    def __init__(self):
        super().__init__()
        self.seen = 0

    def training_step(self, batch, batch_idx):
        self.seen += 1
        self.manual_backward(Net.training_step(self, batch, batch_idx) / 4)
        if self.seen % 4 == 0:
            optimizer = self.optimizers()
            optimizer.step()
            optimizer.zero_grad()


class Remembers(Accumulates):
    """Computes with the gradients that the window before has left."""

    def training_step(self, batch, batch_idx):
        weight = self.net[0].weight
        held = 0.0 if weight.grad is None else weight.grad.square().mean()
        self.manual_backward(Net.training_step(self, batch, batch_idx) / 4 + held * weight.sum())
        if (batch_idx + 1) % 4 == 0:
            optimizer = self.optimizers()
            optimizer.step()
            if batch_idx % 8 == 7:
                optimizer.zero_grad()


@pytest.mark.parametrize("kind", [ClearsByZeros, Remembers], ids=lambda kind: kind.__name__)
def test_what_else_decides_is_plain_lightnings(kind):
    compare(kind, "traced", -1, data=lambda: loader(80), max_epochs=2)


@positions.needed
@pytest.mark.parametrize("size", [-1, 23])
def test_a_number_of_the_modules_own_may_decide(rows, size):
    plain, sink = compare(CountsItself, "traced", size, data=many, max_epochs=3)
    assert plain.module.seen == sink.module.seen > 40
    assert in_rows(rows) > (40 if size < 0 else 20)


def test_control_a_window_whose_guards_are_not_asked_trains_otherwise(monkeypatch):
    def fits(self, generation):
        present = all((slot.get() is not None) is there for slot, there in self._gradients)
        return present and all(guard.holds() for guard in self.guards) and self.sets_attributes()

    monkeypatch.setattr(Program, "fits", fits)
    monkeypatch.setattr(Program, "goes_on", Program.sets_attributes)
    with pytest.raises(AssertionError):
        compare(Changes, "traced", -1, data=lambda: loader(100), max_epochs=2)
