"""Epochs cut out of one endless traversal: nothing dropped, nothing repeated, nothing out of order."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_sink.data.endless import EndlessLoader
from lightning_sink.errors import EmptyDatasetError

lengths = st.integers(1, 9)
limits = st.none() | st.integers(1, 9)


class Sampler:
    def __init__(self):
        self.epochs = []

    def set_epoch(self, epoch):
        self.epochs.append(epoch)


class Loader:
    """Gives `(traversal, index)`, with the traversal that its sampler was told."""

    def __init__(self, length):
        self.length, self.sampler, self.fetched = length, Sampler(), 0

    def __iter__(self):
        traversal = self.sampler.epochs[-1]
        for index in range(self.length):
            self.fetched += 1
            yield traversal, index


def traversal(length, limit):
    """The definition: each traversal's batches up to the limit, one traversal after another, without end."""
    batches = min(length, limit or length)
    return ((number, index) for number in itertools.count() for index in range(batches))


def take(epochs, loader):
    return [batch for _ in range(epochs) for batch in loader]


@given(length=lengths, epoch=lengths, limit=limits, epochs=st.integers(1, 5))
def test_epochs_one_after_another_are_the_endless_traversal(length, epoch, limit, epochs):
    inner = Loader(length)
    loader = EndlessLoader(inner, epoch, limit)
    found = take(epochs, loader)
    assert found == list(itertools.islice(traversal(length, limit), epochs * epoch))
    assert len(loader) == epoch
    assert inner.fetched == len(found)


@given(length=lengths, epoch=lengths, limit=limits, epochs=st.integers(1, 5))
def test_a_sampler_is_told_once_per_traversal(length, epoch, limit, epochs):
    inner = Loader(length)
    found = take(epochs, EndlessLoader(inner, epoch, limit))
    assert inner.sampler.epochs == list(range(found[-1][0] + 1))


@given(length=lengths, epoch=lengths, limit=limits, before=st.integers(0, 4), epochs=st.integers(1, 4))
def test_a_resumed_loader_goes_on_where_the_saved_one_stood(length, epoch, limit, before, epochs):
    first = EndlessLoader(Loader(length), epoch, limit)
    take(before, first)
    resumed = EndlessLoader(Loader(length), epoch, limit)
    resumed.resume_at(first.traversal, first.position)
    assert (resumed.traversal, resumed.position) == (first.traversal, first.position)
    expected = itertools.islice(traversal(length, limit), before * epoch, (before + epochs) * epoch)
    assert take(epochs, resumed) == list(expected)


@given(length=lengths, epoch=lengths, cut=st.integers(0, 9))
def test_an_epoch_left_early_is_not_taken_twice(length, epoch, cut):
    loader = EndlessLoader(Loader(length), epoch)
    found = list(itertools.islice(loader, min(cut, epoch)))
    found += list(loader)
    assert found == list(itertools.islice(traversal(length, None), len(found)))


def test_control_a_dropped_batch_is_noticed():
    loader = EndlessLoader(Loader(3), 2)
    found = take(1, loader)
    loader._next()
    assert found + take(2, loader) != list(itertools.islice(traversal(3, None), 6))


def test_a_batch_sampler_is_told_too():
    class Batches:
        sampler = Sampler()

    inner = Loader(2)
    inner.batch_sampler = Batches()
    take(2, EndlessLoader(inner, 2))
    assert Batches.sampler.epochs == [0, 1]
    inner.batch_sampler.sampler = inner.sampler = Sampler()
    take(2, EndlessLoader(inner, 2))
    assert inner.sampler.epochs == [0, 1]


@pytest.mark.parametrize("data", [[], (), {}])
def test_empty_data_is_an_error(data):
    loader = EndlessLoader(data, 3)
    with pytest.raises(EmptyDatasetError, match="no batch"):
        list(loader)


def test_data_that_can_be_iterated_only_once_is_an_error():
    loader = EndlessLoader(iter(range(3)), 2)
    assert list(loader) == [0, 1]
    with pytest.raises(EmptyDatasetError, match="iterated again"):
        list(loader)


def test_nothing_is_fetched_before_the_first_epoch():
    inner = Loader(3)
    loader = EndlessLoader(inner, 2)
    assert inner.sampler.epochs == []
    iter(loader)
    assert inner.fetched == 0


class Stateful(Loader):
    """Finds its own place."""

    def __init__(self, length):
        super().__init__(length)
        self.start = self.index = 0

    def __iter__(self):
        start, self.start = self.start, 0
        for index in range(start, self.length):
            self.index = index
            yield self.sampler.epochs[-1], index

    def state_dict(self):
        return {"index": self.index + 1}

    def load_state_dict(self, state):
        self.start = state["index"]


def test_a_stateful_loader_finds_its_place_by_itself():
    inner = Stateful(5)
    first = EndlessLoader(inner, 3)
    take(1, first)
    resumed = EndlessLoader(Stateful(5), 3)
    resumed.load_state_dict(first.state_dict())
    resumed.resume_at(first.traversal, first.position)
    assert list(resumed) == [(0, 3), (0, 4), (1, 0)]
    assert resumed.position == 1


def test_a_loader_is_seen_through_but_for_its_samplers():
    inner = Loader(3)
    inner.batch_size = 7
    loader = EndlessLoader(inner, 2)
    assert loader.batch_size == 7
    assert not hasattr(loader, "sampler")
    assert not hasattr(loader, "load_state_dict")
    assert "EndlessLoader(Loader, epoch_batches=2" in repr(loader)


def test_an_error_of_the_loader_surfaces_and_the_loader_goes_on():
    class Fails(Loader):
        def __iter__(self):
            yield 1
            raise OSError("disk")

    loader = EndlessLoader(Fails(2), 2)
    loader.loader.sampler.epochs.append(0)
    with pytest.raises(OSError, match="disk"):
        list(loader)
