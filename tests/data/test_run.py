"""Batches that were fetched before their turn: runs of batches that are alike, and parts of them."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lightning_sink.data.run import Early, HeldRun


def found(number, length=2):
    """A batch of this length, that says which it is; its note; and its bytes."""
    return (torch.full((length,), float(number)), torch.tensor([number])), f"note {number}", 10 + number


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
    early = Early(Counted())
    for number, length in enumerate(lengths):
        early.hold(found(number, length))
    return early


def test_only_batches_of_one_signature_make_a_run():
    run = HeldRun(found(0))
    assert run.add(found(1))
    assert not run.add(found(2, length=3))
    assert not run.add((list(found(3)[0]), "a list", 0))
    assert len(run) == 2
    assert run.last == ("note 1", 11)


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
    early = Early(let_go)
    for number, length in enumerate([2, 2, 2, 3]):
        early.hold(found(number, length))
    batch, notes = early.take(2)
    assert int(batch[1]) == 1
    assert notes == ["note 0", "note 1"]
    assert (let_go.count, let_go.size) == (2, 21)
    early.clear()
    assert (let_go.count, let_go.size) == (4, 10 + 11 + 12 + 13)
    assert len(early) == 0
    assert early.last == (None, 0)
    assert early.part(0, 5) is None


def test_a_batch_that_cannot_be_read_leaves_the_others_as_they_are():
    early = held([2, 2])
    with pytest.raises(ZeroDivisionError):
        early.hold((Unreadable(), "note", 1))
    assert len(early) == 2
    assert early.last[0] == "note 1"


class Unreadable:
    @property
    def __dict__(self):
        raise ZeroDivisionError
