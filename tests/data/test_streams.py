"""Slots with memory of their own, over a device that does its work late and in any order that the events allow.

The streams are those of `test_device.py`; the memory is real: bytes of the host stand for the device's, a copy is made
when its turn comes, half of it at a time, and a step reads its batch's tensors twice, with the other stream in between.
"""

import collections
import itertools
from ctypes import memmove, string_at

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from test_device import Fake
from test_queue import FakePace, Numbers, queue_of, settle

from lightning_sink.data import streams
from lightning_sink.data.batch import flatten
from lightning_sink.data.options import QueueOptions
from lightning_sink.data.streams import Backend, Event, StreamDevice, StreamSlot

Pair = collections.namedtuple("Pair", "x y")


class FakeEvent(Event):
    def __init__(self, backend):
        self.backend, self.at = backend, None

    def record(self):
        self.at = self.backend.device.record(self.backend.stream)

    def wait(self):
        self.backend.device.wait(self.backend.stream, self.at)

    def synchronize(self):
        while self.at is not None and not self.at.happened:
            self.backend.go_on()


class FakeBackend(Backend):
    """The backend of a fake device.

    Args:
        schedule: As for `Fake`.
        ignores: Events that copies and hosts do not wait for: "after", "synchronize".
    """

    def __init__(self, schedule, ignores=()):
        self.device, self.ignores = Fake(schedule), ignores
        self.stream, self.allocated, self.held = Fake.COMPUTE, [], []

    def event(self):
        event = FakeEvent(self)
        if "synchronize" in self.ignores:
            event.synchronize = lambda: None
        return event

    def allocate(self, nbytes):
        host, memory = torch.zeros(nbytes, dtype=torch.uint8), torch.zeros(nbytes, dtype=torch.uint8)
        self.allocated.append(nbytes)
        self.held += [host, memory]  # like PyTorch's allocator, while a stream uses it
        return host, memory

    def send(self, target, source, after, before):
        device, half = self.device, len(target) // 2
        to, of, rest = target.data_ptr(), source.data_ptr(), len(target) - half
        with device.lock:
            self.stream = Fake.COPY
            if "after" not in self.ignores:
                after.wait()
            device.issue(Fake.COPY, lambda: memmove(to, of, half))
            device.issue(Fake.COPY, lambda: memmove(to + half, of + half, rest))
            before.record()
            self.stream = Fake.COMPUTE
        device.chance()

    def go_on(self):
        with self.device.lock:
            assert self.device._execute(Fake.COPY) or self.device._execute(Fake.COMPUTE), "the host waits for ever"

    def step(self, batch, expected):
        """What a training does with a batch: reads it, late."""
        # A stream has addresses: what runs on it holds nothing on the host.
        places = [(leaf.data_ptr(), leaf.nbytes) for leaf in flatten(batch)[0]]
        bytes_expected = [leaf.numpy().tobytes() for leaf in expected]

        def look():
            if [string_at(*place) for place in places] != bytes_expected:
                self.device.violations.append(f"{expected[0]} was expected")

        for _ in range(2):
            self.device.issue(Fake.COMPUTE, look)
            self.device.chance()


def batch_of(number, size=3):
    """Tensors of several types, whose values tell whose they are."""
    x = torch.full((size, 2), float(number))
    return {"x": x, "more": [Pair(torch.full((5,), number), x), "text", None], "y": torch.tensor(number % 2 == 0)}


def values(batch):
    return [leaf.tolist() for leaf in flatten(batch)[0]]


def train(backend, ways, sizes, patience=(True,), takes=40, size=2, keep=()):
    """Trains on batches from a queue; returns those that were kept, with what they should be."""
    source, pace, kept = Numbers(), FakePace(), []
    ways, patience, sizes = itertools.cycle(ways), itertools.cycle(patience), list(sizes)

    def prepare(place):
        return batch_of(place[1], sizes[place[1] % len(sizes)])

    options = QueueOptions(buffer_size=size)
    with queue_of(source, pace, options, device=StreamDevice(backend), prepare=prepare) as queue:
        queue.expect(takes)
        for _ in range(takes):
            pace.ahead = next(ways)
            batch, number = queue.take()
            if next(patience):
                settle(queue)
            expected = batch_of(number, sizes[number % len(sizes)])
            backend.step(batch, flatten(expected)[0])
            if number in keep:
                kept.append((batch, values(expected)))
            del batch
        queue.rest()
    backend.device.finish()
    return kept


@given(
    schedule=st.lists(st.integers(-1, 1), min_size=1, max_size=40),
    ways=st.lists(st.booleans(), min_size=1, max_size=5),
    sizes=st.lists(st.integers(0, 40), min_size=1, max_size=4),
    patience=st.lists(st.booleans(), min_size=1, max_size=3),
    size=st.integers(0, 3),
    keep=st.sets(st.integers(0, 15), max_size=4),
)
@settings(max_examples=100)
def test_every_step_reads_its_own_batch(schedule, ways, sizes, patience, size, keep):
    backend = FakeBackend(schedule)
    kept = train(backend, ways, sizes, patience, 16, size, keep)
    assert backend.device.violations == []
    assert [values(batch) for batch, _ in kept] == [expected for _, expected in kept], "what a user keeps stays"


COPY_FIRST, COMPUTE_FIRST = [Fake.COPY], [Fake.COMPUTE]


@pytest.mark.parametrize("ahead", [True, False])
@pytest.mark.parametrize("schedule", [COPY_FIRST, COMPUTE_FIRST, [-1], [-1, 1, 0]])
def test_control_with_all_events_nothing_is_wrong(ahead, schedule):
    backend = FakeBackend(schedule)
    train(backend, [ahead], [3])
    assert backend.device.violations == []


@pytest.mark.parametrize("ahead", [True, False])
def test_control_copies_that_do_not_wait_for_free_are_caught(ahead):
    backend = FakeBackend(COPY_FIRST, ["after"])
    train(backend, [ahead], [3])
    assert backend.device.violations


@pytest.mark.parametrize("ahead", [True, False])
def test_control_a_host_that_fills_what_is_being_sent_is_caught(ahead):
    backend = FakeBackend([-1], ["synchronize"])
    train(backend, [ahead], [3])
    assert backend.device.violations


@pytest.mark.parametrize("ahead", [True, False])
def test_control_steps_that_do_not_wait_for_ready_are_caught(monkeypatch, ahead):
    take = StreamSlot.take

    def hasty(self):
        self.lends = True
        return take(self)

    monkeypatch.setattr(StreamSlot, "take", hasty)
    backend = FakeBackend(COMPUTE_FIRST)
    train(backend, [ahead], [3])
    assert backend.device.violations


def test_control_memory_that_is_kept_and_taken_again_is_caught(monkeypatch):
    monkeypatch.setattr(streams, "users_of_storage", lambda tensor: 0)
    kept = train(FakeBackend(COPY_FIRST), [True], [3], keep={1, 2})
    assert [values(batch) for batch, _ in kept] != [expected for _, expected in kept]


def test_memory_is_allocated_once_for_each_slot():
    backend = FakeBackend([0, 1])
    train(backend, [True], [3], takes=100, size=3)
    assert 3 <= len(backend.allocated) <= 5
    assert len(set(backend.allocated)) == 1


def test_memory_grows_with_the_largest_batch_and_not_again():
    backend = FakeBackend([0, 1])
    train(backend, [True], [3, 400, 40], takes=90, size=1)
    assert len(backend.allocated) <= 2 * 3


def test_a_batch_keeps_its_structure_and_layout():
    slot = StreamDevice(FakeBackend(COPY_FIRST)).slot()
    x = torch.randn(4, 6)
    batch = Pair(
        [x.t(), x.t()], {"n": (x[:, ::2], torch.empty(0, 3), torch.tensor(2.5, dtype=torch.float64), 7, "text")}
    )
    shared = batch.x[0]
    batch = batch._replace(x=[shared, shared])
    slot.fill(batch)
    found = slot.take()
    slot._backend.device.finish()
    assert type(found) is Pair
    assert found.x[0] is found.x[1], "a tensor that comes twice does so again"
    for tensor, other in zip(flatten(batch)[0], flatten(found)[0], strict=True):
        moved = tensor.to("cpu", copy=True)
        assert torch.equal(moved, other)
        assert (moved.dtype, moved.stride()) == (other.dtype, other.stride())
        assert other.data_ptr() % other.element_size() == 0
    assert found.y["n"][3:] == (7, "text")


class Own:
    def __init__(self):
        self.x = torch.ones(2)


@pytest.mark.parametrize(
    "batch",
    [
        Own(),
        [torch.ones(2), Own()],
        collections.OrderedDict(x=torch.ones(2)),
        [torch.ones(2, requires_grad=True)],
        (torch.ones(2).to_sparse(),),
        torch.nn.Parameter(torch.ones(2)),
        ["no tensor", 3],
        None,
    ],
    ids=lambda batch: type(batch).__name__,
)
def test_a_batch_that_cannot_be_put_together_again_is_given_as_it_is(batch):
    backend = FakeBackend([-1])
    slot = StreamDevice(backend).slot()
    for _ in range(3):
        slot.fill(batch)
        assert slot.take() is batch
        slot.release()
    assert not backend.allocated
    assert backend.device.streams == ([], [])


def test_what_autograd_keeps_stays():
    backend = FakeBackend(COPY_FIRST)
    slot, weight = StreamDevice(backend).slot(), torch.ones(3, 2, requires_grad=True)
    slot.fill([torch.full((3, 2), 5.0)])
    (x,) = slot.take()
    backend.device.finish()
    loss = (x * weight).sum()
    del x
    slot.release()
    slot.fill([torch.full((3, 2), 7.0)])
    backend.device.finish()
    loss.backward()
    assert weight.grad.tolist() == [[5.0, 5.0]] * 3
    assert len(backend.allocated) == 2
