"""Trainings on a device are plain Lightning's on it, over a device that is none.

What CUDA's own streams and graphs do is tried in `data/test_device_gpu.py`, `engine/device/test_captured_gpu.py` and
`test_on_device_gpu.py`.
"""

import gc
import warnings
from contextlib import nullcontext
from unittest import mock

import lightning as L
import pytest
import torch
from lightning.pytorch.strategies import SingleDeviceStrategy
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torchmetrics.classification import MulticlassAccuracy

import positions
from fake_device import DEVICE, FakeAccelerator, waits
from fake_graphs import FakeGraphs
from gallery.kept import assert_kept
from lightning_sink import SinkDataModule, SinkStrategy, data_sink
from lightning_sink.data.queue import BatchQueue
from lightning_sink.data.reuse import Reuse
from lightning_sink.engine.compiler.generated import compile_graph
from lightning_sink.engine.device import on_device
from lightning_sink.engine.device.block import Block
from lightning_sink.engine.device.captured import CapturedStep
from lightning_sink.errors import CompileError
from lightning_sink.trainer.batch_hooks import BatchHooks
from parity import Net, assert_parity, both, loader, once
from test_ways_in_turns import Accumulates, Critic, NamingCritic, Penalizes, Toggling

UNCOMPILED = "Inductor cannot compile the training step"
"""Inductor has no code for the fake device, so the recorded operations are captured as they are."""

pytestmark = [
    pytest.mark.usefixtures("fake", "unasked"),
    pytest.mark.filterwarnings(f"ignore:{UNCOMPILED}:lightning_sink.errors.SinkWarning"),
]


@pytest.fixture
def unasked(monkeypatch, unhurried):
    """Inductor is not asked, which takes it half a second for each step, and rows are as long as there are batches."""

    def refuse(*arguments):
        raise NotImplementedError("no code for the fake device")

    monkeypatch.setattr(on_device, "compile_graph", refuse)


@pytest.fixture
def asked(unasked, monkeypatch):
    """Inductor is asked after all."""
    monkeypatch.setattr(on_device, "compile_graph", compile_graph)


class Nesterov(Net):
    """With lists of tensors, as on a GPU, the optimizer leaves other gradients than one by one."""

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=0.05, momentum=0.9, nesterov=True, weight_decay=1e-3)
        if self.schedule == "none":
            return optimizer
        scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.05, total_steps=self.total_steps)
        return [optimizer], [{"scheduler": scheduler, "interval": "step"}]


class TwoDropouts(Net):
    """The dropout of a GPU is one operation that draws a mask and applies it."""

    def __init__(self):
        super().__init__("adam")
        self.net = nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.2), nn.Tanh(), nn.Dropout(0.4), nn.Linear(8, 3))


class HostNumbers(Net):
    """Logs numbers that a step on a GPU has on the host."""

    def training_step(self, batch, batch_idx):
        loss = super().training_step(batch, batch_idx)
        self.log("rate", self.optimizers().param_groups[0]["lr"])
        self.log("of_the_host", loss.detach().cpu() * 2)
        return loss


class CollectsNumbers(Net):
    """Takes numbers to the host, to log and to collect them."""

    def __init__(self):
        super().__init__("adam")
        self.losses, self.total, self.right, self.steps = [], 0.0, 0, 0

    def training_step(self, batch, batch_idx):
        loss = super().training_step(batch, batch_idx)
        number = loss.item()
        self.log("number", number / 2)
        self.losses.append({"loss": number, "batch": batch_idx})
        self.total += number * len(batch[1])
        self.right += (self.net(batch[0]).argmax(1) == batch[1]).sum().item()
        self.steps += 1
        return loss


class KeepsNumbers(Net):
    """Keeps numbers in attributes, and computes with them."""

    def __init__(self):
        super().__init__("adam")
        self.last, self.mean, self.right = None, 1.0, 0

    def training_step(self, batch, batch_idx):
        loss = super().training_step(batch, batch_idx)
        self.last = loss.item()
        self.mean = 0.9 * self.mean + 0.1 * self.last
        if batch_idx % 3 == 0:
            self.right = (batch[1] == 1).sum().item()
        self.log("mean", self.mean)
        return loss / (1 + self.mean) + 0.01 * self.right


class ReturnsNumbers(Net):
    """For callbacks; of some it keeps lists."""

    def __init__(self):
        super().__init__("adam")
        self.labels = []

    def training_step(self, batch, batch_idx):
        loss = super().training_step(batch, batch_idx)
        self.labels.extend(batch[1].cpu().tolist())
        return {"loss": loss, "number": loss.item(), "labels": batch[1].cpu().numpy(), "float": float(loss) / 2}


class SetsItsRate(Net):
    """Sets its rate in the step, which is a number of the host's."""

    def training_step(self, batch, batch_idx):
        for group in self.optimizers().param_groups:
            group["lr"] = 0.05 / (1 + self.global_step)
        return super().training_step(batch, batch_idx)


class DrawsOnHost(Net):
    """Draws noise on the host for a step on the device."""

    def training_step(self, batch, batch_idx):
        x, y = batch
        return super().training_step((x + 0.1 * torch.randn(x.shape, device="cpu").to(x.device), y), batch_idx)


class PicksAsMany(Net):
    """Indexes by a mask that the batch gives, which picks as many of each."""

    def training_step(self, batch, batch_idx):
        mask = batch[0][:, 0].argsort().argsort() < len(batch[0]) // 2
        out = self.net(batch[0])
        changed = out * 1
        changed[mask] = out[mask] * 2
        changed[~mask] = 0.5
        return super().training_step(batch, batch_idx) + 0.1 * changed.square().mean()


class Still(L.LightningModule):
    """Logs nothing: what is waited for is waited for by the steps."""

    def __init__(self):
        super().__init__()
        self.net = nn.Linear(6, 3)

    def training_step(self, batch, batch_idx):
        return nn.functional.cross_entropy(self.net(batch[0]), batch[1])

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=0.01)


class Wide(Still):
    """Without what turns the rounding of half precision into other decisions."""

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)


def options(**more):
    return {"accelerator": FakeAccelerator(), "devices": 1, "max_epochs": 2, **more}


def plainly(make, data=loader, **more):
    return once(make, data, SingleDeviceStrategy(device=torch.device(DEVICE)), **options(**more))


def states(run):
    kept = [state for optimizer in run.trainer.optimizers for state in optimizer.state.values()]
    values = [item for state in kept for item in state.items()]
    return [(name, value.cpu(), value.device) for name, value in values if isinstance(value, torch.Tensor)]


def compared(make, engine, sink_size=6, data=loader, plain=None, **more):
    """Trains plainly, unless that is given, and in sinks."""
    plain = plain or plainly(make, data, **more)
    found = once(make, data, SinkStrategy(sink_size, epoch="dataset", engine=engine), **options(**more))
    assert_parity(plain, found, exact=engine == "eager")
    assert_kept(plain, found, engine == "eager", 1e-4)
    for (name, expected, where), (_, value, place) in zip(states(plain), states(found), strict=True):
        assert where == place, name
        assert torch.allclose(expected, value, rtol=1e-4, atol=1e-6), name
    assert plain.generators == found.generators
    assert found.engine == engine
    return found


class OptimizedBy(Still):
    """What an optimizer does where it has lists of tensors, as on a GPU."""

    def __init__(self, kind, **options):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
        self.kind, self.options = kind, options

    def configure_optimizers(self):
        return getattr(torch.optim, self.kind)(self.parameters(), foreach=True, **self.options)


OPTIMIZERS = {
    "NAdam": {"lr": 0.01},
    "RAdam": {"lr": 0.01},
    "Adagrad": {"lr": 0.01, "lr_decay": 0.01, "weight_decay": 0.01},
    "Adadelta": {"lr": 0.1},
    "RMSprop": {"lr": 0.01, "momentum": 0.9},
    "Adamax": {"lr": 0.01},
    "ASGD": {"lr": 0.01},
    "Adam": {"lr": 0.01, "amsgrad": True, "weight_decay": 0.01},
    "AdamW": {"lr": 0.01, "maximize": True},
    "SGD": {"lr": 0.01, "momentum": 0.9, "dampening": 0.1, "weight_decay": 0.1},
}

MODULES = {
    "momentum": Net,
    "nesterov": Nesterov,
    "nesterov with a schedule of momenta": lambda: Nesterov(schedule="onecycle", total_steps=100),
    "adam": lambda: Net("adam"),
    "adam with lists": lambda: Net("foreach"),
    "adam fused": lambda: Net("fused"),
    "a schedule of rates and momenta": lambda: Net("sgd", "onecycle", 100),
    "a schedule of rates and betas": lambda: Net("adam", "onecycle", 100),
    "two dropouts": TwoDropouts,
    "numbers on the host": lambda: HostNumbers("adam"),
    "draws on the host": DrawsOnHost,
    "picks as many by a mask": PicksAsMany,
    "sets its rate": lambda: SetsItsRate("adam"),
    **({"numbers that are collected": CollectsNumbers, "numbers kept": KeepsNumbers} if positions.KNOWN else {}),
    **({"numbers that are returned": ReturnsNumbers} if positions.KNOWN else {}),
}


@pytest.mark.narrow(13)
@pytest.mark.parametrize("name", MODULES)
def test_a_training_is_plain_lightnings(name, fake):
    data = lambda: loader(26, shuffle=True)  # noqa: E731
    plain = plainly(MODULES[name], data)
    for engine in ("eager", "traced", "cudagraph"):
        fake.streams.clear()
        found = compared(MODULES[name], engine, 12, data, plain)
        assert not [text for text in found.warned if "runs eagerly" in text]
        graphs = sum(known.captures for known in fake.graphs), sum(known.replays for known in fake.graphs)
        assert (min(graphs) > 0) == (engine == "cudagraph"), graphs
        assert sum(stream.copies for stream in fake.streams) > 0


@pytest.mark.narrow(11)
@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_optimizers_with_lists_of_tensors(kind, fake):
    make = lambda: OptimizedBy(kind, **OPTIMIZERS[kind])  # noqa: E731
    found = once(make, lambda: loader(40), SinkStrategy(17, epoch="dataset", engine="cudagraph"), **options())
    assert_parity(plainly(make, lambda: loader(40)), found)
    assert not [text for text in found.warned if "runs eagerly" in text]
    assert sum(known.replays for known in fake.graphs) > 0


class Anneals(Still):
    """A weight that is another number in each epoch, and that lies on the host."""

    def on_train_epoch_start(self):
        self.weight, self.epoch = 0.1 * self.current_epoch, self.current_epoch

    def training_step(self, batch, batch_idx):
        loss = super().training_step(batch, batch_idx)
        self.log("weight", self.weight)
        return loss + self.weight * self.net.weight.square().mean() * (1.5 if self.epoch > 2 else 1.0)


@pytest.mark.parametrize("engine", ["traced", "cudagraph"])
def test_a_weight_that_is_annealed(engine, fake):
    found = compared(Anneals, engine, 12, data=lambda: loader(26), max_epochs=5)
    assert not [text for text in found.warned if "runs eagerly" in text]
    assert any(known.captures for known in fake.graphs) == (engine == "cudagraph")


def test_a_sink_of_many_rows_leaves_what_its_last_step_left(fake):
    """Gradients and step counts of a row are brought out only where no other row runs behind it."""
    compared(lambda: Net("adam"), "cudagraph", sink_size=70, data=lambda: loader(140), max_epochs=1)
    assert sum(known.replays for known in fake.graphs) > 0


def undrawn(kind):
    """Makes modules of a kind without dropout, which draws on the device."""

    class Undrawn(kind):
        def __init__(self, *options):
            super().__init__(*options)
            self.net = nn.Sequential(*(layer for layer in self.net if type(layer) is not nn.Dropout))

    return Undrawn


REPEATED = {
    "momentum": undrawn(Net),
    "adam": lambda: undrawn(Net)("adam"),
    "a schedule of rates and betas": lambda: undrawn(Net)("adam", "onecycle", 300),
    "numbers on the host": lambda: undrawn(HostNumbers)("adam"),
    "draws on the host": undrawn(DrawsOnHost),
    "nothing logged": Still,
}


@pytest.mark.narrow(13)
@pytest.mark.parametrize("name", REPEATED)
def test_rows_that_the_device_repeats_by_itself(name, fake, monkeypatch):
    monkeypatch.setattr(FakeGraphs, "loops", True)
    compared(REPEATED[name], "cudagraph", sink_size=70, data=lambda: loader(140, shuffle=True))
    assert sum(known.turns for known in fake.graphs) > 4


def test_rows_of_steps_that_draw_on_the_device_are_unrolled_without_a_word(fake, monkeypatch, caplog):
    monkeypatch.setattr(FakeGraphs, "loops", True)
    compared(TwoDropouts, "cudagraph", sink_size=70, data=lambda: loader(140), max_epochs=1)
    assert (sum(known.turns for known in fake.graphs), "in a loop" in caplog.text) == (0, False)


def test_that_a_step_cannot_be_repeated_by_the_device_is_said(fake, monkeypatch, caplog):
    capture = FakeGraphs.capture

    def refuse(self, body, left=None):
        if left is not None:
            raise RuntimeError("no loops today")
        return capture(self, body)

    monkeypatch.setattr(FakeGraphs, "loops", True)
    monkeypatch.setattr(FakeGraphs, "capture", refuse)
    compared(undrawn(Net), "cudagraph", sink_size=70, data=lambda: loader(140), max_epochs=1)
    assert caplog.text.count("the GPU cannot repeat the training step in a loop (RuntimeError: no loops today)") == 1
    assert sum(known.replays for known in fake.graphs) > 0


def test_control_device_draws_that_are_not_put_back_train_otherwise(monkeypatch):
    from lightning_sink.engine.state.default_generators import Generators

    monkeypatch.setattr(Generators, "restore", lambda self, state: torch.set_rng_state(state[0]))
    with pytest.raises(Exception, match="differs by"):
        compared(TwoDropouts, "traced")


MORE = {
    "accumulation": {"accumulate_grad_batches": 3},
    "clipping": {"gradient_clip_val": 0.1},
    "bfloat16": {"precision": "bf16-mixed"},
    "double": {"precision": "64-true"},
}


@pytest.mark.parametrize("name", MORE)
def test_options_of_the_trainer(name):
    make = Net if name != "bfloat16" else Wide
    compared(make, "cudagraph", **MORE[name])


class Measured(Net):
    """The host measures, behind rows of steps."""

    def __init__(self):
        super().__init__("adam")
        self.accuracy = MulticlassAccuracy(3)

    def training_step(self, batch, batch_idx):
        self.accuracy(self.net(batch[0]), batch[1])
        self.log("measured", self.accuracy)
        return super().training_step(batch, batch_idx)


class Carries(Still):
    """Each step computes with what the one before has left, so no two are run in a row."""

    def __init__(self):
        super().__init__()
        self.cell, self.out = nn.Linear(11, 5), nn.Linear(5, 3)
        self.register_buffer("hidden", torch.zeros(8, 5))

    def training_step(self, batch, batch_idx):
        x, y = batch
        hidden = torch.tanh(self.cell(torch.cat([x, self.hidden], 1)))
        self.hidden = hidden.detach()
        return nn.functional.cross_entropy(self.out(hidden), y)


def test_steps_that_measure_are_run_in_rows(fake, chunks):
    compared(Measured, "cudagraph", 20, data=lambda: loader(60))
    assert sum(chunks) > 80


def test_steps_that_are_not_run_in_rows_are_replayed_too(fake):
    found = compared(Carries, "cudagraph", 20, data=lambda: loader(60, last=8))
    (graphs,) = fake.graphs
    assert graphs.captures == 1
    assert graphs.replays > 60
    assert not [text for text in found.warned if "runs eagerly" in text or "captured" in text]


ACCUMULATE = {
    "adam": lambda: Net("adam"),
    "a schedule": lambda: Net("adam", "onecycle", total_steps=1000),
    "dropout": TwoDropouts,
    "metrics": Measured,
    "numbers of the host's": HostNumbers,
    **({"collects": CollectsNumbers, "keeps": KeepsNumbers} if positions.KNOWN else {}),
}


@pytest.mark.narrow(13)
@pytest.mark.parametrize(("name", "accumulate"), [("adam", 2), ("adam", 8), *((name, 3) for name in ACCUMULATE)])
def test_windows_of_accumulation_are_replayed_in_rows(name, accumulate, fake, chunks):
    found = compared(ACCUMULATE[name], "cudagraph", 40, data=lambda: loader(120), accumulate_grad_batches=accumulate)
    if name not in ("collects", "keeps"):  # what is appended at each step goes into no window
        assert sum(chunks) > 50
        (graphs,) = fake.graphs
        assert graphs.replays < 240
    assert not [text for text in found.warned if "runs eagerly" in text or "captured" in text]


@pytest.mark.parametrize("accumulate", [1, 2, 4])
def test_draws_on_the_host_where_nothing_can_be_captured(accumulate, fake, monkeypatch):
    def refuse(self, body, left=None):
        raise RuntimeError("no memory")

    monkeypatch.setattr(FakeGraphs, "capture", refuse)
    data, given = lambda: loader(61), options(accumulate_grad_batches=accumulate)
    plain = plainly(lambda: DrawsOnHost("adam"), data, accumulate_grad_batches=accumulate)
    strategy = SinkStrategy(40, epoch="dataset", engine="cudagraph", fallback="warn")
    sink = once(lambda: DrawsOnHost("adam"), data, strategy, **given)
    assert plain.generators == sink.generators
    assert_parity(plain, sink)


BY_TURNS = [Accumulates, Critic, NamingCritic, Toggling, Penalizes]


@pytest.mark.narrow(13)
@pytest.mark.parametrize("make", BY_TURNS, ids=lambda make: make.__name__)
def test_ways_through_a_step_that_come_again_are_replayed_in_rows(make, fake, rows):
    found = compared(make, "cudagraph", -1, data=lambda: loader(120))
    assert sum(steps for steps, _ in rows) > 40
    (graphs,) = fake.graphs
    assert graphs.replays < 240
    assert not [text for text in found.warned if "runs eagerly" in text or "captured" in text]


class KeptTwice(Still):
    """The hidden state has two names; what each holds goes into the step."""

    def __init__(self):
        super().__init__()
        self.cell, self.out = nn.Linear(11, 5), nn.Linear(5, 3)
        self.register_buffer("hidden", torch.zeros(8, 5))
        self.last = None

    def on_train_start(self):
        self.last = self.hidden

    def training_step(self, batch, batch_idx):
        x, y = batch
        hidden = torch.tanh(self.cell(torch.cat([x, self.hidden], 1)))
        self.hidden = self.last = hidden.detach()
        return nn.functional.cross_entropy(self.out(hidden), y)


def test_a_tensor_that_a_step_keeps_under_two_names_is_one(fake):
    compared(KeptTwice, "cudagraph", 20, data=lambda: loader(60, last=8))
    (graphs,) = fake.graphs
    assert graphs.captures == 1
    assert graphs.replays > 80, "the programs are thrown away behind each replay"


def test_data_on_the_device_stays_there(fake):
    strategy = SinkStrategy(6, epoch="dataset", engine="cudagraph")
    data = lambda: SinkDataModule.from_loaders(loader(), cache="device")  # noqa: E731
    found = once(Net, data, strategy, **options())
    assert_parity(plainly(Net), found)
    assert [stream.copies for stream in fake.streams] == [0]


class Lying:
    """A loader whose batches lie on the device: each where it is, or one behind the other in a few places.

    Args:
        places: How many; None where each has its own.
        batches: How many there are.
        device: The device.
    """

    def __init__(self, places=None, batches=60, device=DEVICE):
        self.batches = [(x.to(device), y.to(device)) for x, y in loader(batches, last=8)]
        self.places = [tuple(map(torch.empty_like, self.batches[0])) for _ in range(places or 0)]

    def __len__(self):
        return len(self.batches)

    def __iter__(self):
        for number, batch in enumerate(self.batches):
            if self.places:
                place = self.places[number % len(self.places)]
                for target, source in zip(place, batch, strict=True):
                    target.copy_(source)
                batch = place
            yield batch


class Unsized:
    """The same without a length, of which Lightning fetches one batch further than it gives."""

    def __init__(self, *arguments, **options):
        self.inner = Lying(*arguments, **options)

    def __iter__(self):
        return iter(self.inner)


@pytest.mark.parametrize("device", [DEVICE, "cpu"])
def test_memory_of_data_without_a_length_is_filled_again_a_batch_sooner(device):
    compared(Net, "traced", 30, data=lambda: Unsized(2, 37, device))


@pytest.mark.narrow(11)
@pytest.mark.parametrize("places", [None, 1, 2, 7, 20])
def test_batches_that_lie_on_the_device_are_trained_in_rows_where_their_memory_stays(places, fake, monkeypatch):
    rows, row = [], CapturedStep.row
    monkeypatch.setattr(CapturedStep, "row", lambda *args: rows.append(args[-1]) or row(*args))
    compared(Net, "cudagraph", 50, data=lambda: Lying(places))
    assert len(rows) < 54, "two of its steps at a time, or more"


def test_control_memory_that_is_not_looked_at_is_read_when_it_holds_something_else(monkeypatch):
    monkeypatch.setattr(Reuse, "note", lambda self, batch: vars(self).update(seen=100, ended=True))
    with pytest.raises(AssertionError):
        compared(Net, "cudagraph", 30, data=lambda: Lying(2))


class Own:
    """A batch that knows by itself how it is moved."""

    def __init__(self, x, y):
        self.x, self.y = x, y

    def to(self, device, **options):
        return Own(self.x.to(device, **options), self.y.to(device, **options))


class OfOwn(Still):
    def training_step(self, batch, batch_idx):
        return super().training_step((batch.x, batch.y), batch_idx)


def test_batches_that_the_queue_does_not_move_are_not_looked_ahead_of(fake, monkeypatch):
    looks = mock.Mock(return_value=None)
    monkeypatch.setattr(BatchQueue, "look_ahead", looks)
    given = [Own(x, y) for x, y in loader(20, last=8)]
    compared(OfOwn, "cudagraph", -1, data=lambda: DataLoader(given, batch_size=None))
    assert looks.call_count == 0
    compared(Still, "cudagraph", -1, data=lambda: loader(20, last=8))
    assert looks.call_count > 0  # the control


class ShownNames(L.Callback):
    """Keeps the names of the batches that it is shown."""

    def __init__(self):
        self.seen = []

    def on_train_batch_start(self, trainer, module, batch, batch_idx):
        self.seen.append((batch_idx, batch[2], batch[1].device.type))

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        self.seen.append((batch_idx, batch[2], batch[1].device.type))


class HasNames(Still):
    def training_step(self, batch, batch_idx):
        return super().training_step((batch[0], batch[1]), batch_idx)


def test_names_in_batches_are_those_of_their_batch(fake, chunks):
    given = [(x, y, [f"{number}.png"]) for number, (x, y) in enumerate(loader(40, last=8))]
    shown = ShownNames()
    data = lambda: DataLoader(given, batch_size=None)  # noqa: E731
    found = compared(HasNames, "cudagraph", 20, data=data, callbacks=lambda: [shown])
    assert not [text for text in found.warned if "runs eagerly" in text]
    assert sum(chunks) > 50
    assert {number for number, _, _ in shown.seen} >= {0, 19, 20, 39}
    assert all((names, kind) == ([f"{number}.png"], "fake") for number, names, kind in shown.seen)


class Hooked(Net):
    """Sees what the loader yields, and then what is on the device."""

    def on_before_batch_transfer(self, batch, dataloader_idx):
        assert batch[0].device.type == "cpu"
        return batch[0] * 2, batch[1]

    def on_after_batch_transfer(self, batch, dataloader_idx):
        assert batch[0].device.type == "fake"
        return batch[0] + 1, batch[1]


def test_transfer_hooks_are_given_what_plain_lightnings_are_given(fake):
    compared(Hooked, "cudagraph")
    assert [stream.copies for stream in fake.streams] == [0] * len(fake.streams)


def test_a_checkpoint_goes_on_under_plain_lightning_and_back(tmp_path):
    make = lambda: Net("adam")  # noqa: E731
    first = plainly(make, max_epochs=1)
    first.trainer.save_checkpoint(tmp_path / "plain.ckpt")
    strategy = SinkStrategy(6, epoch="dataset", engine="cudagraph")
    sink = once(make, loader, strategy, **options(checkpoint=tmp_path / "plain.ckpt"))
    assert_parity(plainly(make, checkpoint=tmp_path / "plain.ckpt"), sink)
    sink.trainer.save_checkpoint(tmp_path / "sink.ckpt")
    saved = torch.load(tmp_path / "sink.ckpt", weights_only=False)
    steps = {state["step"].device.type for state in saved["optimizer_states"][0]["state"].values()}
    assert steps == {"cpu"}


class Waits(L.Callback):
    """Counts how often a sink waits for the device."""

    def __init__(self):
        self.begin, self.sinks = 0, []

    def on_train_batch_start(self, *args):
        self.begin = waits()

    def on_train_batch_end(self, *args):
        self.sinks.append(waits() - self.begin)


class Looking(Still):
    def training_step(self, batch, batch_idx):
        loss = super().training_step(batch, batch_idx)
        assert loss.item() > 0
        return loss


READS = {
    "an element": (lambda x: x[0].item(), True),
    "whether it is equal": (lambda x: torch.equal(x, x), True),
    "where it is not zero": (lambda x: x.nonzero(), True),
    "those above zero": (lambda x: x[x > 0], True),
    "its values": (lambda x: x.unique(), True),
    "a copy on the host": (lambda x: x.cpu(), True),
    "elements by number": (lambda x: x[torch.zeros(2, dtype=torch.int64, device=x.device)], False),
    "which are above zero": (lambda x: torch.where(x > 0, x, 0).sum(), False),
}


@pytest.mark.parametrize("what", READS)
def test_the_stand_in_counts_what_waits_for_a_device(what):
    read, expected = READS[what]
    x = torch.arange(4.0, device=DEVICE)
    before = waits()
    read(x)
    assert (waits() > before) == expected


def kept_there():
    return SinkDataModule.from_loaders(loader(200, last=8), cache="device")


def pinned():
    return loader(200, last=8, pin_memory=True)


class StillCollecting(Still):
    def __init__(self):
        super().__init__()
        self.losses, self.total = [], 0

    def training_step(self, batch, batch_idx):
        loss = super().training_step(batch, batch_idx)
        self.losses.append(loss.item())
        self.total += loss.item()
        return loss


@pytest.mark.narrow(13)
@pytest.mark.parametrize("data", [lambda: loader(200, last=8), kept_there, pinned, lambda: Lying(batches=200)])
@pytest.mark.parametrize(
    ("make", "engine"),
    [
        (Still, "cudagraph"),
        pytest.param(StillCollecting, "cudagraph", marks=positions.needed),
        (Still, "traced"),
        (Looking, "eager"),
    ],
)
def test_nothing_waits_for_the_device_inside_a_sink(make, engine, data, monkeypatch):
    # What callbacks change is looked for around their hooks, and counted with them.
    monkeypatch.setattr(BatchHooks, "_compared", lambda self, hook, callbacks, batch: nullcontext())
    counted = Waits()
    strategy = SinkStrategy(50, epoch="dataset", engine=engine)
    once(make, data, strategy, **options(callbacks=lambda: [counted]))
    expected = 50 if make is Looking else 0
    assert counted.sinks[1:] == [expected] * 7


class Asking(Net):
    """Goes one of three ways by what the batch holds, and holds something to compare it with."""

    def __init__(self):
        super().__init__("adam")
        self.register_buffer("limit", torch.tensor(2))

    def training_step(self, batch, batch_idx):
        loss = super().training_step(batch, batch_idx)
        if (batch[1] == self.limit).sum() > 2:
            return 2 * loss
        return loss * (1.5 if batch[0][0, 0] > 0 else 1.0)


@pytest.mark.narrow(13)
@pytest.mark.parametrize(
    ("engine", "data"),
    [
        ("cudagraph", lambda: loader(60, last=8)),
        ("cudagraph", kept_there),
        ("traced", pinned),
        ("cudagraph", lambda: Lying(2)),
    ],
)
def test_a_batch_on_the_device_decides_which_way_a_step_goes(engine, data):
    compared(Asking, engine, 30, data=data)


def test_what_cannot_be_compiled_or_captured_is_said_once_and_trained(fake, asked, monkeypatch):
    from fake_graphs import FakeGraphs

    def capture(self, body, left=None):
        raise RuntimeError("operation not permitted when stream is capturing\nand more")

    monkeypatch.setattr(FakeGraphs, "capture", capture)
    found = compared(Net, "cudagraph", data=lambda: loader(40), sink_size=17)
    said = [text for text in found.warned if UNCOMPILED in text or "captured" in text]
    assert len(said) == 2
    assert said[0].startswith(f"{UNCOMPILED} (")
    assert said[0].endswith("so its operations are run as they were recorded.")
    assert said[1] == (
        "The training step cannot be captured in a CUDA graph (RuntimeError: operation not permitted when stream is"
        " capturing), so its operations are launched each time."
    )


def test_what_cannot_be_compiled_is_an_error_where_that_was_asked_for(asked):
    strategy = SinkStrategy(6, epoch="dataset", engine="cudagraph", fallback="error")
    with pytest.raises(CompileError, match=UNCOMPILED):
        once(Net, loader, strategy, **options())


def test_automatic_is_graphs_on_a_device_that_has_them():
    found = once(Net, loader, SinkStrategy(6, epoch="dataset"), **options())
    assert found.engine == "cudagraph"


def test_a_cpu_has_no_graphs():
    strategy = SinkStrategy(6, epoch="dataset", engine="cudagraph")
    plain, found = both(Net, loader, strategy, max_epochs=1)
    assert_parity(plain, found, exact=True)
    (said,) = [text for text in found.warned if "runs eagerly" in text]
    assert '`engine="cudagraph"` needs a GPU, and the step computes on `cpu`' in said


def test_two_fits_in_one_process_leave_the_device_as_it_was(fake):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(2):
            once(Net, loader, SinkStrategy(6, epoch="dataset"), **options())
    assert [len(known.under_way) for known in fake.graphs] == [0, 0]


class Reads(Net):
    """Looks rows up in a table; writes to its batch, so that its steps are run one by one, or not."""

    writes = False

    def __init__(self):
        super().__init__("adam")
        self.net = nn.Linear(6, 3)
        self.table = nn.Embedding(3, 3)

    def training_step(self, batch, batch_idx):
        x, y = batch
        if self.writes:
            x.mul_(0.5)
        return nn.functional.cross_entropy(self.net(x) + self.table(y), y.clamp(max=2))


class ReadsAndWrites(Reads):
    writes = True


def wrong_at(batch):
    """Batches of which one has a class that is not in the table."""
    data = loader(40).dataset.tensors
    x, y = (tensor.clone() for tensor in data)
    y[8 * batch] = 7
    return DataLoader(TensorDataset(x, y), batch_size=8)


@pytest.mark.parametrize("make", [Reads, ReadsAndWrites])
@pytest.mark.parametrize("batch", [20, 29])
def test_a_step_that_fails_leaves_what_plain_lightning_leaves(make, batch, tmp_path):
    left = []
    for engine in (None, "traced"):
        strategy = SinkStrategy(17, epoch="dataset", engine=engine) if engine else None
        saved = Saved()
        train = plainly if engine is None else lambda *args, s=strategy, **more: once(*args, s, **options(**more))
        with pytest.raises(IndexError):
            train(make, lambda: wrong_at(batch), max_epochs=1, callbacks=lambda s=saved: [s])
        left.append(saved)
    plain, found = left
    assert found.steps == plain.steps == batch
    for name, expected in plain.weights.items():
        assert torch.allclose(expected, found.weights[name], atol=1e-6), name
    assert plain.counts == found.counts


class Saved(L.Callback):
    """What is there when a training fails."""

    def on_exception(self, trainer, pl_module, exception):
        self.steps = trainer.global_step
        self.weights = {name: tensor.cpu() for name, tensor in pl_module.state_dict().items()}
        self.counts = [float(state["step"]) for state in trainer.optimizers[0].state.values()]


def test_nothing_of_the_device_is_kept_behind_a_training(fake):
    found = once(Net, loader, SinkStrategy(6, epoch="dataset", engine="cudagraph"), **options())
    gc.collect()
    blocks = [item for item in gc.get_objects() if type(item) is Block]
    assert found.trainer.strategy.history["loss"].numel() > 0
    assert not blocks


class Draws(L.Callback):
    """Draws on the device at the first batch of a sink, and so more often in plain Lightning."""

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        torch.rand(1, device=pl_module.device)


def test_a_callback_that_draws_on_the_device_is_told_that_the_training_differs():
    strategy = SinkStrategy(6, epoch="dataset", engine="traced")
    found = once(Net, loader, strategy, **options(callbacks=lambda: [Draws()]))
    assert [text for text in found.warned if "A callback changes weights" in text]
    quiet = once(Net, loader, SinkStrategy(6, epoch="dataset", engine="traced"), **options())
    assert not [text for text in quiet.warned if "A callback changes" in text]


@pytest.mark.narrow(11)
@pytest.mark.parametrize("place", ["on the host", "on the device", "in part"])
@pytest.mark.parametrize("gathers", [True, False])
def test_a_step_function_that_moves_its_batches_itself(gathers, place, fake):
    """`data_sink` has no queue that sends: the host's batches come to the graphs as they are."""
    generator = torch.Generator().manual_seed(1)
    x, y = torch.randn(1600, 4, generator=generator), torch.randn(1600, 4, generator=generator)
    given = {"on the host": (x, y), "on the device": (x.to(DEVICE), y.to(DEVICE)), "in part": (x.to(DEVICE), y)}[place]
    data = TensorDataset(*given) if gathers else [*zip(*given, strict=True)]
    found = {}
    for engine in ("eager", "cudagraph"):
        torch.manual_seed(0)
        net = nn.Linear(4, 4).to(DEVICE)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)

        def step(x, y, net=net, optimizer=optimizer):
            loss = (net(x.to(DEVICE)) - y.to(DEVICE)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            return loss

        batches = DataLoader(data, batch_size=16, shuffle=True)
        with data_sink(step, batches, sink_size=70, engine=engine, state=[net, optimizer]) as run:
            losses = [(run(), run.history["loss"].cpu())[1] for _ in range(2)]
            assert run.active_engine == engine
        found[engine] = torch.cat(losses), net.weight.detach().cpu()
    assert sum(known.replays for known in fake.graphs) > 0
    for expected, other in zip(*found.values(), strict=True):
        torch.testing.assert_close(other, expected, rtol=1e-4, atol=1e-6)
