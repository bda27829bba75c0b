"""One traversal after another: nothing dropped, nothing repeated, nothing out of order; and from any place on again."""

import itertools
import random
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from test_road import DRAWS_LATER, LOADERS, WORKERS, both_ways, plain, road_of, seed_all, states
from torch.utils.data import DataLoader

from lightning_sink.data.place import look_at, place_of
from lightning_sink.data.road import Road
from lightning_sink.data.traversals import NotYet, Traversals
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


class Noted(Traversals):
    """Gives batches alone, and keeps the places behind them."""

    def next(self, in_turn=True):
        batch, lazy = self.fetch(in_turn)
        vars(self).setdefault("places", []).append(place_of(lazy))
        return batch


def over(*loaders, endless=True, limit=None, **arguments):
    roads = [loader if isinstance(loader, Road) else Road(loader) for loader in loaders]
    iterate = (lambda: iter(roads[0])) if len(roads) == 1 else (lambda: zip(*roads, strict=False))
    traversals = Noted(roads, iterate, endless=endless, **arguments)
    if limit is not None:
        traversals.limit = limit
    return traversals


def definition(length, limit):
    """Each traversal's batches up to the limit, one traversal after another, without end."""
    batches = min(length, limit or length)
    return ((number, index) for number in itertools.count() for index in range(batches))


def take(traversals, count):
    return [traversals.next() for _ in range(count)]


@given(length=lengths, limit=limits, count=st.integers(0, 40))
def test_traversals_one_after_another(length, limit, count):
    loader = Loader(length)
    found = take(over(loader, limit=limit), count)
    assert found == list(itertools.islice(definition(length, limit), count))
    assert loader.fetched == count  # nothing is fetched to find out that there is no more than the limit
    assert loader.sampler.epochs == list(range(found[-1][0] + 1 if found else 0))  # told once for each


def places_of(traversals, counts):
    """Takes batches with the places behind them: one by one where a count is 0, and in rows of at most so many."""
    found = []
    for count in counts:
        row = list(itertools.islice(traversals.row(1 << 30), count))
        found += [(batch, place_of(lazy)) for batch, lazy in row]
        if not row:
            batch = traversals.next()
            found.append((batch, traversals.places.pop()))
    return found


@given(length=lengths, limit=limits, counts=st.lists(st.integers(0, 12), max_size=12))
def test_batches_in_a_row_are_those_one_by_one(length, limit, counts):
    loader = Loader(length)
    found = places_of(over(loader, limit=limit), counts)
    one_by_one = places_of(over(Loader(length), limit=limit), [0] * len(found))
    described = [(batch, place.traversal, place.batch, place.length) for batch, place in found]
    assert described == [(batch, place.traversal, place.batch, place.length) for batch, place in one_by_one]
    assert loader.fetched == len(found)


class Cursor:
    """An iterator of the user's with a method of that name."""

    def __init__(self):
        self.left = iter(range(5))

    def __iter__(self):
        return self

    def __next__(self):
        return next(self.left)

    def row(self):
        raise AssertionError("nobody asks")


def test_batches_that_are_not_gathered_come_one_by_one():
    class Table:
        def __iter__(self):
            return Cursor()

    traversals = over(Table())
    assert traversals.next() == 0
    assert [batch for batch, _ in traversals.row(9, together=True)] == [1, 2, 3, 4]


class Restarts:
    """Begins again behind its end, as some iterators do that are their own loaders."""

    def __init__(self):
        self.given = 0

    def __iter__(self):
        return self

    def __next__(self):
        self.given += 1
        if self.given % 4 == 0:
            raise StopIteration
        return self.given


@pytest.mark.parametrize("in_a_row", [False, True])
def test_a_traversal_that_has_ended_gives_no_more(in_a_row):
    traversals = over(Restarts(), endless=False)
    traversals.begin()
    found = [traversals.next()]
    found += [batch for batch, _ in traversals.row(1 << 30)] if in_a_row else take(traversals, 2)
    for _ in range(3):
        assert list(traversals.row(1 << 30)) == []
        with pytest.raises(StopIteration):
            traversals.next()
    assert found == [1, 2, 3]
    traversals.begin()
    assert traversals.next() == 5


def test_control_a_row_beyond_the_limit_is_noticed():
    assert len(places_of(over(Loader(9), limit=4), [0, 12])) == 4


def test_the_first_batch_of_a_traversal_is_in_no_row():
    traversals = over(Loader(3))
    assert list(traversals.row(1 << 30)) == []
    traversals.begin()
    assert list(traversals.row(1 << 30)) == []
    assert take(traversals, 1) == [(0, 0)]
    assert [batch for batch, _ in traversals.row(1 << 30)] == [(0, 1), (0, 2)]
    assert traversals.begin_due


def test_an_error_in_a_row_has_the_batches_before_it_counted():
    class Fails(Loader):
        def __iter__(self):
            yield from itertools.islice(super().__iter__(), 2)
            raise ZeroDivisionError

    traversals, found = over(Fails(5)), []
    take(traversals, 1)
    with pytest.raises(ZeroDivisionError):
        found.extend(batch for batch, _ in traversals.row(1 << 30))
    assert found == [(0, 1)]
    assert traversals.describe() == "batch 2 of traversal 0"


def test_control_a_dropped_batch_is_noticed():
    traversals = over(Loader(3))
    found = take(traversals, 2)
    traversals.next()
    assert found + take(traversals, 4) != list(itertools.islice(definition(3, None), 6))


@given(length=lengths, limit=limits, count=st.integers(1, 30))
def test_the_place_behind_each_batch(length, limit, count):
    traversals = over(Loader(length), limit=limit)
    batches = take(traversals, count)
    places = [(place.traversal, place.batch - 1) for place in traversals.places]
    assert places == batches
    assert (traversals.traversal, traversals.batch - 1) == batches[-1]


def check_resumed(length, limit, before, count):
    first = over(Loader(length), limit=limit)
    take(first, before)
    resumed = over(Loader(length), limit=limit)
    resumed.resume(first.places[-1].saved())
    assert take(resumed, count) == list(itertools.islice(definition(length, limit), before, before + count))
    assert resumed.places[-1].saved()["position"] == take(first, count)[-1][1] + 1


@given(length=lengths, limit=limits, before=st.integers(1, 30), count=st.integers(1, 20))
def test_a_resumed_traversal_goes_on_where_the_saved_one_stood(length, limit, before, count):
    check_resumed(length, limit, before, count)


def test_a_traversal_that_is_resumed_at_its_limit_has_ended():
    check_resumed(5, 3, 3, 4)


def test_nothing_happens_before_the_first_batch():
    loader = Loader(3)
    traversals = over(loader)
    assert traversals.begin_due
    assert traversals.iterator is None
    assert (loader.fetched, loader.sampler.epochs) == (0, [])
    traversals.begin()
    assert traversals.iterator is not None
    assert not traversals.begin_due
    assert (loader.fetched, loader.sampler.epochs) == (0, [0])
    assert traversals.next() == (0, 0)
    assert loader.sampler.epochs == [0]


def test_a_traversal_begins_in_turn_only():
    loader = Loader(2)
    traversals = over(loader)
    found = []
    for _ in range(9):
        try:
            found.append(traversals.next(in_turn=False))
        except NotYet:
            fetched, told = loader.fetched, list(loader.sampler.epochs)
            with pytest.raises(NotYet):
                traversals.next(in_turn=False)  # and again, with nothing fetched
            assert (loader.fetched, loader.sampler.epochs) == (fetched, told)
            found.append(traversals.next())
    assert found == list(itertools.islice(definition(2, None), 9))


def test_a_begun_traversals_first_batch_is_in_turn_too():
    traversals = over(Loader(2))
    traversals.begin()
    with pytest.raises(NotYet):
        traversals.next(in_turn=False)
    assert traversals.next() == (0, 0)
    assert traversals.next(in_turn=False) == (0, 1)


@pytest.mark.parametrize("loader", [[], (), {}, DataLoader([], 2)])
def test_empty_data_is_an_error(loader):
    traversals = over(loader)
    with pytest.raises(EmptyDatasetError, match="no batch"):
        traversals.next()


def test_data_that_can_be_iterated_only_once_is_an_error():
    traversals = over(iter(range(3)))
    assert take(traversals, 3) == [0, 1, 2]
    with pytest.raises(EmptyDatasetError, match="iterated again"):
        traversals.next()


def test_a_limit_of_nothing_is_an_error_too():
    class Shrinks:
        length = 2

        def __iter__(self):
            return iter(range(self.length))

    loader = Shrinks()
    traversals = over(loader)
    take(traversals, 2)
    loader.length = 0
    with pytest.raises(EmptyDatasetError):
        traversals.next()


def test_single_traversals_are_begun_by_their_owner():
    loader = [1, 2, 3]
    traversals = over(loader, endless=False)
    for number in range(3):
        assert not traversals.begin_due
        traversals.begin()
        assert traversals.traversal == number
        assert take(traversals, 3) == loader
        for _ in range(2):
            with pytest.raises(StopIteration):
                traversals.next()
        assert not traversals.begin_due


def test_single_traversals_leave_the_samplers_to_their_owner():
    loader = Loader(2)
    loader.sampler.set_epoch(7)
    traversals = over(loader, endless=False)
    traversals.begin()
    assert take(traversals, 2) == [(7, 0), (7, 1)]
    assert loader.sampler.epochs == [7]


def test_an_empty_single_traversal_ends():
    traversals = over([], endless=False)
    traversals.begin()
    with pytest.raises(StopIteration):
        traversals.next()


def test_an_error_of_the_loader_surfaces_and_the_next_traversal_follows():
    class Fails(Loader):
        def __iter__(self):
            yield 1
            raise OSError("disk")

    traversals = over(Fails(2))
    assert traversals.next() == 1
    with pytest.raises(OSError, match="disk"):
        traversals.next()
    assert len(traversals.places) == 1
    assert traversals.next() == 1
    assert traversals.traversal == 1


def test_describe_names_the_next_batch():
    traversals = over(Loader(2))
    found = []
    for _ in range(5):
        found.append(traversals.describe())
        traversals.next()
    assert found[0] == "batch 0 of traversal 0"
    assert found[1] == "batch 1 of traversal 0"
    assert found[3] == "batch 1 of traversal 1"
    limited = over(Loader(2), limit=2)
    assert [(limited.describe(), limited.next())[0] for _ in range(3)][2] == "batch 0 of traversal 1"
    single = over([1], endless=False)
    single.begin()
    assert single.describe() == "batch 0 of traversal 0"


def test_describe_of_a_resumed_traversal():
    traversals = over(Loader(5))
    take(traversals, 8)
    resumed = over(Loader(5))
    resumed.resume(traversals.places[-1].saved())
    resumed.begin()
    assert resumed.describe() == traversals.describe() == "batch 3 of traversal 1"


def test_it_says_what_it_is():
    traversals = over(Loader(3))
    assert repr(traversals) == "Traversals(endless, traversal 0, batch 0)"
    take(traversals, 4)
    assert repr(traversals) == "Traversals(endless, traversal 1, batch 1)"
    assert repr(over([1], endless=False)) == "Traversals(traversal 0, batch 0)"


@pytest.mark.parametrize(
    ("options", "endless", "told"),
    [
        ({"num_workers": 1}, True, 2),
        ({"num_workers": 1, "persistent_workers": True}, True, 0),
        ({}, True, 0),
        ({"num_workers": 1}, False, 0),
    ],
)
def test_what_starting_workers_anew_costs_is_told(options, endless, told):
    seconds = []
    traversals = over(DataLoader(range(4), 2, **options), endless=endless)
    traversals.on_restart = seconds.append
    for _ in range(3):
        if not endless:
            traversals.begin()
        take(traversals, 2)
    assert len(seconds) == told
    assert all(item > 0.0 for item in seconds)
    assert traversals.roads[0].restarts_workers == (options == {"num_workers": 1})
    end(traversals)


def test_closing_lets_go():
    class Own(Iterator):
        def __next__(self):
            return 1

    traversals = Noted([Road([1])], Own, endless=True)
    take(traversals, 2)
    traversals.close()
    assert traversals.iterator is None


class Stateful(Loader):
    """Finds its own place."""

    def __init__(self, length):
        super().__init__(length)
        self.start = self.index = 0

    def __iter__(self):
        start, self.start = self.start, 0
        for index in range(start, self.length):
            self.index = index + 1
            yield self.sampler.epochs[-1], index

    def state_dict(self):
        return {"index": self.index}

    def load_state_dict(self, state):
        self.start = state["index"]


@pytest.mark.parametrize("before", range(1, 12))
def test_a_stateful_loader_finds_its_place_by_itself(before):
    inner = Stateful(5)
    first = over(inner, states=lambda: [inner.state_dict()])
    first.keeps_states = True
    take(first, before)
    assert [place.states for place in first.places] == [[{"index": place.batch}] for place in first.places]
    other = Stateful(5)
    resumed = over(other)
    assert resumed.doubt == ""
    other.load_state_dict(first.places[-1].states[0])
    resumed.resume(first.places[-1].saved())
    assert take(resumed, 8) == list(itertools.islice(definition(5, None), before, before + 8))
    assert resumed.resumed_at == (0 if before % 5 == 0 else resumed.resumed_at)


def telling(loader, **arguments):
    traversals = over(loader, endless=False, tells_last=True, **arguments)
    traversals.begin()
    return traversals


@pytest.mark.parametrize("begun_by", ["the fetch", "its owner"])
@pytest.mark.parametrize("in_a_row", [False, True])
def test_of_data_without_a_length_the_last_batch_is_known(in_a_row, begun_by):
    loader = Loader(4)
    loader.sampler.set_epoch(0)
    traversals = telling(loader)
    if begun_by == "its owner":
        assert traversals.read_further()
        assert loader.fetched == 1
    found = [traversals.fetch(True)]
    assert loader.fetched == 2
    found += list(traversals.row(9)) if in_a_row else [traversals.fetch(False) for _ in range(3)]
    assert [batch[1] for batch, _ in found] == [0, 1, 2, 3]
    assert [place_of(lazy).batch for _, lazy in found] == [1, 2, 3, 4]
    assert [place_of(lazy).last for _, lazy in found] == [False, False, False, True]
    for _ in range(2):
        with pytest.raises(StopIteration):
            traversals.next()
    traversals.begin()
    assert traversals.next()[1] == 0


def test_nothing_is_read_further_where_there_is_a_length():
    loader = iter(range(6))
    traversals = telling(loader, limit=4)
    assert [traversals.next() for _ in range(4)] == [0, 1, 2, 3]
    with pytest.raises(StopIteration):
        traversals.next()
    assert next(loader) == 4
    assert not any(place.last for place in traversals.places)


def test_of_no_data_there_is_nothing_further():
    traversals = telling([])
    assert not traversals.read_further()
    with pytest.raises(StopIteration):
        traversals.next()


def test_a_batch_read_further_is_not_lost_where_the_next_one_fails():
    class Fails:
        fails = True

        def __iter__(self):
            return self

        def __next__(self):
            self.at = getattr(self, "at", -1) + 1
            if self.at == 2 and self.fails:
                self.at, self.fails = 1, False
                raise OSError("disk")
            return self.at

    traversals = telling(Fails())
    assert traversals.next() == 0
    with pytest.raises(OSError, match="disk"):
        traversals.next()
    assert [traversals.next() for _ in range(3)] == [1, 2, 3]
    assert [place.batch for place in traversals.places] == [1, 2, 3, 4]


def test_places_hold_no_states_where_there_are_none():
    traversals = over(Loader(2), states=lambda: 1 / 0)
    take(traversals, 2)
    assert [place.states for place in traversals.places] == [None, None]


EXACT = [
    ("shuffle", True),
    ("own generator", True),
    ("distributed", True),
    ("python", False),
    ("own batch sampler", False),
]


@pytest.mark.parametrize(("name", "exact"), EXACT)
def test_which_places_can_be_found_for_certain(name, exact):
    saved = {"traversal": 1, "position": 2, "draws": [{"torch": ""}, {"torch": ""}]}
    road = road_of(name)
    assert (
        look_at({**saved, "length": len(road)}, [road]) == (2, "")
        if exact
        else "not certain" in look_at(saved, [road])[1]
    )
    assert "not certain" in look_at({**saved, "length": len(road) + 1}, [road])[1]
    assert "not certain" in look_at(saved, [Road([1, 2, 3])])[1]
    assert "not certain" in look_at(saved, [road_of("shuffle"), road])[1]
    assert look_at({**saved, "position": 99}, [road])[0] == 0
    assert "lies behind the end" in look_at({**saved, "position": 99}, [road])[1]


def test_a_checkpoint_without_draws_is_exact_only_in_order():
    saved = {"traversal": 1, "position": 2}
    assert "not certain" in look_at(saved, [road_of("shuffle")])[1]
    assert look_at(saved, [road_of("sequential")]) == (2, "")


# -- the same batches from every place on ------------------------------------------------------------------------------


def uninterrupted(name, fast, count):
    """Returns batches, and behind each the saved place and the generators of the process."""
    traversals = over(road_of(name, fast))
    batches, saved, generators = [], [], []
    for _ in range(count):
        batches += plain([traversals.next()])
        saved.append(traversals.places.pop().saved())
        generators.append(get_states())
    end(traversals)
    return batches, saved, generators


def get_states():
    return torch.get_rng_state(), random.getstate(), np.random.get_state()


def set_states(found):
    torch.set_rng_state(found[0])
    random.setstate(found[1])
    np.random.set_state(found[2])


def end(traversals):
    """Ends workers; those that persist are kept by the loader."""
    traversals.close()
    for road in traversals.roads:
        road.loader._iterator = None


def check_every_place(name, fast, count):
    seed_all(1)
    batches, saved, generators = uninterrupted(name, fast, count)
    assert len({place["traversal"] for place in saved}) > 1
    for k in range(1, count):
        torch.save(saved[k - 1], "place.pt")
        place = torch.load("place.pt", weights_only=True)
        assert place == saved[k - 1]
        traversals = over(road_of(name, fast))
        loader = traversals.roads[0].loader
        # All but the iterator of workers that persist, which the loader itself keeps.
        attributes = {key: id(value) for key, value in vars(loader).items() if key != "_iterator"}
        set_states(generators[k - 1])
        traversals.resume(place)
        before = states()
        try:
            traversals.begin()
            assert states() == before
            found = plain([traversals.next()])
            if traversals.traversal == place["traversal"] and not name.startswith("default"):
                assert states() == before  # though some draw with the first batch only
            assert {key: id(value) for key, value in vars(loader).items() if key != "_iterator"} == attributes
            found += plain(take(traversals, count - k - 1))
        finally:
            end(traversals)
        assert found == batches[k:], f"resumed behind batch {k}"


@pytest.mark.narrow(11)
@pytest.mark.parametrize(("name", "fast"), both_ways(LOADERS, DRAWS_LATER))
def test_from_every_place_on(name, fast):
    check_every_place(name, fast, 24 if "default" in name or "own" in name else 11)


@pytest.mark.narrow(11)
@pytest.mark.parametrize(("name", "fast"), both_ways(WORKERS))
def test_from_every_place_on_with_workers(name, fast):
    check_every_place(name, fast, 9)


def test_control_without_the_generators_another_order_follows(monkeypatch):
    monkeypatch.setattr(
        "lightning_sink.data.generators._tensor", lambda text: torch.Generator().manual_seed(9).get_state()
    )
    with pytest.raises(AssertionError, match="resumed behind batch 1"):
        check_every_place("shuffle", False, 11)


@pytest.mark.parametrize("names", [("shuffle", "own generator"), ("numpy", "sequential"), ("shuffle", "python, late")])
def test_several_loaders_from_every_place_on(names):
    seed_all(1)
    traversals = over(*map(road_of, names))
    batches, saved, generators = [], [], []
    for _ in range(9):
        batches.append(list(map(plain, traversals.next())))
        saved.append(traversals.places.pop().saved())
        generators.append(get_states())
    for k in range(1, 9):
        set_states(generators[k - 1])
        resumed = over(*map(road_of, names))
        resumed.resume(saved[k - 1])
        found = [list(map(plain, batch)) for batch in take(resumed, 9 - k)]
        assert found == batches[k:], f"resumed behind batch {k}"


@pytest.mark.parametrize(
    "names",
    [
        ("shuffle",),
        ("own generator",),
        ("numpy, late",),
        ("shuffle", "own generator"),
        ("shuffle", "sequential"),
    ],
)
def test_draws_between_the_beginning_and_the_first_batch(names):
    def values(traversals):
        batch = traversals.next()
        return list(map(plain, [batch] if len(names) == 1 else batch))

    seed_all(1)
    traversals = over(*map(road_of, names))
    traversals.begin()
    torch.rand(3), np.random.rand(3)  # as a hook at the start of an epoch may
    batches, saved, generators = [], [], []
    for _ in range(4):
        batches.append(values(traversals))
        saved.append(traversals.places.pop().saved())
        generators.append(get_states())
    for k in range(1, 4):
        set_states(generators[k - 1])
        resumed = over(*map(road_of, names))
        resumed.resume(saved[k - 1])
        assert [values(resumed) for _ in range(k, 4)] == batches[k:], f"resumed behind batch {k}"


def test_a_resumed_place_is_saved_as_it_was():
    for name in ("shuffle", "own generator", "numpy"):
        seed_all(1)
        traversals = over(road_of(name))
        take(traversals, 3)
        saved = [place.saved() for place in traversals.places]
        seed_all(2)
        resumed = over(road_of(name))
        resumed.resume(saved[0])
        take(resumed, 2)
        assert [place.saved() for place in resumed.places] == saved[1:]


def test_a_place_at_the_beginning_is_a_plain_beginning():
    seed_all(1)
    traversals = over(road_of("shuffle"))
    traversals.resume({"traversal": 3, "position": 0, "draws": [{}, {}]})
    found = plain(take(traversals, 4))
    assert traversals.traversal == 3
    seed_all(1)
    assert found == plain(road_of("shuffle"))


def test_a_place_without_generators_is_a_place_all_the_same():
    traversals = over(road_of("sequential"))
    traversals.resume({"traversal": 1, "position": 2})
    assert plain(take(traversals, 3)) == [[[6, 7, 8]], [[9, 10]], [[0, 1, 2]]]
    assert traversals.traversal == 2
