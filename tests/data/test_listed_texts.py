"""Lists of texts: left out of a signature where no step looks at them, and only there."""

import collections

import torch

from lightning_sink.data.batch import flatten, values_in
from lightning_sink.data.listed_texts import Looked, Parts, texts_of, with_texts

Pair = collections.namedtuple("Pair", "x y")
X = torch.ones(2)


def looked_at(*paths):
    looked = Looked()
    looked.see(Parts(frozenset(paths)))
    return looked


def alike(one, other, *paths):
    return flatten(one, looked_at(*paths))[1] == flatten(other, looked_at(*paths))[1]


def test_as_long_as_nothing_is_known_all_is_looked_at():
    looked = Looked()
    assert flatten((X, ["a"]), looked)[1] != flatten((X, ["b"]), looked)[1]
    assert flatten((X, ["a"]))[1] != flatten((X, ["b"]))[1]
    looked.see(Parts(frozenset()))
    assert flatten((X, ["a"]), looked)[1] == flatten((X, ["b"]), looked)[1]


def test_what_is_looked_at_is_compared():
    one, other = (
        (["a"], X, {"name": ["a"], "more": (["a"], ("a",))}),
        (["b"], X, {"name": ["b"], "more": (["b"], ("b",))}),
    )
    assert alike(one, other)
    assert alike(one, other, (1,), (2, "image"))
    for path in [(), (0,), (0, 0), (2,), (2, "name"), (2, "name", 0), (2, "more"), (2, "more", 0), (2, "more", 1, 0)]:
        assert not alike(one, other, path), path


def test_what_else_a_batch_holds_is_compared():
    assert not alike((X, "a"), (X, "b"))
    assert not alike((X, ["a"]), (X, ["a", "b"]))
    assert not alike((X, ["a"]), (X, ("a",)))
    assert not alike((X, ["a", 1]), (X, ["b", 1]))
    assert not alike((X, []), (X, [[]]))
    assert not alike(Pair(X, ["a"]), Pair(X, ["b"]))
    assert not alike(["a", "b"], ["a", "c"])
    assert not alike({"x": X, "name": ["a"]}, {"x": X, "names": ["a"]})


def test_what_steps_look_at_grows_only():
    looked = looked_at((0,))
    assert looked.changes == 1
    looked.see(Parts(frozenset([(0,)])))
    looked.see(Parts(frozenset()))
    assert (looked.changes, looked.at((0,)), looked.at((1,))) == (1, True, False)
    looked.see(Parts(frozenset([("name",)])))
    assert (looked.changes, looked.at((0,)), looked.at(("name",))) == (2, True, True)
    assert repr(looked) == "Looked(('name',), (0,))"


def test_the_values_that_are_named_are_those_that_are_compared():
    batch = {"x": X, "name": ["a"], "about": {"of": ["b"]}, "kind": "c"}
    assert dict(values_in(batch, looked_at(("about", "of")))) == {"batch['about']['of'][0]": "b", "batch['kind']": "c"}
    assert len(dict(values_in(batch))) == 3


def test_texts_are_taken_out_and_put_in_again():
    batch = {"x": X, "names": ["a"], "more": (("b",), ["c"], 1)}
    texts = texts_of(batch, looked_at(("more", 1)))
    assert texts == {("names",): ["a"], ("more", 0): ("b",)}
    assert texts[("names",)] is not batch["names"]
    other = with_texts({"x": X, "names": ["u"], "more": (("v",), ["w"], 2)}, texts)
    assert other["x"] is X
    assert {**other, "x": 0} == {"x": 0, "names": ["a"], "more": (("b",), ["w"], 2)}


def test_the_length_of_a_text_is_a_look_and_that_of_a_list_is_none():
    looked = Looked()
    looked.see(Parts(frozenset([("x",)]), frozenset([(), ("more",), ("more", 0), ("name", 0)])))
    assert [looked.at(path) for path in (("names",), ("more", 0), ("more", 1), ("name",))] == [
        False,
        False,
        False,
        True,
    ]
    looked.see(Parts(frozenset(), frozenset([("names", 3)])))
    assert looked.at(("names",))
