"""Batches that were fetched before their turn: runs of batches that are alike, and parts of them."""

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lightning_sink.data.gathered import Gathered
from lightning_sink.data.listed_texts import Looked
from lightning_sink.data.run import Early, HeldRun, count_of, notes_of


def found(number, length=2):
    """A batch of this length, that says which it is; its note; and its bytes."""
    return (torch.full((length,), float(number)), torch.tensor([number])), f"note {number}", 10 + number


def gathered(numbers, length=2):
    """Such batches, gathered at once."""
    founds = [found(number, length) for number in numbers]
    columns = [torch.stack(column) for column in zip(*(batch for batch, _, _ in founds), strict=True)]
    return Gathered(columns, tuple), [note for _, note, _ in founds], 10 * len(founds)


class Counted:
    """What was let go."""

    def __init__(self):
        self.count = self.size = 0

    def __call__(self, count, size):
        self.count += count
        self.size += size


def numbers_of(part):
    return [] if part is None else [int(part.batch(place)[1]) for place in range(len(part))]


def held(lengths):
    early = Early(Counted(), Looked())
    for number, length in enumerate(lengths):
        early.hold(found(number, length))
    return early


def test_only_batches_of_one_signature_make_a_run():
    run = HeldRun(found(0), Looked())
    assert run.add(found(1))
    assert not run.add(found(2, length=3))
    assert not run.add((list(found(3)[0]), "a list", 0))
    assert len(run) == 2
    assert run.last == "note 1"


def test_a_part_gives_its_batches_its_notes_and_their_tensors():
    part = held([2] * 6).part(1, 4)
    assert numbers_of(part) == [1, 2, 3, 4]
    assert part.notes == [f"note {number}" for number in range(1, 5)]
    rows, labels = part.columns()
    assert [row.tolist() for row in rows] == [[float(number)] * 2 for number in range(1, 5)]
    assert [int(label) for label in labels] == [1, 2, 3, 4]
    assert repr(part) == "Part(4 of 6 batches)"
    assert numbers_of(part.cut(2)) == [1, 2]
    assert numbers_of(part.cut(9)) == [1, 2, 3, 4]


def test_a_part_stays_as_it_is_while_batches_before_it_are_taken():
    early = held([2] * 5)
    part = early.part(2, 2)
    early.take(2)
    assert numbers_of(part) == [2, 3]
    assert [int(label) for label in part.columns()[1]] == [2, 3]


@given(
    lengths=st.lists(st.integers(1, 2), max_size=12),
    begin=st.integers(0, 12),
    most=st.integers(-2, 12),
    taken=st.integers(0, 12),
)
def test_a_part_ends_where_batches_are_another_way(lengths, begin, most, taken):
    early = held(lengths)
    for _ in range(min(taken, len(lengths))):
        early.take(1)
    left = [*enumerate(lengths)][taken:]
    expected = []
    for number, length in left[begin : begin + max(0, most)]:
        if length != left[begin][1]:
            break
        expected.append(number)
    assert numbers_of(early.part(begin, most)) == expected
    assert len(early) == len(left)


def test_what_is_taken_is_let_go():
    let_go = Counted()
    early = Early(let_go, Looked())
    for number, length in enumerate([2, 2, 2, 3]):
        early.hold(found(number, length))
    batch, notes = early.take(2)
    assert int(batch[1]) == 1
    assert notes == ["note 0", "note 1"]
    assert (let_go.count, let_go.size) == (2, 21)
    early.clear()
    assert (let_go.count, let_go.size) == (4, 10 + 11 + 12 + 13)
    assert len(early) == 0
    assert early.last is None
    assert early.part(0, 5) is None


def test_a_batch_that_cannot_be_read_leaves_the_others_as_they_are():
    early = held([2, 2])
    with pytest.raises(ZeroDivisionError):
        early.hold((Unreadable(), "note", 1))
    assert len(early) == 2
    assert early.last == "note 1"


class Unreadable:
    @property
    def __dict__(self):
        raise ZeroDivisionError


def test_what_is_found_may_be_many():
    assert count_of(found(0)) == 1
    assert notes_of(found(0)) == ["note 0"]
    assert count_of(gathered([1, 2, 3])) == 3
    assert notes_of(gathered([1, 2])) == ["note 1", "note 2"]


@given(
    lengths=st.lists(st.tuples(st.integers(1, 4), st.integers(1, 2), st.booleans()), max_size=6),
    begin=st.integers(0, 16),
    most=st.integers(1, 16),
    taken=st.integers(0, 16),
)
def test_batches_that_were_gathered_are_those_one_by_one(lengths, begin, most, taken):
    early, groups, let_go = Early(Counted(), Looked()), [], Counted()
    early._let_go = let_go
    for count, length, together in lengths:
        numbers = range(len(groups), len(groups) + count)
        for group in [gathered(numbers, length)] if together else [found(number, length) for number in numbers]:
            early.hold(group)
        groups += [(length, together)] * count
    for _ in range(min(taken, len(groups))):
        early.take(1)
    left = [*enumerate(groups)][taken:]
    assert let_go.count == len(groups) - len(left)
    expected = [*itertools.takewhile(lambda pair: pair[1] == left[begin][1], left[begin : begin + most])]
    part = early.part(begin, most)
    assert numbers_of(part) == [number for number, _ in expected]
    if part is not None:
        assert part.notes == [f"note {number}" for number, _ in expected]
        for column, other in zip(part.columns(), zip(*map(part.batch, range(len(part))), strict=True), strict=True):
            assert len(column) == len(other)
            assert all(map(torch.equal, column, other))
    assert early.last == (f"note {len(groups) - 1}" if left else None)


def test_batches_that_were_gathered_at_once_stay_side_by_side():
    early = Early(Counted(), Looked())
    early.hold(gathered(range(5)))
    early.hold(gathered(range(5, 8)))
    assert all(isinstance(column, torch.Tensor) for column in early.part(0, 5).columns())
    assert all(isinstance(column, torch.Tensor) for column in early.part(6, 2).columns())
    assert all(isinstance(column, list) for column in early.part(4, 2).columns())
    expected = early.part(1, 2).batch(0)
    taken, _ = early.take(2)
    for tensor, other in zip(taken, expected, strict=True):
        assert torch.equal(tensor, other)
        assert tensor._base is None
        assert other._base is None
        assert tensor._version == other._version == 0
        assert tensor.untyped_storage().nbytes() == tensor.nbytes  # who keeps it keeps no more
