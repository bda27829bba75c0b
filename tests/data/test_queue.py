"""A queue gives what its source gives, in order and with the same draws, whoever fetches; and it ends."""

import contextlib
import decimal
import gc
import itertools
import random
import sqlite3
import threading
import warnings
import weakref
from unittest import mock

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lightning_sink.data import queue as queue_module
from lightning_sink.data import supply as module
from lightning_sink.data.batch import flatten
from lightning_sink.data.gathered import Gathered
from lightning_sink.data.options import QueueOptions
from lightning_sink.data.queue import BatchQueue
from lightning_sink.data.traversals import NotYet
from lightning_sink.errors import DataTimeoutError, SinkWarning

pytestmark = pytest.mark.usefixtures("unhurried")

LONG = 20.0
"""Seconds after which a test gives up; nothing here takes that long unless it is wrong."""


class FakePace:
    """The way that the test chooses, whatever the clock says."""

    def __init__(self, ahead=True):
        self._ahead, self.fixed, self.notes = ahead, False, []

    @property
    def ahead(self):
        return self._ahead and not self.fixed

    @ahead.setter
    def ahead(self, ahead):
        self._ahead = ahead

    settled = True

    def skip(self, batches, seconds):
        pass

    def note(self, fetch, whole, sending):
        self.notes.append((fetch, whole, sending))

    def stay_in_step(self):
        self.fixed = True


class Numbers:
    """Gives `[traversal, index]` with its number as the note, and notices whoever uses it as no source may be used.

    Args:
        lengths: Of the traversals; none behind the last one. A single one is not endless: it is begun already.
        act: Called with the number of the batch, inside of the fetch.
        other: Every how many batches one is not like those before it; 0 for none.
        groups: How many batches in a row are given as one, in turn, where they may and are alike.
    """

    gives_copies, changes = True, 0
    draws_nothing = stacks = makes_own = makes_graphs = reads_further = restarts_midway = False

    def __init__(self, lengths=(1 << 40,), act=lambda number: None, other=0, groups=(1,)):
        self.other, self.groups = other, itertools.cycle(groups)
        self.lengths, self.act = list(lengths), act
        self.endless = len(self.lengths) > 1
        self.traversal, self.index, self.number = (-1 if self.endless else 0), 0, 0
        self.begun, self.read = 0, None
        self.threads, self.violations, self.aborted = [], [], 0
        self.may_fetch = lambda number, in_turn: ""
        self.changed = threading.Condition()
        self._alone = threading.Lock()

    @property
    def begin_due(self):
        return self.read is None and self.endless and (self.traversal < 0 or self.index >= self.lengths[self.traversal])

    def begin(self):
        assert self.begin_due
        if threading.current_thread() is not threading.main_thread():
            self.violations.append("a traversal was begun on the queue's thread")
        if self.traversal + 1 == len(self.lengths):
            raise StopIteration
        self.traversal, self.index = self.traversal + 1, 0

    def fetch(self, in_turn):
        if self.read is not None:  # by a row that was left off behind the batches before it
            found, self.read = self.read, None
            return found
        if not self._alone.acquire(blocking=False):
            self.violations.append("two fetches at once")
        try:
            if self.begin_due:
                if not in_turn:
                    raise NotYet
                self.begin()
            elif self.index >= self.lengths[self.traversal]:
                raise StopIteration
            with self.changed:
                number, self.begun = self.number, self.begun + 1
                self.threads.append(threading.current_thread())
                self.changed.notify_all()
            wrong = self.may_fetch(number, in_turn)
            if wrong:
                self.violations.append(wrong)
            self.index, self.number = self.index + 1, self.number + 1
            index = self.index - 1
            self.act(number)
            is_other = self.other and index % self.other == self.other - 1
            return torch.tensor([self.traversal, index], dtype=torch.int32 if is_other else torch.int64), number
        finally:
            with contextlib.suppress(RuntimeError):
                self._alone.release()

    def row(self, most, together):
        group, size = [], next(self.groups) if together else 1
        try:
            for batch, number in self._one_by_one(most):
                if group and signature(batch) != signature(group[0][0]):
                    self.read = batch, number
                    yield grouped(group)
                    group, self.read = [], None
                group.append((batch if size == 1 else copied(batch), number))
                if len(group) >= size:
                    yield grouped(group)
                    group, size = [], next(self.groups) if together else 1
        except Failure:
            if group:
                yield grouped(group)  # those before it
            raise
        if group:
            yield grouped(group)

    def _one_by_one(self, most):
        for _ in range(most):
            try:
                found = self.fetch(False)
            except (NotYet, StopIteration):
                return
            yield found

    def retry(self):
        return False

    def describe(self):
        return f"batch {self.index} of traversal {self.traversal}"

    def name(self, note):
        return f"batch number {note}"

    def abort(self):
        self.aborted += 1

    def until_begun(self, count):
        with self.changed:
            assert self.changed.wait_for(lambda: self.begun >= count, LONG), f"{self.begun} of {count} fetches begun"


def signature(batch):
    return flatten(batch)[1]


def copied(batch):
    return batch.clone() if isinstance(batch, torch.Tensor) else tuple(tensor.clone() for tensor in batch)


def grouped(group):
    """Returns batches with their notes as a source gives those that it has gathered at once."""
    batches, notes = zip(*group, strict=True)
    alone = isinstance(batches[0], torch.Tensor)
    rows = [[batch] if alone else batch for batch in batches]
    if len(group) == 1 or not all(tensor.is_contiguous() for row in rows for tensor in row):
        assert len(group) == 1, "what does not lie in one piece is not gathered"
        return group[0]
    columns = [torch.stack(column) for column in zip(*rows, strict=True)]
    return Gathered(columns, (lambda leaves: leaves[0]) if alone else tuple), list(notes)


class Failure(Exception):
    pass


@contextlib.contextmanager
def queue_of(source, pace=None, options=None, **arguments):
    """A queue whose way the test chooses, closed at the end."""
    pace, probes = pace or FakePace(), arguments.pop("probes", 0)
    with mock.patch.object(module, "_PROBES", probes):
        with mock.patch.object(module, "Pace", return_value=pace):
            queue = BatchQueue(source, options or QueueOptions(), **arguments)
        try:
            yield queue
        finally:
            queue.close()
            assert not source.violations


@pytest.fixture
def make():
    with contextlib.ExitStack() as stack:
        yield lambda *parts, **arguments: stack.enter_context(queue_of(*parts, **arguments))


def until_ready(queue, count):
    producer = queue._producer
    with producer._changed:
        assert producer._changed.wait_for(lambda: queue.ready >= count, LONG), f"{queue.ready} of {count} ready"


def until_suspended(queue):
    producer = queue._producer
    with producer._changed:
        assert producer._changed.wait_for(lambda: producer._suspended, LONG), "no fetch waits for its turn"


def shown(part):
    """Returns the batches of a part, with their notes."""
    return [] if part is None else [(part.batch(number), note) for number, note in enumerate(part.notes)]


def notes(queue, count):
    return [queue.take()[1] for _ in range(count)]


# -- order, draws and bounds, whoever fetches -------------------------------------------------------------------------

SEED = 11
draws = st.sampled_from(["", "", "", "python", "torch", "numpy", "all"])
KINDS = {"python": random.random, "torch": lambda: torch.rand(()).item(), "numpy": np.random.normal}


class Plan:
    """What happens at each fetch: the same in plain training and in the queue."""

    def __init__(self, draws, failures):
        self.draws, self.failures, self.drawn = draws, failures, []

    def __call__(self, number):
        kind = self.draws[number % len(self.draws)] if self.draws else ""
        for name in KINDS if kind == "all" else [kind] if kind else []:
            self.drawn.append((number, KINDS[name]()))
        if number in self.failures:
            raise Failure(number)


def seed_all():
    random.seed(SEED)
    np.random.seed(SEED)
    torch.manual_seed(SEED)


def states():
    return random.getstate(), repr(np.random.get_state()), torch.get_rng_state().tolist()


def settle(queue):
    """Returns when the thread does nothing: it fetched what it may, or waits for its turn."""
    producer = queue._producer
    with producer._changed:
        assert producer._changed.wait_for(
            lambda: producer._suspended or not (producer._busy or producer._may_fetch()), LONG
        )


sinks = st.lists(
    st.tuples(
        st.integers(1, 8),  # batches that it expects
        st.integers(0, 10),  # and takes: fewer when it ends early, more where nothing said how many
        st.sampled_from(["rest", "rest", "rest", "rest without waiting", "pause", "restart"]),
    ),
    min_size=1,
    max_size=6,
)
options = st.builds(
    QueueOptions,
    buffer_size=st.integers(1, 5),
    early_preload=st.booleans(),
    timeout=st.sampled_from([None, LONG]),
)
lengths = st.lists(st.integers(1, 6), min_size=2, max_size=8) | st.lists(st.integers(0, 40), min_size=1, max_size=1)


def train(sinks, take, begin=lambda expected, takes: None, end=lambda how: None, after=lambda: None, step=tuple):
    """Takes batches sink by sink, with a step behind each; returns everything that it saw."""
    seen = []
    for expected, takes, how in sinks:
        begin(expected, takes)
        for _ in range(takes):
            try:
                seen.append(take())
            except Failure as error:
                seen.append(("failed", error.args))
            except StopIteration:
                seen.append("end")
                break
            after()
            seen.append(("step", step()))
        end(how)
    return seen


def draw():
    return random.random(), torch.rand(()).item(), np.random.normal()


class Plain:
    """Plain training: each batch is fetched when it is due."""

    def __init__(self, make_source):
        self.make_source, self.source = make_source, make_source()
        self.sources = [self.source]

    def end(self, how):
        if how == "restart":
            self.source = self.make_source()
            self.sources.append(self.source)

    def take(self):
        batch, number = self.source.fetch(True)
        return batch.tolist(), number


class Queued(Plain):
    """The same through a queue; says when the source is used as it may not be."""

    def __init__(self, make_source, options, ways, patience, looks):
        self.looks = itertools.cycle(looks)
        self.options, self.ways, self.patience = options, itertools.cycle(ways), itertools.cycle(patience)
        self.pace, self.resting, self.given, self.allowed, self.shown = FakePace(), True, 0, 0, []
        super().__init__(lambda: self.guarded(make_source()))

    def guarded(self, source):
        source.may_fetch = self.may_fetch
        return source

    def may_fetch(self, number, in_turn):
        if in_turn or self.options.early_preload:
            return ""
        if self.resting:
            return f"batch {number} was fetched between two sinks"
        return f"batch {number} was fetched, none behind {self.allowed} is expected" if number >= self.allowed else ""

    def begin(self, count, takes):
        self.allowed, self.resting = self.given + count, False
        self.taken_until = self.given + min(count, takes)
        self.pace.ahead = next(self.ways)
        self.queue.expect(count)

    def take(self):
        self.pace.ahead = next(self.ways)
        left = self.taken_until - self.given
        first = shown(self.queue.look_ahead(min(next(self.looks), left)))
        assert len(first) <= self.options.batches
        further = shown(self.queue.look_ahead(min(next(self.looks), left - len(first)), behind=len(first)))
        assert len(further) <= self.options.batches
        self.shown = self.shown or [(batch.tolist(), number) for batch, number in (*first, *further)]
        try:
            batch, number = self.queue.take()
            found = batch.tolist(), number
            assert not self.shown or self.shown.pop(0) == found
            return found
        finally:
            self.given += 1
            assert self.queue.ready <= 2 * self.options.batches

    def after(self):
        if next(self.patience):
            settle(self.queue)

    def end(self, how):
        if how == "pause":
            self.queue.pause()
        else:
            self.queue.rest(wait=how != "rest without waiting")
        self.resting = how != "rest without waiting"
        super().end(how)
        if how == "restart":
            self.queue.restart(self.source)
            self.resting, self.given, self.shown = True, 0, []


@given(
    lengths=lengths,
    sinks=sinks,
    ways=st.lists(st.booleans(), min_size=1, max_size=20),
    patience=st.lists(st.booleans(), min_size=1, max_size=7),
    plan=st.lists(draws, max_size=7),
    failures=st.sets(st.integers(0, 30), max_size=2),
    options=options,
    looks=st.lists(st.integers(0, 6), min_size=1, max_size=5),
    step=st.sampled_from([draw, draw, tuple]),
    other=st.integers(0, 4),
    groups=st.lists(st.integers(1, 4), min_size=1, max_size=4),
)
@settings(max_examples=200)
def test_the_queue_is_a_plain_iterator(
    lengths, sinks, ways, patience, plan, failures, options, looks, step, other, groups
):
    if options.early_preload:
        ways = ways[:1]  # that it changes is a test of its own, below
    check(lambda: Numbers(lengths, Plan(plan, failures), other, groups), sinks, ways, patience, options, looks, step)


def check(make_source, sinks, ways, patience, options, looks=(0,), step=draw):
    plain = Plain(make_source)
    queued = Queued(make_source, options, ways, patience, looks)
    seed_all()
    expected = (
        train(sinks, plain.take, end=plain.end, step=step),
        [source.act.drawn for source in plain.sources],
        states(),
    )
    seed_all()
    with queue_of(queued.source, queued.pace, options) as queued.queue:
        seen = train(sinks, queued.take, queued.begin, queued.end, queued.after, step)
        # What was fetched and not taken has drawn nothing: a draw is in turn.
        found = seen, [source.act.drawn for source in queued.sources], states()
    assert not [source.violations for source in queued.sources if source.violations]
    assert found == expected
    if options.timeout is not None:
        threads = {thread for source in queued.sources for thread in source.threads}
        assert threading.current_thread() not in threads
    report = queued.queue.report()
    assert report.batches_consumed == sum(isinstance(item[0], list) for item in seen)


SINKS = [(5, 5, "rest"), (5, 5, "rest")]


def test_control_a_batch_out_of_order_is_noticed():
    class Swapped(Numbers):
        def fetch(self, in_turn):
            batch, note = super().fetch(in_turn)
            return batch, note if in_turn else note ^ 1

    check(lambda: Numbers((20,), Plan([], ())), SINKS, [True], [True], QueueOptions())
    with pytest.raises(AssertionError):
        check(lambda: Swapped((20,), Plan([], ())), SINKS, [True], [True], QueueOptions())


def test_control_a_draw_out_of_turn_is_noticed(monkeypatch):
    monkeypatch.setattr("lightning_sink.data.producer.watched", lambda wait: contextlib.nullcontext())
    check(lambda: Numbers((20,), Plan([""], ())), SINKS, [True], [True], QueueOptions())
    with pytest.raises(AssertionError):
        check(lambda: Numbers((20,), Plan(["python"], ())), SINKS, [True], [True], QueueOptions())


def test_control_a_fetch_between_sinks_is_noticed(monkeypatch):
    monkeypatch.setattr(BatchQueue, "rest", lambda self, wait: self._release())
    monkeypatch.setattr(queue_module, "_ENDLESS", 9)
    monkeypatch.setattr(BatchQueue, "expect", lambda self, count: self._producer.run(self._fetches.work, 3 * count))
    with pytest.raises(AssertionError, match="expected|between"):
        check(lambda: Numbers((20,), Plan([], ())), SINKS, [True], [True], QueueOptions())


def test_control_two_fetches_at_once_are_noticed():
    source = Numbers(act=lambda number: number == 0 and source.until_begun(1))
    go = threading.Event()
    source.act = lambda number: go.wait(LONG)
    thread = threading.Thread(target=source.fetch, args=(True,))
    thread.start()
    source.until_begun(1)
    source.act = lambda number: None
    source.fetch(True)
    go.set()
    thread.join(LONG)
    assert source.violations == ["two fetches at once"]


# -- who fetches, and when ---------------------------------------------------------------------------------------------


def test_in_step_there_is_no_thread(make):
    before = threading.active_count()
    source = Numbers((3, 3, 3))
    queue = make(source, FakePace(False))
    queue.expect(9)
    assert notes(queue, 9) == list(range(9))
    assert threading.active_count() == before
    assert set(source.threads) == {threading.current_thread()}


def test_no_thread_is_left_where_batches_are_fetched_in_step_again(make):
    # Beside another thread that has computed, even an idle one, a step of several threads takes up to twice as long.
    before, pace = threading.active_count(), FakePace(True)
    queue = make(Numbers((40,)), pace)
    queue.expect(40)
    assert notes(queue, 5) == list(range(5))
    assert threading.active_count() == before + 1
    pace.ahead = False
    assert notes(queue, 30) == list(range(5, 35))  # more than can have been fetched ahead
    assert threading.active_count() == before
    pace.ahead = True
    assert notes(queue, 5) == list(range(35, 40))


def quiet(lengths, **attributes):
    """Numbers of which none draws."""
    source = Numbers(lengths)
    source.draws_nothing = True
    vars(source).update(attributes)
    return source


def seen(queue, most, behind=0):
    return [note for _, note in shown(queue.look_ahead(most, behind))]


def test_looked_at_early_the_thread_fetches_no_more_once_the_way_is_in_step(make):
    source, pace = quiet((100,)), FakePace(True)
    queue = make(source, pace, QueueOptions(buffer_size=1))
    queue.expect(50)
    assert notes(queue, 3) == [0, 1, 2]
    settle(queue)
    lock = queue._producer._changed

    def let_the_thread_go_on(number):
        if threading.current_thread() is threading.main_thread():
            lock.release()
            settle(queue)
            lock.acquire()

    with lock:  # the thread is between two fetches
        assert notes(queue, 1) == [3]
        pace.ahead = False  # as that take has a trial decide
        source.act = let_the_thread_go_on
        assert seen(queue, 1) == [4]
    source.act = lambda number: None
    assert source.violations == []
    assert notes(queue, 5) == [4, 5, 6, 7, 8]


def test_looked_at_early_a_traversal_begins_when_all_before_it_are_in_training(make):
    source = quiet((10, 3, 3))
    queue = make(source, FakePace(False))
    queue.expect(16)
    assert notes(queue, 8) == [*range(8)]
    assert seen(queue, 5) == [8, 9]
    assert seen(queue, 5, behind=1) == [9]
    assert source.traversal == 0
    assert seen(queue, 5, behind=2) == [10, 11, 12]
    assert source.traversal == 1
    assert notes(queue, 5) == [8, 9, 10, 11, 12]
    assert seen(queue, 5) == [13, 14, 15]  # all before it have been trained
    assert notes(queue, 3) == [13, 14, 15]


def test_looked_at_early_no_traversal_begins_of_which_nothing_is_known(make):
    source = Numbers((10, 3))  # it might write to the memory of batches in training, or start processes
    queue = make(source, FakePace(False))
    queue.expect(13)
    assert notes(queue, 9) == [*range(9)]
    assert seen(queue, 5) == [9]
    assert seen(queue, 5, behind=1) == []
    assert source.traversal == 0
    assert notes(queue, 4) == [9, 10, 11, 12]


def test_nothing_is_looked_at_early_where_a_fetch_may_begin_a_part_again(make):
    queue = make(quiet((10, 3), restarts_midway=True), FakePace(False))
    queue.expect(13)
    assert notes(queue, 9) == [*range(9)]
    assert seen(queue, 5) == []
    assert notes(queue, 4) == [9, 10, 11, 12]


def test_a_fetch_that_draws_early_is_warned_of_in_each_training_and_fetched_when_due(make):
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("default")  # which shows what one line of code says only once
        for _ in range(2):
            queue = make(Numbers((100,), act=lambda number: number == 12 and random.random()), FakePace(False))
            queue.expect(50)
            assert notes(queue, 10) == [*range(10)]
            assert seen(queue, 5) == [10, 11, 12, 13, 14]
            assert notes(queue, 5) == [10, 11, 12, 13, 14]
            assert seen(queue, 5) == []
    assert [(warning.category, warning.filename) for warning in said] == [(SinkWarning, "<unknown>")] * 2
    assert all("steps early" in str(warning.message) for warning in said)


def test_a_traversal_that_fails_to_begin_early_fails_in_its_turn(make):
    source = quiet((2, 2))
    queue = make(source, FakePace(False))
    queue.expect(4)
    assert notes(queue, 1) == [0]
    assert seen(queue, 1) == [1]
    source.begin = mock.Mock(side_effect=ZeroDivisionError("here"))
    assert seen(queue, 5, behind=1) == []
    assert notes(queue, 1) == [1]
    with pytest.raises(ZeroDivisionError, match="here"):
        queue.take()
    assert source.begin.call_count == 1


def test_ahead_the_thread_fetches_all_but_the_first_of_each_traversal(make):
    source = Numbers((3, 4, 2))
    queue = make(source)
    queue.expect(9)
    notes(queue, 9)
    mine = [index for index, thread in enumerate(source.threads) if thread is threading.current_thread()]
    assert mine == [0, 3, 7]


def test_in_step_a_batch_is_fetched_at_its_take(make):
    source = Numbers()
    queue = make(source, FakePace(False))
    queue.expect(5)
    for number in range(5):
        assert source.begun == number
        queue.take()


def test_ahead_no_more_than_the_buffer_and_what_is_expected(make):
    source = Numbers()
    queue = make(source, options=QueueOptions(buffer_size=3))
    queue.expect(5)
    settle(queue)
    assert (source.begun, queue.ready) == (3, 3)
    for begun in (4, 5, 5, 5, 5):
        queue.take()
        settle(queue)
        assert source.begun == begun
    queue.rest()
    settle(queue)
    assert (source.begun, queue.ready) == (5, 0)


@pytest.mark.parametrize("size", [40, 64, 1000])
def test_ahead_no_more_than_the_bytes_but_for_one_batch(make, size):
    class Tensors(Numbers):
        def fetch(self, in_turn):
            return [torch.zeros(10), torch.zeros(6)], super().fetch(in_turn)[1]

    source = Tensors()
    queue = make(source, options=QueueOptions(buffer_bytes=size))
    queue.expect(50)
    settle(queue)
    assert queue.ready == -(-size // 64) if size < 1000 else 16
    assert queue.report().bytes_produced == 64 * queue.ready
    notes(queue, 50)
    assert queue.report().bytes_consumed == 64 * 50


def test_two_batches_are_never_more_bytes_than_the_options_allow(make):
    class Tensors(Numbers):
        def fetch(self, in_turn):
            return torch.zeros(60, dtype=torch.uint8), super().fetch(in_turn)[1]

    queue = make(Tensors(), options=QueueOptions(buffer_bytes=100))
    queue.expect(50)
    settle(queue)
    assert queue.ready * 60 <= 100


def test_a_row_that_is_partly_there_is_added_to(make):
    queue = make(Numbers(), FakePace(False), QueueOptions(buffer_size=100))
    queue.expect(400)
    for _ in range(12):  # and none of them has drawn
        queue.take()
    assert len(queue.look_ahead(10)) == 10
    assert len(queue.look_ahead(30, behind=5)) == 30


@pytest.mark.parametrize("groups", [[1], [4], [9]])
@pytest.mark.parametrize(("size", "batches"), [(1, 1), (100, 1), (120, 2), (500, 8), (1 << 20, 16)])
def test_looked_at_early_no_more_than_the_bytes_but_for_one_batch(make, size, batches, groups):
    class Tensors(Numbers):
        draws_nothing = True

        def fetch(self, in_turn):
            return torch.zeros(60, dtype=torch.uint8), super().fetch(in_turn)[1]

    queue = make(Tensors(groups=groups), FakePace(False), QueueOptions(buffer_bytes=size))
    queue.expect(200)
    for taken in range(0, 3 * (batches + 1), batches + 1):
        queue.take()
        assert len(queue.look_ahead(16)) == batches
        assert (queue._producer._held, queue._producer.held_bytes) == (batches, batches * 60)
        queue.skip(batches)
        assert (queue._producer._held, queue._producer.held_bytes) == (0, 0)
        assert queue.horizon() == 200 - taken - (batches + 1) + 1  # what the sink still needs, and one


def test_between_sinks_nothing_is_fetched(make):
    source = Numbers()
    queue = make(source)
    for sink in range(4):
        queue.expect(6)
        notes(queue, 4)
        settle(queue)
        queue.rest()
        begun = source.begun
        settle(queue)
        assert source.begun == begun == 4 * sink + 6  # the two that were left are there yet
        queue.expect(6)
        settle(queue)
        assert source.begun == begun + 4
        queue.rest()
        queue.restart(source := Numbers())
        source.number = 4 * (sink + 1)
        source.begun = 4 * (sink + 1)


@pytest.mark.parametrize("preload", [False, True])
def test_early_preload_goes_on_between_sinks_until_a_pause(make, preload):
    source = Numbers()
    queue = make(source, options=QueueOptions(buffer_size=4, early_preload=preload))
    queue.expect(2)
    assert notes(queue, 2) == [0, 1]
    queue.rest()
    settle(queue)
    assert source.begun == (6 if preload else 2)
    queue.pause()
    begun = source.begun
    queue.restart(other := Numbers())
    settle(queue)
    assert (source.begun, other.begun) == (begun, 0)


def test_a_take_beyond_what_was_expected_still_works(make):
    source = Numbers()
    queue = make(source)
    queue.expect(2)
    assert notes(queue, 7) == list(range(7))
    queue.rest()
    queue.expect(0)
    assert notes(queue, 2) == [7, 8]
    assert source.begun == 9


@pytest.mark.parametrize("ahead", [False, True])
def test_a_take_without_a_word_before_works(make, ahead):
    queue = make(Numbers((2, 3)), FakePace(ahead))
    assert notes(queue, 5) == list(range(5))
    with pytest.raises(StopIteration):
        queue.take()


def test_with_a_timeout_no_batch_is_fetched_on_the_trainers_thread(make):
    for ahead in (False, True):
        source = Numbers((2, 3, 9))
        queue = make(source, FakePace(ahead), QueueOptions(timeout=LONG))
        queue.expect(8)
        assert notes(queue, 8) == list(range(8))
        assert threading.current_thread() not in source.threads


def test_with_a_timeout_nor_one_beyond_what_was_expected(make):
    source = Numbers()
    queue = make(source, options=QueueOptions(timeout=LONG))
    queue.expect(2)
    assert notes(queue, 4) == list(range(4))
    assert threading.current_thread() not in source.threads


def test_early_preload_and_a_change_to_fetching_in_step(make):
    source, pace, meet = Numbers(), FakePace(), threading.Event()

    def act(number):
        if number == 1 and threading.current_thread() is threading.main_thread():
            meet.wait(1.0)  # as long as a fetch takes; the thread's next one ends it, if there is one
        elif number:
            meet.set()

    source.act = act
    options = QueueOptions(buffer_size=1, early_preload=True)
    with contextlib.suppress(AssertionError), queue_of(source, pace, options) as queue:
        queue.expect(9)
        settle(queue)
        first = queue.take()[1]
        pace.ahead = False
        rest = notes(queue, 4)
    assert source.violations == []
    assert [first, *rest] == list(range(5))


def test_the_horizon_is_what_the_sink_still_needs(make):
    for ahead in (False, True):
        found = []
        source = Numbers((4, 9), lambda number: found.append(queue.horizon()))  # noqa: B023
        queue = make(source, FakePace(ahead), QueueOptions(buffer_size=2))
        for count in (5, 3):
            queue.expect(count)
            notes(queue, count)
            queue.rest()
        assert found == [5, 4, 3, 2, 1, 3, 2, 1]
        assert queue.horizon() >= 1


def test_what_is_left_of_a_sink_counts_for_the_next(make):
    source = Numbers()
    queue = make(source)
    queue.expect(5)
    settle(queue)
    queue.rest()
    queue.expect(7)
    settle(queue)
    assert source.begun == 7
    assert notes(queue, 7) == list(range(7))


def test_nothing_ahead_where_it_may_not(make):
    for options, because in [
        (QueueOptions(buffer_size=0), ""),
        (QueueOptions(), "the sampler looks at the model"),
    ]:
        source = Numbers()
        queue = make(source, options=options, in_step_because=because)
        queue.expect(9)
        assert notes(queue, 9) == list(range(9))
        assert set(source.threads) == {threading.current_thread()}
        assert queue.report().in_step_because == (because or "`buffer_size` is 0")
        assert queue.report().batches_ahead == 0


# -- draws -------------------------------------------------------------------------------------------------------------


def test_after_three_draws_in_a_row_it_stays_in_step_and_says_so_once(make):
    said, pace = [], FakePace()
    source = Numbers(act=lambda number: random.random())
    queue = make(source, pace, say=said.append)
    queue.expect(50)
    notes(queue, 50)
    assert pace.fixed
    assert len(said) == 1
    assert "Python's `random`" in said[0]
    assert "num_workers" in said[0]
    assert "Python's `random`" in queue.report().in_step_because
    ahead = [thread is not threading.current_thread() for thread in source.threads]
    assert sum(ahead) in (3, 4)  # the one that was under way then is taken, too
    queue.rest()
    queue.expect(5)
    assert notes(queue, 5) == list(range(50, 55))
    assert len(said) == 1


def test_draws_that_are_not_in_a_row_keep_it_ahead(make):
    said, pace = [], FakePace()
    queue = make(Numbers(act=lambda number: number % 3 and random.random()), pace, say=said.append)
    queue.expect(50)
    notes(queue, 50)
    assert not pace.fixed
    assert said == []
    assert queue.report().batches_ahead == 50


def test_a_restart_abandons_a_fetch_that_waits_for_its_turn(make):
    cleaned = []

    def act(number):
        if number == 2:
            try:
                torch.rand(2)
            finally:
                cleaned.append(number)

    before = states()
    queue = make(Numbers(act=act))
    queue.expect(5)
    until_suspended(queue)
    assert queue.ready == 2
    queue.restart(Numbers((3,)))
    assert cleaned == [2]
    assert queue.ready == 0
    assert states() == before
    queue.expect(3)
    assert notes(queue, 3) == [0, 1, 2]


def test_a_restart_without_another_source_goes_on_with_this_one(make):
    source = Numbers()
    queue = make(source)
    queue.expect(3)
    settle(queue)
    queue.restart()
    queue.expect(2)
    assert notes(queue, 2) == [3, 4]


def test_a_restart_forgets_an_error(make):
    queue = make(Numbers(act=lambda number: 1 / 0))
    queue.expect(3)
    settle(queue)
    queue.restart(Numbers())
    queue.expect(3)
    assert notes(queue, 3) == [0, 1, 2]


# -- errors ------------------------------------------------------------------------------------------------------------

WAYS = [
    pytest.param(False, None, id="in step"),
    pytest.param(True, None, id="ahead"),
    pytest.param(False, LONG, id="in step, timeout"),
    pytest.param(True, LONG, id="ahead, timeout"),
]


@pytest.mark.parametrize(("ahead", "timeout"), WAYS)
@pytest.mark.parametrize("place", [0, 1, 4])
@pytest.mark.parametrize("where", ["fetch", "prepare"])
def test_an_error_arrives_in_its_place_as_it_is(make, ahead, timeout, place, where):
    failure = OSError("disk")

    def fail(number):
        if number == place:
            raise failure
        return number

    prepare = None if where == "fetch" else lambda batch: (fail(batch[1]), batch)[1]
    source = Numbers((99,), fail if where == "fetch" else lambda number: None)
    queue = make(source, FakePace(ahead), QueueOptions(timeout=timeout), prepare=prepare)
    queue.expect(8)
    assert notes(queue, place) == list(range(place))
    with pytest.raises(OSError, match="disk") as caught:
        queue.take()
    assert caught.value is failure
    (note,) = (note for note in failure.__notes__ if "lightning_sink" in note)
    # This source counts a batch before it fails; where a hook fails, it has given it.
    named = f"batch {place + 1} of traversal 0" if where == "fetch" else f"batch number {place}"
    assert note.startswith(f"[lightning_sink] while fetching {named}")
    assert notes(queue, 2) == [place + 1, place + 2]


@pytest.mark.parametrize(("ahead", "timeout"), WAYS)
def test_the_note_names_the_batch_that_failed(make, ahead, timeout):
    class Late(Numbers):
        """Counts a batch when it has it, as a loader's traversals do."""

        def fetch(self, in_turn):
            if self.number == 3:
                raise OSError("disk")
            return super().fetch(in_turn)

    queue = make(Late(), FakePace(ahead), QueueOptions(timeout=timeout))
    queue.expect(8)
    notes(queue, 3)
    with pytest.raises(OSError, match="disk") as caught:
        queue.take()
    (note,) = caught.value.__notes__
    assert note.startswith("[lightning_sink] while fetching batch 3 of traversal 0")
    assert ("on the queue's thread" in note) is (ahead or timeout is not None)


@pytest.mark.parametrize(("ahead", "timeout"), WAYS)
def test_an_error_raised_twice_has_one_note(make, ahead, timeout):
    failure = OSError("disk")

    class Fails(Numbers):
        def fetch(self, in_turn):
            raise failure

    queue = make(Fails(), FakePace(ahead), QueueOptions(timeout=timeout))
    for _ in range(2):
        queue.expect(1)
        with pytest.raises(OSError, match="disk"):
            queue.take()
    assert len(failure.__notes__) == 1


@pytest.mark.parametrize(("ahead", "timeout"), WAYS)
@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit, GeneratorExit])
def test_interrupts_in_a_fetch_arrive(make, ahead, timeout, kind):
    def act(number):
        if number == 2:
            raise kind

    queue = make(Numbers(act=act), FakePace(ahead), QueueOptions(timeout=timeout))
    queue.expect(8)
    notes(queue, 2)
    with pytest.raises(kind) as caught:
        queue.take()
    assert kind is not KeyboardInterrupt or not hasattr(caught.value, "__notes__")


@pytest.mark.parametrize(("ahead", "timeout"), WAYS)
def test_the_end_comes_behind_the_last_batch_and_again(make, ahead, timeout):
    queue = make(Numbers((3,)), FakePace(ahead), QueueOptions(timeout=timeout))
    queue.expect(9)
    assert notes(queue, 3) == [0, 1, 2]
    for _ in range(2):
        with pytest.raises(StopIteration):
            queue.take()
    assert queue.report().batches_consumed == 3


def test_a_batch_that_is_late_ends_the_training(make):
    go = threading.Event()
    for ahead in (False, True):
        source = Numbers(act=lambda number: number == 2 and go.wait(LONG))
        queue = make(source, FakePace(ahead), QueueOptions(timeout=0.05, buffer_size=7))
        queue.expect(5)
        assert notes(queue, 2) == [0, 1]
        with pytest.raises(DataTimeoutError) as caught:
            queue.take()
        text = str(caught.value)
        for part in (
            "No batch came for 0.05 s",
            "Late is the loader",
            "of traversal 0",
            "2 batches were fetched",
            "the slowest",
            "0] batches ready, of at most 7",
            "SinkDataModule(timeout=...)",
            "num_workers",
            "dataset_sink_mode=False",
        ):
            assert part in text
        assert isinstance(caught.value, TimeoutError)
        go.set()
        settle(queue)
        assert notes(queue, 3) == [2, 3, 4]  # none is lost, should somebody go on
        go.clear()


def test_a_late_hook_is_named(make):
    go = threading.Event()
    queue = make(
        Numbers(), options=QueueOptions(timeout=0.05), prepare=lambda batch: go.wait(LONG), say=lambda text: None
    )
    queue.expect(5)
    with pytest.raises(DataTimeoutError, match="one of the batch-transfer hooks"):
        queue.take()
    go.set()


def test_a_batch_in_time_is_no_error(make):
    queue = make(Numbers(act=lambda number: random.random()), options=QueueOptions(timeout=LONG))
    queue.expect(9)
    assert notes(queue, 9) == list(range(9))


# -- what a fetch finds ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("ahead", "timeout"), WAYS)
def test_a_fetch_finds_the_trainers_modes(make, ahead, timeout):
    found = []

    def act(number):
        found.append((decimal.getcontext().prec, np.geterr()["over"], torch.is_grad_enabled()))

    queue = make(Numbers(act=act), FakePace(ahead), QueueOptions(timeout=timeout))
    with decimal.localcontext() as context, np.errstate(over="raise"), torch.no_grad():
        context.prec = 9
        queue.expect(3)
        notes(queue, 3)
        queue.rest()
    queue.expect(3)
    notes(queue, 3)
    outside = decimal.getcontext().prec, np.geterr()["over"], True
    assert found == [(9, "raise", False)] * 3 + [outside] * 3


def test_a_dataset_that_is_bound_to_its_thread_says_what_to_do(make):
    rows = sqlite3.connect(":memory:")
    try:
        queue = make(Numbers(act=lambda number: rows.execute("select 1").fetchone()))
        queue.expect(5)
        with pytest.raises(sqlite3.ProgrammingError) as raised:
            notes(queue, 5)
        assert any("`SinkDataModule(..., buffer_size=0)`" in note for note in raised.value.__notes__)
        queue = make(Numbers(act=lambda number: rows.execute("select 1").fetchone()), FakePace(False))
        queue.expect(5)
        assert notes(queue, 5) == list(range(5))
    finally:
        rows.close()


@pytest.mark.parametrize(("ahead", "timeout"), WAYS)
def test_batches_are_prepared_once_each_where_they_are_fetched(make, ahead, timeout):
    threads = []

    def prepare(batch):
        threads.append(threading.current_thread())
        return {"prepared": batch.tolist()}

    source = Numbers()
    queue = make(source, FakePace(ahead), QueueOptions(timeout=timeout), prepare=prepare)
    assert queue.prepares
    assert not make(Numbers()).prepares
    queue.expect(5)
    assert [queue.take()[0] for _ in range(5)] == [{"prepared": [0, index]} for index in range(5)]
    assert threads == source.threads


# -- what it says of itself --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("ahead", "timeout"), WAYS)
def test_the_report_counts_each_batch(make, ahead, timeout):
    queue = make(Numbers((3, 4, 9)), FakePace(ahead), QueueOptions(timeout=timeout))
    queue.expect(10)
    notes(queue, 10)
    report = queue.report()
    assert (report.batches_produced, report.batches_consumed) == (10, 10)
    assert sum(report.depths.values()) == 10
    assert report.batches_ahead == (7 if ahead else 0)


def test_the_pace_is_told_of_batches_within_a_sink(make):
    pace = FakePace(False)
    queue = make(Numbers(), pace)
    for _ in range(3):
        queue.expect(4)
        notes(queue, 4)
        queue.rest()
    assert len(pace.notes) == 3 * 3  # none from the end of one sink to the beginning of the next
    assert all(0.0 <= fetch <= whole and sending == 0.0 for fetch, whole, sending in pace.notes)


def test_the_queue_says_what_it_is(make):
    pace = FakePace()
    queue = make(Numbers(), pace, QueueOptions(buffer_size=3))
    queue.expect(2)
    notes(queue, 2)
    assert repr(queue) == "BatchQueue(buffer_size=3): 2 batches taken, ahead"
    pace.ahead = False
    assert repr(queue).endswith("in step")


# -- the end -----------------------------------------------------------------------------------------------------------


def begin_nothing(queue):
    return None


def begin_full(queue):
    queue.expect(99)
    settle(queue)


def begin_suspended(queue):
    queue._fetches.source.act = lambda number: random.random()
    queue.expect(99)
    until_suspended(queue)


def begin_resting(queue):
    begin_full(queue)
    queue.rest()


def begin_restarted(queue):
    begin_suspended(queue)
    queue.restart()


def begin_failed(queue):
    queue._fetches.source.act = lambda number: 1 / 0
    begin_full(queue)


def begin_failed_and_told(queue):
    begin_failed(queue)
    with pytest.raises(ZeroDivisionError):
        queue.take()


def begin_in_midst(queue):
    queue.expect(5)
    queue.take()


def begin_ended(queue):
    queue._fetches.source.lengths = [2]
    queue.expect(5)
    notes(queue, 2)
    with pytest.raises(StopIteration):
        queue.take()


BEGINNINGS = [
    begin_nothing,
    begin_full,
    begin_suspended,
    begin_resting,
    begin_restarted,
    begin_failed,
    begin_failed_and_told,
    begin_in_midst,
    begin_ended,
]


@pytest.mark.parametrize("begin", BEGINNINGS)
@pytest.mark.parametrize("timeout", [None, LONG])
def test_it_ends_from_every_state_and_twice(make, begin, timeout):
    before, generator = threading.active_count(), np.random.get_bit_generator()
    said, source = [], Numbers()
    queue = make(source, options=QueueOptions(timeout=timeout), say=said.append)
    begin(queue)
    queue.close()
    assert threading.active_count() == before
    assert np.random.get_bit_generator() is generator
    queue.close()
    assert (said, source.aborted) == ([], 0)


@pytest.mark.parametrize("patience", [True, False])
def test_the_end_of_a_fetch_that_hangs(make, monkeypatch, patience):
    monkeypatch.setattr(module, "_PATIENCE", 0.05)
    monkeypatch.setattr(module, "_PATIENCE_FOR_WORKERS", LONG if patience else 0.05)
    go, said = threading.Event(), []

    class Hangs(Numbers):
        def abort(self):
            super().abort()
            if patience:
                go.set()
            return patience

    before = threading.active_count()
    source = Hangs(act=lambda number: go.wait(LONG))
    queue = make(source, say=said.append)
    queue.expect(5)
    source.until_begun(1)
    queue.close()
    assert source.aborted == 1
    if patience:
        assert said == []
        assert threading.active_count() == before
    else:
        assert len(said) == 1
        assert "the loader does not return" in said[0]
        go.set()


# A fetch that waits for its turn holds the queue by its frames, and so does an error that nobody took by its traceback.
@pytest.mark.parametrize("begin", [begin for begin in BEGINNINGS if begin not in (begin_suspended, begin_failed)])
def test_a_queue_that_nobody_holds_ends(begin):
    before = set(threading.enumerate())
    generator = np.random.get_bit_generator()
    with mock.patch.object(module, "Pace", FakePace), mock.patch.object(module, "_PROBES", 0):
        queue = BatchQueue(Numbers(), QueueOptions())
    begin(queue)
    settle(queue)  # the thread that ends behind a fetch under way leaves numpy's generator to the next training
    producer, gone = queue._producer, weakref.ref(queue)
    try:
        del queue
        gc.collect()
        assert gone() is None
        for thread in set(threading.enumerate()) - before:
            thread.join(LONG)
        assert np.random.get_bit_generator() is generator
    finally:
        producer.close(LONG)
    assert set(threading.enumerate()) == before


def test_a_queue_that_nobody_holds_ends_in_the_midst_of_a_fetch():
    before, go = set(threading.enumerate()), threading.Event()
    source = Numbers(act=lambda number: go.wait(LONG))
    with mock.patch.object(module, "Pace", FakePace), mock.patch.object(module, "_PROBES", 0):
        queue = BatchQueue(source, QueueOptions())
    queue.expect(5)
    source.until_begun(1)
    producer, gone = queue._producer, weakref.ref(queue)
    del queue
    gc.collect()
    assert gone() is None
    go.set()
    producer._thread.join(LONG)
    assert set(threading.enumerate()) == before
    assert source.begun == 1
    assert producer.close(LONG)


# -- the first fetches on the thread -----------------------------------------------------------------------------------


def test_another_source_is_watched_anew(make):
    """It may draw where the one before it did not, and then its fetches are not made before their turn."""
    queue = make(Numbers(), FakePace(False))
    queue.expect(20)
    for _ in range(10):
        queue.take()
    assert queue._supply.is_quiet
    queue.restart(Numbers())
    assert not queue._supply.is_quiet


def test_probes_are_made_while_the_training_waits(make):
    threads = []
    source = Numbers(act=lambda number: threads.append(threading.get_ident()))
    queue = make(source, probes=2)
    queue.expect(9)
    assert notes(queue, 9) == list(range(9))
    assert threading.get_ident() not in threads
    assert queue.report().batches_ahead == 7


@pytest.mark.parametrize("kind", [lambda: torch.rand(1), np.random.rand, random.random])
def test_data_that_draws_is_never_fetched_beside_a_step(make, kind):
    said = []
    queue = make(Numbers(act=lambda number: kind()), probes=2, say=said.append)
    queue.expect(9)
    assert notes(queue, 9) == list(range(9))
    assert queue.report().batches_ahead == 0
    assert len(said) == 1


def test_what_fails_on_another_thread_is_fetched_again_with_the_same_draws(make):
    trainers, drawn = threading.get_ident(), []

    class Bound(Numbers):
        def fetch(self, in_turn):
            found = super().fetch(in_turn)
            drawn.append((torch.rand(1).item(), float(np.random.rand()), random.random()))
            if threading.get_ident() != trainers:
                self.number, self.failed = self.number - 1, True
                raise RuntimeError("bound to a thread")
            return found

        def retry(self):
            return True

    torch.manual_seed(1), np.random.seed(1), random.seed(1)
    queue = make(Bound(), probes=2)
    queue.expect(5)
    assert len(notes(queue, 5)) == 5
    torch.manual_seed(1), np.random.seed(1), random.seed(1)
    expected = [(torch.rand(1).item(), float(np.random.rand()), random.random()) for _ in range(5)]
    assert list(dict.fromkeys(drawn)) == expected
    assert "failed" in queue.report().in_step_because
