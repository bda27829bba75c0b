"""A loader is traversed from any batch on as it would have been, and nothing else can be seen of it afterwards."""

import collections
import functools
import itertools
import random

import numpy as np
import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)
from torch.utils.data.distributed import DistributedSampler

from lightning_sink.data.gather import gathered
from lightning_sink.data.generators import Draws, drawing_from
from lightning_sink.data.order import is_repeatable, is_sequential, set_epoch
from lightning_sink.data.private import default_collate_fn_map, pytree
from lightning_sink.data.road import Road


def data(length=11):
    return TensorDataset(torch.arange(length))


class Samples(torch.utils.data.Dataset):
    """Samples of any kind, from the same memory each time."""

    def __init__(self, sample):
        self.sample = sample

    def __len__(self):
        return 6

    def __getitem__(self, index):
        return self.sample


Pair = collections.namedtuple("Pair", ["x", "y"])
ONES = torch.ones(2)
SAMPLES = {
    "a tensor": ONES,
    "numpy's": np.ones(2),
    "a number of numpy's": np.float32(1),
    "a number": 1.0,
    "a dict": {"x": ONES, "name": "one"},
    "a named tuple": Pair(ONES, 1),
    "a list of tuples": [(ONES, 1), (ONES, 2)],
    "an ordered dict": collections.OrderedDict(x=ONES),
}


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("name", SAMPLES)
def test_a_loader_that_stacks_samples_makes_each_batch_anew(name, workers):
    loader = DataLoader(Samples(SAMPLES[name]), batch_size=2, num_workers=workers)
    assert Road(loader).stacks
    leaves = [leaf for batch in [*loader] for leaf in pytree.tree_leaves(batch) if isinstance(leaf, torch.Tensor)]
    assert len({leaf.untyped_storage().data_ptr() for leaf in [*leaves, ONES]}) == len(leaves) + 1


class Derived(DataLoader):
    pass


@pytest.mark.parametrize(
    "loader",
    [
        DataLoader(data(), batch_size=None),
        DataLoader(data(), collate_fn=lambda rows: torch.stack(rows)),
        Derived(data()),
        [torch.ones(2)] * 3,
    ],
)
def test_of_any_other_loader_that_is_not_known(loader):
    assert not Road(loader).stacks


@pytest.mark.parametrize("wraps", [False, True])
def test_nor_where_somebody_has_changed_how_samples_are_collated(wraps, monkeypatch):
    loader, mine = DataLoader(Samples(Pair(ONES, 1))), lambda rows, *, collate_fn_map: rows[0]
    if wraps:  # it says that it is of torch's module then
        mine = functools.wraps(default_collate_fn_map[torch.Tensor])(mine)
    monkeypatch.setitem(default_collate_fn_map, Pair, mine)
    assert next(iter(loader)).x is ONES  # the loader's own memory
    assert not Road(loader).stacks
    monkeypatch.undo()
    assert Road(loader).stacks


def generator():
    return torch.Generator().manual_seed(7)


class Permutation:
    """Draws a permutation when it begins."""

    def __init__(self, length, draw):
        self.length, self.draw = length, draw

    def __iter__(self):
        return iter(self.draw(self.length))

    def __len__(self):
        return self.length


class Late(Permutation):
    """Draws when its first sample is asked for."""

    def __iter__(self):
        yield from self.draw(self.length)


def python_draw(length):
    return random.sample(range(length), length)


def numpy_draw(length):
    np.random.normal()  # which leaves a number in the generator's cache
    return np.random.permutation(length).tolist()


LOADERS = {
    "sequential": lambda: DataLoader(data(), 3),
    "shuffle": lambda: DataLoader(data(), 3, shuffle=True),
    "drop_last": lambda: DataLoader(data(), 3, shuffle=True, drop_last=True),
    "own generator": lambda: DataLoader(data(), 3, shuffle=True, generator=generator()),
    "sampler's generator": lambda: DataLoader(data(), 3, sampler=RandomSampler(data(), generator=generator())),
    "default generator": lambda: DataLoader(
        data(), 3, sampler=RandomSampler(data(), generator=torch.default_generator)
    ),
    "replacement": lambda: DataLoader(data(), 3, sampler=RandomSampler(data(), replacement=True)),
    "replacement, own": lambda: DataLoader(
        data(), 9, sampler=RandomSampler(data(), True, num_samples=90, generator=generator())
    ),
    "subset": lambda: DataLoader(data(), 3, sampler=SubsetRandomSampler(range(9), generator())),
    "weighted": lambda: DataLoader(data(), 3, sampler=WeightedRandomSampler([1.0] * 11, 11)),
    "distributed": lambda: DataLoader(data(), 2, sampler=DistributedSampler(data(), 2, 1)),
    "python": lambda: DataLoader(data(), 3, sampler=Permutation(11, python_draw)),
    "numpy": lambda: DataLoader(data(), 3, sampler=Permutation(11, numpy_draw)),
    "python, late": lambda: DataLoader(data(), 3, sampler=Late(11, python_draw)),
    "numpy, late": lambda: DataLoader(data(), 3, sampler=Late(11, numpy_draw)),
    "batch sampler": lambda: DataLoader(data(), batch_sampler=BatchSampler(RandomSampler(data()), 4, True)),
    "own batch sampler": lambda: DataLoader(
        data(), batch_sampler=Permutation(11, lambda length: [[row] for row in python_draw(length)])
    ),
    "no batches": lambda: DataLoader(data(5), batch_size=None, shuffle=True),
}
DRAWS_LATER = {
    "default generator, twice": lambda: DataLoader(
        data(), 3, sampler=RandomSampler(data(), num_samples=22, generator=torch.default_generator)
    ),
    "default generator, replacement": lambda: DataLoader(
        data(), 9, sampler=RandomSampler(data(), True, num_samples=90, generator=torch.default_generator)
    ),
}
"""Loaders that draw from the process's generator in the midst of a traversal, too."""
WORKERS = {
    "workers": lambda: DataLoader(data(), 2, shuffle=True, num_workers=2),
    "workers, own generator": lambda: DataLoader(data(), 2, shuffle=True, num_workers=2, generator=generator()),
    "workers, persistent": lambda: DataLoader(data(), 2, shuffle=True, num_workers=2, persistent_workers=True),
    "workers, persistent, own generator": lambda: DataLoader(
        data(), 2, shuffle=True, num_workers=1, persistent_workers=True, generator=generator()
    ),
    "workers, numpy": lambda: DataLoader(data(), 3, sampler=Permutation(11, numpy_draw), num_workers=1),
    "workers, distributed": lambda: DataLoader(data(), 2, sampler=DistributedSampler(data(), 2, 0), num_workers=1),
}


def road_of(name, fast=False):
    loader = {**LOADERS, **DRAWS_LATER, **WORKERS}[name]()
    return Road(loader, gathered(loader, lambda: 3) if fast else None)


def plain(batches):
    return [
        batch.tolist() if isinstance(batch, torch.Tensor) else [part.tolist() for part in batch] for batch in batches
    ]


def states():
    return torch.get_rng_state().tolist(), random.getstate(), repr(np.random.get_state())


def seed_all(seed):
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed)


def both_ways(*tables):
    """Returns the names of loaders, with and without gathering; only a loader itself can give single samples."""
    names = list(itertools.chain(*tables))
    return [(name, False) for name in names] + [(name, True) for name in names if name != "no batches"]


@pytest.mark.parametrize(("name", "fast"), both_ways(LOADERS))
def test_from_any_batch_on(name, fast):
    road = road_of(name, fast)
    assert (road.fast is not None) is fast
    seed_all(1)
    begin = Draws([road.loader])
    iterator = iter(road)
    first = Draws([road.loader])
    expected = plain(iterator)
    assert len(expected) > 1
    for skip in range(1, len(expected)):
        other = road_of(name, fast)
        seed_all(2)
        vars_before, before = dict(vars(other.loader)), states()
        other.resume(skip, first.saved())
        with drawing_from(begin.saved(), [other.loader]):
            iterator = iter(other)
        found = [next(iterator)]
        assert states() == before or name == "default generator"  # which draws with the last batch, too
        assert {key: id(value) for key, value in vars(other.loader).items()} == {
            key: id(value) for key, value in vars_before.items()
        }
        found += iterator
        assert plain(found) == expected[skip:]


@pytest.mark.parametrize("fast", [False, True])
@pytest.mark.parametrize("workers", [0, 2])
def test_batches_are_passed_over_with_workers_and_without(workers, fast):
    loader = DataLoader(data(), 2, num_workers=workers)
    road = Road(loader, gathered(loader, lambda: 3) if fast else None)
    road.resume(4, {})
    assert plain(road) == [[[8, 9]], [[10]]]


def test_control_another_state_gives_another_order():
    road = road_of("shuffle")
    seed_all(1)
    expected = plain(road)
    seed_all(2)
    first = Draws([road.loader])
    other = road_of("shuffle")
    other.resume(1, first.saved())
    assert plain(other) != expected[1:]


def test_only_the_next_traversal_is_entered_in_its_midst():
    road = road_of("sequential")
    every = plain(road)
    road.resume(2, {})
    assert plain(road) == every[2:]
    assert plain(road) == every
    assert plain(road.loader) == every


def test_batches_passed_over_are_not_fetched():
    fetched = []

    class Watched(TensorDataset):
        def __getitem__(self, index):
            fetched.append(index)
            return super().__getitem__(index)

    loader = DataLoader(Watched(torch.arange(12)), 2)
    road = Road(loader)
    road.resume(4, {})
    assert road.skips
    assert plain(road) == [[[8, 9]], [[10, 11]]]
    assert fetched == [8, 9, 10, 11]


def test_what_has_no_rows_is_passed_over_by_fetching():
    class Stream(IterableDataset):
        def __iter__(self):
            return iter(range(6))

    loader = DataLoader(Stream(), 2)
    for source, expected in ((loader, [[2, 3], [4, 5]]), ([[0, 1], [2, 3], [4, 5]], [[2, 3], [4, 5]])):
        road = Road(source)
        assert not road.skips
        road.resume(1, {})
        assert [torch.as_tensor(batch).tolist() for batch in road] == expected


def test_the_samplers_are_back_after_an_error():
    class Fails(Permutation):
        def __iter__(self):
            raise OSError("disk")

    loader = DataLoader(data(), 2, sampler=Fails(11, python_draw))
    before = vars(loader)["batch_sampler"]
    road = Road(loader)
    road.resume(2, {})
    with pytest.raises(OSError, match="disk"):
        next(iter(road))
    assert loader.batch_sampler is before


def test_the_length_is_that_of_all_batches():
    road = road_of("shuffle")
    road.resume(2, {})
    assert len(road) == len(road.loader) == 4
    iterator = iter(road)
    assert len(road.loader) == 4
    assert len(list(iterator)) == 2


REPEATABLE = {
    **dict.fromkeys(LOADERS, True),
    "python": False,
    "numpy": False,
    "python, late": False,
    "numpy, late": False,
    "own batch sampler": False,
}


@pytest.mark.parametrize("name", REPEATABLE)
def test_which_orders_can_be_had_again_from_torchs_generators(name):
    assert is_repeatable(road_of(name).loader) is REPEATABLE[name]


SEQUENTIAL = {**dict.fromkeys(LOADERS, False), "sequential": True}


@pytest.mark.parametrize("name", SEQUENTIAL)
def test_which_orders_are_always_the_same(name):
    assert is_sequential(road_of(name).loader) is SEQUENTIAL[name]


def test_a_subclass_of_a_sampler_may_do_anything():
    class Own(SequentialSampler):
        pass

    class Batches(BatchSampler):
        pass

    assert not is_repeatable(DataLoader(data(), 2, sampler=Own(data())))
    assert not is_repeatable(DataLoader(data(), batch_sampler=Batches(SequentialSampler(data()), 2, False)))
    assert not is_repeatable([1, 2])


def test_a_road_says_what_it_is():
    assert repr(road_of("shuffle")) == "Road(DataLoader, as it is)"
    assert repr(road_of("shuffle", True)) == "Road(DataLoader, gathered)"
    assert repr(Road([1])) == "Road(list, as it is)"


# -- generators --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["shuffle", "own generator", "sampler's generator", "numpy", "python"])
def test_the_generators_stand_where_they_stood_for_a_while(name):
    road = road_of(name)
    seed_all(3)
    random.gauss(0, 1)
    np.random.normal()
    saved = Draws([road.loader]).saved()

    def numbers():
        own = [torch.rand(2, generator=owner).tolist() for owner in own_generators(road)]
        repeatable = is_repeatable(road.loader)
        others = [] if repeatable else [random.gauss(0, 1), random.random(), np.random.normal(), np.random.rand()]
        return own, torch.rand(2).tolist(), others

    expected = numbers()
    seed_all(4)
    before = states()
    with drawing_from(saved, [road.loader]):
        assert numbers() == expected
    assert states() == before
    with pytest.raises(ZeroDivisionError), drawing_from(saved, [road.loader]):
        raise ZeroDivisionError
    assert states() == before


def own_generators(road):
    found = [road.loader.generator, getattr(road.loader.sampler, "generator", None)]
    return [owner for index, owner in enumerate(found) if owner is not None and owner not in found[:index]]


def test_own_generators_go_on_from_there():
    road = road_of("own generator")
    saved = Draws([road.loader]).saved()
    first = torch.rand(3, generator=road.loader.generator).tolist()
    with drawing_from(saved, [road.loader]):
        assert torch.rand(1, generator=road.loader.generator).tolist() == first[:1]
    assert torch.rand(2, generator=road.loader.generator).tolist() == first[1:]


def test_nothing_saved_changes_nothing():
    before = states()
    with drawing_from({}, [road_of("shuffle").loader]):
        torch.rand(1)
    assert states() != before


@pytest.mark.parametrize("name", ["shuffle", "own generator", "numpy"])
def test_saved_generators_are_fit_for_a_checkpoint(name):
    random.gauss(0, 1)
    np.random.normal()
    saved = Draws([road_of(name).loader]).saved()
    torch.save(saved, "draws.pt")
    assert torch.load("draws.pt", weights_only=True) == saved
    assert ("numpy" in saved) == ("python" in saved) == (name == "numpy")
    assert len(saved["own"]) == (name == "own generator")


@pytest.mark.filterwarnings("ignore:get_state and legacy")
def test_another_kind_of_numpy_generator_is_not_kept():
    original = np.random.get_bit_generator()
    np.random.set_bit_generator(np.random.PCG64(1))
    try:
        road = road_of("numpy")
        saved = Draws([road.loader]).saved()
        assert set(saved) == {"torch", "own", "python"}
        with drawing_from(saved, [road.loader]):
            pass
    finally:
        np.random.set_bit_generator(original)


def test_saving_draws_nothing():
    before = states()
    Draws([road_of("numpy").loader, road_of("own generator").loader]).saved()
    assert states() == before


def test_each_generator_is_kept_once():
    shared = generator()
    road = Road(DataLoader(data(), 2, shuffle=True, generator=shared))
    other = Road(DataLoader(data(), 2, sampler=RandomSampler(data(), generator=shared), generator=generator()))
    assert len(Draws([road.loader, other.loader]).saved()["own"]) == 2


# -- set_epoch ---------------------------------------------------------------------------------------------------------


class Told:
    def __init__(self):
        self.epochs = []

    def set_epoch(self, epoch):
        self.epochs.append(epoch)

    def __iter__(self):
        return iter(range(4))


def test_samplers_are_told_the_traversal_once():
    sampler = Told()
    loader = DataLoader(data(), 2, sampler=sampler)
    set_epoch(loader, 5)
    assert sampler.epochs == [5]
    inner = Told()
    loader = DataLoader(data(), batch_sampler=BatchSampler(inner, 2, False))
    set_epoch(loader, 6)
    assert inner.epochs == [6]
    for nothing in ([1], DataLoader(data()), DataLoader(data(), batch_sampler=[[1]])):
        set_epoch(nothing, 7)


def test_a_distributed_sampler_shuffles_by_the_traversal():
    loader = DataLoader(data(), 2, sampler=DistributedSampler(data(), 2, 0))
    orders = []
    for epoch in (0, 1, 0):
        set_epoch(loader, epoch)
        orders.append(plain(loader))
    assert orders[0] == orders[2] != orders[1]


def test_batches_of_a_road_without_a_resume_are_the_loaders():
    for fast in (False, True):
        seed_all(5)
        expected = plain(itertools.chain.from_iterable(road_of("shuffle").loader for _ in range(2)))
        seed_all(5)
        road = road_of("shuffle", fast)
        assert len(plain(road) + plain(road)) == len(expected)
        seed_all(5)
        assert plain(road) == expected[:4]


def passed_on(samples):
    return samples[0]


def test_what_workers_send_is_nobody_elses():
    data = [torch.ones(2), torch.zeros(2)]
    assert not Road(DataLoader(data, collate_fn=passed_on)).makes_own
    assert Road(DataLoader(data, collate_fn=passed_on, num_workers=1)).makes_own
    assert Road(DataLoader(data)).makes_own
    assert not Road(data).makes_own
