"""What a step puts into its batch is seen, and taken out again where the step is run a second time."""

from collections import OrderedDict
from types import SimpleNamespace

import pytest
import torch

from lightning_sink.engine.tracing.left_on_batch import BatchContents


def batch():
    inner = SimpleNamespace(x=torch.ones(2), parts=[1, 2])
    return {"inner": inner, "pair": (torch.ones(1), {"deep": [torch.zeros(1)]}), "x": torch.zeros(3)}


def marks(held):
    held["x"].seen = 1


def renames(held):
    held["pair"][1]["other"] = held["pair"][1].pop("deep")


CHANGES = {
    "a part is replaced": lambda held: held.update(x=held["x"] * 2),
    "a part is added": lambda held: held.setdefault("y", 1),
    "a part is taken out": lambda held: held.pop("x"),
    "a part has another name": renames,
    "a list grows": lambda held: held["inner"].parts.append(3),
    "an attribute is set": lambda held: setattr(held["inner"], "x", 0),
    "an attribute is added": lambda held: setattr(held["inner"], "y", 0),
    "deep inside": lambda held: held["pair"][1]["deep"].clear(),
    "on a tensor": marks,
}


@pytest.mark.parametrize("change", CHANGES)
def test_changes_are_seen_and_taken_back(change):
    held = batch()
    contents = BatchContents(held, held)
    assert not contents.are_changed()
    assert not contents.are_left()
    before = repr(held), [*vars(held["x"])]
    CHANGES[change](held)
    assert contents.are_changed()
    assert contents.are_left()
    contents.restore()
    assert (repr(held), [*vars(held["x"])]) == before
    assert not contents.are_changed()


def test_a_copy_of_what_was_yielded_is_the_steps_own():
    yielded = {"x": torch.ones(2), "inner": SimpleNamespace(y=1)}
    own = dict(yielded)
    contents = BatchContents(own, yielded)
    own["x"] = own["x"] * 2
    assert contents.are_changed()
    assert not contents.are_left()
    own["inner"].y = 2
    assert contents.are_left()


def test_numbers_in_tensors_are_others_business():
    held = batch()
    contents = BatchContents(held, held)
    held["x"].add_(1)
    assert not contents.are_changed()


class Own(OrderedDict):
    """What holds a batch may have ways of its own, which are not asked."""

    def values(self):
        raise AssertionError("asked")

    __iter__ = keys = items = values

    def __call__(self):
        return 1


def test_no_code_of_the_batchs_runs():
    held = Own(x=1)
    contents = BatchContents([held, object(), torch.nn.Linear(1, 1), len, print], None)
    dict.__setitem__(held, "x", 2)
    assert contents.are_changed()
