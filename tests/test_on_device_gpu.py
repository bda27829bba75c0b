"""Trainings on a GPU are plain Lightning's on it; `test_on_device.py` promises the same of a device that is none."""

from contextlib import nullcontext

import lightning as L
import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import positions
from gpu import needs_gpu
from lightning_sink import SinkDataModule, SinkStrategy, data_sink
from lightning_sink.engine.device import captured
from lightning_sink.engine.device.block import Block
from lightning_sink.engine.device.captured_row import CapturedRow
from lightning_sink.trainer.batch_hooks import BatchHooks
from parity import QUIET, Net, assert_parity, loader, once
from test_assumed_on_device import CASES
from test_on_device import (
    ACCUMULATE,
    BY_TURNS,
    MODULES,
    MORE,
    OPTIMIZERS,
    Anneals,
    Carries,
    Looking,
    Lying,
    Measured,
    OptimizedBy,
    Still,
    Wide,
    kept_there,
    pinned,
    states,
)
from test_scaled_gradients import Halved
from test_scaled_gradients import data as some_infinite

ENGINES = ["eager", "traced", "inductor", "cudagraph"]


def options(**more):
    return {"accelerator": "gpu", "devices": 1, "max_epochs": 2, **more}


def data():
    return loader(40, shuffle=True)


def compared(make, engine, sink_size=17, data=data, tolerance=1e-4, **more):
    plain = once(make, data, **options(**more))
    plain_draws = torch.cuda.get_rng_state()
    found = once(make, data, SinkStrategy(sink_size, epoch="dataset", engine=engine), **options(**more))
    said = ("runs eagerly", "cannot be", "cannot compile")
    assert not [text for text in found.warned if any(words in text for words in said)], found.warned
    assert_parity(plain, found, exact=engine == "eager", tolerance=tolerance)
    for (name, _, expected), (_, _, device) in zip(states(plain), states(found), strict=True):
        assert expected == device, name
    assert plain.generators == found.generators
    assert torch.equal(plain_draws, torch.cuda.get_rng_state())
    assert found.engine == engine
    return found


@needs_gpu
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", MODULES)
def test_a_training_is_plain_lightnings(name, engine):
    compared(MODULES[name], engine)


@needs_gpu
@pytest.mark.parametrize("engine", ENGINES)
def test_a_weight_that_is_annealed(engine):
    compared(Anneals, engine, max_epochs=5)


@needs_gpu
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", sorted(CASES.keys() - {"what the host refuses"}))  # that is looked for in no capture
def test_truths_of_what_a_step_computes(name, engine):
    make, rows = CASES[name]
    compared(make, engine, 30, rows, max_epochs=3)


class Averages(Net):
    """Keeps an average of its weights, which counts in a tensor on the device, and weighs the loss by its own count."""

    def __init__(self):
        super().__init__()
        self.average, self.seen = AveragedModel(self.net, multi_avg_fn=get_ema_multi_avg_fn(0.9)), 0

    def training_step(self, batch, batch_idx):
        self.seen += 1
        loss = super().training_step(batch, batch_idx)
        return loss * min(1.0, self.seen / 50)

    def on_before_zero_grad(self, optimizer):
        self.average.update_parameters(self.net)


@needs_gpu
@positions.needed
@pytest.mark.parametrize("engine", ENGINES)
def test_counts_on_the_device_and_in_python(engine):
    found = compared(Averages, engine)
    assert found.module.seen == int(found.module.average.n_averaged) == 80


class OftenNothing(Net):
    """A penalty that most steps leave out: what they log for it lies on the host, as `torch.tensor(0.0)` does."""

    def training_step(self, batch, batch_idx):
        loss = super().training_step(batch, batch_idx)
        penalty = (
            torch.zeros(()) if batch_idx % 3 else 0.01 * sum(weight.square().sum() for weight in self.parameters())
        )
        self.log("penalty", penalty, on_step=True, on_epoch=True)
        return loss + penalty


@needs_gpu
@pytest.mark.parametrize("engine", ENGINES)
def test_values_of_one_name_that_lie_on_the_host_and_on_the_device(engine):
    found = compared(OftenNothing, engine)
    history = found.trainer.strategy.history
    assert history["penalty"].gt(0).tolist() == [step % 3 == 0 for step in range(34, 40)]


@needs_gpu
@pytest.mark.parametrize("engine", ["eager", "traced"])
def test_what_a_step_function_returns_on_the_host_and_on_the_device(engine):
    net, zeros = nn.Linear(4, 3, device="cuda"), (torch.zeros(()), torch.zeros(2))
    optimizer = torch.optim.SGD(net.parameters(), 0.1)

    def step(x):
        loss = net(x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        ways = (loss.detach(), net.bias.detach()[:2].clone())
        one, two = ways if len(x) == 2 else zeros
        return {"loss": loss.detach(), "one": one, "two": two}

    batches = [torch.randn(2 if number % 3 else 3, 4, device="cuda") for number in range(20)]
    with data_sink(step, batches, 20, engine=engine) as sink:
        sink()
        found = sink.history
    for name in ("one", "two"):
        assert found[name].reshape(20, -1).eq(0).all(1).tolist() == [number % 3 == 0 for number in range(20)]


@needs_gpu
@pytest.mark.parametrize("engine", ["inductor", "cudagraph"])
@pytest.mark.parametrize("name", MORE)
def test_options_of_the_trainer(name, engine):
    if name == "bfloat16":  # what lies between the operations of one kernel is not rounded to it
        compared(Wide, engine, tolerance=5e-2, **MORE[name])
    else:
        compared(Net, engine, **MORE[name])


@needs_gpu
@pytest.mark.parametrize("engine", ["inductor", "cudagraph"])
@pytest.mark.parametrize("kind", ["sgd", "adam", "fused"])
def test_steps_that_a_scaler_leaves_out(kind, engine, chunks):
    scales = []

    def make():
        return Halved(kind)

    class Keeps(L.Callback):
        def on_train_end(self, trainer, pl_module):
            scales.append(trainer.precision_plugin.scaler.state_dict())

    more = {"precision": "16-mixed", "callbacks": lambda: [Keeps()]}
    compared(make, engine, 30, data=some_infinite, **more)
    assert scales[0] == scales[1]
    assert scales[0]["scale"] < 1e4
    assert sum(chunks) > 60 or engine == "inductor"


@needs_gpu
def test_steps_that_are_not_run_in_rows_are_replayed_too(monkeypatch):
    monkeypatch.setattr(captured, "_LAUNCHED", float("inf"))  # however long a step takes
    replays, run = [], Block.run
    monkeypatch.setattr(Block, "run", lambda self, columns: (replays.append(self.is_captured), run(self, columns))[1])
    compared(Carries, "cudagraph", 20, data=lambda: loader(60, last=8))
    assert sum(replays) > 60


@needs_gpu
@pytest.mark.parametrize("accumulate", [2, 3, 8])
@pytest.mark.parametrize("name", [name for name in ACCUMULATE if name not in ("collects", "keeps")])
def test_windows_of_accumulation_are_replayed_in_rows(name, accumulate, chunks):
    compared(ACCUMULATE[name], "cudagraph", 40, data=lambda: loader(120), accumulate_grad_batches=accumulate)
    assert sum(chunks) > 50


@needs_gpu
@pytest.mark.parametrize("make", BY_TURNS, ids=lambda make: make.__name__)
def test_ways_through_a_step_that_come_again_are_replayed_in_rows(make, rows):
    compared(make, "cudagraph", -1, data=lambda: loader(120))
    assert rows


@needs_gpu
def test_steps_that_measure_are_run_in_rows_and_nothing_waits_in_them(chunks, monkeypatch):
    row = CapturedRow.launch

    def launched(self):
        torch.cuda.set_sync_debug_mode("error")
        try:
            row(self)
        finally:
            torch.cuda.set_sync_debug_mode("default")

    monkeypatch.setattr(CapturedRow, "launch", launched)
    compared(Measured, "cudagraph", 20, data=lambda: loader(60))
    assert sum(chunks) > 80


@needs_gpu
@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_optimizers_with_lists_of_tensors(kind):
    make = lambda: OptimizedBy(kind, **OPTIMIZERS[kind])  # noqa: E731
    found = once(make, data, SinkStrategy(17, epoch="dataset", engine="cudagraph"), **options())
    assert_parity(once(make, data, **options()), found)
    assert found.engine == "cudagraph"


@needs_gpu
def test_a_sink_of_many_rows_leaves_what_its_last_step_left():
    compared(lambda: Net("adam"), "cudagraph", sink_size=70, data=lambda: loader(140), max_epochs=1)


class Images(L.LightningModule):
    """A small LeNet."""

    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(
            nn.Unflatten(1, (1, 14)),
            nn.Conv1d(1, 4, 3),
            nn.ReLU(),
            nn.MaxPool1d(2),
            nn.Flatten(),
            nn.Linear(24, 8),
            nn.ReLU(),
            nn.Linear(8, 3),
        )

    def training_step(self, batch, batch_idx):
        x, y = batch
        return nn.functional.cross_entropy(self.net(torch.cat([x, x, x[:, :2]], 1)), y)

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=0.01)


class Attention(Images):
    """A layer of attention."""

    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(
            nn.Unflatten(1, (7, 2)),
            nn.Linear(2, 16),
            nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True),
            nn.Flatten(),
            nn.Linear(7 * 16, 3),
        )

    def configure_optimizers(self):  # the gradient of the keys' bias is nothing but rounding: full steps of Adam
        return torch.optim.SGD(self.parameters(), lr=0.05, momentum=0.9)


@needs_gpu
@pytest.mark.parametrize("engine", ["inductor", "cudagraph"])
@pytest.mark.parametrize("make", [Images, Attention])
def test_networks_of_other_layers(make, engine):
    compared(make, engine)


@needs_gpu
def test_data_on_the_device_stays_there():
    cached = lambda: SinkDataModule.from_loaders(loader(40), cache="device")  # noqa: E731
    plain = once(Net, lambda: loader(40), **options())
    assert_parity(plain, once(Net, cached, SinkStrategy(17, epoch="dataset"), **options()))


class NoWaits(L.Callback):
    """Has every synchronisation inside a sink be an error, from the second sink on."""

    def __init__(self):
        self.sinks = 0

    def on_train_batch_start(self, *args):
        self.sinks += 1
        if self.sinks > 2:
            torch.cuda.synchronize()
            torch.cuda.set_sync_debug_mode("error")

    def on_train_batch_end(self, *args):
        torch.cuda.set_sync_debug_mode("default")


def lying():
    return Lying(batches=400, device="cuda:0")  # more than are looked at for memory that is filled again


def without_waits(make, data):
    strategy = SinkStrategy(50, epoch="dataset")
    callbacks = lambda: [NoWaits()]  # noqa: E731
    try:
        return once(make, data, strategy, **options(callbacks=callbacks))
    finally:
        torch.cuda.set_sync_debug_mode("default")


@needs_gpu
@pytest.mark.parametrize("data", [lambda: loader(200, last=8), kept_there, pinned, lying])
def test_nothing_synchronises_inside_a_sink(data, monkeypatch):
    monkeypatch.setattr(BatchHooks, "_compared", lambda self, hook, callbacks, batch: nullcontext())
    without_waits(Still, data)
    with pytest.raises(RuntimeError, match="synchroniz"):  # the control
        without_waits(Looking, data)


@needs_gpu
@pytest.mark.parametrize("places", [None, 1, 2])
def test_batches_that_lie_on_the_device_are_trained_as_they_were(places):
    compared(Net, "cudagraph", 50, data=lambda: Lying(places, device="cuda:0"))


class Memory(L.Callback):
    def __init__(self):
        self.reserved = []

    def on_train_batch_end(self, *args):
        self.reserved.append(torch.cuda.memory_reserved())


@needs_gpu
def test_memory_is_the_same_over_many_sinks_and_fits():
    found = [Memory(), Memory()]
    for memory in found:
        callbacks = lambda kept=memory: [kept]  # noqa: E731
        once(Still, lambda: loader(200, last=8), SinkStrategy(20), **options(max_epochs=200, callbacks=callbacks))
    for memory in found:
        assert len(memory.reserved) == 200
        assert memory.reserved[20:] == [memory.reserved[20]] * 180
    assert found[1].reserved[-1] <= found[0].reserved[-1] + (32 << 20)


class Heavy(L.LightningModule):
    """Parameters that take far more memory than all else of a step."""

    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(16, 512), *[nn.Linear(512, 512) for _ in range(16)])

    def training_step(self, batch, batch_idx):
        return self.net(batch).square().mean()

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), 1e-4)


@needs_gpu
def test_making_and_comparing_programs_takes_memory_for_one_copy_of_the_training():
    module = Heavy()
    parameters = sum(parameter.nbytes for parameter in module.parameters())
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    batches = torch.utils.data.DataLoader(torch.randn(20, 4, 16), batch_size=None)
    trainer = L.Trainer(strategy=SinkStrategy(20), **{**QUIET, **options(max_epochs=1)})
    trainer.fit(module, batches)
    assert trainer.strategy.active_engine == "cudagraph"
    peak = (torch.cuda.max_memory_allocated() - before) / parameters
    # Parameters, moments, the present gradients and those of the step before; all that again; and what the step needs.
    assert peak < 14, f"{peak:.1f} times the parameters"


class Greedy(Still):
    def training_step(self, batch, batch_idx):
        if self.global_step == 5:
            torch.empty(1 << 44, device=self.device)
        return super().training_step(batch, batch_idx)


@needs_gpu
@pytest.mark.filterwarnings("ignore::lightning_sink.errors.SinkWarning")
def test_the_process_is_usable_behind_an_out_of_memory_error():
    with pytest.raises(torch.cuda.OutOfMemoryError):
        once(Greedy, data, SinkStrategy(17, epoch="dataset"), **options())
    compared(Net, "cudagraph")


# -- what users do on a GPU beside the step's operations ---------------------------------------------------------------


class Pins(Net):
    """Brings numbers of its own to the GPU in the way that does not wait."""

    def training_step(self, batch, batch_idx):
        weight = torch.tensor([0.5, 1.0, 1.5], device="cpu").pin_memory().to(self.device, non_blocking=True)
        return super().training_step(batch, batch_idx) * weight.mean()


@needs_gpu
def test_memory_that_a_step_pins():
    compared(Pins, "cudagraph")


class OwnGraph(Net):
    """Computes a part of its loss by a graph that it has captured itself."""

    def setup(self, stage):
        self.given = torch.zeros(3, device="cuda")
        self.graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.graph(self.graph, stream=stream):
            self.doubled = 2 * self.given

    def training_step(self, batch, batch_idx):
        self.given.copy_(batch[0][0, :3])
        self.graph.replay()
        return super().training_step(batch, batch_idx) * (1 + self.doubled.mean().tanh() / 2)

    def on_fit_end(self):
        del self.graph, self.doubled, self.given


@needs_gpu
@pytest.mark.parametrize("verify", [0, 2])
def test_a_graph_of_the_users_is_replayed_in_each_step(verify):
    plain = once(OwnGraph, data, **options())
    found = once(OwnGraph, data, SinkStrategy(17, epoch="dataset", verify=verify), **options())
    assert any("`torch.cuda.CUDAGraph.replay()` is called" in text for text in found.warned), found.warned
    assert_parity(plain, found)


class DrawnOnGpu:
    """Batches that are drawn with replacement where the data lies."""

    def __init__(self):
        self.x, self.y = (tensor.cuda() for tensor in data().dataset.tensors)

    def __len__(self):
        return 40

    def __iter__(self):
        for _ in range(40):
            rows = torch.randint(0, len(self.x), (8,), device="cuda")
            yield self.x[rows], self.y[rows]


@needs_gpu
@pytest.mark.parametrize("engine", ["eager", "cudagraph"])
@pytest.mark.usefixtures("unhurried")
def test_a_loader_that_draws_from_the_gpus_generator_beside_dropout(engine):
    compared(Net, engine, data=DrawnOnGpu)


class SlowOnGpu:
    """Batches that are computed on the GPU, by much work."""

    def __init__(self):
        self.batches = [[tensor.cuda() for tensor in batch] for batch in data()]

    def __len__(self):
        return len(self.batches)

    def __iter__(self):
        for x, y in self.batches:
            made = x
            for _ in range(20):
                made = made.sin() + x
            yield made, y


@needs_gpu
@pytest.mark.parametrize("timeout", [None, 60])
def test_a_training_within_a_stream(timeout):
    def trained(strategy):
        with torch.cuda.stream(torch.cuda.Stream()):
            wrapped = (
                SlowOnGpu if timeout is None else lambda: SinkDataModule.from_loaders(SlowOnGpu(), timeout=timeout)
            )
            return once(Net, SlowOnGpu if strategy == "auto" else wrapped, strategy, **options())

    plain, found = trained("auto"), trained(SinkStrategy(17, epoch="dataset"))
    assert_parity(plain, found)


class ForbidsWaiting(L.Callback):
    def on_train_start(self, trainer, pl_module):
        torch.cuda.set_sync_debug_mode("error")

    def on_train_end(self, trainer, pl_module):
        torch.cuda.set_sync_debug_mode("default")


@needs_gpu
def test_the_engine_itself_may_wait_where_steps_may_not():
    try:
        compared(Quiet, "cudagraph", callbacks=lambda: [ForbidsWaiting()])
    finally:
        torch.cuda.set_sync_debug_mode("default")


class Quiet(Net):
    """Logs nothing, as Lightning waits for what it logs."""

    def training_step(self, batch, batch_idx):
        x, y = batch
        return nn.functional.cross_entropy(self.net(x), y)
