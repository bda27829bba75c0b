"""What code names behind the trainer is looked at, by whatever way it gets there; the rest of the trainer is not."""

from types import SimpleNamespace

import lightning as L
import pytest
import torch
from lightning.pytorch.callbacks import EarlyStopping, TQDMProgressBar
from torch.utils.data import DataLoader

from lightning_sink.trainer.reach import reached_through
from parity import QUIET


class Counts(L.Callback):
    def __init__(self):
        self.weight, self.calls = 1, 0

    @property
    def half(self):
        self.calls += 1
        return self.weight / 2


class Rows:
    """A dataset that is derived from nothing."""

    def __init__(self):
        self.level, self.given = 1, 0

    def __len__(self):
        return 8

    def __getitem__(self, index):
        self.given += 1
        return torch.zeros(2)


def through_an_attribute(self):
    return self.trainer.datamodule.difficulty


def from_an_argument(trainer):
    return trainer.mine["weight"]


def from_an_argument_beside_another(x, trainer):
    return x * trainer.mine["weight"]


def from_a_name_on_one_line(self):
    t = self.trainer; return t.mine  # fmt: skip  # noqa: E702


def from_a_part_with_a_name(self):
    stopper = self.trainer.early_stopping_callback
    return stopper.wait_count


def from_one_of_several(self):
    return next(callback for callback in self.trainer.callbacks if isinstance(callback, EarlyStopping)).wait_count


def from_an_item(self):
    return self.trainer.early_stopping_callbacks[0].wait_count


def from_a_name_in_quotes(self):
    return getattr(getattr(self.trainer, "fit_loop").epoch_progress, "current").completed  # noqa: B009


def with_a_default(self):
    return getattr(self.trainer, "comes_later", 1)


def from_an_object_of_the_users(self):
    return self.trainer.own.anything()


def from_a_dataset(self):
    return self.trainer.train_dataloader.dataset.level


class Below(SimpleNamespace):
    def from_super(self):
        return super().trainer.mine


def among_very_many_names():
    """Returns a function whose instructions for its last names consist of two parts each."""
    lines = "".join(f"    self.name_{number}\n" for number in range(300))
    made = {}
    exec(f"def step(self):\n{lines}    return self.trainer.mine", made)
    return made["step"]


def of_something_else(self):
    return self.other.datamodule.difficulty


@pytest.fixture
def trainer():
    made = L.Trainer(callbacks=[EarlyStopping("loss"), Counts()], logger=False, **QUIET)
    made.datamodule = L.LightningDataModule()
    made.datamodule.difficulty, made.mine, made.unnamed = 1, {"weight": 1}, []
    made.own = SimpleNamespace(hidden=[1])
    made.fit_loop._combined_loader = SimpleNamespace(iterables=DataLoader(Rows()))
    return made


def waits(trainer):
    trainer.early_stopping_callback.wait_count += 1


@pytest.mark.parametrize(
    ("function", "name", "change"),
    [
        (through_an_attribute, "trainer.datamodule.difficulty", lambda t: setattr(t.datamodule, "difficulty", 2)),
        (from_an_argument, "trainer.mine", lambda t: t.mine.update(weight=2)),
        (from_an_argument_beside_another, "trainer.mine", lambda t: t.mine.update(weight=2)),
        (from_a_name_on_one_line, "trainer.mine", lambda t: t.mine.update(weight=2)),
        (from_a_part_with_a_name, "trainer.early_stopping_callback.wait_count", waits),
        (from_one_of_several, "trainer.callbacks[0].wait_count", waits),
        (from_an_item, "trainer.early_stopping_callbacks[0].wait_count", waits),
        (
            from_a_name_in_quotes,
            "trainer.fit_loop.epoch_progress.current.completed",
            lambda t: t.fit_loop.epoch_progress.increment_completed(),
        ),
        (with_a_default, "trainer.comes_later", lambda t: setattr(t, "comes_later", 2)),
        (from_an_object_of_the_users, "trainer.own", lambda t: t.own.hidden.append(2)),
        (
            from_a_dataset,
            "trainer.train_dataloader.dataset.level",
            lambda t: setattr(t.train_dataloader.dataset, "level", 2),
        ),
        (Below.from_super, "trainer.mine", lambda t: t.mine.update(weight=2)),
        (among_very_many_names(), "trainer.mine", lambda t: t.mine.update(weight=2)),
    ],
)
def test_a_change_shows(trainer, function, name, change):
    look = reached_through(trainer)({function.__code__})
    before = look()
    trainer.unnamed.append(1)
    trainer.callbacks[1].calls += 1
    next(iter(trainer.train_dataloader))
    assert look() == before
    change(trainer)
    after = look()
    assert {changed for changed in after if before.get(changed) != after[changed]} >= {name}


def test_a_helper_that_is_given_a_part_of_it_names_the_rest(trainer):
    def gives(self):
        return helper(self.trainer.callbacks[1])

    def helper(part):
        return part.weight

    look = reached_through(trainer)({gives.__code__, helper.__code__})
    before = look()
    trainer.callbacks[1].weight = 2
    assert look() != before


def test_a_property_of_the_users_is_not_called_and_what_it_reads_is_looked_at(trainer):
    def reads(self):
        return self.trainer.callbacks[1].half

    of_callback = trainer.callbacks[1]
    look = reached_through(trainer)({reads.__code__, Counts.half.fget.__code__})
    before = look()
    assert of_callback.calls == 0
    of_callback.weight = 2
    assert look() != before


def test_a_function_put_on_an_object_or_its_class_shows(trainer):
    def calls(self):
        return self.trainer.callbacks[1].weigh()

    look = reached_through(trainer)({calls.__code__})
    found = [look()]
    trainer.callbacks[1].weigh = lambda: 1
    found.append(look())
    trainer.callbacks[1].weigh = lambda: 2
    found.append(look())
    del trainer.callbacks[1].weigh
    Counts.weigh = lambda self: 3
    try:
        found.append(look())
    finally:
        del Counts.weigh
    assert all(one != other for one, other in zip(found, found[1:], strict=False))


def test_a_property_that_raises_is_no_error(trainer):
    def names(self):
        return [callback.trainer for callback in self.trainer.callbacks if self.trainer is None]

    trainer.callbacks.append(TQDMProgressBar())
    look = reached_through(trainer)({names.__code__})
    assert look() == look()


def test_variables_and_texts_are_no_attributes(trainer):
    def counts(self):
        calls = self.trainer.callbacks[1].weight
        self.log("wait_count", calls)

    look = reached_through(trainer)({counts.__code__})
    before = look()
    trainer.callbacks[1].calls += 1
    waits(trainer)
    assert look() == before


class Derived(L.Trainer):
    """What Lightning tells of it is told of it, too."""


@pytest.mark.parametrize("kind", [L.Trainer, Derived])
def test_what_is_told_where_it_is_read_is_not_looked_at(kind):
    def reads(self):
        return self.trainer.global_step, self.trainer.callback_metrics, self.trainer.is_last_batch

    assert set(reached_through(kind(logger=False, **QUIET))({reads.__code__})()) == {"trainer"}


def test_a_long_chain_is_gone_through(trainer):
    def goes_on(self):
        node = self.trainer.first
        while node is not None:
            node = node.after

    trainer.first = None
    for _ in range(3_000):
        trainer.first = SimpleNamespace(after=trainer.first)
    look = reached_through(trainer)({goes_on.__code__})
    assert look() == look()


def test_what_moves_in_each_step_is_never_the_same(trainer):
    def reads(self):
        return self.trainer.fit_loop.epoch_loop.batch_progress.current.ready

    look = reached_through(trainer)({reads.__code__})
    assert look() != look()


def test_another_object_in_the_place_of_one_shows(trainer):
    look = reached_through(trainer)({from_one_of_several.__code__})
    before = look()
    trainer.callbacks[0] = EarlyStopping("loss")
    trainer.callbacks[0].wait_count = 3
    assert look() != before


def test_what_is_not_behind_the_trainer_is_not_looked_at(trainer):
    assert reached_through(trainer)({of_something_else.__code__})() == {}


def test_a_name_that_is_not_there_is_nothing(trainer):
    def names(self):
        return self.trainer.is_not_there

    assert set(reached_through(trainer)({names.__code__})()) == {"trainer"}
