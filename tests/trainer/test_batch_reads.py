"""Which parts of a batch a step looks at, as its source has it."""

from types import SimpleNamespace

import lightning as L
import pytest
import torch
from torch import nn

from lightning_sink import StepCallback
from lightning_sink.data.listed_texts import Looked
from lightning_sink.trainer.batch_reads import ALL, BatchReads


def helper(batch, scale):
    return batch["x"] * scale


def keeps(names):
    KEPT.append(names)


KEPT = []


class Base(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(2, 2)


def read(make, *callbacks):
    return BatchReads().parts(SimpleNamespace(lightning_module=make(), callbacks=callbacks)).paths


def step(function):
    """A module whose `training_step` is the function."""
    function.__name__ = function.__qualname__ = "training_step"
    return type("Module", (Base,), {"training_step": function, "shared": shared, "chain": chain, "again": again})


def shared(self, batch, stage, more=None):
    x, y, _ = batch
    return self.net(x) + y


def chain(self, part):
    return self.shared(batch=part, stage="x") if part is not None else 0


def again(self, batch, depth):
    x, *_ = batch[0], 1
    return self.again(batch, depth - 1) if depth else x


# -- what is understood -----------------------------------------------------------------------------------------------


def unpacks(self, batch, batch_idx):
    x, y, names = batch
    if len(names) != len(x):
        raise ValueError("names")
    return self.net(x) + y


def unpacks_deeper(self, batch, batch_idx):
    (x, names), [y, ids] = batch
    return self.net(x) + y


def asks_by_key(self, batch, batch_idx):
    x = batch["x"]
    if "mask" in batch and batch is not None and isinstance(batch, dict):
        x = x * batch["mask"].sum()
    return self.net(x) + batch.get("y") + batch["more"]["z"][0]


def by_way_of_variables(self, batch, batch_idx):
    part = batch["images"]
    alias = part
    x = alias["x"]
    return x.sum()


def asks_a_method(self, batch, batch_idx):
    return self.shared(batch, "train")


def asks_by_name(self, batch, batch_idx):
    return self.shared(stage="train", batch=batch["source"])


def asks_a_chain(self, batch, batch_idx):
    return self.chain(batch[1])


def asks_a_function(self, batch, batch_idx):
    return helper(batch, 2)


def asks_itself(self, batch, batch_idx):
    return self.again(batch, 3)


def names_nothing(self, batch, batch_idx):
    return self.net.weight.sum()


UNDERSTOOD = {
    unpacks: {(0,), (1,)},
    unpacks_deeper: {(0, 0), (1, 0)},
    asks_by_key: {("x",), ("mask",), ("y",), ("more", "z", 0)},
    by_way_of_variables: {("images", "x")},
    asks_a_method: {(0,), (1,)},
    asks_by_name: {("source", 0), ("source", 1)},
    asks_a_chain: {(1, 0), (1, 1)},
    asks_a_function: {("x",)},
    asks_itself: {(0,)},
    names_nothing: set(),
}


@pytest.mark.parametrize("function", UNDERSTOOD, ids=lambda function: function.__name__)
def test_what_a_step_looks_at(function):
    assert read(step(function)) == UNDERSTOOD[function]


# -- looks ------------------------------------------------------------------------------------------------------------


def loops(self, batch, batch_idx):
    x, y, names = batch
    return x if [name for name in names if name] else y


def formats(self, batch, batch_idx):
    x, y, names = batch
    print(f"{names}")
    return x


def hands_to_c(self, batch, batch_idx):
    x, y, names = batch
    ",".join(names)
    return x


def hands_to_a_module(self, batch, batch_idx):
    x, y, names = batch
    return self.net(names)


def hands_to_a_function_that_keeps(self, batch, batch_idx):
    x, y, names = batch
    keeps(names)
    return x


def keeps_it(self, batch, batch_idx):
    x, y, self.names = batch
    return x


def keeps_a_part(self, batch, batch_idx):
    x, y, names = batch
    self.last = names[0]
    return x


def returns_it(self, batch, batch_idx):
    x, y, names = batch
    return {"loss": x, "names": names}


def in_a_function_of_its_own(self, batch, batch_idx):
    x, y, names = batch
    return (lambda: names and x)()


def in_another_container(self, batch, batch_idx):
    x, y, names = batch
    given = [names, x]
    return given[1]


def changes_it(self, batch, batch_idx):
    x, y, names = batch
    names += ["a"]
    return x


def sets_a_part(self, batch, batch_idx):
    x, y, names = batch
    names[0] = "a"
    return x


def takes_a_part_away(self, batch, batch_idx):
    x, y, names = batch
    del names[0]
    return x


def by_a_variable_index(self, batch, batch_idx):
    x, y, names = batch
    return x if names[batch_idx] == "a" else y


def is_in_it(self, batch, batch_idx):
    x, y, names = batch
    return x if "a" in names else y


def compares(self, batch, batch_idx):
    x, y, names = batch
    return x if names == ["a"] else y


def starred(self, batch, batch_idx):
    x, y, names = batch
    return max(*names)


def matches(self, batch, batch_idx):
    x, y, names = batch
    match names:
        case ["a", *_]:
            return y
    return x


def one_by_one(self, batch, batch_idx):
    x, y, names = batch
    return zip(names, x)  # noqa: B905


LOOKS = [
    *(loops, formats, hands_to_c, hands_to_a_module, hands_to_a_function_that_keeps, keeps_it, keeps_a_part),
    *(returns_it, in_a_function_of_its_own, in_another_container, changes_it, sets_a_part, takes_a_part_away),
    *(by_a_variable_index, is_in_it, compares, starred, matches, one_by_one),
]


@pytest.mark.parametrize("function", LOOKS, ids=lambda function: function.__name__)
def test_a_look_at_a_part_is_found(function):
    paths = read(step(function))
    assert any(path[:1] == (2,) for path in paths)
    assert () not in paths


# -- lengths ----------------------------------------------------------------------------------------------------------


def length_of_a_text(self, batch, batch_idx):
    x, y, names = batch
    return x * len(names[0])


def unpacks_a_text(self, batch, batch_idx):
    x, y, names = batch
    first = names[0]
    one, two = first
    return x


def asks_a_text_for_a_letter(self, batch, batch_idx):
    x, y, names = batch
    names[0][3]
    return x


def asks_a_method_for_the_length(self, batch, batch_idx):
    x, y, names = batch
    return self.length(names) + x


def length(self, names):
    return len(names[1])


def is_the_same_text(self, batch, batch_idx):
    x, y, names = batch
    return x if names[0] is names[1] else y


OF_TEXTS = [length_of_a_text, unpacks_a_text, asks_a_text_for_a_letter, asks_a_method_for_the_length, is_the_same_text]


@pytest.mark.parametrize("function", OF_TEXTS, ids=lambda function: function.__name__)
def test_how_long_a_text_is_is_a_look(function):
    def make():
        made = step(function)
        made.length = length
        return made()

    looked = Looked()
    looked.see(BatchReads().parts(SimpleNamespace(lightning_module=make(), callbacks=[])))
    assert looked.at((2,))


@pytest.mark.parametrize("function", [unpacks, shared], ids=lambda function: function.__name__)
def test_how_many_texts_there_are_is_none(function):
    looked = Looked()
    looked.see(BatchReads().parts(SimpleNamespace(lightning_module=step(function)(), callbacks=[])))
    assert not looked.at((2,))


# -- anything ---------------------------------------------------------------------------------------------------------


def hands_on(self, batch, batch_idx):
    return self.net(batch)


def goes_through(self, batch, batch_idx):
    return sum(value.sum() for value in batch.values() if isinstance(value, torch.Tensor))


def unpacks_what_is_left(self, batch, batch_idx):
    x, *others = batch
    return x


def from_behind(self, batch, batch_idx):
    return batch[-1]


def takes_one_away(self, batch, batch_idx):
    batch.pop("name")
    return batch["x"]


def puts_one_there(self, batch, batch_idx):
    batch["seen"] = True
    return batch["x"]


def shows_variables(self, batch, batch_idx):
    return locals()["batch"][0]


def in_a_lambda_alone(self, batch, batch_idx):
    return (lambda: batch[0])()


def with_a_star(self, batch, batch_idx):
    return self.shared(*batch)


def with_two_stars(self, batch, batch_idx):
    return self.net(**batch)


def of_a_shadowed_name(self, batch, batch_idx):
    len = self.net
    return len(batch)


def by_any_name(self, batch, batch_idx):
    return getattr(self, "shared")(batch, "train")  # noqa: B009


def as_another_self(self, batch, batch_idx):
    self = self.net
    return self.shared(batch, "train")


def takes_all(self, *arguments):
    return arguments[0][0]


def by_index(self, batch, batch_idx):
    batch = batch[0]
    return self.net(batch)


def by_unpacking(self, batch, batch_idx):
    (batch, _) = batch
    return self.net(batch)


def by_keys(self, batch, batch_idx):
    if "a" in batch:
        batch = batch["a"]
    elif "b" in batch:
        batch = batch["b"]
    elif "c" in batch:
        batch = batch.get("c")
    return self.net(batch)


def in_turns(self, batch, batch_idx):
    x = batch[0]
    batch = x
    return self.net(batch)


def by_itself(self, batch, batch_idx):
    return self.training_step(batch[0], batch_idx) if isinstance(batch, tuple) else self.net(batch)


ANYTHING = [
    *(hands_on, goes_through, unpacks_what_is_left, from_behind, takes_one_away, puts_one_there, shows_variables),
    *(in_a_lambda_alone, with_a_star, with_two_stars, of_a_shadowed_name, by_any_name, as_another_self, takes_all),
    *(by_index, by_unpacking, by_keys, in_turns, by_itself),  # given parts of themselves, variables are all of these
]


@pytest.mark.parametrize("function", ANYTHING, ids=lambda function: function.__name__)
def test_what_is_not_understood_may_look_at_anything(function):
    assert () in read(step(function))


# -- where functions come from ----------------------------------------------------------------------------------------


class Parent(Base):
    def training_step(self, batch, batch_idx):
        return batch["x"]


class Child(Parent):
    def training_step(self, batch, batch_idx):
        return super().training_step(batch, batch_idx) + batch["y"]


class Between(Parent):
    def training_step(self, batch, batch_idx):
        return batch["z"]


class Mixed(Child, Between):
    pass


class Ends(Parent):
    def on_train_batch_end(self, outputs, batch, batch_idx):
        self.last = batch["name"]


class Starts(Parent):
    def on_train_batch_start(self, batch, batch_idx):
        print(batch["about"])


def test_methods_are_found_as_python_finds_them():
    assert read(Child) == {("x",), ("y",)}
    assert read(Mixed) == {("z",), ("y",)}


def test_hooks_of_the_module_are_read_too():
    assert read(Ends) == {("x",), ("name",)}
    assert read(Starts) == {("x",), ("about",)}


def test_callbacks_that_belong_to_the_step_may_look_at_anything():
    assert read(Parent, L.Callback()) == {("x",)}
    assert read(Parent, StepCallback()) == ALL.paths


def test_a_function_that_an_object_has_itself_may_look_at_anything():
    def make():
        module = Parent()
        module.training_step = lambda batch, batch_idx: batch["x"]
        return module

    assert () in read(make)


def test_another_function_in_its_place_is_read_anew(monkeypatch):
    reads, trainer = BatchReads(), SimpleNamespace(lightning_module=Child(), callbacks=[])
    assert reads.parts(trainer).paths == {("x",), ("y",)}
    monkeypatch.setattr(Parent.training_step, "__code__", Between.training_step.__code__)
    assert reads.parts(trainer).paths == {("z",), ("y",)}
    monkeypatch.setattr(Parent, "training_step", lambda self, batch, batch_idx: batch)
    assert () in reads.parts(trainer).paths


def test_another_module_is_read_anew():
    reads = BatchReads()
    for make, expected in ((Child, {("x",), ("y",)}), (Parent, {("x",)}), (Between, {("z",)})):
        assert reads.parts(SimpleNamespace(lightning_module=make(), callbacks=[])).paths == expected
