"""The producer fetches what it is told to, in order, no further, and never out of turn; and it ends."""

import contextlib
import contextvars
import decimal
import random
import sys
import threading

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lightning_sink.data import producer as module
from lightning_sink.data.producer import Abandoned, Item, Producer
from lightning_sink.data.report import Telemetry

LONG = 20.0
"""Seconds after which a test gives up; nothing here takes that long unless it is wrong."""


class Count:
    """Work that gives 0, 1, 2 ... and knows what the thread does.

    Args:
        act: Called with the number, inside of the fetch; what it returns is the item's value.
        sizes: Bytes of the items.
    """

    def __init__(self, act=lambda number: number, sizes=()):
        self.act, self.sizes = act, sizes
        self.begun, self.ended, self.turns, self.threads = 0, 0, [], []
        self.changed = threading.Condition()

    def __call__(self, in_turn):
        with self.changed:
            number, self.begun = self.begun, self.begun + 1
            self.turns.append(in_turn)
            self.threads.append(threading.current_thread())
            self.changed.notify_all()
        try:
            value = self.act(number)
        except Abandoned:
            raise
        except BaseException as error:
            return Item(error=error)
        with self.changed:
            self.ended += 1
            self.changed.notify_all()
        return Item(value, size=self.sizes[number] if self.sizes else 0)

    def until_begun(self, count):
        with self.changed:
            assert self.changed.wait_for(lambda: self.begun >= count, LONG), f"{self.begun} of {count} fetches begun"


@pytest.fixture
def make():
    made = []

    def make(most=4, most_bytes=1 << 30):
        made.append(Producer(most, most_bytes, Telemetry()))
        return made[-1]

    yield make
    for producer in made:
        assert producer.close(LONG)


def until_ready(producer, count):
    with producer._changed:
        assert producer._changed.wait_for(lambda: producer.ready >= count, LONG), f"{producer.ready} of {count} ready"


def until_suspended(producer):
    with producer._changed:
        assert producer._changed.wait_for(lambda: producer._suspended, LONG), "no fetch waits for its turn"


def values(producer, count):
    return [producer.get(LONG).value for _ in range(count)]


def test_there_is_no_thread_before_there_is_work(make):
    before = threading.active_count()
    producer = make()
    assert (threading.active_count(), producer.ready, producer.pending) == (before, 0, 0)
    producer.pause()
    assert producer.empty() == []
    assert producer.close()
    assert threading.active_count() == before


def test_items_come_in_order_from_one_other_thread(make):
    producer, work = make(), Count()
    producer.run(work, 50)
    assert values(producer, 50) == list(range(50))
    assert len(set(work.threads)) == 1
    assert threading.current_thread() not in work.threads
    assert not any(work.turns)


@given(most=st.integers(1, 5), wanted=st.integers(0, 12), takes=st.lists(st.integers(0, 5), max_size=5))
@settings(max_examples=50)
def test_never_more_items_than_wanted_and_than_there_is_room_for(most, wanted, takes):
    producer, before = Producer(most, 1 << 30, Telemetry()), []
    work = Count(lambda number: before.append(producer.ready))
    taken = 0
    try:
        producer.run(work, wanted)
        for take in takes:
            take = min(take, wanted - taken)
            values(producer, take)
            taken += take
        until_ready(producer, min(most, wanted - taken))
        producer.pause()
        assert work.begun == min(wanted, taken + most)
        assert all(ready < most for ready in before)
        assert producer.ready == work.begun - taken
    finally:
        assert producer.close(LONG)


@given(
    sizes=st.lists(st.integers(0, 100), min_size=1, max_size=12),
    most_bytes=st.integers(1, 150),
    takes=st.lists(st.integers(0, 3), max_size=5),
)
@settings(max_examples=50)
def test_never_begins_with_too_many_bytes_ahead_but_for_a_single_item(sizes, most_bytes, takes):
    producer, ahead = Producer(99, most_bytes, Telemetry()), []

    def look(number):
        ready = producer.ready
        ahead.append((ready, sum(sizes[number - ready : number])))

    work, taken = Count(look, sizes), 0
    try:
        producer.run(work, len(sizes))
        for take in takes:
            take = min(take, len(sizes) - taken)
            values(producer, take)
            taken += take
        producer.pause()
        assert all(ready == 0 or size < most_bytes for ready, size in ahead)
        producer.run(work, len(sizes) - work.begun)
        values(producer, len(sizes) - taken)
    finally:
        assert producer.close(LONG)


def test_one_item_too_large_still_passes(make):
    producer, work = make(4, 10), Count(sizes=[50, 50, 50])
    producer.run(work, 3)
    until_ready(producer, 1)
    producer.pause()
    assert work.begun == 1
    producer.run(work, 2)
    assert values(producer, 3) == [0, 1, 2]


def test_control_without_a_bound_it_goes_on(make):
    producer, work = make(99), Count(sizes=[50] * 20)
    producer.run(work, 20)
    until_ready(producer, 20)
    assert work.begun == 20


def test_bytes_are_given_back_when_items_are_taken_or_dropped(make):
    producer, work = make(9, 100), Count(sizes=[100] * 9)
    for _ in range(2):
        producer.run(work, 2)
        until_ready(producer, 1)
        assert len(producer.empty()) == 1
    producer.run(work, 3)
    assert values(producer, 3) == [2, 3, 4]


def test_a_pause_lets_the_fetch_under_way_end_and_no_other_begin(make):
    go = threading.Event()
    producer, work = make(), Count(lambda number: go.wait(LONG) and number)
    producer.run(work, 4)
    work.until_begun(1)
    producer.pause(wait=False)
    assert producer.pending == 1
    producer.pause(seconds=0.01)
    assert work.ended == 0
    go.set()
    producer.pause()
    assert (work.begun, work.ended, producer.ready) == (1, 1, 1)
    assert not producer.running
    producer.run(work, 2)
    assert values(producer, 3) == [0, 1, 2]


def test_nothing_holds_the_work_after_a_pause(make):
    class Owner:
        def work(self, in_turn):
            return Item(1)

    owner = Owner()
    producer = make()
    producer.run(owner.work, 2)
    until_ready(producer, 2)
    before = sys.getrefcount(owner)
    producer.pause()
    assert sys.getrefcount(owner) < before


def test_a_demand_is_one_fetch_in_turn(make):
    producer, work = make(), Count(lambda number: random.random() and number)
    for number in range(5):
        producer.demand(work)
        item = producer.get(LONG)
        assert (item.value, item.drew) == (number, "")
    assert work.turns == [True] * 5
    assert producer.ready == 0


def test_a_get_in_vain_takes_nothing(make):
    go = threading.Event()
    producer, work = make(), Count(lambda number: go.wait(LONG) and number)
    producer.run(work, 2)
    assert producer.get(0.01) is None
    go.set()
    assert values(producer, 2) == [0, 1]


# -- turns -------------------------------------------------------------------------------------------------------------

DRAWS = {
    "Python": random.random,
    "torch": lambda: torch.rand(()).item(),
    "numpy": np.random.rand,
}
SEEDS = {"Python": random.seed, "torch": torch.manual_seed, "numpy": np.random.seed}


def train(draw, producer, batches, draws_in):
    """Draws in some fetches and in each step, as training does; returns what was drawn."""
    fetched, stepped = [], []
    work = Count(lambda number: fetched.append(draw()) if draws_in(number) else fetched.append(None))
    if producer is None:
        for _ in range(batches):
            work(True)
            stepped.append(draw())
    else:
        producer.run(work, batches)
        for number in range(batches):
            if not draws_in(number):
                until_ready(producer, 1)
            item = producer.get(LONG)
            assert bool(item.drew) == draws_in(number)
            if number + 1 < batches:
                work.until_begun(number + 2)  # the next is under way, or waits, while this one steps
            stepped.append(draw())
    return fetched, stepped


@pytest.mark.parametrize("kind", DRAWS)
@pytest.mark.parametrize("every", [1, 2, 3])
def test_draws_are_those_of_plain_training(make, kind, every):
    runs = []
    for producer in (None, make(1)):
        SEEDS[kind](3)
        runs.append((train(DRAWS[kind], producer, 12, lambda number: number % every == 0), DRAWS[kind]()))
        if producer is not None:
            producer.close(LONG)
    assert runs[0] == runs[1]


def test_control_unwatched_draws_differ(make, monkeypatch):
    monkeypatch.setattr(module, "watched", lambda wait: contextlib.nullcontext())
    drawn = []
    producer = make()
    random.seed(3)
    producer.run(Count(lambda number: drawn.append(random.random())), 4)
    until_ready(producer, 4)
    assert random.getstate() != random.Random(3).getstate()
    random.seed(3)
    assert drawn == [random.random() for _ in range(4)]  # all before the first step


def test_a_draw_happens_when_everything_before_it_is_used(make):
    log = []
    producer = make()

    def act(number):
        log.append(("fetch", number))
        if number == 2:
            random.random()
            log.append(("drawn", number))
        return number

    producer.run(Count(act), 4)
    until_suspended(producer)
    assert producer.ready == 2
    producer.pause()  # returns though a fetch has not ended
    assert producer.pending == 3
    for number in range(2):
        assert producer.get(LONG).value == number
        log.append(("used", number))
    producer.run(producer_work := Count(lambda number: log.append(("fetch", 3)) or 3), 1)
    assert producer.get(LONG).value == 2
    log.append(("used", 2))
    assert producer.get(LONG).value == 3
    assert producer_work.begun == 1
    kept = [entry for entry in log if entry != ("fetch", 3)]  # which may come before or after "used 2"
    assert kept == [("fetch", 0), ("fetch", 1), ("fetch", 2), ("used", 0), ("used", 1), ("drawn", 2), ("used", 2)]


def test_a_fetch_waits_once_and_is_then_in_turn_to_its_end(make):
    producer = make()

    def act(number):
        return random.random(), torch.rand(()).item(), np.random.rand(), random.random()

    for seed in (random.seed, torch.manual_seed, np.random.seed):
        seed(5)
    expected = act(0)
    for seed in (random.seed, torch.manual_seed, np.random.seed):
        seed(5)
    producer.run(Count(act), 1)
    item = producer.get(LONG)
    assert item.value == expected
    assert item.drew == "Python's `random`"


def test_emptying_abandons_a_fetch_that_waits(make):
    cleaned = []
    producer = make()

    def act(number):
        if number == 1:
            try:
                random.random()
            finally:
                cleaned.append(number)
        return number

    before = random.getstate()
    work = Count(act)
    producer.run(work, 9)
    until_suspended(producer)
    assert [item.value for item in producer.empty()] == [0]
    assert cleaned == [1]
    assert random.getstate() == before
    assert (producer.ready, producer.pending, producer.wanted, producer.running) == (0, 0, 0, False)
    producer.run(work, 1)
    assert producer.get(LONG).value == 2


def test_emptying_waits_for_a_fetch_that_does_not_draw(make):
    go = threading.Event()
    producer, work = make(), Count(lambda number: go.wait(LONG) and number)
    producer.run(work, 3)
    work.until_begun(1)
    threading.Timer(0.02, go.set).start()
    assert len(producer.empty()) == 1
    assert (work.begun, work.ended) == (1, 1)


def test_emptying_forgets_an_error(make):
    def act(number):
        if number == 1:
            raise OSError("disk")
        return number

    producer, work = make(), Count(act)
    producer.run(work, 5)
    until_ready(producer, 2)
    assert [type(item.error) for item in producer.empty()] == [type(None), OSError]
    producer.run(work, 2)
    assert values(producer, 2) == [2, 3]


# -- errors ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", [0, 1, 5])
def test_nothing_is_fetched_behind_the_last_item_before_it_was_taken(make, place):
    def act(number):
        if number == place:
            raise OSError("disk")
        return number

    producer, work = make(9), Count(act)
    producer.run(work, 20)
    assert values(producer, place) == list(range(place))
    until_ready(producer, 1)
    producer.run(work, 20)
    item = producer.get(LONG)
    assert isinstance(item.error, OSError)
    assert work.begun == place + 1
    assert not producer.running
    producer.run(work, 1)
    assert producer.get(LONG).value == place + 1


# -- what the thread has of the trainer's ------------------------------------------------------------------------------

place = contextvars.ContextVar("place", default="nowhere")


@pytest.mark.parametrize("way", ["run", "demand"])
def test_the_thread_has_the_owners_context_and_grad_mode(make, way):
    def look(number):
        tensor = torch.ones(2, requires_grad=True) * 2
        return (
            place.get(),
            decimal.getcontext().prec,
            np.geterr()["divide"],
            torch.is_grad_enabled(),
            tensor.requires_grad,
        )

    producer, work = make(), Count(look)

    def one():
        producer.run(work, 1) if way == "run" else producer.demand(work)
        return producer.get(LONG).value

    outside = look(0)
    assert one() == outside
    token = place.set("here")
    try:
        with decimal.localcontext() as context, np.errstate(divide="raise"), torch.no_grad():
            context.prec = 7
            assert one() == look(0) == ("here", 7, "raise", False, False)
    finally:
        place.reset(token)
    assert one() == outside


@pytest.mark.parametrize("way", ["run", "demand"])
def test_the_thread_makes_tensors_where_the_owner_does(make, way):
    producer, work = make(), Count(lambda number: torch.zeros(2).device.type)
    with torch.device("meta"):
        producer.run(work, 1) if way == "run" else producer.demand(work)
        found = producer.get(LONG).value
    assert found == "meta"


# -- the end -----------------------------------------------------------------------------------------------------------


def begin_nothing(producer):
    return None


def begin_full(producer):
    producer.run(Count(), 99)
    until_ready(producer, 4)


def begin_suspended(producer):
    producer.run(Count(lambda number: np.random.rand()), 99)
    until_suspended(producer)


def begin_paused(producer):
    begin_full(producer)
    producer.pause()


def begin_emptied(producer):
    begin_suspended(producer)
    producer.empty()


def begin_failed(producer):
    producer.run(Count(lambda number: 1 / 0), 99)
    until_ready(producer, 1)


def begin_demanded(producer):
    producer.demand(Count())
    until_ready(producer, 1)


BEGINNINGS = [
    begin_nothing,
    begin_full,
    begin_suspended,
    begin_paused,
    begin_emptied,
    begin_failed,
    begin_demanded,
]


@pytest.mark.parametrize("begin", BEGINNINGS)
def test_it_ends_from_every_state_and_twice(make, begin):
    before, original = threading.active_count(), np.random.get_bit_generator()
    drawn = repr(np.random.get_state())
    producer = make()
    begin(producer)
    assert producer.close(LONG)
    assert threading.active_count() == before
    assert np.random.get_bit_generator() is original
    assert repr(np.random.get_state()) == drawn
    assert producer.close(LONG)
    assert producer.ready == 0


def test_a_fetch_that_hangs_is_told(make):
    go = threading.Event()
    producer, work = make(), Count(lambda number: go.wait(LONG))
    producer.run(work, 9)
    work.until_begun(1)
    assert not producer.close(0.0)
    go.set()
    assert producer.close(LONG)
    assert work.begun == 1


def test_a_thread_that_ends_late_swaps_no_generator_beside_another_training(make):
    original, go = np.random.get_bit_generator(), threading.Event()
    producer, work = make(), Count(lambda number: go.wait(LONG))
    producer.run(work, 9)
    work.until_begun(1)
    during = np.random.get_bit_generator()
    assert during is not original
    assert not producer.close(0.0)
    go.set()
    producer._thread.join(LONG)
    assert np.random.get_bit_generator() is during
    later = make()
    later.run(Count(), 1)
    assert later.get(LONG).value == 0
    assert np.random.get_bit_generator() is during
    assert later.close(LONG)
    assert np.random.get_bit_generator() is original


def test_an_end_in_the_midst_of_a_draw_leaves_the_generators(make):
    before = random.getstate()
    producer = make()
    producer.run(Count(lambda number: random.random()), 9)
    until_suspended(producer)
    assert producer.close(LONG)
    assert random.getstate() == before


def test_time_without_room_is_counted(make):
    producer = make(1)
    producer.run(Count(), 3)
    until_ready(producer, 1)
    producer.get(LONG)
    until_ready(producer, 1)
    assert producer._telemetry.producer_wait_seconds > 0.0
