"""Names of files and other texts in batches: free where no step looks at them, right where one does."""

import lightning as L
import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from lightning_sink import SinkStrategy
from lightning_sink.data.listed_texts import Parts
from lightning_sink.trainer.batch_reads import BatchReads
from parity import QUIET, Net, assert_parity, both, compare, loader

CHANGES = "batches hold values that keep changing and are no tensors, each of which would need a program of its own"


class WithNames(Dataset):
    """Samples with the names of the files that they are of."""

    def __init__(self, kind, name="{}.png"):
        self.kind, self.name, (self.x, self.y) = kind, name, loader(40, last=8).dataset.tensors

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        sample = {"name": self.name.format(index), "x": self.x[index], "y": self.y[index]}
        return sample if self.kind is dict else (sample["x"], sample["y"], sample["name"])


def named(kind=tuple, shuffle=True, **about):
    return lambda: DataLoader(WithNames(kind, **about), batch_size=8, shuffle=shuffle)


def number_of(name):
    """A number near one."""
    return 1 + sum(map(ord, name)) % 10 / 20


class Hands(Net):
    """Has names in its batches, and hands them on."""

    def training_step(self, batch, batch_idx):
        x, y, names = batch
        if len(names) != len(x):
            raise ValueError("names")
        loss = super().training_step((x, y), batch_idx)
        return self.used(loss, names, batch_idx)

    def used(self, loss, names, batch_idx):
        return loss


class ByKeys(Net):
    """Asks for what it needs."""

    def training_step(self, batch, batch_idx):
        return super().training_step((batch["x"], batch["y"]), batch_idx)


@pytest.mark.narrow(11)
@pytest.mark.parametrize("engine", ["traced", "inductor"])
@pytest.mark.parametrize(("make", "kind"), [(Hands, tuple), (ByKeys, dict)])
@pytest.mark.parametrize("size", [-1, 7])
def test_names_that_no_step_looks_at_cost_nothing(make, kind, size, engine, chunks):
    plain, sink = both(make, named(kind), SinkStrategy(size, epoch="dataset", engine=engine), max_epochs=2)
    assert_parity(plain, sink)
    assert sink.engine == engine
    assert not [text for text in sink.warned if "runs eagerly" in text]
    assert size > 0 or sum(chunks) > 20


class Weighs(Hands):
    """Looks at the names in each step."""

    def used(self, loss, names, batch_idx):
        return loss * (3 if "24.png" in names else 1)


class Joins(Hands):
    """By code in C, which takes nothing but a text."""

    def used(self, loss, names, batch_idx):
        return loss * number_of(",".join(names))


class KeepsThem(Hands):
    def used(self, loss, names, batch_idx):
        self.last, self.one = names, (names[0],)
        return loss


class Returns(Hands):
    def training_step(self, batch, batch_idx):
        return {"loss": super().training_step(batch, batch_idx), "names": batch[2]}


class KeepsThemBehindTheBatch(Hands):
    def on_train_batch_end(self, outputs, batch, batch_idx):
        self.last = batch[2][0]


class Sorts(Hands):
    """In their place."""

    def on_train_batch_start(self, batch, batch_idx):
        batch[2].sort()

    def used(self, loss, names, batch_idx):
        return loss * number_of(names[0])


def lists(samples):
    x, y, names = zip(*samples, strict=True)
    return torch.stack(x), torch.stack(y), [*names]


@pytest.mark.narrow(13)
@pytest.mark.parametrize("make", [Weighs, KeepsThem, Returns, KeepsThemBehindTheBatch, Sorts])
def test_steps_that_look_at_names_run_eagerly(make):
    def data():
        return DataLoader(WithNames(tuple), batch_size=8, shuffle=True, collate_fn=lists)

    plain, sink = compare(make, "traced", -1, CHANGES, data=data, max_epochs=1)
    assert getattr(plain.module, "last", "") == getattr(sink.module, "last", "")
    assert getattr(plain.module, "one", "") == getattr(sink.module, "one", "")
    assert type(getattr(sink.module, "one", ("",))[0]) is str


@pytest.mark.parametrize("make", [Weighs, Joins, Returns])
def test_texts_that_stay_the_same_may_be_looked_at(make, chunks):
    compare(make, "traced", -1, data=named(name="one"), max_epochs=2)
    assert sum(chunks) > 20


class Measures(Hands):
    """All names are equally long in the first batches."""

    def used(self, loss, names, batch_idx):
        return loss * len(names[0])


def test_how_long_names_are_matters():
    def data():
        return DataLoader(WithNames(tuple), batch_size=8)  # one, two and three figures

    strategy = SinkStrategy(4, epoch="dataset", engine="traced")
    plain, sink = both(Measures, data, strategy, max_epochs=2)
    assert_parity(plain, sink)


@pytest.mark.filterwarnings("ignore:The training step runs eagerly", "ignore:Trying to infer the `batch_size`")
def test_another_module_of_the_same_trainer_may_look_at_them():
    fitted = []
    for strategy in ("auto", SinkStrategy(-1, epoch="dataset", engine="traced")):
        torch.manual_seed(7)
        trainer = L.Trainer(strategy=strategy, **{**QUIET, "max_epochs": 1, "logger": False})
        for make in (Hands, Measures):
            trainer.fit_loop.max_epochs += bool(trainer.current_epoch)
            module = make()
            trainer.fit(module, DataLoader(WithNames(tuple), batch_size=8))
        fitted.append(module.state_dict())
    for name, expected in fitted[0].items():
        torch.testing.assert_close(fitted[1][name], expected, msg=name)


class LooksLate(Hands):
    """When programs have run steps with other names in rows, and batches wait in the queue."""

    def used(self, loss, names, batch_idx):
        return loss * number_of(names[0]) if batch_idx == 25 and self.current_epoch == 1 else loss


def test_a_look_at_a_late_step_is_right():
    strategy = SinkStrategy(9, epoch="dataset", engine="traced")
    plain, sink = both(LooksLate, named(), strategy, max_epochs=3)
    assert_parity(plain, sink)


class LooksAtTheMiddle(Hands):
    def used(self, loss, names, batch_idx):
        return loss * number_of(names[0]) if batch_idx % 12 > 7 else loss


@pytest.mark.narrow
@pytest.mark.parametrize("size", [-1, 10])
def test_looks_at_some_steps_are_right(size):
    plain, sink = both(LooksAtTheMiddle, named(), SinkStrategy(size, epoch="dataset", engine="traced"), max_epochs=3)
    assert_parity(plain, sink)


def test_control_a_look_that_nobody_finds_is_lost(monkeypatch):
    monkeypatch.setattr(BatchReads, "parts", lambda self, trainer: Parts(frozenset()))
    strategy = SinkStrategy(-1, epoch="dataset", engine="traced", verify=0)
    plain, sink = both(Weighs, named(), strategy, max_epochs=2)
    with pytest.raises(AssertionError):
        assert_parity(plain, sink)
