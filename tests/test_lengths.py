"""How long sinks are and which batches are in them: the options of the Trainer that shorten, cut and repeat."""

import itertools

import lightning as L
import pytest
import torch
from lightning.pytorch.utilities import CombinedLoader
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset

from lightning_sink import SinkStrategy
from parity import QUIET, ContinuedLoader, Net, assert_parity, both, loader, train


class Numbered(Dataset):
    """Items that know their number, and a note of every number that was fetched."""

    def __init__(self, length):
        self.length, self.fetched = length, []

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        self.fetched.append(index)
        return torch.full((3,), float(index) / self.length)


class Seen(L.LightningModule):
    """Keeps the number of every batch that it was trained with."""

    def __init__(self, length):
        super().__init__()
        self.length, self.layer = length, nn.Linear(3, 1)
        self.register_buffer("seen", torch.zeros(40_000))
        self.register_buffer("count", torch.zeros((), dtype=torch.long))

    def training_step(self, batch, batch_idx):
        self.seen.index_copy_(0, self.count.reshape(1), batch[:1, 0] * self.length)
        self.count += 1
        return self.layer(batch).square().mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)

    @property
    def numbers(self):
        return self.seen[: int(self.count)].round().long().tolist()


class Sinks(L.Callback):
    """Notes where sinks begin and end, validation runs and epochs."""

    def __init__(self):
        self.starts, self.ends, self.validations, self.epochs, self.histories = [], [], [], [], []

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        self.starts.append(batch_idx)

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        self.ends.append(batch_idx)

    def on_validation_start(self, trainer, pl_module):
        self.validations.append(trainer.global_step)

    def on_train_epoch_end(self, trainer, pl_module):
        self.epochs.append(trainer.global_step)
        if isinstance(trainer.strategy, SinkStrategy):
            self.histories.append(len(trainer.strategy.history["loss"]))


def fit(strategy, length, module=None, data=None, **options):
    sinks = Sinks()
    dataset = Numbered(length)
    module = module or Seen(length)
    options = {**QUIET, "max_epochs": 1, "logger": False, **options}
    trainer = L.Trainer(strategy=strategy, callbacks=[sinks], **options)
    trainer.fit(module, data or DataLoader(dataset))
    return trainer, module, sinks, dataset


def test_1875_batches_in_sinks_of_1000():
    trainer, module, sinks, dataset = fit(SinkStrategy(1000, engine="traced"), 1875, max_epochs=10)
    assert trainer.strategy.active_engine == "traced"
    assert trainer.global_step == 10_000
    assert trainer.current_epoch == 10
    assert sinks.starts == [0] * 10
    assert sinks.ends == [999] * 10
    assert sinks.epochs == [1000 * epoch for epoch in range(1, 11)]
    assert sinks.histories == [1000] * 10
    assert module.numbers == [number % 1875 for number in range(10_000)]
    assert dataset.fetched[:10_000] == module.numbers


def test_a_second_shuffled_traversal_is_another_order_without_a_gap():
    torch.manual_seed(3)
    dataset = Numbered(50)
    _, module, _, _ = fit(SinkStrategy(20, engine="eager"), 50, data=DataLoader(dataset, shuffle=True), max_epochs=10)
    traversals = [module.numbers[start : start + 50] for start in range(0, 200, 50)]
    assert all(sorted(numbers) == list(range(50)) for numbers in traversals)
    assert len({tuple(numbers) for numbers in traversals}) == 4


def test_an_epoch_that_stays_one_pass_over_the_dataset():
    trainer, module, sinks, _ = fit(SinkStrategy(1000, epoch="dataset", engine="traced"), 1875, max_epochs=2)
    assert trainer.global_step == 3750
    assert sinks.starts == [0, 1000] * 2
    assert sinks.ends == [999, 1874] * 2
    assert sinks.histories == [875, 875]
    assert module.numbers == [*range(1875)] * 2


def test_control_without_sinks():
    trainer, module, sinks, _ = fit("auto", 50, max_epochs=2)
    assert trainer.global_step == 100
    assert sinks.ends == [*range(50)] * 2
    assert module.numbers == [*range(50)] * 2


CUTS = {
    "whole": (-1, "sink", {}, [29]),
    "limit-int": (-1, "sink", {"limit_train_batches": 7}, [6]),
    "limit-float": (-1, "sink", {"limit_train_batches": 0.5}, [14]),
    "limit-above": (-1, "sink", {"limit_train_batches": 100}, [29]),
    "fast-dev-run": (-1, "sink", {"fast_dev_run": 3}, [2]),
    "max-steps": (-1, "sink", {"max_steps": 13}, [12]),
    "max-steps-in-a-sink": (10, "dataset", {"max_steps": 13}, [9, 12]),
    "max-steps-accumulate": (10, "dataset", {"max_steps": 5, "accumulate_grad_batches": 3}, [9, 14]),
    "validate-every-int": (-1, "sink", {"val_check_interval": 7}, [6, 13, 20, 27, 29]),
    "validate-every-float": (-1, "sink", {"val_check_interval": 0.25}, [6, 13, 20, 27, 29]),
    "validate-and-size": (5, "dataset", {"val_check_interval": 7}, [4, 6, 11, 13, 18, 20, 25, 27, 29]),
    "no-validation-asked-for": (-1, "sink", {"val_check_interval": 7, "limit_val_batches": 0}, [29]),
}


@pytest.mark.parametrize("case", CUTS)
def test_where_a_sink_ends(case):
    size, epoch, options, ends = CUTS[case]
    validation = DataLoader(torch.randn(2, 6)) if "val" in case else None

    class Module(Net):
        def validation_step(self, batch, batch_idx):
            self.log("val_loss", self.net(batch).mean())

    plain, sink = both(
        Module,
        lambda: loader(30, shuffle=True),
        SinkStrategy(size, epoch=epoch, engine="eager"),
        **{"max_epochs": 1, "validation": validation, **options},
    )
    assert sink.events.ends == ends
    assert_parity(plain, sink, exact=True)


OPTIONS = {
    "limit-int": {"limit_train_batches": 7},
    "limit-float": {"limit_train_batches": 0.5},
    "max-steps": {"max_steps": 17},
    "overfit": {"overfit_batches": 3},
    "validate-int": {"val_check_interval": 3},
    "validate-int-accumulate": {"val_check_interval": 3, "accumulate_grad_batches": 2},
    "validate-float": {"val_check_interval": 0.5},
    "validate-over-epochs": {"val_check_interval": 13, "check_val_every_n_epoch": None},
    "validate-every-second-epoch": {"check_val_every_n_epoch": 2},
    "reload": {"reload_dataloaders_every_n_epochs": 1},
    "min-steps": {"max_epochs": 1, "min_steps": 5},
}


@pytest.mark.narrow(13)
@pytest.mark.filterwarnings("ignore:You requested to overfit but enabled train dataloader shuffling")
@pytest.mark.parametrize("engine", ["eager", "traced"])
@pytest.mark.parametrize("size", [-1, 4])
@pytest.mark.parametrize("case", OPTIONS)
def test_options_of_the_trainer_mean_what_they_mean_in_plain_lightning(case, size, engine):
    sinks = [Sinks(), Sinks()]
    made = iter(sinks)
    plain, sink = both(
        Net,
        lambda: loader(9, shuffle=case != "overfit"),
        SinkStrategy(size, epoch="dataset", engine=engine),
        callbacks=lambda: [next(made)],
        validation=loader(2),
        **{"max_epochs": 4, **OPTIONS[case]},
    )
    assert_parity(plain, sink, exact=engine == "eager")
    assert sinks[0].validations == sinks[1].validations
    assert sinks[0].epochs == sinks[1].epochs
    assert sink.engine == engine, sink.warned


@pytest.mark.parametrize(
    "case", ["limit-int", "limit-float", "max-steps", "validate-int", "validate-every-second-epoch"]
)
def test_options_of_the_trainer_with_an_endless_traversal(case):
    limits = {"limit-int": 7, "limit-float": 4}
    options = {name: value for name, value in OPTIONS[case].items() if name != "limit_train_batches"}
    given = OPTIONS[case] if case in limits else options
    # The reference: a loader as long as the traversal, cut into epochs of 5 batches without a gap.
    length = limits.get(case, 9)

    def data(limited):
        full = loader(9)
        return DataLoader(Subset(full.dataset, range(8 * length)), 8) if limited and length < 9 else full

    sinks = [Sinks(), Sinks()]
    made = iter(sinks)
    common = {"callbacks": lambda: [next(made)], "validation": loader(2), "max_epochs": 4}
    plain, _ = both(Net, lambda: data(True), SinkStrategy(5, engine="eager"), **common, **options)
    sinks.append(Sinks())
    torch.manual_seed(7)
    sink = train(
        Net(), data(False), SinkStrategy(5, engine="eager"), callbacks=[sinks[2]], validation=loader(2),
        **{"max_epochs": 4, **given},
    )  # fmt: skip
    assert_parity(plain, sink, exact=True)
    assert sinks[0].validations == sinks[2].validations
    assert sinks[0].epochs == sinks[2].epochs
    assert sink.trainer.limit_train_batches == given.get("limit_train_batches", 1.0)


def test_estimated_stepping_batches():
    read = []

    class Module(Net):
        def configure_optimizers(self):
            read.append(self.trainer.estimated_stepping_batches)
            return super().configure_optimizers()

    for size, expected in ((-1, 3 * 5), (6, 3 * 3)):
        both(Module, lambda: loader(9), SinkStrategy(size, engine="eager"), max_epochs=3, accumulate_grad_batches=2)
        assert read == [expected, expected]
        read.clear()


class Stream(IterableDataset):
    def __init__(self, count):
        self.count = count

    def __iter__(self):
        generator = torch.Generator().manual_seed(5)
        for number in range(self.count):
            yield torch.randn(6, generator=generator), number % 3


@pytest.mark.narrow(11)
@pytest.mark.parametrize("engine", ["eager", "traced"])
@pytest.mark.parametrize(
    ("size", "epoch", "ends"),
    [
        (-1, "sink", [10, 10, 10]),
        (4, "dataset", [3, 7, 10] * 3),
        (3, "dataset", [2, 5, 8, 10] * 3),
        (11, "dataset", None),
    ],
)
def test_data_of_unknown_length(size, epoch, ends, engine):
    plain, sink = both(
        Net,
        lambda: DataLoader(Stream(84), batch_size=8),
        SinkStrategy(size, epoch=epoch, engine=engine),
        max_epochs=3,
        validation=loader(2),
    )
    assert_parity(plain, sink, exact=engine == "eager")
    assert sink.events.ends == (ends or [10] * 3)


@pytest.mark.filterwarnings("ignore:Your `IterableDataset` has `__len__` defined")
def test_an_endless_traversal_of_data_of_unknown_length():
    plain, sink = both(Net, lambda: DataLoader(Stream(84), batch_size=8), SinkStrategy(7, engine="eager"), max_epochs=5)
    assert_parity(plain, sink, exact=True)
    assert sink.events.ends == [6] * 5


def without_progress(*runs):
    """An end that was not announced shows when the next batch is asked for: the batch before is then complete."""
    for run in runs:
        run.events.progress = dict.fromkeys(run.events.progress)
    return runs


@pytest.mark.parametrize("limit", [5, 11, 30])
def test_a_limit_on_data_of_unknown_length(limit):
    plain, sink = both(
        Net, lambda: DataLoader(Stream(84), batch_size=8), SinkStrategy(engine="eager"), max_epochs=2,
        limit_train_batches=limit, validation=loader(2),
    )  # fmt: skip
    assert_parity(*without_progress(plain, sink), exact=True)


def test_a_stream_without_end_meets_its_callbacks(monkeypatch):
    monkeypatch.setattr("lightning_sink.plan.UNSIZED_SINK", 20)

    class Endless(IterableDataset):
        def __iter__(self):
            return ((torch.ones(6), number % 3) for number in itertools.count())

    plain, sink = both(Net, lambda: DataLoader(Endless(), 4), SinkStrategy(engine="eager"), max_steps=50)
    assert sink.events.ends == [19, 39, 49]
    assert_parity(plain, sink, exact=True)


class Promising:
    """A loader that announces more batches than it has."""

    def __init__(self, inner, announced):
        self.inner, self.announced = inner, announced

    def __len__(self):
        return self.announced

    def __iter__(self):
        return iter(self.inner)


@pytest.mark.narrow(11)
@pytest.mark.parametrize("engine", ["eager", "traced"])
@pytest.mark.parametrize("size", [-1, 3, 4, 9])
def test_a_loader_shorter_than_it_announced(size, engine):
    plain, sink = both(
        Net,
        lambda: Promising(loader(9), 14),
        SinkStrategy(size, epoch="dataset", engine=engine),
        max_epochs=3,
        accumulate_grad_batches=2,
    )
    assert_parity(*without_progress(plain, sink), exact=engine == "eager")
    assert sink.events.ends[-1] == 8
    assert len(sink.events.starts) == len(sink.events.ends)


@pytest.mark.filterwarnings("ignore:train_dataloader yielded None")
@pytest.mark.parametrize("holes", [{0}, {4}, {8}, {3, 4, 5}, {0, 8}], ids=str)
@pytest.mark.parametrize("size", [-1, 3])
def test_batches_of_none_are_passed_over(size, holes):
    class Holes:
        def __len__(self):
            return 9

        def __iter__(self):
            return (None if number in holes else batch for number, batch in enumerate(loader(9)))

    class Ends(L.Callback):
        def __init__(self):
            self.batches = []

        def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
            self.batches.append((batch_idx, outputs is None, batch is None))

    runs = []
    for strategy in ("auto", SinkStrategy(size, epoch="dataset", engine="eager")):
        torch.manual_seed(7)
        ends = Ends()
        module = Net()
        trainer = L.Trainer(
            strategy=strategy, callbacks=[ends], logger=False, **QUIET, max_epochs=3, accumulate_grad_batches=2
        )
        trainer.fit(module, Holes())
        runs.append((trainer, module, ends))
    (plain, expected, all_ends), (sink, found, some_ends) = runs
    assert plain.global_step == sink.global_step
    assert all(torch.equal(a, b) for a, b in zip(expected.parameters(), found.parameters(), strict=True))
    assert set(some_ends.batches) <= set(all_ends.batches)
    assert len(some_ends.batches) == (3 if size == -1 else 9)
    assert plain.fit_loop.epoch_loop.batch_progress.state_dict() == sink.fit_loop.epoch_loop.batch_progress.state_dict()


class Skipping(Net):
    """Ends each epoch before batch 5."""

    def on_train_batch_start(self, batch, batch_idx):
        return -1 if batch_idx == 5 else None


@pytest.mark.parametrize("engine", ["eager", "traced"])
@pytest.mark.parametrize("size", [-1, 2, 5, 6])
def test_a_module_that_skips_the_rest_of_an_epoch(size, engine):
    plain, sink = both(
        Skipping,
        lambda: loader(9, shuffle=True),
        SinkStrategy(size, epoch="dataset", engine=engine),
        max_epochs=3,
        validation=loader(2),
    )
    assert_parity(plain, sink, exact=engine == "eager")
    assert plain.trainer.global_step == 15
    assert sink.engine == engine
    assert not any("runs eagerly" in text for text in sink.warned)


def test_several_loaders_with_epochs_that_are_passes():
    class Two(Net):
        def training_step(self, batch, batch_idx):
            return super().training_step(batch["a"], batch_idx) + 0.5 * super().training_step(batch["b"], batch_idx)

    plain, sink = both(
        Two, lambda: {"a": loader(9), "b": loader(4)}, SinkStrategy(3, epoch="dataset", engine="eager"), max_epochs=2
    )
    assert_parity(plain, sink, exact=True)


def test_several_loaders_in_an_endless_traversal_go_on_together():
    class Two(Net):
        def training_step(self, batch, batch_idx):
            return super().training_step(batch["a"], batch_idx) + 0.5 * super().training_step(batch["b"], batch_idx)

    class Pairs:
        """What Lightning makes of the two loaders, as one."""

        def __len__(self):
            return 9

        def __iter__(self):
            return (batch for batch, _, _ in CombinedLoader({"a": loader(9), "b": loader(4)}, "max_size_cycle"))

    torch.manual_seed(7)
    plain = train(Two(), ContinuedLoader(Pairs(), 5), max_epochs=4)
    torch.manual_seed(7)
    sink = train(Two(), {"a": loader(9), "b": loader(4)}, SinkStrategy(5, engine="eager"), max_epochs=4)
    assert_parity(plain, sink, exact=True)
