"""Data that fails, hangs or is interrupted: what the user gets, what is left, and whether training works again."""

import gc
import os
import queue
import signal
import sqlite3
import threading
import time
import traceback
import weakref
from unittest import mock

import lightning as L
import pytest
import torch
from lightning.pytorch.callbacks import OnExceptionCheckpoint
from torch.utils.data import DataLoader, IterableDataset
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter

from lightning_sink import DataTimeoutError, SinkDataModule
from lightning_sink.data.pace import Pace
from lightning_sink.data.queue import BatchQueue
from parity import QUIET, Net, assert_parity, loader, train
from test_data_path import Ahead, Ids, Seen, fetching, fit, sinks
from test_data_randomness import Drawing

pytestmark = pytest.mark.filterwarnings("ignore:You have overridden `.*transfer")


class Broken(Exception):
    pass


@pytest.fixture(params=["ahead", "own", "changing"])
def way(request):
    with fetching(request.param):
        yield request.param


class Failing(Drawing):
    """Acts at its `at`-th fetch."""

    def __init__(self, at, act):
        super().__init__()
        self.at, self.act = at, act

    def __getitem__(self, index):
        if self.fetched == self.at:
            self.at = -1
            self.act()
        return super().__getitem__(index)


class FailingStream(IterableDataset):
    def __init__(self, at, act):
        self.inner = Failing(at, act)

    def __iter__(self):
        return (self.inner[index] for index in range(len(self.inner)))


def raiser(error):
    def act():
        raise error

    return act


def collating(at, act):
    calls = iter(range(10**6))

    def collate(samples):
        if next(calls) == at // 8:
            act()
        return torch.utils.data.default_collate(samples)

    return DataLoader(Drawing(), batch_size=8, collate_fn=collate)


def sampling(at, act):
    def indices():
        for index in range(70):
            if index == at:
                act()
            yield index

    class Sampler(torch.utils.data.Sampler):
        def __iter__(self):
            return indices()

        def __len__(self):
            return 70

    return DataLoader(Drawing(), batch_size=8, sampler=Sampler())


SOURCES = {
    "dataset": lambda at, act: DataLoader(Failing(at, act), batch_size=8),
    "collate_fn": collating,
    "sampler": sampling,
    "stream": lambda at, act: DataLoader(FailingStream(at, act), batch_size=8),
}


@pytest.mark.narrow(11)
@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize(("size", "epoch"), [(-1, "dataset"), (4, "dataset"), (6, "sink")])
def test_an_error_comes_after_the_batches_before_it(way, source, size, epoch):
    error = Broken("row 42 is broken")
    torch.manual_seed(1)
    module, reference = Net(), Net()
    reference.load_state_dict(module.state_dict())
    strategy = sinks(size, epoch)
    trainer = L.Trainer(**QUIET, logger=False, strategy=strategy, max_epochs=9)
    torch.manual_seed(2)
    with pytest.raises(Broken) as raised:
        trainer.fit(module, SOURCES[source](42, raiser(error)))
    assert raised.value is error
    notes = "\n".join(error.__notes__)
    assert notes.count("[lightning_sink]") == 1
    # Data without a length is fetched one batch further, by plain Lightning too.
    trained = 4 if source == "stream" and epoch == "dataset" else 5
    assert "batch 5 of traversal 0" in notes
    assert trainer.global_step == trained
    torch.manual_seed(2)
    plain = L.Trainer(**QUIET, logger=False, max_steps=trained)
    plain.fit(reference, SOURCES[source](10**6, lambda: None))
    for (name, a), b in zip(reference.state_dict().items(), module.state_dict().values(), strict=True):
        assert torch.equal(a, b), name
    # The same objects train again.
    trainer.fit_loop.max_epochs = trainer.current_epoch + 1
    trainer.fit(module, SOURCES[source](10**6, lambda: None))
    assert trainer.global_step > trained


@pytest.mark.parametrize("ahead", [False, True])
def test_an_error_of_a_transfer_hook(way, ahead):
    error = Broken("the hook")

    class Hooked(Seen):
        def on_after_batch_transfer(self, batch, dataloader_idx):
            if 6.0 in batch:
                raise error
            return batch

    trainer = L.Trainer(**QUIET, logger=False, strategy=sinks(-1), max_epochs=1)
    data = SinkDataModule.from_loaders(DataLoader(Ids(20), batch_size=2), transfer_ahead=ahead)
    with pytest.raises(Broken) as raised:
        trainer.fit(Hooked(), datamodule=data)
    assert raised.value is error
    assert trainer.global_step == 3
    if ahead:
        assert "batch" in "".join(error.__notes__)
        assert "traversal 0" in "".join(error.__notes__)


@pytest.mark.parametrize(("kind", "size"), [("ahead", -1), ("own", 6)])
def test_an_error_in_a_worker(kind, size):
    data = DataLoader(Failing(10, raiser(Broken("in a worker"))), batch_size=8, num_workers=1)
    with fetching(kind), pytest.raises(Broken, match="in a worker") as raised:
        train(Net(), data, sinks(size), max_epochs=1)
    assert "batch 1 of traversal 0" in "".join(raised.value.__notes__)
    traceback.clear_frames(raised.tb)  # they hold the loader's iterator, which is slow to end as part of a cycle
    train(Net(), DataLoader(Drawing(), batch_size=8, num_workers=1), sinks(size), max_epochs=1)


@pytest.fixture
def looked_after(monkeypatch):
    """Torch looks after its workers, at which a thread's wait for a batch ends, each 0.2 s instead of each 5 s."""
    monkeypatch.setattr(_MultiProcessingDataLoaderIter._try_get_data, "__defaults__", (0.2,))


# Torch's handler of the signal that a child has died raises wherever the main thread is, its own `__del__` included.
@pytest.mark.narrow(11)
@pytest.mark.filterwarnings("ignore:Exception ignored in. <function _MultiProcessingDataLoaderIter.__del__")
@pytest.mark.parametrize("size", [-1, 6])
def test_a_worker_that_is_killed(way, size, looked_after):
    # With one batch ahead the worker dies when all before are here. A batch that it is just handing over would fail in
    # ways of the operating system, and torch's handler would then raise inside of torch's own search for the reason.
    dies = Failing(20, lambda: os.kill(os.getpid(), signal.SIGKILL))
    data = DataLoader(dies, batch_size=8, num_workers=1, prefetch_factor=1)
    with pytest.raises(RuntimeError, match="worker .* is killed by signal|exited unexpectedly") as raised:
        train(Net(), data, sinks(size), max_epochs=1)
    # They hold the loader's iterator, and torch tells of its dead worker again at the end of any other.
    traceback.clear_frames(raised.tb)
    train(Net(), DataLoader(Drawing(), batch_size=8, num_workers=1), sinks(size), max_epochs=1)


def test_a_worker_that_hangs(looked_after):
    data = DataLoader(Failing(20, lambda: time.sleep(1000)), batch_size=8, num_workers=1)
    trainer = L.Trainer(**QUIET, logger=False, strategy=sinks(-1), max_epochs=1)
    with pytest.raises(
        DataTimeoutError, match=r"No batch came for 2 s.*batch 2 of traversal 0.*2 batches were fetched"
    ):
        trainer.fit(Net(), datamodule=SinkDataModule.from_loaders(data, timeout=2))
    assert trainer.global_step == 2


def test_a_hang_in_the_process_that_ends_later(way):
    event = threading.Event()
    data = DataLoader(Failing(20, lambda: event.wait(60)), batch_size=8)
    strategy = sinks(-1)
    trainer = L.Trainer(**QUIET, logger=False, strategy=strategy, max_epochs=1)
    datamodule = SinkDataModule.from_loaders(data, timeout=0.5)
    try:
        with pytest.raises(DataTimeoutError, match="batch 2 of traversal 0"):
            trainer.fit(Net(), datamodule=datamodule)
    finally:
        event.set()
    strategy = sinks(-1)
    trainer = L.Trainer(**QUIET, logger=False, strategy=strategy, max_epochs=1)  # the same data
    trainer.fit(Net(), datamodule=datamodule)
    assert strategy.queue_report().batches_consumed == 9


@pytest.mark.narrow(11)
@pytest.mark.parametrize("buffered", [True, False])
@pytest.mark.parametrize("timeout", [None, 60.0])
def test_ctrl_c_while_waiting_for_a_batch(way, buffered, timeout):
    release = threading.Event()

    def press():
        os.kill(os.getpid(), signal.SIGINT)
        release.wait(0.5)

    data = DataLoader(Failing(44, press), batch_size=8)
    trainer = L.Trainer(**QUIET, logger=False, strategy=sinks(-1), max_epochs=1)
    options = {"timeout": timeout} | ({} if buffered else {"buffer_size": 0})
    datamodule = SinkDataModule.from_loaders(data, **options)
    began = time.monotonic()
    with pytest.raises(SystemExit):
        trainer.fit(Net(), datamodule=datamodule)
    assert time.monotonic() - began < 20
    assert trainer.interrupted
    assert trainer.global_step <= 9
    trainer = L.Trainer(**QUIET, logger=False, strategy=sinks(-1), max_epochs=1)
    trainer.fit(Net(), datamodule=datamodule)
    assert trainer.global_step == 9


def test_fifty_trainings_leave_nothing():
    def one(number):
        options = {"num_workers": 1} if number % 10 == 3 else {}
        with fetching(["ahead", "own", "changing"][number % 3]):
            fit(DataLoader(Ids(12), batch_size=2, **options), sinks([-1, 4][number % 2]), max_epochs=2)

    def counted():
        gc.collect()
        return threading.active_count(), len(os.listdir("/proc/self/fd"))

    for number in range(10):
        one(number)
    before = counted()
    for number in range(50):
        one(number)
    after = counted()
    assert after[0] <= before[0]
    assert after[1] <= before[1]


def test_nothing_keeps_the_dataset(way):
    dataset = Ids(20)
    alive = weakref.ref(dataset)
    trainer = L.Trainer(**QUIET, logger=False, strategy=sinks(4), max_epochs=3)
    trainer.fit(Seen(), DataLoader(dataset, batch_size=2))
    del trainer, dataset
    gc.collect()
    assert alive() is None


def test_the_report_adds_up(way):
    found = []

    class Look(L.Callback):
        def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
            found.append(trainer.strategy.queue_report())

    strategy = sinks(4, "dataset")
    assert strategy.queue_report().batches_consumed == 0
    fit(DataLoader(Ids(20), batch_size=2), strategy, callbacks=[Look()], max_epochs=2)
    report = strategy.queue_report()
    assert [item.batches_consumed for item in found] == [4, 8, 10, 14, 18, 20]
    assert report.batches_produced == report.batches_consumed == 20
    assert report.bytes_produced == report.bytes_consumed == 20 * 8
    assert sum(report.depths.values()) == 20
    assert report.batches_ahead <= 20
    if way == "ahead":
        assert report.batches_ahead >= 14
    assert report.consumer_wait_seconds > 0
    assert report.fetch_seconds >= report.slowest_fetch_seconds > 0
    assert 0 <= report.slowest_fetch_batch < 20
    lines = str(report).splitlines()
    assert len(lines) == 8
    assert lines[0].split()[:3] == ["batches", "20", "produced"]


class Bound(Drawing):
    """Reads what belongs to the thread that made it."""

    def __init__(self):
        super().__init__()
        self.rows = sqlite3.connect(":memory:")

    def __getitem__(self, index):
        self.rows.execute("select 1").fetchone()
        return super().__getitem__(index)


@pytest.mark.parametrize("pace", [Pace, Ahead])
def test_a_dataset_that_is_bound_to_a_thread_trains_as_in_plain_lightning(pace):
    runs = []
    for strategy in ("auto", sinks(-1)):
        dataset = Bound()
        torch.manual_seed(7)
        try:
            with mock.patch("lightning_sink.data.supply.Pace", pace):
                runs.append(train(Net(), DataLoader(dataset, batch_size=8, shuffle=True), strategy, max_epochs=3))
        finally:
            dataset.rows.close()
    assert_parity(*runs, exact=True)


def test_an_iterable_that_is_bound_to_a_thread_says_what_to_do():
    class Stream(IterableDataset):
        def __init__(self):
            self.inner = Bound()

        def __iter__(self):
            return (self.inner[index] for index in range(len(self.inner)))

    dataset = Stream()
    try:
        with fetching("ahead"), pytest.raises(sqlite3.ProgrammingError) as raised:
            train(Net(), DataLoader(dataset, batch_size=8), sinks(-1), max_epochs=1)
        assert any("buffer_size=0" in note for note in raised.value.__notes__)
        data = SinkDataModule.from_loaders(DataLoader(dataset, batch_size=8), buffer_size=0)
        assert train(Net(), data, sinks(-1), max_epochs=1).trainer.global_step == 9
    finally:
        dataset.inner.rows.close()


def test_a_lock_that_data_and_step_share_is_no_trap():
    lock = threading.Lock()

    class Locked(Drawing):
        def __getitem__(self, index):
            with lock:
                return super().__getitem__(index)

    class Step(Net):
        def training_step(self, batch, batch_idx):
            with lock:
                return super().training_step(batch, batch_idx)

    with mock.patch("lightning_sink.data.supply.Pace", Ahead):
        data = DataLoader(Locked(draw=lambda: torch.rand(6)), batch_size=8)
        assert train(Step(), data, sinks(-1), max_epochs=2).trainer.global_step == 18


def test_data_that_waits_for_the_step_holds_no_early_end():
    class Replay(IterableDataset):
        def __init__(self):
            self.items = queue.Queue()

        def __len__(self):
            return 100

        def __iter__(self):
            while True:
                item = self.items.get()
                if item is None:
                    return
                yield item

    class Step(Net):
        def training_step(self, batch, batch_idx):
            replay.items.put(batch)
            self.trainer.should_stop = batch_idx == 5
            return super().training_step(batch, batch_idx)

    replay = Replay()
    for _ in range(3):
        replay.items.put((torch.randn(8, 6), torch.zeros(8, dtype=torch.long)))
    with fetching("ahead"):
        ended = threading.Event()
        closing = threading.Thread(target=lambda: (ended.wait(60), replay.items.put(None)))
        closing.start()
        try:
            with mock.patch.object(
                BatchQueue, "close", autospec=True, side_effect=lambda q, c=BatchQueue.close: (ended.set(), c(q))
            ):
                run = train(Step(), DataLoader(replay, batch_size=None), sinks(-1), max_epochs=1)
        finally:
            ended.set()
            closing.join()
    assert run.trainer.global_step == 6


@pytest.mark.parametrize(("size", "position"), [(-1, 3), (7, 3)])
def test_the_place_after_a_failed_step_is_behind_the_last_one_that_was_trained(way, size, position):
    class Step(Net):
        def training_step(self, batch, batch_idx):
            if batch_idx == 3:
                raise Broken
            return super().training_step(batch, batch_idx)

    callbacks = [OnExceptionCheckpoint(".", "e")]
    with pytest.raises(Broken):
        train(Step(), DataLoader(Drawing(), batch_size=8), sinks(size), callbacks=callbacks, enable_checkpointing=True)
    assert torch.load("e.ckpt", weights_only=False)["lightning_sink"]["position"] == position


def test_a_checkpoint_after_the_training_has_the_place_too(way):
    run = train(Net(), loader(10), sinks(7), max_epochs=2)
    run.trainer.save_checkpoint("after.ckpt")
    ours = torch.load("after.ckpt", weights_only=False)["lightning_sink"]
    assert (ours["traversal"], ours["position"]) == (1, 4)


def test_an_error_where_the_first_traversal_begins_is_the_one_that_is_raised(monkeypatch):
    def refuse(*arguments, **options):
        raise ValueError("the data takes 10240 bytes on the device, and 1000 are allowed")

    monkeypatch.setattr("lightning_sink.trainer.loaders.gathered", refuse)
    with pytest.raises(ValueError, match="1000 are allowed"):
        fit(loader(), sinks(4, "dataset"))
