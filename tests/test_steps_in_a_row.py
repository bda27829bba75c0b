"""Steps that nobody on the host has to see are run many in one call, and nothing of it shows."""

import lightning as L
import pytest
import torch
from lightning.pytorch.callbacks import LearningRateMonitor, ModelCheckpoint
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from lightning_sink import SinkDataModule, SinkStrategy
from lightning_sink.engine.loop import CompiledStep
from lightning_sink.trainer.sink import TrainerSink
from parity import Net, assert_parity, both, compare, loader, train


@pytest.fixture
def chunks(monkeypatch):
    """The lengths of the chunks, in order."""
    lengths, original = [], TrainerSink.account_chunk

    def account(self, steps, *arguments):
        lengths.append(len(steps))
        original(self, steps, *arguments)

    monkeypatch.setattr(TrainerSink, "account_chunk", account)
    return lengths


class Quiet(Net):
    """Draws nothing."""

    def __init__(self, **options):
        super().__init__(**options)
        self.net[3] = nn.Identity()


def many(**options):
    return loader(60, **options)


@pytest.mark.parametrize("make", [Quiet, Net], ids=["draws nothing", "draws"])
@pytest.mark.parametrize("data", [many, lambda: many(shuffle=True)], ids=["order", "shuffled"])
@pytest.mark.parametrize("size", [-1, 25])
def test_training_and_rows_are_plain_lightnings(chunks, make, data, size):
    compare(make, "traced", size, data=data)
    assert sum(chunks) > 30
    assert max(chunks) <= size or size < 0


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


@pytest.mark.parametrize("options", [{}, {"max_steps": 71}])
def test_optimization_by_hand(chunks, options):
    compare(ByHand, "traced", -1, data=many, **options)
    assert bool(chunks) == (not options)


def test_accumulation_is_run_one_by_one(chunks):
    compare(Quiet, "traced", -1, data=many, accumulate_grad_batches=3)
    assert not chunks


def test_steps_before_a_schedule_that_fails_are_trained(chunks):
    """Behind its last step OneCycleLR raises: that step and those before it are trained, as in plain Lightning."""
    left = []
    for strategy in ("auto", SinkStrategy(-1, epoch="dataset", engine="traced")):
        torch.manual_seed(5)
        module = Quiet(schedule="onecycle", total_steps=40)
        with pytest.raises(ValueError, match="Tried to step 41 times"):
            train(module, many(), strategy)
        left.append(module.state_dict())
    assert chunks
    for name, expected in left[0].items():
        torch.testing.assert_close(left[1][name], expected)


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
    assert chunks or make is Net


def test_no_batch_is_read_that_is_not_trained(chunks):
    stream = Stream()
    train(Quiet(), DataLoader(stream, batch_size=8), SinkStrategy(-1, epoch="dataset", engine="traced"), max_steps=33)
    plain = Stream()
    train(Quiet(), DataLoader(plain, batch_size=8), max_steps=33)
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


@pytest.mark.parametrize("make", [Quiet, Net], ids=["draws nothing", "draws"])
def test_fetches_that_draw(chunks, make):
    """Steps that draw take turns with such fetches; those that do not leave the order of the draws as it is."""
    compare(make, "traced", -1, data=lambda: DataLoader(Drawing(), batch_size=8))
    assert bool(chunks) == (make is Quiet)


def test_control_without_care_for_draws_the_training_is_another_one(monkeypatch):
    original = CompiledStep.__init__

    def careless(self, *arguments, **options):
        original(self, *arguments, **options)
        self.is_random = False

    monkeypatch.setattr(CompiledStep, "__init__", careless)
    strategy = SinkStrategy(-1, epoch="dataset", engine="traced")
    plain, sink = both(Net, lambda: DataLoader(Drawing(), batch_size=8), strategy, max_epochs=2)
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


class Stops(L.Callback):
    """Ends the training at a sink's end."""

    def on_train_batch_end(self, trainer, *_):
        trainer.should_stop = True


def test_a_training_that_is_stopped_has_trained_whole_chunks(chunks):
    run = train(Quiet(), many(), SinkStrategy(20, epoch="dataset", engine="traced"), callbacks=[Stops()], max_epochs=3)
    assert run.trainer.global_step == 20
    assert chunks
