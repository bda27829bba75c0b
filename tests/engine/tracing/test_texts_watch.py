"""Texts in a recorded step: what stands for them does what they do, and tells of it."""

import copy
import json
import os
import pickle
import re
from collections import Counter
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils import _pytree as pytree

from lightning_sink.data.listed_texts import Looked, with_stand_ins
from lightning_sink.engine.tracing.texts_watch import asks_for_types, texts_watched

NAMES = ["a.png", "b.png"]

LOOKS = {
    "a loop": lambda names: [name.upper() for name in names],
    "sorted": sorted,
    "least": min,
    "in it": lambda names: "a.png" in names,
    "a part": lambda names: ["png" in name for name in names],
    "equal": lambda names: names == type(names)(["a.png", "b.png"]),
    "not equal": lambda names: names != type(names)(["a.png"] * 2),
    "equal from the left": lambda names: "a.png" == names[0],  # noqa: SIM300
    "one another": lambda names: names[0] == names[1],
    "smaller": lambda names: names < type(names)(["b", "a"]),
    "added": lambda names: [name + ".gz" for name in names],
    "added to": lambda names: ["data/" + name for name in names],
    "many times": lambda names: (2 * names[0], names[0] * 2),
    "a text of it": repr,
    "the text of one": lambda names: str(names[0]),
    "formatted": lambda names: (f"{names[0]:>9}", "{}".format(names[1])),  # noqa: UP032
    "in the old way": lambda names: ("%s" % names[0], "%r" % (names,)),  # noqa: UP031
    "all in the old way": lambda names: "%s, %s" % (*names,),  # noqa: UP031
    "its place": lambda names: names.index("b.png"),
    "counted": lambda names: names.count("a.png"),
    "copied deep": copy.deepcopy,
    "one copied": lambda names: copy.copy(names[0]),
    "pickled": lambda names: pickle.loads(pickle.dumps(names)),
    "a set": set,
    "a counter": Counter,
    "a key": lambda names: {"a.png": 1}.get(names[0]),
    "a table": lambda names: dict(zip(names, range(2), strict=True)),
    "its letters": lambda names: ([*names[0]], len(names[1]), names[0][:1], names[1][-1]),
    "any": any,
    "a path": lambda names: (Path(names[0]).suffix, os.fspath(names[1])),
    "an array": lambda names: np.array(names[0]).tolist(),
    "an array of objects": lambda names: np.array(names, dtype=object).tolist(),
    "a case": lambda names: next(case_of(name) for name in names),
    "a number": lambda names: int((names[0] and "7") if names else 0),
    "split": lambda names: [name.split(sep=".", maxsplit=1) for name in names],
    "starts": lambda names: names[0].startswith(names[0]),
}

REFUSED = {
    "joined": ",".join,
    "starts with any": lambda names: "a.png".startswith((*names,)),
    "matches": lambda names: re.match("a", names[0]),
    "json": json.dumps,
    "a tensor": torch.tensor,
    "an array": np.array,
    "an array of all": lambda names: np.array([*names, "c"]),
    "written": lambda names: bytes(names[0], "utf-8"),
}

UNSEEN = {
    "how many": len,
    "whether there are any": bool,
    "what kind": lambda names: (isinstance(names, list), isinstance(names, tuple), isinstance(names[0], str)),
    "what class": lambda names: (type(names), names.__class__, names[0].__class__),
    "no tensors": lambda names: [item for item in names if isinstance(item, torch.Tensor)],
    "nothing that moves": lambda names: hasattr(names[0], "to"),
    "none": lambda names: names is None or names[0] is None,
    "leaves": lambda names: len(pytree.tree_leaves({"names": names})),
    "pairs": lambda names: sum(number for _, number in zip(names, range(2), strict=True)),
}

CHANGES = {
    "append": lambda names: names.append("c.png"),
    "set": lambda names: names.__setitem__(0, "c.png"),
    "sort": lambda names: names.sort(reverse=True),
    "reverse": lambda names: names.reverse(),
    "pop": lambda names: names.pop() and None,
    "clear": lambda names: names.clear(),
    "added in place": lambda names: names.__iadd__(["c.png"]) and None,
}

KINDS = pytest.mark.parametrize("kind", [list, tuple])


def case_of(name):
    match name:
        case "b.png":
            return "b"
        case _:
            return "another"


class Watched:
    """Has a batch watched, and keeps what is told."""

    def __init__(self, batch, asks=False):
        self.hazards, self.looked = [], Looked()
        self.batch = batch
        self.context = texts_watched(
            partial(with_stand_ins, batch, self.looked), self.looked.add, self.hazards.append, lambda: asks
        )

    def __enter__(self):
        return self.context.__enter__()

    def __exit__(self, *error):
        return self.context.__exit__(*error)


@KINDS
@pytest.mark.parametrize("name", LOOKS)
def test_a_look_is_told_and_gives_the_same(name, kind):
    expected = LOOKS[name](kind(NAMES))
    watched = Watched((torch.ones(2), kind(NAMES)))
    with watched as (_, names):
        assert not watched.hazards
        found = LOOKS[name](names)
        assert watched.hazards
    assert found == expected
    assert watched.hazards[0] == "the step looks at `batch[1]`, texts of the batch"
    assert len(watched.looked) == 1


@KINDS
@pytest.mark.parametrize("name", REFUSED)
def test_code_in_c_that_wants_a_text_is_an_error_and_no_other_result(name, kind):
    with Watched((torch.ones(2), kind(NAMES))) as (_, names), pytest.raises((TypeError, ValueError)):
        REFUSED[name](names)


@KINDS
@pytest.mark.parametrize("name", UNSEEN)
def test_what_is_the_same_for_other_texts_is_not_told(name, kind):
    expected = UNSEEN[name](kind(NAMES))
    watched = Watched((torch.ones(2), kind(NAMES)))
    with watched as (_, names):
        assert UNSEEN[name](names) == expected
        del names, _
    assert not watched.hazards
    assert not len(watched.looked)


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_is_told_and_done(name):
    held, expected = NAMES.copy(), NAMES.copy()
    CHANGES[name](expected)
    watched = Watched([torch.ones(2), held])
    with watched as batch:
        CHANGES[name](batch[1])
    assert "the step changes `batch[1]`, texts of the batch" in watched.hazards
    assert batch[1] is held
    assert held == expected
    assert all(type(text) is str for text in held)


@KINDS
def test_a_batch_that_gives_them_away_is_told_of_nothing(kind):
    watched = Watched({"x": torch.ones(2), "names": kind(NAMES)})
    with watched as batch:
        batch.pop("names")
    assert not watched.hazards
    assert "names" not in batch


@KINDS
def test_who_keeps_them_has_the_texts_and_that_is_told(kind):
    names, kept = kind(NAMES), {}
    watched = Watched([torch.ones(2), names])
    with watched as batch:
        kept["here"], kept["there"] = batch[1], [(1, batch[1])]
        kept["one"], kept["deep"] = batch[1][1], [((batch[1][0], 1), {"again": batch[1][0]})]
    assert {*watched.hazards} == {"the step keeps what is in `batch[1]`, texts of the batch"}
    assert batch[1] is kept["here"] is kept["there"][0][1] is names
    assert type(kept["one"]) is str
    assert kept["one"] == "b.png"
    assert kept["deep"] == [(("a.png", 1), {"again": "a.png"})]
    assert type(kept["deep"][0][0][0]) is str


def test_lists_at_which_steps_have_looked_are_left_as_they_are():
    names = ["c.png"]
    watched = Watched((NAMES, {"names": names}))
    watched.looked.add(1)
    with watched as batch:
        assert batch[1]["names"] is names
        assert batch[0] is not NAMES


def test_a_step_that_asks_for_types_is_run_again():
    watched = Watched((NAMES, ("c.png",)), asks=True)
    with pytest.raises(TypeError), watched:
        pass
    assert len(watched.looked) == 2


def asks(value):
    return type(value) is str


def asks_its_own(self):
    return type(self).__name__


def asks_both(self, value):
    return type(self), type(value)


def asks_none(value):
    return isinstance(value, str)


def test_code_that_asks_for_types():
    functions = asks, asks_its_own, asks_both, asks_none, copy.copy
    found = [function.__name__ for function in functions if asks_for_types(function.__code__)]
    assert found == ["asks", "asks_both"]


def test_an_error_of_the_step_leaves_the_batch_as_it_was():
    batch = [torch.ones(2), NAMES, {"name": ("c.png",)}]
    with pytest.raises(KeyError), Watched(batch) as watched:
        raise KeyError(watched[1][0].upper())
    assert batch[1] is NAMES
    assert type(batch[2]["name"][0]) is str
