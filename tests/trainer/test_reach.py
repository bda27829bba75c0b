"""What code names behind `trainer` is looked at; the rest of the trainer is not."""

from types import SimpleNamespace

import pytest

from lightning_sink.trainer.reach import reached_through


def through_an_attribute(self):
    return self.trainer.datamodule.difficulty


def from_an_argument(trainer):
    return trainer.mine["weight"]


def from_an_argument_beside_another(x, trainer):
    return x * trainer.mine


def from_a_name_on_one_line(self):
    t = self.trainer; return t.mine  # fmt: skip  # noqa: E702


class Derived(SimpleNamespace):
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


@pytest.mark.parametrize(
    ("function", "name", "change"),
    [
        (through_an_attribute, "trainer.datamodule.difficulty", lambda t: setattr(t.datamodule, "difficulty", 2)),
        (from_an_argument, "trainer.mine", lambda t: t.mine.update(weight=2)),
        (from_an_argument_beside_another, "trainer.mine", lambda t: t.mine.update(weight=2)),
        (from_a_name_on_one_line, "trainer.mine", lambda t: t.mine.update(weight=2)),
        (Derived.from_super, "trainer.mine", lambda t: t.mine.update(weight=2)),
        (among_very_many_names(), "trainer.mine", lambda t: t.mine.update(weight=2)),
    ],
)
def test_a_change_shows(function, name, change):
    trainer = SimpleNamespace(datamodule=SimpleNamespace(difficulty=1), mine={"weight": 1}, unnamed=[])
    look = reached_through(trainer)({function.__code__})
    before = look()
    assert set(before) == {name}
    trainer.unnamed.append(1)
    assert look() == before
    change(trainer)
    assert look() != before


def test_what_is_not_behind_the_trainer_is_not_looked_at():
    assert reached_through(SimpleNamespace())({of_something_else.__code__})() == {}


def test_a_name_that_is_not_there_is_nothing():
    assert reached_through(SimpleNamespace())({from_an_argument.__code__})() == {"trainer.mine": None}
