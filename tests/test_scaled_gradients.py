"""Half precision with a `GradScaler`: steps that it leaves out by what the device found are left out in programs, too.

The steps compute in single precision, so that plain Lightning's numbers can be compared with closely.
"""

import lightning as L
import pytest
import torch
from lightning.pytorch.plugins import MixedPrecision
from torch import nn
from torch.amp import GradScaler

from lightning_sink import SinkStrategy
from lightning_sink.engine.tracing import scaled_steps
from lightning_sink.engine.tracing.record import Recorder
from parity import Net, assert_parity, loader, once
from test_steps_in_a_row import InMemory

INFINITE = (0, 1, 30, 47, 61, 62)
"""Batches of which the gradients are infinite: those that begin, a sink's first, in the midst of a row."""


class Halved(Net):
    """Computes in single precision; of some batches one gradient is infinite when it is scaled."""

    def __init__(self, kind="adam", **options):
        super().__init__(kind, **options)
        self.net[3] = nn.Identity()
        self.net[4].steep = nn.Parameter(torch.zeros(()))

    def training_step(self, batch, batch_idx):
        x, y, slope = batch
        with torch.autocast(self.device.type, enabled=False):
            return super().training_step((x, y), batch_idx) + self.net[4].steep * slope


class OptimizedBy(Halved):
    def __init__(self, make):
        super().__init__()
        self.make = make

    def configure_optimizers(self):
        return self.make(self.parameters())


class ByHand(Halved):
    """Two optimizers, stepped in turns."""

    def __init__(self):
        super().__init__()
        self.automatic_optimization = False

    def training_step(self, batch, batch_idx):
        for optimizer in self.optimizers():
            self.toggle_optimizer(optimizer)
            loss = super().training_step(batch, batch_idx)
            optimizer.zero_grad()
            self.manual_backward(loss)
            self.clip_gradients(optimizer, 0.5)
            optimizer.step()
            self.untoggle_optimizer(optimizer)

    def configure_optimizers(self):
        first, second = self.net[:4].parameters(), self.net[4].parameters()
        return torch.optim.AdamW(first, lr=0.01), torch.optim.SGD(second, lr=0.05, momentum=0.9)


class CountsByHand(ByHand):
    """Both optimizers count their steps in tensors; only the second one's gradients are infinite now and then."""

    def configure_optimizers(self):
        first, second = self.net[:4].parameters(), self.net[4].parameters()
        return torch.optim.AdamW(first, lr=0.01), torch.optim.AdamW(second, lr=0.01)


def data(infinite=INFINITE):
    slopes = [torch.tensor(1e38 if number in infinite else 0.0) for number in range(80)]
    return InMemory([(x, y, slope) for (x, y), slope in zip(loader(80, last=8), slopes, strict=True)])


def scaled(make, strategy="auto", data=data, scale=2.0**60, interval=20, **options):
    scaler = GradScaler("cpu", init_scale=scale, growth_interval=interval)
    plugins = [MixedPrecision("16-mixed", "cpu", scaler)]
    run = once(make, data, strategy, plugins=plugins, **{"max_epochs": 1, **options})
    return run, scaler.state_dict()


def compare(make, engine="traced", size=30, **options):
    plain, expected = scaled(make, **options)
    sink, found = scaled(make, SinkStrategy(size, epoch="dataset", engine=engine), **options)
    assert_parity(plain, sink)
    assert found == expected
    assert sink.engine == engine
    assert not [text for text in sink.warned if "eager" in text]
    return plain, sink


@pytest.mark.narrow(11)
@pytest.mark.parametrize("size", [30, -1])
@pytest.mark.parametrize("kind", ["sgd", "adam", "adamw", "foreach", "fused"])
def test_a_training_is_plain_lightnings(kind, size, chunks):
    plain, _ = compare(lambda: Halved(kind), size=size)
    assert sum(chunks) > 30
    assert all(tensor.isfinite().all() for name, tensor in plain.tensors.items() if "metric" not in name)


@pytest.mark.narrow(13)
@pytest.mark.parametrize("kind", ["adam", "fused"])
@pytest.mark.parametrize("engine", ["traced", "inductor"])
def test_gradients_of_a_step_that_was_left_out(kind, engine):
    """A fused optimizer leaves them scaled then."""
    left = []
    for strategy in "auto", SinkStrategy(79, epoch="dataset", engine=engine):
        run, _ = scaled(lambda: Halved(kind), strategy, lambda: data((78,)), limit_train_batches=79)
        left.append({name: parameter.grad for name, parameter in run.module.named_parameters()})
    assert [gradients.pop("net.4.steep").isinf() for gradients in left] == [True, True]
    for name, expected in left[0].items():
        torch.testing.assert_close(left[1][name], expected, rtol=1e-4, atol=1e-6)


def test_compiled_by_inductor(chunks):
    compare(lambda: Halved("adam"), "inductor")
    assert sum(chunks) > 30


@pytest.mark.parametrize("size", [30, -1])
def test_two_optimizers_of_which_one_leaves_steps_out(size, chunks):
    """Their counts are equal until then."""
    plain, sink = compare(CountsByHand, data=lambda: data((31, 50)), size=size)
    first, second = (optimizer.state_dict()["state"] for optimizer in sink.trainer.optimizers)
    assert (first[0]["step"], second[0]["step"]) == (58, 56)
    assert sum(chunks) > 30


OPTIMIZERS = {
    "plain SGD": lambda parameters: torch.optim.SGD(parameters, lr=0.05),
    "largest second moments": lambda parameters: torch.optim.Adam(parameters, lr=0.01, amsgrad=True),
    "RAdam": lambda parameters: torch.optim.RAdam(parameters, lr=0.01),
    "NAdam": lambda parameters: torch.optim.NAdam(parameters, lr=0.01),
    "Adagrad": lambda parameters: torch.optim.Adagrad(parameters, lr=0.01),
    "RMSprop": lambda parameters: torch.optim.RMSprop(parameters, lr=0.01, momentum=0.9, centered=True),
    "maximize": lambda parameters: torch.optim.SGD(parameters, lr=1e-4, momentum=0.9, maximize=True),
}


@pytest.mark.narrow(11)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizers(name, chunks):
    compare(lambda: OptimizedBy(OPTIMIZERS[name]))
    # RAdam's steps take one of two ways by how many were made, and the host does not know that ahead.
    assert sum(chunks) > 30 or name == "RAdam"


@pytest.mark.narrow(11)
@pytest.mark.parametrize(
    "options",
    [
        {"gradient_clip_val": 0.5},
        {"gradient_clip_val": 0.1, "gradient_clip_algorithm": "value"},
        {"accumulate_grad_batches": 2},
        {"accumulate_grad_batches": 3, "gradient_clip_val": 0.5},
    ],
    ids=str,
)
def test_options(options, chunks):
    compare(Halved, **options)
    assert sum(chunks) > 10


def test_two_optimizers_by_hand(chunks):
    compare(ByHand)
    assert sum(chunks) > 30


@pytest.mark.parametrize("schedule", ["onecycle", "step"])
def test_schedules_go_on_where_a_step_is_left_out(schedule):
    compare(lambda: Halved("adam", schedule=schedule, total_steps=200), max_epochs=2)


def test_a_scale_grows_to_what_it_may_be(chunks):
    """And no further: the product would be infinite."""
    compare(Halved, scale=2.0**124, interval=2, data=lambda: data(()))
    assert chunks


def test_many_steps_are_left_out_before_the_first_one_is_made(chunks):
    """None of them says what later ones do; the optimizer's state is made by the first that is not left out."""
    compare(Halved, data=lambda: data(range(12)), size=-1)
    assert sum(chunks) > 30


class WritesToParts(torch.optim.SGD):
    """Through views of its parameters, first of a part and then of all."""

    @torch.no_grad()
    def step(self, closure=None):
        for parameter in (parameter for group in self.param_groups for parameter in group["params"]):
            if parameter.grad is not None and parameter.dim() == 2:
                parameter[0].add_(parameter.grad[0], alpha=-0.05)
                parameter.detach().mul_(0.999)
                parameter.view(-1)[1:].add_(parameter.grad.view(-1)[1:], alpha=-0.05)


def test_what_is_written_through_views_is_taken_back(chunks, monkeypatch):
    monkeypatch.setattr(scaled_steps, "why_not", lambda *_: None)
    compare(lambda: OptimizedBy(lambda parameters: WritesToParts(parameters, lr=1.0)))
    assert sum(chunks) > 30


class Growing(L.Callback):
    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        if batch_idx == 30:
            scaler = trainer.precision_plugin.scaler
            scaler.set_growth_factor(4.0)
            scaler.set_growth_interval(3)


def test_what_is_set_between_sinks_is_seen():
    compare(Halved, callbacks=lambda: [Growing()])


class CountsItsSteps(torch.optim.SGD):
    made = 0

    def step(self, closure=None):
        self.made += 1
        return super().step(closure)


class Replaces(torch.optim.SGD):
    """Keeps an average in a new tensor each time."""

    def step(self, closure=None):
        result = super().step(closure)
        for group in self.param_groups:
            for parameter in group["params"]:
                state = self.state[parameter]
                state["average"] = state.get("average", parameter.detach()) * 0.9 + parameter.detach() * 0.1
        return result


class Watched(torch.optim.SGD):
    """One of torch's by its step, and with hooks that count."""

    made = 0

    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        self.register_step_post_hook(Watched.count)

    def count(self, args, kwargs):
        self.made += 1


Watched.__module__ = "torch.optim.sgd"


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        (CountsItsSteps, "`CountsItsSteps` is no optimizer of torch's own"),
        (Replaces, "`Replaces` is no optimizer of torch's own"),
        (Watched, "the optimizer has hooks"),
    ],
)
def test_an_optimizer_that_no_operation_can_take_back_runs_eagerly(kind, said):
    runs_eagerly(lambda: OptimizedBy(lambda parameters: kind(parameters, lr=0.05, momentum=0.9)), said)


def runs_eagerly(make, said):
    plain, expected = scaled(make)
    sink, found = scaled(make, SinkStrategy(30, epoch="dataset", engine="traced"))
    assert_parity(plain, sink)
    assert found == expected
    assert getattr(plain.trainer.optimizers[0], "made", 0) == getattr(sink.trainer.optimizers[0], "made", 0)
    assert any("runs eagerly" in text and said in text for text in sink.warned), sink.warned
    return plain, sink


class OwnScaler(Halved):
    """Has a scaler of its own, and sets it at an epoch's start."""

    def __init__(self, kind="adam"):
        super().__init__(kind)
        self.automatic_optimization = False
        self.scaler = GradScaler("cpu", init_scale=2.0**60, growth_interval=20)

    def on_train_epoch_start(self):
        self.scaler.set_growth_interval(20 - 17 * self.current_epoch)

    def training_step(self, batch, batch_idx):
        optimizer = self.optimizers().optimizer
        loss = super().training_step(batch, batch_idx)
        optimizer.zero_grad()
        self.scaler.scale(loss).backward()
        self.scaler.step(optimizer)
        self.scaler.update()


class InTwoParts(OwnScaler):
    """Unscales in one step, and steps in the next."""

    def training_step(self, batch, batch_idx):
        optimizer = self.optimizers().optimizer
        loss = Halved.training_step(self, batch, batch_idx)
        if batch_idx % 2:
            self.scaler.step(optimizer)
            self.scaler.update()
            optimizer.zero_grad()
        else:
            self.scaler.scale(loss).backward()
            self.scaler.unscale_(optimizer)


@pytest.mark.parametrize("make", [OwnScaler, lambda: OwnScaler("fused"), InTwoParts], ids=["own", "fused", "in parts"])
def test_a_scaler_of_the_modules_own_runs_eagerly(make):
    plain, sink = runs_eagerly(make, "the scaler is not the Trainer's")
    assert plain.module.scaler.state_dict() == sink.module.scaler.state_dict()


class Exchanged(L.Callback):
    def on_train_epoch_start(self, trainer, pl_module):
        if trainer.current_epoch == 1:
            trainer.precision_plugin.scaler = GradScaler("cpu", init_scale=2.0**70, growth_interval=3)


def test_another_scaler_is_seen():
    left = []
    for strategy in "auto", SinkStrategy(30, epoch="dataset", engine="traced"):
        run, _ = scaled(Halved, strategy, callbacks=lambda: [Exchanged()], max_epochs=2)
        left.append((run, run.trainer.precision_plugin.scaler.state_dict()))
    (plain, expected), (sink, found) = left
    assert_parity(plain, sink)
    assert found == expected


def test_where_each_step_is_left_out_few_are_recorded(monkeypatch):
    recorded, span = [], Recorder.span
    monkeypatch.setattr(Recorder, "span", lambda self, *args: recorded.append(self) or span(self, *args))
    plain, expected = scaled(Halved, data=lambda: data(range(80)), scale=2.0**120)
    sink, found = scaled(Halved, SinkStrategy(-1, engine="traced"), lambda: data(range(80)), scale=2.0**120)
    for name, tensor in plain.module.state_dict().items():
        torch.testing.assert_close(sink.module.state_dict()[name], tensor, rtol=1e-4, atol=1e-6)
    assert found == expected
    assert 0 < len({*map(id, recorded)}) < 10


def test_a_checkpoint_has_the_scale(tmp_path):
    saved = {}
    for name in ("plain", "sink"):
        strategy = lambda: "auto" if name == "plain" else SinkStrategy(30, epoch="dataset", engine="traced")  # noqa
        run, state = scaled(Halved, strategy())
        path = tmp_path / f"{name}.ckpt"
        run.trainer.save_checkpoint(path)
        saved[name] = torch.load(path, weights_only=False)["MixedPrecision"]
        assert saved[name] == state
        more, state = scaled(Halved, strategy(), checkpoint=path, max_epochs=2)
        saved[f"{name}, resumed"] = state
        assert more.trainer.global_step == 160
    assert saved["plain"] == saved["sink"]
    assert saved["plain, resumed"] == saved["sink, resumed"]


def test_control_a_step_that_should_be_left_out_shows(monkeypatch):
    monkeypatch.setattr(scaled_steps.ScaledSteps, "about_to_write", lambda self, written: None)
    with pytest.raises(AssertionError):
        compare(lambda: Halved("adam"), data=lambda: data((47,)))
