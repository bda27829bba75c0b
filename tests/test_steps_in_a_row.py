"""Steps that nobody on the host has to see are run many in one call, and nothing of it shows."""

import collections
import functools
import time
from unittest import mock

import lightning as L
import pytest
import torch
from lightning.pytorch.callbacks import LearningRateMonitor, ModelCheckpoint
from lightning.pytorch.loggers.logger import DummyLogger
from lightning.pytorch.utilities import CombinedLoader
from lightning.pytorch.utilities.types import LRSchedulerConfig
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from gallery.held_schedulers import Warmup
from lightning_sink import SinkDataModule, SinkStrategy
from lightning_sink.data import lending, pace, supply
from lightning_sink.data.reuse import Reuse, _Leaf
from lightning_sink.engine.compiler.toolchain import missing_compiler
from lightning_sink.engine.programs import chunks as engine_chunks
from lightning_sink.trainer import log_buffer
from lightning_sink.trainer.loop_sink import LoopSink
from parity import QUIET, Net, Rows, assert_parity, both, compare, loader, once, train

missing = pytest.mark.skipif(missing_compiler() is not None, reason="no C++ compiler")


class Quiet(Net):
    """Draws nothing."""

    def __init__(self, **options):
        super().__init__(**options)
        self.net[3] = nn.Identity()


def many(**options):
    return loader(60, **options)


@pytest.mark.narrow(11)
@pytest.mark.parametrize("make", [Quiet, Net], ids=["draws nothing", "draws"])
@pytest.mark.parametrize("data", [many, lambda: many(shuffle=True)], ids=["order", "shuffled"])
@pytest.mark.parametrize("size", [-1, 25])
def test_training_and_rows_are_plain_lightnings(chunks, make, data, size):
    compare(make, "traced", size, data=data)
    assert sum(chunks) > 30
    assert max(chunks) <= size or size < 0


@pytest.mark.narrow(11)
@pytest.mark.parametrize("make", [Quiet, Net], ids=["draws nothing", "draws"])
@pytest.mark.parametrize("options", [{}, {"shuffle": True}], ids=["order", "shuffled"])
@pytest.mark.parametrize("last", [8, 7])
def test_a_row_goes_on_behind_a_traversals_end(chunks, make, options, last):
    """Traversals begin, and draw, in their turn."""
    plain, sink = both(make, lambda: loader(9, last=last, **options), SinkStrategy(60, engine="traced"), max_epochs=2)
    assert_parity(plain, sink)
    assert plain.generators == sink.generators
    # 13 traversals end within the sinks. A smaller batch is trained by itself, and so is the one behind it.
    assert 120 - sum(chunks) < (15 if last == 8 else 45)


class OwnRates(Quiet):
    """Keeps a scheduler of a class of its own for itself."""

    def configure_optimizers(self):
        optimizer = torch.optim.Adam(self.parameters(), lr=0.01)
        self.scheduler = Warmup(optimizer)
        return optimizer

    def optimizer_step(self, *args, **kwargs):
        super().optimizer_step(*args, **kwargs)
        self.scheduler.step()


class StepRates(Quiet):
    """Lightning steps it."""

    def configure_optimizers(self):
        optimizer = torch.optim.Adam(self.parameters(), lr=0.01)
        return [optimizer], [{"scheduler": Warmup(optimizer), "interval": "step"}]


@pytest.mark.narrow(11)
@pytest.mark.parametrize("make", [OwnRates, StepRates])
@pytest.mark.parametrize("accumulate", [1, 3])
def test_schedulers_of_the_users_are_stepped_in_rows(chunks, make, accumulate):
    compare(make, "traced", -1, data=many, accumulate_grad_batches=accumulate)
    assert sum(chunks) > 60
    assert max(chunks) > 4


class Restarts:
    """Says that it has more batches than it gives, and begins again behind its end."""

    def __init__(self):
        self.batches = list(loader(50, last=8))
        self.given = 0

    def __len__(self):
        return 55

    def __iter__(self):
        return self

    def __next__(self):
        self.given += 1
        if self.given % 51 == 0:
            raise StopIteration
        return self.batches[self.given % 51 - 1]


@pytest.mark.parametrize("engine", ["eager", "traced"])
def test_the_end_of_an_epoch_is_met_once(chunks, engine):
    plain, _ = compare(Net, engine, -1, data=Restarts, max_epochs=3)
    assert plain.trainer.global_step == 150
    assert sum(chunks) > 60 or engine == "eager"


Pair = collections.namedtuple("Pair", "x y")


@pytest.mark.parametrize("kind", [lambda batch: Pair(*batch), lambda batch: collections.OrderedDict(enumerate(batch))])
def test_batches_with_names_make_rows(chunks, kind):
    class Named(Net):
        def training_step(self, batch, batch_idx):
            return super().training_step((batch[0], batch[1]), batch_idx)

    given = [kind(batch) for batch in loader(60, last=8)]
    compare(Named, "traced", -1, data=lambda: DataLoader(given, batch_size=None))
    assert sum(chunks) > 60


class First(Net):
    """Trains on the first of several loaders."""

    def training_step(self, batch, batch_idx):
        return super().training_step(batch["a"], batch_idx)


@pytest.mark.parametrize("mode", ["max_size_cycle", "max_size", "min_size"])
def test_several_loaders_draw_in_their_turn(mode):
    """The shorter one begins again, and draws, in the middle of a traversal in which steps draw."""

    def loaders():
        parts = {"a": loader(40, last=8, shuffle=True), "b": loader(7, last=8, shuffle=True)}
        return CombinedLoader(parts, mode)

    plain, sink = both(First, loaders, SinkStrategy(40, epoch="dataset", engine="traced"), max_epochs=2)
    assert_parity(plain, sink)
    assert plain.generators == sink.generators
    assert not any("drew random numbers" in text for text in sink.warned)


class Unsized(IterableDataset):
    """Has no length."""

    def __iter__(self):
        generator = torch.Generator().manual_seed(1)
        for _ in range(23 * 8):
            yield torch.randn(6, generator=generator), torch.randint(3, (), generator=generator)


@pytest.mark.parametrize("timeout", [None, 60])
def test_data_without_a_length_begins_in_its_turn(timeout):
    plain = once(Net, lambda: DataLoader(Unsized(), 8), length=40, max_epochs=2)
    data = lambda: SinkDataModule.from_loaders(DataLoader(Unsized(), 8), timeout=timeout)  # noqa: E731
    sink = once(Net, data, SinkStrategy(40, engine="traced"), max_epochs=2)
    assert_parity(plain, sink)
    assert plain.generators == sink.generators
    assert not any("drew random numbers" in text for text in sink.warned)


@pytest.mark.parametrize("options", [{"max_steps": 41}, {"log_every_n_steps": 1}, {"log_every_n_steps": 50}])
def test_what_is_counted_in_steps_happens_at_its_step(chunks, options):
    compare(Quiet, "traced", -1, data=many, **options)
    assert chunks


def test_a_checkpoint_in_an_epoch_resumes_behind_the_last_chunk(chunks, tmp_path):
    """Where batches are fetched further than they are trained, the place in the data is that of the training."""

    def strategy():
        return SinkStrategy(20, epoch="dataset", engine="traced")

    saves = ModelCheckpoint(tmp_path, every_n_train_steps=20, save_top_k=-1, filename="{step}")
    torch.manual_seed(0)
    first = Quiet()
    whole = train(first, many(shuffle=True), strategy(), callbacks=[saves], enable_checkpointing=True, max_epochs=1)
    assert chunks
    resumed = train(Quiet(), many(shuffle=True), strategy(), checkpoint=tmp_path / "step=20.ckpt", max_epochs=1)
    assert resumed.trainer.global_step == whole.trainer.global_step == 60
    for name, expected in whole.module.state_dict().items():
        torch.testing.assert_close(resumed.module.state_dict()[name], expected)


def test_a_monitor_sees_each_step_that_it_logs(chunks):
    compare(Quiet, "traced", -1, data=many, callbacks=lambda: [LearningRateMonitor("step")], log_every_n_steps=7)
    assert chunks
    assert max(chunks) <= 6


@pytest.mark.narrow(11)
@pytest.mark.parametrize("schedule", ["onecycle", "step"])
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_schedules_go_on_in_a_chunk(chunks, schedule, optimizer):
    """One cycles the momentum, too: that is an input of the program once it has been seen to change."""
    compare(lambda: Quiet(optimizer=optimizer, schedule=schedule, total_steps=200), "traced", -1, data=many)
    assert sum(chunks) > 60


class Drops(Quiet):
    """A schedule that changes the rate seldom."""

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=0.05, weight_decay=1e-3)
        scheduler = torch.optim.lr_scheduler.MultiStepLR(optimizer, [20, 21, 45, 90])
        return [optimizer], [{"scheduler": scheduler, "interval": "step", "frequency": 2}]


def test_a_schedule_with_a_frequency(chunks):
    compare(Drops, "traced", -1, data=many)
    assert sum(chunks) > 60


class ByHand(Quiet):
    def __init__(self):
        super().__init__()
        self.automatic_optimization = False

    def training_step(self, batch, batch_idx):
        optimizer = self.optimizers()
        for _ in range(2):
            optimizer.zero_grad()
            loss = super().training_step(batch, batch_idx)
            self.manual_backward(loss)
            optimizer.step()
        return loss


class ByHandWithASchedule(ByHand):
    """Lightning steps no schedule of a module that steps its optimizers itself."""

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=0.05)
        return [optimizer], [{"scheduler": torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5), "interval": "step"}]


def test_a_schedule_beside_optimization_by_hand_stands_still(chunks):
    plain, sink = compare(ByHandWithASchedule, "traced", -1, data=many)
    assert chunks
    for run in (plain, sink):
        assert run.trainer.lr_scheduler_configs[0].scheduler.last_epoch == 0


class TwoSchedules(Quiet):
    """Of one optimizer, each at its own pace; the second also says when an epoch is over."""

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=0.05)
        often = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.99)
        seldom = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
        each_epoch = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.7)
        return [optimizer], [
            {"scheduler": often, "interval": "step"},
            {"scheduler": seldom, "interval": "step", "frequency": 7},
            {"scheduler": each_epoch, "interval": "epoch"},
        ]


def test_several_schedules(chunks):
    plain, sink = compare(TwoSchedules, "traced", 25, data=many)
    assert sum(chunks) > 60
    counts = [run.trainer.fit_loop.epoch_loop.scheduler_progress.state_dict() for run in (plain, sink)]
    assert counts[0] == counts[1]
    assert counts[0]["total"]["completed"] > 0


class StepsItsScheduleWhereEpochsEnd(Quiet):
    """By code of its own, which sets an attribute that steps use."""

    weight = 1.0

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=0.05)
        return [optimizer], [torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)]

    def lr_scheduler_step(self, scheduler, metric):
        scheduler.step()
        self.weight *= 0.5

    def training_step(self, batch, batch_idx):
        return super().training_step(batch, batch_idx) * self.weight


@pytest.mark.parametrize("size", [-1, 25])
def test_code_that_steps_a_schedule_where_epochs_end_parts_no_rows(chunks, size):
    compare(StepsItsScheduleWhereEpochsEnd, "traced", size, data=many)
    assert sum(chunks) > 60


def exponential(optimizer, **options):
    return LRSchedulerConfig(torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9), interval="step", **options)


CHANGES = {
    "the interval": lambda trainer, module: setattr(trainer.lr_scheduler_configs[0], "interval", "epoch"),
    "the frequency": lambda trainer, module: setattr(trainer.lr_scheduler_configs[0], "frequency", 3),
    "all of them": lambda trainer, module: trainer.lr_scheduler_configs.clear(),
    "one more": lambda trainer, module: trainer.lr_scheduler_configs.append(exponential(trainer.optimizers[0])),
    "others": lambda trainer, module: setattr(
        trainer.strategy, "lr_scheduler_configs", [exponential(trainer.optimizers[0], frequency=2)]
    ),
    "a way around Lightning's": lambda trainer, module: setattr(
        module, "lr_scheduler_step", functools.wraps(module.lr_scheduler_step)(lambda scheduler, metric: None)
    ),
    "its own way": lambda trainer, module: setattr(
        module, "lr_scheduler_step", lambda scheduler, metric: (scheduler.step(), scheduler.step())
    ),
}


class ChangesSchedules(L.Callback):
    """Changes what is to be stepped from the first batch of the second epoch on."""

    def __init__(self, change):
        self.change = CHANGES[change]

    def on_train_batch_start(self, trainer, module, batch, batch_idx):
        if trainer.current_epoch == 1 and batch_idx == 0:
            self.change(trainer, module)


@pytest.mark.narrow(13)
@pytest.mark.filterwarnings("ignore:A callback changes weights")
@pytest.mark.parametrize(
    ("change", "scheduled"),
    [*((change, True) for change in CHANGES), ("one more", False), ("others", False), ("its own way", False)],
)
def test_schedules_that_a_callback_changes_at_a_sinks_first_batch(chunks, change, scheduled):
    options = {"schedule": "onecycle", "total_steps": 500} if scheduled else {}
    plain, sink = compare(
        lambda: Quiet(**options), "traced", -1, data=many, max_epochs=3, callbacks=lambda: [ChangesSchedules(change)]
    )
    assert chunks
    left = [
        (
            run.trainer.fit_loop.epoch_loop.scheduler_progress.state_dict(),
            [config.scheduler.last_epoch for config in run.trainer.lr_scheduler_configs],
        )
        for run in (plain, sink)
    ]
    assert left[0] == left[1]


class ChangesItsSchedules(Quiet):
    """Does so in one of its own steps, which nothing compiles."""

    def __init__(self, change):
        super().__init__()
        self.change = change

    def on_train_batch_end(self, outputs, batch, batch_idx):
        if self.trainer.current_epoch == 0 and batch_idx == 1:
            CHANGES[self.change](self.trainer, self)


@pytest.mark.parametrize("change", ["one more", "others", "its own way"])
def test_schedules_that_a_module_changes_in_the_middle_of_a_sink(chunks, change):
    plain, sink = compare(lambda: ChangesItsSchedules(change), "traced", -1, data=many)
    counts = [run.trainer.fit_loop.epoch_loop.scheduler_progress.state_dict() for run in (plain, sink)]
    rates = [run.trainer.optimizers[0].param_groups[0]["lr"] for run in (plain, sink)]
    assert counts[0] == counts[1]
    assert rates[0] == rates[1]


@pytest.mark.parametrize("options", [{}, {"max_steps": 71}])
def test_optimization_by_hand(chunks, options):
    compare(ByHand, "traced", -1, data=many, **options)
    assert sum(chunks) > 25


def failed(make, data, error, engine="traced", **options):
    """Trains both ways into an error; returns what is left of each."""
    left = []
    for strategy in ("auto", SinkStrategy(-1, epoch="dataset", engine=engine)):
        rows = Rows()
        options = {"log_every_n_steps": 1, **QUIET, **options}
        trainer = L.Trainer(strategy=strategy, logger=rows, max_epochs=3, **options)
        torch.manual_seed(5)
        module = make()
        with mock.patch.multiple(pace, _WARM_UP=0, _TRIAL=3), pytest.raises(error) as raised:
            trainer.fit(module, data())
        loop = trainer.fit_loop.epoch_loop
        schedules = [config.scheduler.state_dict() for config in trainer.lr_scheduler_configs]
        counts = trainer.global_step, loop._batches_that_stepped, schedules
        counts = *counts, loop.state_dict()
        notes = " ".join(getattr(raised.value, "__notes__", []))
        seen = [(step, sorted(row)) for step, row in rows.rows]
        left.append((module.state_dict(), counts, seen, notes, torch.get_rng_state(), trainer.logged_metrics))
    return left


def assert_left_the_same(plain, sink):
    for name, expected in plain[0].items():
        torch.testing.assert_close(sink[0][name], expected, rtol=1e-4, atol=1e-5)
    assert sink[1] == plain[1]
    assert sink[2] == plain[2]
    torch.testing.assert_close(sink[5], plain[5], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("total", [26, 30, 33, 38, 40])
def test_steps_before_a_schedule_that_fails_are_trained(chunks, total):
    """Behind its last step OneCycleLR raises: that step and those before it are trained, as in plain Lightning."""
    plain, sink = failed(lambda: Quiet(schedule="onecycle", total_steps=total), many, ValueError)
    assert chunks
    assert_left_the_same(plain, sink)


def with_a_wrong_label(at):
    batches = [(x, y.clone()) for x, y in loader(60, last=8)]
    batches[at][1][3] = 99
    return InMemory(batches)


@pytest.mark.narrow(11)
@pytest.mark.parametrize("schedule", ["none", "onecycle"])
@pytest.mark.parametrize("at", [40, 47, 55])
def test_steps_before_one_that_fails_are_counted(chunks, schedule, at):
    data = with_a_wrong_label(at)
    plain, sink = failed(lambda: Quiet(schedule=schedule, total_steps=200), lambda: data, IndexError)
    assert chunks
    # Whether running statistics are updated before the error is an order of operations, the same in each step.
    assert_left_the_same(plain, sink)
    assert f"in a compiled step, of batch {at} of epoch 0" in sink[3]


class Monitored(Quiet):
    def configure_callbacks(self):
        return [LearningRateMonitor("step")]


@pytest.mark.parametrize("at", [47, 54])  # a step that the monitor meets, and one that it does not
def test_what_was_logged_before_a_step_that_fails_under_a_monitor(chunks, at):
    data = with_a_wrong_label(at)
    plain, sink = failed(Monitored, lambda: data, IndexError, log_every_n_steps=4)
    assert chunks
    assert_left_the_same(plain, sink)


class Counts(Quiet):
    """Computes with its index, and takes another way now and then."""

    def training_step(self, batch, batch_idx):
        loss = super().training_step(batch, batch_idx)
        if batch_idx % 20 == 7:
            loss = loss * 0.5
        return loss * (1 + 0.01 * batch_idx) + 0 * self.global_step


@pytest.mark.parametrize("schedule", ["none", "onecycle"])
def test_counters_go_on_in_a_chunk(chunks, schedule):
    compare(lambda: Counts(schedule=schedule, total_steps=200), "traced", -1, data=many)
    assert sum(chunks) > 40


@pytest.fixture
def beside(monkeypatch):
    """How many steps were running when the next ones were asked for, where any were."""
    running, original = [], LoopSink.ahead

    def ahead(self, step, note, most, behind=0):
        steps = original(self, step, note, most, behind)
        if steps and behind:
            running.append(behind)
        return steps

    monkeypatch.setattr(LoopSink, "ahead", ahead)
    return running


@pytest.mark.narrow
@missing
@pytest.mark.parametrize(("make", "schedule"), [(Counts, "onecycle"), (Quiet, "none"), (Net, "onecycle")])
def test_the_next_steps_are_gone_through_while_others_run(beside, make, schedule):
    compare(lambda: make(schedule=schedule, total_steps=200), "inductor", -1, data=many)
    assert beside


@pytest.mark.narrow(11)
@missing
@pytest.mark.parametrize("total", [30, 33, 38, 40, 55])
def test_a_schedule_that_fails_while_others_run(beside, total):
    plain, sink = failed(lambda: Net(schedule="onecycle", total_steps=total), many, ValueError, "inductor")
    assert beside
    assert_left_the_same(plain, sink)


class CyclesLate(Quiet):
    """A momentum that begins to change in the middle of an epoch: it was a constant of the program before."""

    def __init__(self, at):
        super().__init__()
        self.at = at

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=0.05, momentum=0.9)
        first = torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, total_iters=10)
        second = torch.optim.lr_scheduler.CyclicLR(optimizer, 0.01, 0.1, step_size_up=10)
        schedule = torch.optim.lr_scheduler.SequentialLR(optimizer, [first, second], milestones=[self.at])
        return [optimizer], [{"scheduler": schedule, "interval": "step"}]


@pytest.mark.narrow
@missing
@pytest.mark.parametrize(("at", "most"), [(30, 4), (41, 1024), (90, 4)])
def test_an_option_that_changes_late_while_others_run(beside, at, most, monkeypatch):
    monkeypatch.setattr(engine_chunks, "_MOST", most)
    compare(lambda: CyclesLate(at), "inductor", -1, data=many)
    assert beside


class FillsItsRate(Net):
    """A rate that is a tensor, which the schedule fills."""

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=torch.tensor(0.05))
        return [optimizer], [{"scheduler": torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.98), "interval": "step"}]


FAILING = {
    "none": Net,
    "onecycle": lambda: Net(schedule="onecycle", total_steps=200),
    "a tensor": FillsItsRate,
}


@pytest.mark.narrow(13)
@missing
@pytest.mark.parametrize("schedule", FAILING)
@pytest.mark.parametrize("at", [40, 43, 50, 55])
def test_a_step_that_fails_while_the_next_ones_wait(beside, schedule, at):
    data = with_a_wrong_label(at)
    plain, sink = failed(FAILING[schedule], lambda: data, IndexError, "inductor")
    assert beside
    assert sink[1:3] == plain[1:3]
    assert torch.equal(sink[4], plain[4]), "the random generator"


class Fails(Dataset):
    """Raises in the middle of an epoch."""

    def __init__(self, at, error):
        self.at, self.error, self.inner = at, error, loader(60, last=8).dataset

    def __len__(self):
        return len(self.inner)

    def __getitem__(self, index):
        if index == self.at:
            raise self.error
        return self.inner[index]


class Own(RuntimeError):
    pass


def test_batches_before_one_that_fails_are_trained(chunks):
    trained = []
    for strategy in ("auto", SinkStrategy(-1, epoch="dataset", engine="traced")):
        module = Quiet()
        module.load_state_dict(trained[0][0] if trained else module.state_dict())
        before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
        with pytest.raises(Own):
            train(module, DataLoader(Fails(300, Own()), batch_size=8), strategy)
        trained.append((before, module.state_dict()))
    assert chunks
    for name, expected in trained[0][1].items():
        torch.testing.assert_close(trained[1][1][name], expected)


class Stream(IterableDataset):
    """Knows no length; keeps how far it was read."""

    def __init__(self):
        self.read = 0

    def __iter__(self):
        for row in TensorDataset(*loader(60, last=8).dataset.tensors):
            self.read += 1
            yield row


@pytest.mark.parametrize("make", [Quiet, Net], ids=["draws nothing", "draws"])
def test_data_without_a_length(chunks, make):
    compare(make, "traced", -1, data=lambda: DataLoader(Stream(), batch_size=8))
    assert chunks


def test_no_batch_is_read_that_is_not_trained(chunks):
    stream = Stream()
    train(Quiet(), DataLoader(stream, batch_size=8), SinkStrategy(-1, epoch="dataset", engine="traced"), max_steps=53)
    plain = Stream()
    train(Quiet(), DataLoader(plain, batch_size=8), max_steps=53)
    assert chunks
    assert stream.read == plain.read


class Drawing(Dataset):
    """Draws from torch's default generator for each row."""

    def __init__(self):
        self.inner = loader(60).dataset

    def __len__(self):
        return len(self.inner)

    def __getitem__(self, index):
        x, y = self.inner[index]
        return x + torch.randn(6), y


class Sometimes(Quiet):
    """Draws at some steps only."""

    def training_step(self, batch, batch_idx):
        x, y = batch
        if batch_idx % 20 == 13:
            x = x + torch.randn_like(x)
        return super().training_step((x, y), batch_idx)


@pytest.mark.parametrize("make", [Quiet, Net, Sometimes])
def test_fetches_that_draw_take_turns_with_the_steps(chunks, make):
    compare(make, "traced", -1, data=lambda: DataLoader(Drawing(), batch_size=8))
    assert not chunks


class DrawsARate(Net):
    """Its schedule draws from the generator that its dropout draws from."""

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=0.05)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 + 0.5 * torch.rand(()).item())
        return [optimizer], [{"scheduler": schedule, "interval": "step"}]


def test_a_schedule_that_draws_takes_turns_with_the_steps(chunks):
    compare(DrawsARate, "traced", -1, data=many)
    assert not chunks


class DrawingLater(Drawing):
    """Draws for some rows only, far from the first."""

    def __getitem__(self, index):
        return super().__getitem__(index) if index > 300 else self.inner[index]


def test_a_fetch_that_draws_all_the_same_is_warned_of(chunks):
    data = DataLoader(DrawingLater(), batch_size=8)
    run = train(Quiet(), data, SinkStrategy(-1, epoch="dataset", engine="traced"), max_epochs=1)
    assert chunks
    assert any("drew random numbers" in text for text in run.warned)
    run = train(Quiet(), many(), SinkStrategy(-1, epoch="dataset", engine="traced"), max_epochs=1)
    assert not any("drew random numbers" in text for text in run.warned)


@pytest.mark.parametrize("make", [Quiet, Net, Sometimes])
def test_control_fetched_ahead_they_get_other_numbers(chunks, make, monkeypatch):
    monkeypatch.setattr(supply, "watch_states", lambda: lambda: False)
    strategy = SinkStrategy(-1, epoch="dataset", engine="traced")
    plain, sink = both(make, lambda: DataLoader(Drawing(), batch_size=8), strategy, max_epochs=2)
    assert chunks
    if make is not Quiet:
        with pytest.raises(AssertionError):
            assert_parity(plain, sink, tolerance=1e-4)


class InMemory:
    """A loader of the user's own."""

    def __init__(self, batches):
        self.batches = batches

    def __len__(self):
        return len(self.batches)

    def __iter__(self):
        return iter(self.batches)


def test_a_batch_of_another_shape_ends_a_chunk(chunks):
    batches = list(loader(60))
    batches[30] = tuple(tensor[:5] for tensor in batches[30])
    compare(Quiet, "traced", -1, data=lambda: InMemory(batches))
    assert chunks


def test_nothing_is_fetched_ahead_where_there_is_no_buffer(chunks):
    data = SinkDataModule.from_loaders(many(), buffer_size=0)
    train(Quiet(), data, SinkStrategy(-1, epoch="dataset", engine="traced"), max_epochs=1)
    assert not chunks


class Refilled:
    """Fills a few buffers in turn, as fast loaders do; fewer from some batch on, as where each has its length."""

    def __init__(self, buffers, later=None, count=60):
        self.batches, self.buffers, self.later = list(loader(count, last=8)), buffers, min(buffers, later or buffers)

    def __len__(self):
        return len(self.batches)

    def __iter__(self):
        held = [[tensor.clone() for tensor in self.batches[0]] for _ in range(self.buffers)]
        for number, batch in enumerate(self.batches):
            place = number % (self.buffers if number < 20 else self.later)
            for tensor, present in zip(batch, held[place], strict=True):
                present.copy_(tensor)
            yield held[place]


@pytest.mark.narrow(11)
@pytest.mark.parametrize("buffers", [1, 3, 40])
@pytest.mark.parametrize("later", [None, 1, 2])
def test_a_loader_that_fills_memory_again(chunks, buffers, later):
    plain, sink = compare(Quiet, "traced", -1, data=lambda: Refilled(buffers, later))
    assert max(chunks) > 1
    reason = sink.trainer.strategy.queue_report().in_step_because
    assert ("fills the memory" in reason) == (buffers < 40 or later is not None)


def test_rows_of_small_batches_become_longer(chunks):
    batches = [*loader(300, last=8)]
    compare(Quiet, "traced", -1, data=lambda: InMemory(batches))
    assert chunks.index(16) < chunks.index(64)
    assert chunks.count(64) >= 2 * (300 - 33 - 129 - 64) // 64 + 3


@pytest.mark.parametrize("given", [{"buffer_size": 16}, {"small": 8 * 4 * 4}], ids=["as chosen", "large"])
def test_where_they_are_not_small_or_the_user_chose_they_do_not(chunks, monkeypatch, given):
    monkeypatch.setattr(lending, "_SMALL", given.get("small", 1 << 16))
    data = InMemory([*loader(300, last=8)])
    if "buffer_size" in given:
        data = SinkDataModule.from_loaders(data, buffer_size=16)
    train(Quiet(), data, SinkStrategy(-1, epoch="dataset", engine="traced"), max_epochs=1)
    assert max(chunks) == 16


class Centres(Quiet):
    """Writes to its batch, which it finds so where that comes again."""

    since = 0

    def training_step(self, batch, batch_idx):
        if self.current_epoch >= self.since:
            batch[0].sub_(batch[0].mean() / 2)
        return super().training_step(batch, batch_idx)


class CentresLater(Centres):
    """The batches have been looked at by then."""

    since = 1


@pytest.mark.narrow(13)
@pytest.mark.parametrize(
    ("make", "count", "longest"),
    [(Centres, 20, 0), (Centres, 50, 16), (Centres, 140, 16)]
    + [(CentresLater, 20, 64), (CentresLater, 50, 64), (CentresLater, 140, 64)],
)
def test_steps_that_write_to_their_batches(chunks, make, count, longest):
    compare(make, "traced", -1, data=lambda: InMemory([*loader(count, last=8)] * (420 // count)))
    assert max(chunks, default=0) == longest


def test_steps_that_write_to_their_batches_while_these_are_looked_at(chunks):
    compare(CentresLater, "traced", -1, data=lambda: InMemory([*loader(60, last=8)]), max_epochs=6)
    assert max(chunks) == 16


@pytest.mark.narrow
@pytest.mark.parametrize(("buffers", "longest"), [(40, 16), (100, 16), (140, 64)])
def test_a_loader_that_fills_memory_again_far_behind(chunks, buffers, longest):
    """So far that rows of 16 do not meet it, and longer ones may."""
    compare(Quiet, "traced", -1, data=lambda: Refilled(buffers, count=300))
    assert max(chunks) == longest


def test_control_longer_rows_of_what_is_overwritten_train_another_model(chunks, monkeypatch):
    monkeypatch.setattr(_Leaf, "holds_another", lambda leaf: False)
    strategy = SinkStrategy(-1, epoch="dataset", engine="traced")
    with pytest.raises(AssertionError):
        assert_parity(*both(Quiet, lambda: Refilled(40, count=300), strategy, max_epochs=2), tolerance=1e-4)


class InOneList(Refilled):
    """Gives new tensors, in a few lists in turn, which hold what comes later by then."""

    def __iter__(self):
        lists = [[None, None] for _ in range(self.buffers)]
        for number, batch in enumerate(self.batches):
            lists[number % self.buffers][:] = [tensor.clone() for tensor in batch]
            yield lists[number % self.buffers]


@pytest.mark.narrow(11)
@pytest.mark.parametrize("buffers", [1, 3])
@pytest.mark.parametrize("engine", ["eager", "traced"])
def test_a_loader_that_fills_a_list_again(chunks, engine, buffers):
    plain, sink = compare(Quiet, engine, -1, data=lambda: InOneList(buffers))
    assert engine == "eager" or max(chunks) > 1
    assert "fills the memory" in sink.trainer.strategy.queue_report().in_step_because


def test_control_batches_in_lists_that_are_filled_again_train_another_model(chunks, monkeypatch):
    monkeypatch.setattr(Reuse, "_has_others", lambda self, batch: False)
    strategy = SinkStrategy(-1, epoch="dataset", engine="traced")
    monkeypatch.setattr(pace, "_CHEAP", 0.0)
    with pytest.raises(AssertionError):
        assert_parity(*both(Quiet, lambda: InOneList(3), strategy, max_epochs=2), tolerance=1e-4)


class IntoOne(torch.Tensor):
    """Samples that are stacked into one buffer of theirs."""

    buffers = {}

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        if function is torch.stack:
            plain = [sample.as_subclass(torch.Tensor) for sample in args[0]]
            stacked = torch.stack(plain)
            return cls.buffers.setdefault(stacked.shape, stacked).copy_(stacked)
        return super().__torch_function__(function, types, args, kwargs or {})


def test_samples_that_stack_themselves_into_memory_of_theirs(chunks):
    """Torch's own collating makes each batch anew, unless the samples have a say in it."""
    rows = [(x.as_subclass(IntoOne), y) for x, y in loader(60, last=8).dataset]
    _, sink = compare(Quiet, "traced", -1, data=lambda: DataLoader(rows, batch_size=8))
    assert max(chunks) > 1
    assert "fills the memory" in sink.trainer.strategy.queue_report().in_step_because


def test_control_others_are_run_in_rows_from_the_fourth_on(chunks):
    rows = [*loader(60, last=8).dataset]
    _, sink = compare(Quiet, "traced", -1, data=lambda: DataLoader(rows, batch_size=8))
    assert sink.trainer.strategy.queue_report().in_step_because == ""
    assert sum(chunks) > 100


@pytest.mark.narrow(11)
@pytest.mark.parametrize("kind", [Refilled, InOneList])
@pytest.mark.parametrize("buffers", [1, 2, 5])
@pytest.mark.parametrize("early_preload", [False, True])
def test_a_slow_loader_that_fills_memory_again(buffers, early_preload, kind, monkeypatch):
    monkeypatch.setattr(pace, "_CHEAP", 0.0)  # as from a disk: the queue's thread is tried

    def data():
        return SinkDataModule.from_loaders(kind(buffers), early_preload=early_preload)

    compare(Quiet, "traced", 15, data=data)


def test_control_batches_that_are_overwritten_train_another_model(chunks, monkeypatch):
    monkeypatch.setattr(Reuse, "note", lambda self, batch: vars(self).update(seen=33, ended=True))
    strategy = SinkStrategy(-1, epoch="dataset", engine="traced")
    plain, sink = both(Quiet, lambda: Refilled(3), strategy, max_epochs=2)
    with pytest.raises(AssertionError):
        assert_parity(plain, sink, tolerance=1e-4)


class Doubles(Quiet):
    """Writes to its batch, in memory that the loader gives again: each epoch's is another."""

    def training_step(self, batch, batch_idx):
        x, y = batch
        return super().training_step((x.mul_(0.9), y), batch_idx)


@pytest.mark.parametrize("count", [3, 20, 50])
def test_a_step_that_writes_to_batches_that_come_again(count):
    batches = list(loader(count, last=8))

    def data():
        return DataLoader([[tensor.clone() for tensor in batch] for batch in batches], batch_size=None)

    compare(Doubles, "traced", -1, data=data)


class Stops(L.Callback):
    """Ends the training at a sink's end."""

    def on_train_batch_end(self, trainer, *_):
        trainer.should_stop = True


def test_a_training_that_is_stopped_has_trained_whole_chunks(chunks):
    run = train(Quiet(), many(), SinkStrategy(20, epoch="dataset", engine="traced"), callbacks=[Stops()], max_epochs=3)
    assert run.trainer.global_step == 20
    assert chunks


class FailingLogger(DummyLogger):
    """Cannot log one of the steps; looks whether the weights stand still while it is called."""

    def __init__(self, at):
        super().__init__()
        self.at, self.moved, self.module = at, False, None

    def log_metrics(self, metrics, step=None):
        before = [parameter.detach().clone() for parameter in self.module.parameters()]
        time.sleep(0.002)  # a row of steps would change them meanwhile
        self.moved |= not all(map(torch.equal, before, self.module.parameters()))
        if step == self.at:
            raise ConnectionError("the logger's server is gone")


@pytest.mark.skipif(missing_compiler() is not None, reason="no C++ compiler")
def test_a_logger_that_fails_leaves_no_step_uncounted(chunks, monkeypatch):
    monkeypatch.setattr(log_buffer, "_MOST_ROWS", 20)
    monkeypatch.setattr(pace, "_WARM_UP", 0)
    monkeypatch.setattr(pace, "_TRIAL", 3)
    logger, off = (
        FailingLogger(150),
        {"enable_checkpointing": False, "enable_progress_bar": False, "accelerator": "cpu"},
    )
    strategy = SinkStrategy(-1, epoch="dataset", engine="inductor")
    sink = L.Trainer(logger=logger, strategy=strategy, max_epochs=1, log_every_n_steps=1, **off)
    torch.manual_seed(1)
    logger.module = module = Quiet()
    with pytest.raises(ConnectionError):
        sink.fit(module, loader(400))
    assert len(chunks) > 3
    assert not logger.moved
    torch.manual_seed(1)
    plain = Quiet()
    L.Trainer(logger=False, max_steps=sink.global_step, **off).fit(plain, loader(400))
    for expected, found in zip(plain.parameters(), module.parameters(), strict=True):
        torch.testing.assert_close(found, expected)
