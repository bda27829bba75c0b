"""Lists of texts: stand-ins are where signatures leave them out, and nowhere else."""

import collections
import copy

import torch
from hypothesis import given
from hypothesis import strategies as st

from lightning_sink.data.batch import flatten
from lightning_sink.data.listed_texts import Looked, with_stand_ins

Pair = collections.namedtuple("Pair", "x y")

TEXTS = st.one_of(st.lists(st.text(max_size=2), max_size=3), st.tuples(st.text(max_size=2)))
PARTS = st.one_of(TEXTS, st.just(torch.ones(2)), st.integers(0, 2), st.text(max_size=1), st.none())
BATCHES = st.recursive(
    PARTS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(st.text(max_size=1), inner, max_size=3),
        st.tuples(inner, inner).map(lambda two: Pair(*two)),
    ),
)


def looked_at(*numbers):
    looked = Looked()
    for number in numbers:
        looked.add(number)
    return looked


@given(BATCHES, st.sets(st.integers(0, 3)))
def test_stand_ins_are_where_the_signature_leaves_texts_out(batch, numbers):
    """Batches that differ there have one signature, and others do not."""
    before, made, looked = copy.deepcopy(batch), [], looked_at(*numbers)

    def make(number, place, texts):
        made.append(number)
        return type(texts)(f"{text} otherwise" for text in texts)

    other, restore = with_stand_ins(batch, looked, make)
    assert numbers.isdisjoint(made)
    assert flatten(other, looked)[1] == flatten(before, looked)[1]
    assert (flatten(other)[1] == flatten(before)[1]) == (not made)
    if made:
        assert flatten(other, looked_at(*numbers, made[0]))[1] != flatten(before, looked_at(*numbers, made[0]))[1]
    restore()
    assert flatten(batch)[1] == flatten(before)[1]


def test_what_else_a_batch_holds_is_compared():
    x = torch.ones(2)

    def alike(one, other):
        return flatten(one, Looked())[1] == flatten(other, Looked())[1]

    assert alike((x, ["a"]), (x, ["b"]))
    assert alike((["a"], x), (["b"], x))
    assert not alike((x, "a"), (x, "b"))
    assert not alike((x, ["a"]), (x, ["a", "b"]))
    assert not alike((x, ["a"]), (x, ("a",)))
    assert not alike((x, ["a", 1]), (x, ["b", 1]))
    assert not alike(Pair(x, ["a"]), Pair(x, ["b"]))


def test_where_they_are_is_said_as_users_write_it():
    places = []
    with_stand_ins(
        [torch.ones(2), {"name": ["a"], "more": (("b",), ["c"])}],
        looked_at(1),
        lambda number, place, texts: places.append((number, place)) or texts,
    )
    assert places == [(0, "batch[1]['name']"), (2, "batch[1]['more'][1]")]


def test_it_says_at_which_steps_look():
    assert repr(looked_at(3, 1)) == "Looked([1, 3])"
