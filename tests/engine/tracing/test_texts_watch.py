"""Texts in a recorded step: what stands for them holds the same, and tells of every look."""

import copy
import json
import pickle

import pytest
import torch

from lightning_sink.data.batch import with_stand_ins
from lightning_sink.engine.step import Tape
from lightning_sink.engine.tracing.texts_watch import texts_watched


class Told(Tape):
    """Keeps what it is told of."""

    records = True

    def __init__(self):
        self.hazards = []

    def hazard(self, what):
        self.hazards.append(what)


NAMES = ["a.png", "b.png"]
LOOKS = {
    "an item": lambda names: names[0],
    "a slice": lambda names: names[:1],
    "a loop": lambda names: [name.upper() for name in names],
    "unpacked": lambda names: (lambda one, other: other)(*names),
    "assigned": lambda names: [one for one, _ in [names]],
    "joined": ",".join,
    "sorted": sorted,
    "in it": lambda names: "a.png" in names,
    "equal": lambda names: names == ["a.png"],
    "not equal": lambda names: names != ["a.png"],
    "smaller": lambda names: names < type(names)(),
    "added": lambda names: names + type(names)(["c"]),
    "added to a list": lambda names: [*"ab"] + names if isinstance(names, list) else (*"ab",) + names,
    "extends": lambda names: [].extend(names),
    "many times": lambda names: (2 * names, names * 2),
    "a text of it": repr,
    "formatted": "{}".format,
    "its place": lambda names: names.index("a.png"),
    "counted": lambda names: names.count("a.png"),
    "copied": copy.copy,
    "copied deep": copy.deepcopy,
    "pickled": lambda names: pickle.loads(pickle.dumps(names)),
    "json": json.dumps,
    "a set": set,
    "a dictionary": lambda names: dict(zip(names, range(2), strict=True)),
    "numbered": lambda names: list(enumerate(names)),
    "reversed": lambda names: list(reversed(names)),
    "starred": lambda names: [*names],
}
CHANGES = {
    "append": lambda names: names.append("c.png"),
    "set": lambda names: names.__setitem__(0, "c.png"),
    "sort": lambda names: names.sort(reverse=True),
    "pop": lambda names: names.pop(),
    "clear": lambda names: names.clear(),
    "added in place": lambda names: names.__iadd__(["c.png"]),
}


@pytest.mark.parametrize("kind", [list, tuple])
@pytest.mark.parametrize("name", LOOKS)
def test_a_look_is_told_and_gives_the_same(name, kind):
    tape, expected = Told(), LOOKS[name](kind(NAMES))
    with texts_watched((torch.ones(2), kind(NAMES)), with_stand_ins, tape) as (_, names):
        assert not tape.hazards
        found = LOOKS[name](names)
        assert tape.hazards
    assert found == expected
    assert {*tape.hazards} == {"the step looks at `batch[1]`, texts of the batch"}


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_is_told_and_done(name):
    tape, held, expected = Told(), NAMES.copy(), NAMES.copy()
    CHANGES[name](expected)
    with texts_watched([torch.ones(2), held], with_stand_ins, tape) as batch:
        CHANGES[name](batch[1])
        assert tape.hazards
    assert batch[1] is held
    assert held == expected


@pytest.mark.parametrize("kind", [list, tuple])
def test_it_may_be_handed_on_and_asked_for_its_length(kind):
    tape, names = Told(), kind(NAMES)
    with texts_watched({"x": torch.ones(2), "names": names}, with_stand_ins, tape) as batch:
        given = batch.pop("names")
        assert isinstance(given, kind)
        assert len(given) == 2
        assert given
    assert not tape.hazards
    assert "names" not in batch


@pytest.mark.parametrize("kind", [list, tuple])
def test_who_keeps_it_has_the_texts_behind_the_step(kind):
    names, kept = kind(NAMES), {}
    with texts_watched([torch.ones(2), names], with_stand_ins, Told()) as batch:
        kept["here"], kept["there"] = batch[1], [(1, batch[1])]
    assert batch[1] is names
    assert kept["here"] is names
    assert kept["there"][0][1] is names


def test_modules_that_look_for_the_owner_are_not_told_of():
    tape = Told()
    with texts_watched((torch.ones(2), NAMES), with_stand_ins, tape, {__name__}) as batch:
        assert batch[1][0] == "a.png"
    assert not tape.hazards


def test_a_step_that_is_not_recorded_has_the_batch_itself():
    batch = torch.ones(2), NAMES
    with texts_watched(batch, with_stand_ins, Tape()) as found:
        assert found is batch
