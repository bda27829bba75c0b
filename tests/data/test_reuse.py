"""Memory that is filled again is noticed while it does no harm; memory that only comes again is not taken for it."""

import numpy as np
import pytest
import torch

from lightning_sink.data.reuse import Reuse


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
    assert reuse.distance == buffers


def windows(count, of, shift):
    """Batches that are views of one ring, each beginning further on than the one before."""
    ring = torch.zeros(of)
    for number in range(count):
        start = number * shift % (of - 8)
        ring[start : start + 8].fill_(number)
        yield ring[start : start + 8]


@pytest.mark.parametrize(("of", "shift", "distance"), [(64, 4, 1), (64, 16, 7), (70, 20, 3)])
def test_views_that_lie_over_each_other(of, shift, distance):
    assert looked_at(windows(30, of, shift)).distance == distance


def test_memory_of_numpys():
    assert looked_at(in_numpys(5)).distance == 1


def test_more_buffers_than_anybody_reads_ahead_do_no_harm():
    reuse = looked_at(in_turn(50, 17))
    assert not reuse.found
    assert reuse.distance == 16


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
    assert reuse.distance == 16


def test_batches_that_are_not_looked_at_are_not_trusted():
    assert looked_at(in_turn(3, 5)).distance == 3


def test_large_batches_are_let_go_of_early():
    reuse = looked_at((torch.zeros(1000) for _ in range(30)), most_bytes=10_000)
    assert reuse.distance == 5  # as many as fill the queue, one that is trained, one that is fetched
    assert not reuse.found
