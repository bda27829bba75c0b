"""What the training sees of the data: the loader's batches, in its order, whoever fetches them and when."""

import itertools
import math
import threading
import time
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import lightning as L
import pytest
import torch
from hypothesis import HealthCheck, Phase, assume, given, settings
from hypothesis import strategies as st
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.utilities import CombinedLoader
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, Sampler, TensorDataset, default_collate
from torchdata.stateful_dataloader import StatefulDataLoader

from lightning_sink import EmptyDatasetError, SinkDataModule, SinkStrategy
from lightning_sink.data.reuse import Reuse
from lightning_sink.errors import UnsupportedError
from parity import QUIET, ContinuedLoader, Net, assert_parity, loader, train

pytestmark = [
    pytest.mark.filterwarnings("ignore:'set_vital' is deprecated"),  # torchdata 0.11 calls it
    pytest.mark.filterwarnings("ignore:This DataLoader will create 2 worker processes"),
    pytest.mark.filterwarnings("ignore:You have overridden `.*transfer"),
    pytest.mark.filterwarnings("ignore:Be aware that when using `ckpt_path`"),  # which callbacks there were
]

WAYS = ["ahead", "own", "changing"]
"""Everything ahead; as the clock says; ahead and in step by turns."""


class Ahead:
    """Fetches ahead whatever the clock says."""

    ahead = True

    settled = True

    def skip(self, batches, seconds):
        pass

    def note(self, fetch, whole, sending): ...

    def stay_in_step(self):
        self.ahead = False


class Changing:
    """Changes its mind every few batches."""

    def __init__(self):
        self.count, self.fixed = 0, False

    settled = True

    def skip(self, batches, seconds):
        self.count += batches

    def note(self, fetch, whole, sending):
        self.count += 1

    def stay_in_step(self):
        self.fixed = True

    @property
    def ahead(self):
        return not self.fixed and self.count % 5 < 3


class NothingFilledAgain(Reuse):
    """Has looked at all batches that it will look at: these tests' data does not fill its memory again."""

    def __init__(self, batches, most_bytes):
        super().__init__(batches, most_bytes)
        self.seen, self.ended = batches, True


@contextmanager
def fetching(way):
    kind = {"ahead": Ahead, "changing": Changing}.get(way)
    if kind is None:
        yield
        return
    with (
        mock.patch("lightning_sink.data.supply.Pace", kind),
        mock.patch("lightning_sink.data.supply._PROBES", 0),
        mock.patch("lightning_sink.data.lending.Reuse", NothingFilledAgain),
    ):
        yield


@pytest.fixture(params=WAYS)
def way(request):
    with fetching(request.param):
        yield request.param


class Ids(Dataset):
    """Samples that are their own number."""

    def __init__(self, length):
        self.length = length

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        if not 0 <= index < self.length:
            raise IndexError(index)
        return torch.tensor([float(index)])


class Stream(IterableDataset):
    def __init__(self, length):
        self.length = length

    def __iter__(self):
        worker = torch.utils.data.get_worker_info()
        first, step = (worker.id, worker.num_workers) if worker else (0, 1)
        return (torch.tensor([float(index)]) for index in range(first, self.length, step))


class SizedStream(Stream):
    def __len__(self):
        return self.length


class Bare:
    """Nothing but an iterable of batches."""

    def __init__(self, count):
        self.count = count

    def __iter__(self):
        return (torch.full((2, 1), float(index)) for index in range(self.count))


def shown(batch):
    if isinstance(batch, dict):
        return {name: shown(item) for name, item in batch.items()}
    if isinstance(batch, list | tuple):
        return [shown(item) for item in batch]
    return batch.flatten().tolist() if isinstance(batch, torch.Tensor) else batch


class Seen(L.LightningModule):
    """Keeps the batches that it is shown."""

    def __init__(self):
        super().__init__()
        self.layer, self.seen, self.states = nn.Linear(1, 1), [], []

    def on_before_batch_transfer(self, batch, dataloader_idx):
        trainer = self.trainer
        if trainer.training:
            self.seen.append(shown(batch))
            progress = trainer.fit_loop.epoch_loop.batch_progress
            self.states.append(
                (trainer.global_step, trainer.current_epoch, progress.current.ready, trainer.state.stage)
            )
        return batch

    def training_step(self, batch, batch_idx):
        return self.layer(torch.zeros(1, 1)).sum()

    def validation_step(self, batch, batch_idx): ...

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.0)


def fit(data, strategy="auto", *, checkpoint=None, validation=None, module=None, **options):
    queue = {name: options.pop(name) for name in ("buffer_size", "early_preload", "timeout") if name in options}
    module = module or Seen()
    trainer = L.Trainer(**QUIET | {"logger": False, "strategy": strategy, "max_epochs": 3} | options)
    if queue:
        loaders = {"train": data} | ({} if validation is None else {"val": validation})
        trainer.fit(module, datamodule=SinkDataModule.from_loaders(**loaders, **queue), ckpt_path=checkpoint)
    else:
        trainer.fit(module, data, validation, ckpt_path=checkpoint)
    return module


def sinks(size, epoch="sink", **options):
    return SinkStrategy(size, engine="eager", **({} if size == -1 else {"epoch": epoch}), **options)


def reference(make, strategy):
    """What plain Lightning trains on to see the same batches."""
    return ContinuedLoader(make(), strategy.sink_size) if strategy.is_endless else make()


def assert_same_batches(make, strategy, **options):
    torch.manual_seed(3)
    plain = fit(reference(make, strategy), **options)
    plain_end = torch.get_rng_state()
    torch.manual_seed(3)
    sink = fit(make(), strategy, **options)
    assert plain.seen == sink.seen
    assert plain.states == sink.states
    assert torch.equal(plain_end, torch.get_rng_state())
    return sink.seen


# -- any length, any option -----------------------------------------------------------------------------------------


def make_loader(kind, length, seed=4, **options):
    if kind == "tensors":
        return DataLoader(TensorDataset(torch.arange(float(length))[:, None]), **options)
    if kind == "generator":
        return DataLoader(Ids(length), generator=torch.Generator().manual_seed(seed), **options)
    if kind == "stateful":
        return StatefulDataLoader(Ids(length), generator=torch.Generator().manual_seed(seed), **options)
    return DataLoader(Ids(length), **options)


KINDS = ["custom", "tensors", "generator", "stateful"]
SEARCH = {
    "deadline": None,
    "phases": [Phase.explicit, Phase.reuse, Phase.generate],  # shrinking takes minutes
    "suppress_health_check": [HealthCheck.too_slow, HealthCheck.data_too_large],
}


@settings(max_examples=80, **SEARCH)
@given(
    kind=st.sampled_from(KINDS),
    length=st.integers(1, 30),
    batch_size=st.integers(1, 7),
    workers=st.sampled_from([0] * 40 + [1, 2]),
    drop_last=st.booleans(),
    shuffle=st.booleans(),
    buffer_size=st.sampled_from([0, 1, 2, 16]),
    size=st.sampled_from([-1, 1, 2, 5, 7, 30]),
    epoch=st.sampled_from(["sink", "dataset"]),
    epochs=st.integers(1, 4),
    way=st.sampled_from(WAYS),
    timeout=st.sampled_from([None, None, 60.0]),
    early_preload=st.booleans(),
)
def test_the_batches_of_a_training_are_those_of_the_loader(
    kind, length, batch_size, workers, drop_last, shuffle, buffer_size, size, epoch, epochs, way, timeout, early_preload
):
    assume(not drop_last or length >= batch_size)
    options = {"batch_size": batch_size, "num_workers": workers, "drop_last": drop_last, "shuffle": shuffle}
    strategy = sinks(size, epoch)
    # Plain Lightning and not the loader by itself: it makes an iterator more, which draws from a loader's generator.
    module = Seen()
    torch.manual_seed(5)
    data = reference(lambda: make_loader(kind, length, **options), strategy)
    expected = fit(data, module=module, max_epochs=epochs).seen
    module = Seen()
    with fetching(way):
        torch.manual_seed(5)
        queue = {"buffer_size": buffer_size, "timeout": timeout, "early_preload": early_preload}
        fit(make_loader(kind, length, **options), strategy, module=module, max_epochs=epochs, **queue)
    assert module.seen == expected
    report = strategy.queue_report()
    assert report.batches_consumed == len(module.seen)
    assert sum(report.depths.values()) == report.batches_consumed


@pytest.mark.narrow
@settings(max_examples=50, **SEARCH)
@given(
    kind=st.sampled_from(KINDS),
    length=st.integers(3, 30),
    batch_size=st.integers(1, 5),
    shuffle=st.booleans(),
    size=st.sampled_from([-1, 2, 5, 7, 30]),
    epoch=st.sampled_from(["sink", "dataset"]),
    every=st.integers(1, 9),
    point=st.integers(0, 30),
    ways=st.tuples(st.sampled_from(WAYS), st.sampled_from(WAYS)),
    early_preload=st.booleans(),
)
def test_a_resumed_training_sees_the_rest_of_the_batches(
    tmp_path_factory, kind, length, batch_size, shuffle, size, epoch, every, point, ways, early_preload
):
    options = {"batch_size": batch_size, "shuffle": shuffle}
    folder = tmp_path_factory.mktemp("saves")
    saves = ModelCheckpoint(dirpath=folder, filename="{step}", save_top_k=-1, every_n_train_steps=every)
    torch.manual_seed(5)
    settings_ = {"early_preload": early_preload, "enable_checkpointing": True}
    with fetching(ways[0]):
        whole = fit(make_loader(kind, length, **options), sinks(size, epoch), callbacks=[saves], **settings_)
    files = sorted(Path(folder).iterdir(), key=lambda path: int(path.stem.partition("=")[2].partition("-")[0]))
    assume(files)
    chosen = files[point % len(files)]
    done = int(chosen.stem.partition("=")[2].partition("-")[0])
    batches = -(-length // batch_size)
    # Plain Lightning goes on with an empty epoch there: the state that is saved is that of an exhausted iterator.
    assume(kind != "stateful" or size > 0 and epoch == "sink" or done % batches)
    torch.manual_seed(99)
    with fetching(ways[1]):
        rest = fit(make_loader(kind, length, **options), sinks(size, epoch), checkpoint=chosen)
    assert len(rest.seen) == len(whole.seen) - done
    exact = len(rest.seen)
    if shuffle:
        # A loader of its own generator, made anew, and the process's generator start the next traversals elsewhere.
        exact = min(exact, -done % batches)
    assert rest.seen[:exact] == whole.seen[done : done + exact]
    assert all(len(batch) == len(other) for batch, other in zip(rest.seen, whole.seen[done:], strict=True))


@pytest.mark.narrow(11)
@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize(("size", "epoch"), [(-1, "dataset"), (5, "sink")])
@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("shuffle", [False, True])
def test_a_training_with_workers_is_resumed(tmp_path, workers, size, epoch, persistent, shuffle):
    def make():
        return DataLoader(Ids(14), batch_size=2, shuffle=shuffle, num_workers=workers, persistent_workers=persistent)

    saves = ModelCheckpoint(dirpath=tmp_path, filename="{step}", save_top_k=-1, every_n_train_steps=3)
    whole = fit(make(), sinks(size, epoch), callbacks=[saves], enable_checkpointing=True, max_epochs=2)
    rest = fit(make(), sinks(size, epoch), checkpoint=tmp_path / "step=3.ckpt", max_epochs=2)
    exact = 4 if shuffle else len(whole.seen) - 3
    assert rest.seen[:exact] == whole.seen[3 : 3 + exact]


def test_the_comparison_of_batches_can_fail(way):
    torch.manual_seed(5)
    expected = [shown(batch) for batch in make_loader("custom", 9, batch_size=2, shuffle=True)]
    torch.manual_seed(6)
    assert fit(make_loader("custom", 9, batch_size=2, shuffle=True), sinks(-1), max_epochs=1).seen != expected


# -- any loader -----------------------------------------------------------------------------------------------------

LOADERS = {
    "stream": lambda: DataLoader(Stream(11), batch_size=3),
    "sized stream": lambda: DataLoader(SizedStream(11), batch_size=3),
    "stream with a worker": lambda: DataLoader(Stream(11), batch_size=3, num_workers=2),
    "bare": lambda: Bare(5),
    "stateful": lambda: StatefulDataLoader(Ids(11), batch_size=3, shuffle=True),
    "persistent workers": lambda: DataLoader(
        Ids(11), batch_size=3, shuffle=True, num_workers=1, persistent_workers=True
    ),
    "no batches": lambda: DataLoader(Ids(11), batch_size=None, shuffle=True),
}
SINKS = [(-1, "dataset"), (4, "dataset"), (4, "sink"), (13, "sink"), (1, "sink")]


@pytest.mark.narrow(11)
@pytest.mark.parametrize("kind", LOADERS)
@pytest.mark.parametrize(("size", "epoch"), SINKS)
@pytest.mark.parametrize("way", ["ahead", "changing"])
@pytest.mark.filterwarnings("ignore:Your `IterableDataset` has `__len__` defined")
def test_any_loader(kind, size, epoch, way):
    if "worker" in kind and (epoch == "sink" or way == "changing"):
        return  # see `test_workers_in_an_endless_traversal`
    with fetching(way):
        assert_same_batches(LOADERS[kind], sinks(size, epoch))


@pytest.mark.narrow(11)
@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("way", ["ahead", "changing"])
def test_workers_in_an_endless_traversal(way, persistent):
    def make(**options):
        return DataLoader(Ids(11), batch_size=3, shuffle=True, **options)

    options = {"num_workers": 2, "persistent_workers": persistent}
    module, plain = Seen(), make(**options)
    torch.manual_seed(3)
    expected = [shown(batch) for _ in range(5) for batch in plain][:18]
    if persistent:
        plain._iterator._shutdown_workers()  # freed without this they are waited for seconds
    torch.manual_seed(3)
    with fetching(way):
        assert fit(make(**options), sinks(6), module=module).seen == expected


class First:
    """The batches of a CombinedLoader without their numbers."""

    def __init__(self, combined):
        self.combined = combined

    def __iter__(self):
        return (batch for batch, _, _ in self.combined)


def combined(mode, kind):
    loaders = {
        "a": DataLoader(Ids(11), batch_size=3, shuffle=True),
        "b": DataLoader(Ids(5), batch_size=2, shuffle=True),
    }
    if kind == "list":
        loaders = list(loaders.values())
    if kind == "stream":
        loaders["b"] = DataLoader(Stream(5), batch_size=2)
    return CombinedLoader(loaders, mode)


@pytest.mark.narrow(11)
@pytest.mark.parametrize("mode", ["max_size", "max_size_cycle", "min_size"])
@pytest.mark.parametrize("kind", ["dict", "list", "stream"])
@pytest.mark.parametrize(("size", "epoch"), SINKS)
def test_combined_loaders(mode, kind, size, epoch):
    for way in ("ahead", "changing", "own"):
        with fetching(way):
            strategy = sinks(size, epoch)
            torch.manual_seed(3)
            plain = combined(mode, kind)
            plain = fit(ContinuedLoader(First(plain), size) if strategy.is_endless else plain)
            torch.manual_seed(3)
            sink = fit(combined(mode, kind), strategy)
            assert plain.seen == sink.seen
            assert plain.states == sink.states


@pytest.mark.narrow(11)
@pytest.mark.parametrize("workers", [{}, {"num_workers": 1}, {"num_workers": 1, "persistent_workers": True}], ids=str)
@pytest.mark.parametrize("mode", ["max_size", "max_size_cycle", "min_size"])
def test_one_loader_that_stands_twice(mode, workers):
    seen = []
    for strategy in ("auto", sinks(4, "dataset")):
        torch.manual_seed(3)
        data = DataLoader(TensorDataset(torch.arange(11.0)[:, None]), batch_size=3, shuffle=True, **workers)
        seen.append(fit(CombinedLoader([data, data], mode), strategy).seen)
        if data._iterator is not None:
            data._iterator._shutdown_workers()  # freed without this they are waited for seconds
    assert seen[0] == seen[1]


@pytest.mark.parametrize(("size", "epoch"), [(4, "sink"), (4, "dataset")])
def test_sequential_loaders_are_refused_as_in_plain_lightning(way, size, epoch):
    errors = []
    for strategy in ("auto", sinks(size, epoch)):
        with pytest.raises(ValueError, match="does not support") as raised:
            fit(combined("sequential", "dict"), strategy)
        errors.append(str(raised.value))
    assert errors[0] == errors[1].replace("SinkFitLoop", "_FitLoop")


class Told(Sampler):
    """Orders by the epoch that it was told."""

    def __init__(self, length):
        self.length, self.told = length, []

    def set_epoch(self, epoch):
        self.told.append(epoch)

    def __len__(self):
        return self.length

    def __iter__(self):
        generator = torch.Generator().manual_seed(self.told[-1] if self.told else 1000)
        return iter(torch.randperm(self.length, generator=generator).tolist())


@pytest.mark.parametrize(("size", "epoch"), [(-1, "dataset"), (2, "dataset"), (7, "sink"), (3, "sink")])
def test_samplers_are_told_of_each_traversal_once(way, size, epoch):
    sampler = Told(11)
    data = DataLoader(Ids(11), batch_size=3, sampler=sampler)
    seen = fit(data, sinks(size, epoch)).seen
    traversals = -(-len(seen) // 4)
    assert sampler.told == list(range(traversals))
    expected = []
    for number in range(traversals):
        expected += torch.randperm(11, generator=torch.Generator().manual_seed(number)).tolist()
    assert [index for batch in seen for index in batch] == expected[: sum(map(len, seen))]


OPTIONS = {
    "limit int": {"limit_train_batches": 3},
    "limit float": {"limit_train_batches": 0.5},
    "overfit": {"overfit_batches": 2},
    "accumulate": {"accumulate_grad_batches": 3},
    "max_steps": {"max_steps": 6, "max_epochs": -1},
    "reload": {"reload_dataloaders_every_n_epochs": 1},
}


@pytest.mark.narrow(11)
@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize(("size", "epoch"), [(-1, "dataset"), (3, "dataset")])
@pytest.mark.filterwarnings("ignore:You requested to overfit")
def test_trainer_options_choose_the_same_batches(way, option, size, epoch):
    def make():
        return DataLoader(Ids(11), batch_size=2, shuffle=option != "overfit")

    seen = assert_same_batches(make, sinks(size, epoch), **OPTIONS[option])
    assert seen


@pytest.mark.parametrize("option", ["accumulate", "max_steps"])
def test_trainer_options_choose_the_same_batches_in_an_endless_traversal(way, option):
    assert_same_batches(lambda: DataLoader(Ids(11), batch_size=2, shuffle=True), sinks(4), **OPTIONS[option])


@pytest.mark.parametrize(("size", "epoch"), [(-1, "dataset"), (3, "dataset")])
def test_loaders_that_are_made_anew_for_each_epoch(way, size, epoch):
    class Own(Seen):
        def train_dataloader(self):
            return DataLoader(Ids(7 + self.trainer.current_epoch), batch_size=2, shuffle=True)

    found = []
    for strategy in ("auto", sinks(size, epoch)):
        torch.manual_seed(3)
        found.append(fit(None, strategy, module=Own(), reload_dataloaders_every_n_epochs=1).seen)
    assert found[0] == found[1]
    assert len(found[0]) == 4 + 4 + 5


class Noisy(Dataset):
    """Draws for each sample."""

    def __init__(self, length):
        self.x = torch.randn(length, 6, generator=torch.Generator().manual_seed(1))

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        return self.x[index] + torch.randn(6) * 0.1, index % 3


@pytest.mark.narrow(11)
@pytest.mark.parametrize(
    "data", [lambda: loader(shuffle=True), lambda: DataLoader(Noisy(60), batch_size=8, shuffle=True)]
)
@pytest.mark.parametrize(("size", "epoch", "interval"), [(-1, "dataset", 3), (5, "dataset", 0.5), (7, "sink", 1.0)])
def test_validation_that_draws(way, data, size, epoch, interval):
    runs = []
    strategy = sinks(size, epoch)
    for chosen in ("auto", strategy):
        torch.manual_seed(3)
        validation = DataLoader(Noisy(20), batch_size=4)
        made = data() if chosen is strategy else reference(data, strategy)
        runs.append(train(Net(), made, chosen, validation=validation, val_check_interval=interval, max_epochs=3))
        runs[-1].end = torch.get_rng_state()
    assert_parity(*runs, exact=True)
    assert torch.equal(runs[0].end, runs[1].end)


@pytest.mark.narrow(11)
@pytest.mark.parametrize("precision", ["64-true", "bf16-true", "32-true"])
@pytest.mark.parametrize("kind", ["tensors", "noisy", "made in the default dtype"])
def test_precision(way, precision, kind):
    class Made(Noisy):
        def __getitem__(self, index):
            return torch.ones(6) * (index / 7), index % 3

    make = {
        "tensors": lambda: loader(),
        "noisy": lambda: DataLoader(Noisy(60), batch_size=8, shuffle=True),
        "made in the default dtype": lambda: DataLoader(Made(60), batch_size=8, shuffle=True),
    }[kind]
    torch.manual_seed(7)
    plain = train(Net(), make(), precision=precision, max_epochs=2)
    torch.manual_seed(7)
    sink = train(Net(), make(), sinks(-1), precision=precision, max_epochs=2)
    assert_parity(plain, sink, exact=True)


# -- who fetches, when ----------------------------------------------------------------------------------------------


class Hooked(Seen):
    def __init__(self):
        super().__init__()
        self.calls = []

    def on_before_batch_transfer(self, batch, dataloader_idx):
        self.calls.append(("before", shown(batch), threading.get_ident()))
        return super().on_before_batch_transfer(batch, dataloader_idx)

    def transfer_batch_to_device(self, batch, device, dataloader_idx):
        self.calls.append(("to", shown(batch), threading.get_ident()))
        return super().transfer_batch_to_device(batch, device, dataloader_idx)

    def on_after_batch_transfer(self, batch, dataloader_idx):
        self.calls.append(("after", shown(batch), threading.get_ident()))
        return batch


class HookedData(L.LightningDataModule):
    on_before_batch_transfer = Hooked.on_before_batch_transfer
    transfer_batch_to_device = Hooked.transfer_batch_to_device
    on_after_batch_transfer = Hooked.on_after_batch_transfer

    def __init__(self):
        super().__init__()
        self.calls = []

    def train_dataloader(self):
        return DataLoader(Ids(23), batch_size=2)


def strip_super(kind):
    """The datamodule's hooks, which have no module above them."""
    for name, word in (("on_before_batch_transfer", "before"), ("on_after_batch_transfer", "after")):

        def hook(self, batch, dataloader_idx, word=word):
            self.calls.append((word, shown(batch), threading.get_ident()))
            return batch

        setattr(kind, name, hook)

    def transfer(self, batch, device, dataloader_idx):
        self.calls.append(("to", shown(batch), threading.get_ident()))
        return batch

    kind.transfer_batch_to_device = transfer


strip_super(HookedData)


@pytest.mark.narrow(11)
@pytest.mark.parametrize("owner", ["module", "datamodule"])
@pytest.mark.filterwarnings("ignore:You have overridden `transfer_batch_to_device`")
@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize(("size", "epoch"), [(-1, "dataset"), (4, "dataset"), (7, "sink")])
def test_transfer_hooks_run_once_for_each_batch_in_order(way, owner, ahead, size, epoch):
    datamodule = HookedData()
    if owner == "module":
        datamodule = L.LightningDataModule()
        datamodule.train_dataloader = lambda: DataLoader(Ids(23), batch_size=2)
    module = Hooked() if owner == "module" else Seen()
    wrapped = SinkDataModule(datamodule, transfer_ahead=ahead)
    trainer = L.Trainer(**QUIET, logger=False, strategy=sinks(size, epoch), max_epochs=3)
    trainer.fit(module, datamodule=wrapped)
    calls = module.calls if owner == "module" else datamodule.calls
    one = list(map(shown, DataLoader(Ids(23), batch_size=2)))
    expected = (one * 3)[: 21 if epoch == "sink" else 36]
    if ahead:
        # Hooks that run ahead may have run for batches that no step took; there are none where a sink takes them all.
        calls = calls[: 3 * len(expected)]
    assert [call[:2] for call in calls] == [(word, batch) for batch in expected for word in ("before", "to", "after")]
    threads = {call[2] for call in calls}
    if not ahead:
        assert threads == {threading.get_ident()}
    elif way == "ahead":
        assert len(threads) == 2


@pytest.mark.narrow(11)
@pytest.mark.parametrize("early", [False, True])
@pytest.mark.parametrize(("size", "epoch"), [(-1, "dataset"), (3, "dataset"), (7, "sink")])
@pytest.mark.parametrize("workers", [0, 1])
def test_nothing_is_fetched_during_validation(way, early, size, epoch, workers):
    if workers and (way, early) != ("ahead", True):
        return
    stages, active = [], [None]

    class Spy(Bare):
        def __len__(self):
            return self.count

        def __iter__(self):
            for batch in super().__iter__():
                stages.append(active[0].state.stage.value)
                yield batch

    class SpyingLoader(DataLoader):
        def __iter__(self):
            for batch in super().__iter__():
                stages.append(active[0].state.stage.value)
                yield batch

    class Slow(Seen):
        def validation_step(self, batch, batch_idx):
            # Time for a fetch that should not be made; without one nothing waits for this.
            before = len(stages)
            time.sleep(0.002)
            assert len(stages) == before

    data = SpyingLoader(Ids(20), batch_size=2, num_workers=1) if workers else Spy(10)
    datamodule = SinkDataModule.from_loaders(data, val=DataLoader(Ids(4), batch_size=2), early_preload=early)
    trainer = L.Trainer(**QUIET, logger=False, strategy=sinks(size, epoch), max_epochs=3, val_check_interval=0.5)
    active[0] = trainer
    trainer.fit(Slow(), datamodule=datamodule)
    assert set(stages) == {"train"}


def test_nothing_is_fetched_during_a_validation_that_just_became_due(monkeypatch):
    fetched, before = [], []

    class Noting(Ids):
        def __getitem__(self, index):
            fetched.append(index)
            time.sleep(0.002)
            return super().__getitem__(index)

    class Slow(Seen):
        def validation_step(self, batch, batch_idx):
            before.append(len(fetched))
            time.sleep(0.05)
            assert len(fetched) == before[-1]

    # Whoever asks is told that it is time each second time.
    clock = SimpleNamespace(monotonic=itertools.cycle([-math.inf, math.inf]).__next__)
    monkeypatch.setattr("lightning.pytorch.loops.training_epoch_loop.time", clock)
    data, val = DataLoader(Noting(200), batch_size=1), DataLoader(Ids(2), batch_size=2)
    datamodule = SinkDataModule.from_loaders(data, val=val, early_preload=True, buffer_size=100, timeout=60.0)
    options = {"max_epochs": 1, "val_check_interval": {"hours": 1}, "logger": False}
    L.Trainer(**QUIET, **options, strategy=sinks(5, "dataset")).fit(Slow(), datamodule=datamodule)
    assert before
    assert before[0] < 200


@pytest.mark.narrow(11)
@pytest.mark.parametrize(("size", "epoch"), [(4, "dataset"), (7, "sink"), (1, "dataset")])
@pytest.mark.parametrize("timeout", [None, 60.0])
def test_what_a_callback_changes_is_seen_by_the_next_sinks_first_batch(way, size, epoch, timeout):
    class Shifted(Ids):
        shift = 0.0

        def __getitem__(self, index):
            return super().__getitem__(index) + self.shift

    dataset, ends = Shifted(20), []

    class Shift(L.Callback):
        def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
            dataset.shift += 1000.0
            ends.append(len(module.seen))

    module = fit(DataLoader(dataset, batch_size=2), sinks(size, epoch), callbacks=[Shift()], timeout=timeout)
    begin = 0
    for number, end in enumerate(ends):
        assert all(int(index) // 1000 == number for batch in module.seen[begin:end] for index in batch)
        begin = end
    assert begin == len(module.seen)
    assert len(ends) >= 3


def doubled(samples):
    return [2 * tensor for tensor in default_collate(samples)]


def twice(dataset, index):
    return tuple(2 * tensor[index] for tensor in dataset.tensors)


def double_in_workers(number):
    dataset = torch.utils.data.get_worker_info().dataset
    dataset.tensors = tuple(2 * tensor for tensor in dataset.tensors)


CHANGES = {
    "collate_fn": lambda loader, patch: setattr(loader, "collate_fn", doubled),
    "worker_init_fn": lambda loader, patch: setattr(loader, "worker_init_fn", double_in_workers),
    "methods": lambda loader, patch: patch.setattr(TensorDataset, "__getitem__", twice),
    "dataset": lambda loader, patch: setattr(loader.dataset, "__getitems__", lambda rows: [(torch.ones(1),)]),
    "class": lambda loader, patch: setattr(loader.dataset, "__class__", type("Own", (TensorDataset,), {})),
}


@pytest.mark.narrow(13)
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize(("workers", "persistent"), [(0, False), (1, False), (1, True)])
@pytest.mark.parametrize("size", [-1, 3])
def test_a_loader_that_is_no_longer_gathered(way, change, workers, persistent, size, monkeypatch):
    """What its workers have begun with they go on with, if they persist; what they had a copy of must not change."""

    def make():
        options = {"num_workers": workers, "persistent_workers": persistent}
        return DataLoader(TensorDataset(torch.arange(24.0)[:, None]), batch_size=2, shuffle=True, **options)

    def seen(strategy):
        class Changes(L.Callback):
            def on_train_epoch_end(self, trainer, module):
                if trainer.current_epoch == 1:
                    CHANGES[change](trainer.train_dataloader, patch)

        with monkeypatch.context() as patch:
            torch.manual_seed(3)
            return fit(make(), strategy, callbacks=[Changes()], max_epochs=4).seen

    expected = seen("auto")
    if persistent and change in ("dataset", "class"):
        with pytest.raises(UnsupportedError, match="num_workers=0"):
            seen(sinks(size, "dataset"))
        return
    assert seen(sinks(size, "dataset")) == expected


def test_with_early_preload_a_change_shows_late():
    """The control of the test before: the queue does fill between sinks when it may."""

    class Counted(Ids):
        fetched = 0

        def __getitem__(self, index):
            type(self).fetched += 1
            fetched.set() if Counted.fetched > 6 else None
            return super().__getitem__(index)

    fetched, found = threading.Event(), []

    class Wait(L.Callback):
        def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
            if not found:
                found.append(fetched.wait(30))

    with fetching("ahead"):
        fit(DataLoader(Counted(40), batch_size=1), sinks(5, "dataset"), callbacks=[Wait()], early_preload=True)
    assert found == [True]


def test_data_without_a_batch_is_an_error(way):
    with pytest.raises(EmptyDatasetError):
        fit(DataLoader(Stream(0), batch_size=2), sinks(4))
    with pytest.raises(EmptyDatasetError):
        fit(Bare(0), sinks(-1))


# -- what it is for -------------------------------------------------------------------------------------------------


def test_fetching_overlaps_with_training():
    """What takes as long as a step is fetched by a thread of its own, the first few batches aside."""

    class Slow(Ids):
        def __init__(self, length):
            super().__init__(length)
            self.in_main = []

        def __getitem__(self, index):
            time.sleep(0.02)
            self.in_main.append(threading.current_thread() is threading.main_thread())
            return super().__getitem__(index)

    class SlowStep(Seen):
        def training_step(self, batch, batch_idx):
            time.sleep(0.02)
            return super().training_step(batch, batch_idx)

    data = Slow(100)
    module = fit(DataLoader(data, batch_size=1), sinks(-1), module=SlowStep(), max_epochs=1)
    assert len(module.seen) == len(data.in_main) == 100
    assert sum(data.in_main) < 50
