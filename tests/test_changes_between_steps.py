"""What code around steps changes just when a program is made of one, and objects that others take the place of."""

from types import SimpleNamespace

import lightning as L
import pytest
import torch
from torch import nn

import positions
from lightning_sink import SinkStrategy
from lightning_sink.engine import make
from lightning_sink.engine.compiler.inductor import compile_traced
from lightning_sink.engine.programs import maker
from lightning_sink.engine.state import closures, holders
from parity import assert_parity, both, loader

# -- changes behind a step that is recorded ----------------------------------------------------------------------------


class ChangesBehindAStep(L.LightningModule):
    """Changes something once, where its schedule is stepped behind a step."""

    at = 0

    def __init__(self):
        super().__init__()
        self.net = nn.Linear(6, 3)
        self.stepped, self.mode = 0, "a"

    def training_step(self, batch, batch_idx):
        x, y = batch
        return nn.functional.cross_entropy(self.net(x), y)

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), 0.05)
        schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.99)
        return [optimizer], [{"scheduler": schedule, "interval": "step"}]

    def lr_scheduler_step(self, scheduler, metric):
        scheduler.step()
        self.stepped += 1
        if self.stepped == self.at:
            self.change()

    def change(self):
        self.mode = "b"


class Logs(ChangesBehindAStep):
    def training_step(self, batch, batch_idx):
        loss = super().training_step(batch, batch_idx)
        self.log(f"loss in {self.mode}", loss)
        return loss


class Scales(ChangesBehindAStep):
    def training_step(self, batch, batch_idx):
        return super().training_step(batch, batch_idx) * (3 if self.mode == "b" else 1)


class Freezes(ChangesBehindAStep):
    def change(self):
        self.net.bias.requires_grad_(False)


KINDS = [Logs, Scales, Freezes]
WHEN = range(2, 7)  # a program is made of one of these steps


def as_plain(kind, at, verify):
    kind = type(kind.__name__, (kind,), {"at": at, "__module__": __name__})
    strategy = SinkStrategy(8, epoch="dataset", engine="traced", verify=verify)
    plain, sink = both(kind, loader, strategy, max_epochs=2, log_every_n_steps=1)
    assert sink.engine == "traced"
    assert_parity(plain, sink)


@pytest.mark.narrow(11)
@pytest.mark.parametrize("verify", [0, 2])
@pytest.mark.parametrize("at", WHEN)
@pytest.mark.parametrize("kind", KINDS)
def test_what_changes_behind_a_recorded_step_is_seen_by_the_next(kind, at, verify):
    as_plain(kind, at, verify)


@pytest.mark.parametrize("kind", [Logs, Scales])
def test_control_taken_as_it_is_behind_the_step_it_is_not(kind, monkeypatch):
    monkeypatch.setattr(maker, "while_recorded", lambda looks: looks[-1])
    wrong = 0
    for at in WHEN:
        try:
            as_plain(kind, at, verify=0)
        except AssertionError:
            wrong += 1
    assert wrong


# -- objects that are equal in all that is in them ---------------------------------------------------------------------


class State:
    """A mark that has nothing in it."""


IDLE, BUSY = State(), State()
STATES = {"idle": State(), "busy": State()}
NAMESPACES = SimpleNamespace(rate=1), SimpleNamespace(rate=1)
present = IDLE


class Marked(L.LightningModule):
    """Takes another mark in every epoch."""

    marks = IDLE, BUSY

    def __init__(self):
        super().__init__()
        self.net = nn.Linear(6, 3)

    def on_train_epoch_start(self):
        self.mode = self.marks[self.current_epoch % 2]

    def is_busy(self):
        return self.mode is BUSY

    def training_step(self, batch, batch_idx):
        x, y = batch
        return nn.functional.cross_entropy(self.net(x), y) * (0.5 if self.is_busy() else 1)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.05)


class Compared(Marked):
    def is_busy(self):
        return self.mode == BUSY


class InATable(Marked):
    marks = STATES["idle"], STATES["busy"]

    def is_busy(self):
        return self.mode is STATES["busy"]


class InAnAttribute(Marked):
    def __init__(self):
        super().__init__()
        self.busy = BUSY

    def is_busy(self):
        return self.mode is self.busy


class OfAClass(Marked):
    busy = BUSY

    def is_busy(self):
        return self.mode is self.busy


class InAContainer(Marked):
    def on_train_epoch_start(self):
        self.modes = {"present": self.marks[self.current_epoch % 2]}

    def is_busy(self):
        return self.modes["present"] is BUSY


class OfAModule(Marked):
    def on_train_epoch_start(self):
        global present
        present = self.marks[self.current_epoch % 2]

    def is_busy(self):
        return present is BUSY


class OfPythons(Marked):
    marks = NAMESPACES

    def is_busy(self):
        return self.mode is NAMESPACES[1]


MARKED = [Marked, Compared, InATable, InAnAttribute, OfAClass, InAContainer, OfAModule, OfPythons]


def marked_as_plain(kind):
    plain, sink = both(kind, loader, SinkStrategy(8, epoch="dataset", engine="traced"), max_epochs=4)
    assert sink.engine == "traced"
    assert_parity(plain, sink)


@pytest.mark.narrow(11)
@pytest.mark.parametrize("kind", MARKED)
def test_which_of_two_equal_objects_an_attribute_holds_is_seen(kind):
    marked_as_plain(kind)


@pytest.mark.narrow(11)
@pytest.mark.parametrize("kind", MARKED)
def test_control_by_what_is_in_them_it_is_not(kind, monkeypatch):
    for room in (closures, holders):
        monkeypatch.setattr(room, "in_two_places", lambda places: None)
    with pytest.raises(AssertionError):
        marked_as_plain(kind)


# -- objects that are made anew ----------------------------------------------------------------------------------------


class Meter:
    """Counts and adds up."""

    def __init__(self):
        self.count, self.total = 0, 0.0

    def update(self, value):
        self.count += 1
        self.total += value


class NewInEachEpoch(Marked):
    def on_train_epoch_start(self):
        self.mode, self.meter = IDLE, Meter()

    def training_step(self, batch, batch_idx):
        loss = super().training_step(batch, batch_idx)
        self.meter.update(loss.item())
        return loss

    def on_train_epoch_end(self):
        self.log("mean", self.meter.total / self.meter.count)


class Eager(Marked):
    """Needs a number, and has an object that no step uses made anew in each epoch."""

    def on_train_epoch_start(self):
        self.mode, self.meter = IDLE, Meter()

    def training_step(self, batch, batch_idx):
        loss = super().training_step(batch, batch_idx)
        return loss * (1 + 0 * int(loss))


class NewInEachStep(Marked):
    marks = IDLE, IDLE

    def __init__(self):
        super().__init__()
        self.meter = Meter()

    def training_step(self, batch, batch_idx):
        self.meter = Meter()
        return super().training_step(batch, batch_idx)


@pytest.fixture
def compiled(monkeypatch):
    """The recordings that were compiled."""
    found = []

    def compiler(recording):
        found.append(recording)
        return compile_traced(recording)

    monkeypatch.setattr(make, "compile_traced", compiler)
    return found


@pytest.mark.narrow(11)
@positions.needed
@pytest.mark.parametrize(("batches", "epochs"), [(40, 5), (10, 25)])
def test_what_was_compiled_serves_behind_an_object_that_is_made_anew(batches, epochs, compiled):
    strategy = SinkStrategy(epoch="dataset", engine="traced", fallback="error")
    plain, sink = both(NewInEachEpoch, lambda: loader(batches, last=8), strategy, max_epochs=epochs)
    assert_parity(plain, sink)
    assert sink.engine == "traced"
    assert len(compiled) == 1


@pytest.mark.parametrize(("kind", "says"), [(Eager, "float"), (NewInEachStep, "`meter`")])
def test_steps_beside_objects_that_are_made_anew_are_warned_of_once(kind, says):
    plain, sink = both(kind, loader, SinkStrategy(3, epoch="dataset", engine="traced"), max_epochs=10)
    assert_parity(plain, sink)
    texts = [text for text in sink.warned if "runs eagerly" in text]
    assert len(texts) == 1
    assert says in texts[0]


class Needs:
    """A number that a step needs as a plain one."""

    def __init__(self):
        self.rate = 0.5

    def of(self, loss):
        return loss * (1 + 0 * int(loss))


class NeedsNone(Needs):
    def of(self, loss):
        return loss * self.rate


class EagerForTwoEpochs(Marked):
    def on_train_epoch_start(self):
        self.mode, self.scale = IDLE, NeedsNone() if self.current_epoch > 1 else Needs()

    def training_step(self, batch, batch_idx):
        return self.scale.of(super().training_step(batch, batch_idx))


def test_steps_are_compiled_once_what_kept_them_from_it_is_gone():
    plain, sink = both(EagerForTwoEpochs, loader, SinkStrategy(epoch="dataset", engine="traced"), max_epochs=5)
    assert_parity(plain, sink)
    assert sink.engine == "traced"
