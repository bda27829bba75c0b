"""The order of *ready* and *free*, over a device that does its work late and in any order that the events allow.

`Fake` has a stream that copies and a stream that computes. What the host issues is kept, and executed when the test's
schedule says so: each time the next operation of one stream or of the other, if the events that it waits for have
happened. A slot is static memory, as a step that was compiled or captured reads it. A copy and a step take two
operations each, so that the other stream can come in between.
"""

import contextlib
import itertools
import threading
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_queue import LONG, FakePace, Numbers, queue_of, settle

from lightning_sink.data import device as module
from lightning_sink.data.device import Device, HostDevice, Slot
from lightning_sink.data.options import QueueOptions
from lightning_sink.data.queue import BatchQueue

TORN = object()
"""What is in memory while a copy is under way."""


class Event:
    """Happens when its stream comes to where it was recorded."""

    def __init__(self):
        self.happened = False


class Fake(Device):
    """A device that runs behind its host.

    Args:
        schedule: At each chance, the stream that goes on if it can; -1 for neither.
        ready: Whether its slots wait for *ready*.
        free: Whether its slots wait for *free*.
    """

    COPY, COMPUTE = 0, 1

    def __init__(self, schedule, ready=True, free=True):
        self.schedule = itertools.cycle(schedule or [-1])
        self.ready, self.free = ready, free
        self.streams = ([], [])
        self.slots, self.violations, self.results = [], [], []
        self.lock = threading.RLock()  # the host's two threads; a stream itself is none

    def slot(self):
        self.slots.append(FakeSlot(self))
        return self.slots[-1]

    def issue(self, stream, action, after=None):
        """Puts an operation at the end of a stream; it waits for an event there."""
        with self.lock:
            self.streams[stream].append((action, after))

    def record(self, stream):
        event = Event()
        self.issue(stream, lambda: setattr(event, "happened", True))
        return event

    def wait(self, stream, event):
        if event is not None:
            self.issue(stream, lambda: None, event)

    def chance(self):
        """Executes none, or some, of what could be executed now."""
        with self.lock:
            for wish in itertools.islice(self.schedule, 3):
                if wish >= 0:
                    self._execute(wish)

    def _execute(self, stream):
        if not self.streams[stream]:
            return False
        action, after = self.streams[stream][0]
        if after is not None and not after.happened:
            return False
        del self.streams[stream][0]
        action()
        return True

    def finish(self):
        """Executes everything that is left, in the order that the schedule wishes."""
        with self.lock:
            while any(self.streams):
                wish = next(self.schedule) % 2
                if not (self._execute(wish) or self._execute(1 - wish)):
                    self.violations.append("both streams wait for each other")
                    return

    def step(self, memory, expected):
        """What a training does with a batch: reads it, late."""
        found = []

        def begin():
            found.append(memory.content)

        def end():
            found.append(memory.content)
            self.results.append(found[-1])
            if TORN in found:
                self.violations.append(f"{expected} was read while a copy was under way")
            elif found != [expected] * 2:
                self.violations.append(f"{expected} was expected and {found} read")

        self.issue(self.COMPUTE, begin)
        self.chance()
        self.issue(self.COMPUTE, end)
        self.chance()


class Memory:
    """What a step reads: the same place for every batch of its slot."""

    def __init__(self):
        self.content = None


class FakeSlot(Slot):
    """Static memory with its two events; notices a host that does not keep the order of calls."""

    def __init__(self, device):
        self.device, self.memory = device, Memory()
        self.ready = self.free = None
        self.state = "empty"

    def _goes(self, before, after):
        if self.state != before:
            self.device.violations.append(f"a slot that is {self.state} was to become {after}")
        self.state = after

    def fill(self, batch):
        device, memory = self.device, self.memory
        with device.lock:
            self._goes("empty", "full")
            if device.free:
                device.wait(device.COPY, self.free)
            device.issue(device.COPY, lambda: setattr(memory, "content", TORN))
            device.issue(device.COPY, lambda: setattr(memory, "content", batch))
            self.ready = device.record(device.COPY)
        device.chance()

    def take(self):
        device = self.device
        with device.lock:
            self._goes("full", "taken")
            if device.ready:
                device.wait(device.COMPUTE, self.ready)
        device.chance()
        return self.memory

    def release(self):
        with self.device.lock:
            self._goes("taken", "empty")
            self.free = self.device.record(self.device.COMPUTE)
        self.device.chance()


class Failure(Exception):
    pass


class Failing(Numbers):
    """Numbers, some of which cannot be fetched."""

    def __init__(self, lengths, failures):
        super().__init__(lengths, self.fail)
        self.failures = failures

    def fail(self, number):
        if number in self.failures:
            raise Failure(number)


def train(device, lengths, failures, sinks, ways, patience, options, prepare_fails=()):
    """Trains on batches from a queue on a device; returns the batches whose steps were issued, in order."""
    source, pace = Failing(lengths, failures), FakePace()
    ways, patience, issued = itertools.cycle(ways), itertools.cycle(patience), []

    def prepare(batch):
        if tuple(batch) in prepare_fails:
            raise Failure(batch)
        return batch

    with queue_of(source, pace, options, device=device, prepare=prepare) as queue:
        for expects, takes, how in sinks:
            pace.ahead = next(ways)
            queue.expect(expects)
            for _ in range(takes):
                pace.ahead = next(ways)
                try:
                    memory, number = queue.take()
                except Failure:
                    continue
                except StopIteration:
                    break
                if next(patience):
                    settle(queue)  # a slow training: all that may be fetched is
                issued.append(number)
                device.step(memory, place(lengths, number))
            queue.rest()
            if how == "restart":
                queue.pause()
                queue.restart(source)
                assert len(queue._free) == len(device.slots)
        queue.restart()
        assert len(queue._free) == len(device.slots)
        assert not source.violations
    device.finish()
    assert len(device.slots) <= options.buffer_size + 2
    assert {slot.state for slot in device.slots} == {"empty"}
    assert len({id(slot) for slot in device.slots}) == len(device.slots)
    return issued


def place(lengths, number):
    """Returns the batch that a number is: what the definition of the source says."""
    every = ([traversal, index] for traversal, length in enumerate(lengths) for index in range(length))
    return next(itertools.islice(every, number, None))


schedules = st.lists(st.integers(-1, 1), min_size=1, max_size=40)
sinks = st.lists(
    st.tuples(st.integers(1, 7), st.integers(0, 9), st.sampled_from(["rest", "rest", "restart"])),
    min_size=1,
    max_size=5,
)


@given(
    schedule=schedules,
    lengths=st.lists(st.integers(1, 6), min_size=2, max_size=6) | st.just([60]),
    failures=st.sets(st.integers(0, 20), max_size=3),
    prepare_fails=st.sets(st.tuples(st.integers(0, 2), st.integers(0, 5)), max_size=2),
    sinks=sinks,
    ways=st.lists(st.booleans(), min_size=1, max_size=9),
    patience=st.lists(st.booleans(), min_size=1, max_size=5),
    size=st.integers(0, 4),
    timeout=st.sampled_from([None, LONG]),
)
@settings(max_examples=150)
def test_every_step_reads_its_own_batch(
    schedule, lengths, failures, prepare_fails, sinks, ways, patience, size, timeout
):
    device = Fake(schedule)
    options = QueueOptions(buffer_size=size, timeout=timeout)
    issued = train(device, lengths, failures, sinks, ways, patience, options, prepare_fails)
    assert device.violations == []
    assert device.results == [place(lengths, number) for number in issued]
    assert issued == sorted(set(issued) - failures)


PLENTY = [(30, 30, "rest")]
COPY_FIRST, COMPUTE_FIRST = [Fake.COPY], [Fake.COMPUTE]


def violations(device, ways=(True,), patience=(True,), size=2):
    train(device, [60], (), PLENTY, ways, patience, QueueOptions(buffer_size=size))
    return device.violations


@pytest.mark.parametrize("ahead", [True, False])
@pytest.mark.parametrize("schedule", [COPY_FIRST, COMPUTE_FIRST, [-1, 1, 0], [0, -1, -1, -1, -1]])
def test_control_with_both_events_nothing_is_wrong(ahead, schedule):
    assert violations(Fake(schedule), [ahead]) == []


@pytest.mark.parametrize("ahead", [True, False])
def test_control_slots_that_ignore_ready_are_caught(ahead):
    assert violations(Fake(COMPUTE_FIRST, ready=False), [ahead])


@pytest.mark.parametrize("ahead", [True, False])
def test_control_slots_that_ignore_free_are_caught(ahead):
    assert violations(Fake(COPY_FIRST, free=False), [ahead])


@pytest.mark.parametrize("ahead", [True, False])
def test_control_a_queue_that_releases_before_the_step_is_caught(monkeypatch, ahead):
    take = BatchQueue.take

    def hasty(self):
        found = take(self)
        self._release()
        return found

    monkeypatch.setattr(BatchQueue, "take", hasty)
    assert violations(Fake(COPY_FIRST), [ahead])


def test_control_a_queue_that_releases_twice_is_caught(monkeypatch):
    def twice(self):
        if self._held is not None:
            self._held.release()
            self._held.release()
            self._free.append(self._held)
            self._held = None

    monkeypatch.setattr(BatchQueue, "_release", twice)
    assert violations(Fake(COPY_FIRST))


@pytest.mark.parametrize("ahead", [True, False])
def test_a_taken_batch_lasts_until_the_next_take(ahead):
    device = Fake(COPY_FIRST)
    with queue_of(Numbers(), FakePace(ahead), QueueOptions(buffer_size=2), device=device) as queue:
        queue.expect(9)
        for number in range(5):
            memory, _ = queue.take()
            settle(queue)
            device.finish()
            assert memory.content == [0, number]
            held = [slot for slot in device.slots if slot.memory is memory]
            assert [slot.state for slot in held] == ["taken"]
        queue.rest()
        assert "taken" not in {slot.state for slot in device.slots}


def test_slots_are_made_once_and_used_in_turn():
    device = Fake([-1])
    with queue_of(Failing([10_000], range(5, 900, 7)), FakePace(), QueueOptions(buffer_size=3), device=device) as queue:
        made = list(device.slots)
        for _ in range(100):
            queue.expect(6)
            for _ in range(3):
                with contextlib.suppress(Failure):
                    queue.take()
            queue.rest()
            queue.restart()
            assert {slot.state for slot in device.slots} == {"empty"}
        assert device.slots == made
        assert len(made) == 5
        assert sorted(map(id, queue._free)) == sorted(map(id, made))


def test_a_slot_that_cannot_be_filled_is_not_lost():
    device = Fake([-1])
    fill, broken = FakeSlot.fill, [True]

    def fails(self, batch):
        if broken[0]:
            raise Failure("out of memory")
        fill(self, batch)

    for ahead in (False, True):
        with (
            mock.patch.object(FakeSlot, "fill", fails),
            queue_of(Numbers(), FakePace(ahead), QueueOptions(buffer_size=1), device=device) as queue,
        ):
            broken[0] = True
            for _ in range(10):
                queue.expect(1)
                with pytest.raises(Failure, match="memory"):
                    queue.take()
            assert len(queue._free) == 3
            broken[0] = False
            queue.expect(1)
            assert queue.take()[1] == 10


def test_the_host_gives_the_loaders_own_batch_away():
    device, batch = HostDevice(), [1, 2]
    slot = device.slot()
    assert device.slot() is not slot
    for _ in range(2):
        slot.fill(batch)
        assert slot.take() is batch
        assert not any(value is batch for value in vars(slot).values())
        slot.release()


def test_a_device_has_to_say_how():
    for kind in (Slot, Device):
        with pytest.raises(TypeError, match="abstract"):
            kind()
    assert issubclass(module.HostSlot, Slot)
