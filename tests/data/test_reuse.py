"""Memory that is filled again is noticed while it does no harm; memory that only comes again is not taken for it."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pytest
import torch

from lightning_sink.data.batch import flatten
from lightning_sink.data.reuse import Reuse, _Leaf, copied


def looked_at(batches, most=16, most_bytes=1 << 30):
    reuse = Reuse(most, most_bytes)
    for batch in batches:
        reuse.note(batch)
    return reuse


def in_turn(count, buffers):
    """Batches in a few buffers, one after the other."""
    held = [torch.zeros(4) for _ in range(buffers)]
    for number in range(count):
        held[number % buffers].fill_(number)
        yield held[number % buffers], torch.tensor(number)


def in_numpys(count):
    held = np.zeros(4, dtype=np.float32)
    for number in range(count):
        held[:] = number
        yield {"x": torch.from_numpy(held)}


@pytest.mark.parametrize("buffers", [1, 2, 5, 15])
def test_buffers_in_turn(buffers):
    reuse = looked_at(in_turn(30, buffers))
    assert reuse.found
    assert reuse.seen == buffers + 1


def windows(count, of, shift):
    """Batches that are views of one ring, each beginning further on than the one before."""
    ring = torch.zeros(of)
    for number in range(count):
        start = number * shift % (of - 8)
        ring[start : start + 8].fill_(number)
        yield ring[start : start + 8]


@pytest.mark.parametrize(("of", "shift", "seen"), [(64, 4, 2), (64, 16, 8), (70, 20, 5)])
def test_views_that_lie_over_each_other(of, shift, seen):
    reuse = looked_at(windows(30, of, shift))
    assert reuse.found
    assert reuse.seen == seen


def test_memory_of_numpys():
    assert looked_at(in_numpys(5)).found


def test_more_buffers_than_anybody_reads_ahead_do_no_harm():
    reuse = looked_at(in_turn(50, 17))
    assert not reuse.found
    assert reuse.seen == 16


FRESH = {
    "made anew": lambda: ((torch.full((4,), float(i)), i) for i in range(30)),
    "a mask that all of them share": lambda: ((torch.full((4,), float(i)), MASK) for i in range(30)),
    "batches in a list, again and again": lambda: [torch.full((4,), float(i)) for i in range(3)] * 10,
    "slices of one tensor": lambda: torch.arange(120.0).split(4),
    "columns of one tensor": lambda: torch.arange(120.0).view(4, 30).unbind(1),
    "windows over data that stays": lambda: torch.arange(40.0).unfold(0, 8, 1).unbind(0),
    "no tensors": lambda: range(30),
    "NaN": lambda: [torch.full((4,), torch.nan)] * 30,
    "eight bits": lambda: [torch.ones(4).to(torch.float8_e4m3fn)] * 30,
    "no memory": lambda: [torch.ones(4, device="meta")] * 30,
    "numbers of other kinds": lambda: [(torch.ones(4, dtype=torch.complex64), torch.ones(4, dtype=torch.bool))] * 30,
    "sparse and empty": lambda: [(torch.eye(3).to_sparse(), torch.zeros(0))] * 30,
}
MASK = torch.ones(4)


@pytest.mark.parametrize("kind", FRESH)
def test_control_what_is_not_filled_again(kind):
    reuse = looked_at(FRESH[kind]())
    assert not reuse.found
    assert reuse.ended


def test_batches_that_are_not_looked_at_are_not_trusted():
    assert not looked_at(in_turn(3, 5)).ended


def test_a_tensor_that_all_batches_share_is_compared_once_for_each(monkeypatch):
    compared, look = [], _Leaf.holds_another
    monkeypatch.setattr(_Leaf, "holds_another", lambda leaf: compared.append(leaf.tensor.data_ptr()) or look(leaf))
    assert not looked_at((torch.full((4,), float(i)), MASK) for i in range(16)).found
    assert compared.count(MASK.data_ptr()) == 15


@pytest.mark.parametrize("shape", [(16384, 8), (64, 4096), (5, 3), (1,), (1025,)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.uint8, torch.bfloat16, torch.complex128])
def test_one_number_of_many_is_enough(shape, dtype):
    held = torch.ones(shape, dtype=dtype)

    def batches():
        for number in range(4):
            held.view(-1)[-1] = number
            yield held

    assert looked_at(batches()).found


@pytest.mark.parametrize("rows", [torch.arange(600.0).reshape(200, 3), torch.eye(8).double(), torch.eye(600)], ids=len)
def test_rows_in_another_order_are_other_numbers(rows):
    held = rows.clone()
    assert looked_at(held.copy_(rows[torch.randperm(len(rows))]) for _ in range(3)).found


def test_labels_in_another_order_are_other_numbers():
    held, labels = torch.zeros(4).long(), [torch.tensor([1, 0, 0, 1]), torch.tensor([0, 1, 1, 0])]
    assert looked_at(held.copy_(labels[number % 2]) for number in range(4)).found


@pytest.mark.parametrize("count", [3, 70, 700_001])
@pytest.mark.parametrize("first", [0, 1, 5])
def test_every_byte_counts(count, first):
    bytes_ = torch.zeros(count + first + 1, dtype=torch.uint8)[first : first + count]

    def batches(place):
        for number in range(3):
            bytes_[place] = number
            yield bytes_

    for place in (0, count // 2, count - 1):
        assert looked_at(batches(place)).found
    assert not looked_at([bytes_] * 5).found


def test_what_lies_between_a_tensors_numbers_is_not_its_own():
    table = torch.zeros(100, 40)

    def columns():
        for number in range(20):
            table[:, 2 * number : 2 * number + 2] = number + 1.0
            yield table[:, 2 * number : 2 * number + 2]

    assert not looked_at(columns(), most=16).found


def test_what_a_step_wrote_stays_known():
    batch, reuse = torch.ones(3), Reuse(16, 1 << 30)
    reuse.note(batch)
    batch.mul_(2)
    reuse.trained()
    reuse.trained()
    reuse.note(batch)
    assert reuse.found


@pytest.mark.parametrize(("buffers", "ahead"), [(34, 4), (40, 32), (6, 4)])
def test_a_loader_that_fills_memory_for_batches_to_come(buffers, ahead):
    """The queue holds 32 batches and more: what is filled ahead may be one of them."""

    def batches():
        held = [torch.zeros(4) for _ in range(buffers)]
        for number in range(ahead + 200):
            held[number % buffers].fill_(number)
            if number >= ahead:
                yield held[(number - ahead) % buffers]

    assert looked_at(batches(), most=33).found


def test_control_that_many_buffers_without_that_are_as_good_as_new():
    assert not looked_at(in_turn(200, 34), most=33).found


def test_what_repeats_in_memory_is_looked_at_where_it_lies():
    rows = torch.ones(2048, 1, 3).expand(32, 2048, 2048, 3)  # 1.6 GB of numbers in 24 KB
    assert not looked_at([rows] * 3, most_bytes=1 << 40).found


def test_a_batch_that_its_step_writes_to_is_told_from_memory_that_is_filled_again():
    batches, reuse = [torch.ones(3), torch.ones(2)], Reuse(16, 1 << 30)
    for batch in batches * 2:
        reuse.trained()
        reuse.note(batch)
        batch.mul_(2)
    assert reuse.found
    assert reuse.written


def test_control_memory_that_the_loader_fills_is_not_written_by_the_step():
    held, reuse = torch.zeros(3), Reuse(16, 1 << 30)
    for number in range(4):
        reuse.trained()
        reuse.note(held.fill_(number))
    assert reuse.found
    assert not reuse.written


@dataclass
class Held:
    x: torch.Tensor
    more: dict


def in_one(fill):
    """Batches in one container, into which new tensors are put."""
    held = {"x": None, "more": {"y": None}}
    kinds = {
        "dict": held,
        "list": [None],
        "inside": (held["more"], 3),
        "object": Held(None, {}),
        "deeper": [Held(0, held)],
    }
    for number in range(5):
        x = torch.full((3,), float(number))
        held["x"] = held["more"]["y"] = kinds["list"][0] = kinds["object"].x = x
        yield kinds[fill]


@pytest.mark.parametrize("fill", ["dict", "list", "inside", "object", "deeper"])
def test_a_container_that_is_filled_again(fill):
    reuse = looked_at(in_one(fill))
    assert reuse.found
    assert reuse.seen == 2
    assert not reuse.written


def test_control_containers_that_only_come_again():
    """Ready batches, each of which holds something that all of them share."""
    shared = {"ids": [torch.ones(2)], "names": ["a", "b"]}
    batches = [{"x": torch.rand(3), "of": shared} for _ in range(3)]
    reuse = Reuse(16, 1 << 30)
    for batch in batches * 3:
        reuse.trained()
        reuse.note(batch)
    assert not reuse.found
    assert not reuse.written


def test_a_step_that_takes_something_out_of_its_batch_is_told_from_a_loader_that_does():
    batches, reuse = [{"x": torch.rand(3), "y": torch.rand(3)} for _ in range(2)], Reuse(16, 1 << 30)
    for batch in batches * 2:
        reuse.trained()
        reuse.note(batch)
        batch.pop("y", None)
    assert reuse.written
    assert not reuse.found  # it comes again as the step left it


class Closing(Mapping):
    """Has nothing any more, once it was closed."""

    def __init__(self):
        self.held = {"x": torch.rand(3)}

    def __getitem__(self, key):
        return self.held[key]

    def __iter__(self):
        return iter(self.held)

    def __len__(self):
        return len(self.held)


def test_a_step_that_leaves_nothing_of_its_batch():
    reuse = Reuse(16, 1 << 30)
    for _ in range(3):
        record, mapping = Held(torch.rand(3), {}), Closing()
        reuse.note([record, mapping])
        del record.x
        mapping.held = None
        reuse.trained()
    assert not reuse.found


def test_large_batches_are_let_go_of_early():
    reuse = looked_at((torch.zeros(1000) for _ in range(30)), most_bytes=10_000)
    assert reuse.ended
    assert reuse.seen == 3
    assert not reuse.found


SAME = torch.arange(6.0).reshape(2, 3)
COPIES = {
    "a tensor": SAME,
    "a tuple": (SAME, torch.ones(2, dtype=torch.int8)),
    "columns before rows": [SAME.t(), 3],
    "names": {"x": SAME, "n": {"y": (torch.ones(1), "text")}},
    "one tensor twice": (SAME, SAME),
    "parts of one tensor": SAME.unbind(),
    "empty": (torch.zeros(0, 3), torch.zeros(())),
}


def twins(leaves):
    return [next(number for number, other in enumerate(leaves) if other is leaf) for leaf in leaves]


@pytest.mark.parametrize("kind", COPIES)
def test_a_copy_looks_as_its_batch_does(kind):
    batch = COPIES[kind]
    copy = copied(batch)
    (before, signature), (after, copies) = flatten(batch), flatten(copy)
    assert signature == copies
    assert twins(before) == twins(after)
    for old, new in zip(before, after, strict=True):
        assert torch.equal(old, new)
        assert not old.numel() or old.data_ptr() != new.data_ptr()


class Opaque:
    def __init__(self):
        self.x = torch.ones(2)


NOT_COPIED = {
    "an object": Opaque(),
    "with an object": (torch.ones(2), Opaque()),
    "views of one another": (SAME, SAME[0]),
    "every other number": SAME[:, ::2],
    "one number many times": torch.ones(1).expand(5),
    "conjugated": torch.ones(2, dtype=torch.complex64).conj(),
    "sparse": (torch.eye(2).to_sparse(),),
    "with a gradient": torch.ones(2, requires_grad=True),
    "no tensor": (1, 2),
}


@pytest.mark.parametrize("kind", NOT_COPIED)
def test_what_a_step_could_tell_from_its_copy_is_not_copied(kind):
    batch = NOT_COPIED[kind]
    assert copied(batch) is None
