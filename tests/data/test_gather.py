"""Gathered batches are the plain loader's: the same values in the same order, drawn for at the same moments."""

import functools
import itertools

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils._pytree import tree_leaves
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    RandomSampler,
    SequentialSampler,
    StackDataset,
    Subset,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
    default_collate,
)
from torch.utils.data.distributed import DistributedSampler

from lightning_sink.data.gather import gathered
from lightning_sink.data.gathered import Gathered
from lightning_sink.errors import UnsupportedError


def tensors(length, columns=2):
    x = torch.arange(length * 3, dtype=torch.float32).reshape(length, 3)
    return TensorDataset(*(x, torch.arange(length), x[:, 0] > 4)[:columns])


DATASETS = {
    "tensors": tensors,
    "one": lambda n: tensors(n, 1),
    "subset": lambda n: Subset(tensors(n + 3), list(range(n + 2, 2, -1))),
    "range": lambda n: Subset(tensors(2 * n), range(0, 2 * n, 2)),
    "indices": lambda n: Subset(tensors(n), torch.arange(n - 1, -1, -1)),
    "array": lambda n: Subset(tensors(n), np.arange(n)[::-1]),
    "negative": lambda n: Subset(tensors(n), [-1 - i for i in range(n)]),
    "nested": lambda n: Subset(Subset(tensors(n + 2), range(1, n + 2)), list(range(n))),
    "stack": lambda n: StackDataset(tensors(n), Subset(tensors(n, 1), list(range(n))[::-1])),
    "dict": lambda n: StackDataset(a=tensors(n), b=StackDataset(tensors(n, 3))),
    "part of stack": lambda n: Subset(StackDataset(a=tensors(n)), list(range(n))),
}


class Odd:
    """Draws from the global generator at every sample."""

    def __init__(self, length):
        self.length = length

    def __iter__(self):
        for _ in range(self.length):
            yield int(torch.randint(self.length, ()))

    def __len__(self):
        return self.length


def seeded():
    return torch.Generator().manual_seed(7)


SAMPLERS = {
    "sequential": SequentialSampler,
    "random": RandomSampler,
    "own generator": lambda d: RandomSampler(d, generator=seeded()),
    "default generator": lambda d: RandomSampler(d, generator=torch.default_generator),
    "many": lambda d: RandomSampler(d, num_samples=2 * len(d) + 1, generator=torch.default_generator),
    "few": lambda d: RandomSampler(d, num_samples=(len(d) + 1) // 2, generator=torch.default_generator),
    "replacement": lambda d: RandomSampler(d, replacement=True),
    "replacement, own": lambda d: RandomSampler(d, True, 3 * len(d), generator=torch.default_generator),
    "subset": lambda d: SubsetRandomSampler(range(len(d))),
    "subset of tensor": lambda d: SubsetRandomSampler(torch.arange(len(d))),
    "numpy ints": lambda d: list(np.arange(len(d))),
    "weighted": lambda d: WeightedRandomSampler([1.0] * len(d), 2 * len(d), generator=torch.default_generator),
    "distributed": lambda d: DistributedSampler(d, 2, 1),
    "list": lambda d: list(range(len(d))),
    "odd": lambda d: Odd(len(d)),
}


def states(loader):
    return [g.get_state() for g in (torch.default_generator, loader.generator, *own(loader)) if g is not None]


def own(loader):
    return [getattr(getattr(loader.batch_sampler, "sampler", None), "generator", None)]


def trace(loader, plain, traversals=1):
    """Returns everything that can be seen of traversals: batches, errors, and generators after each call."""
    torch.manual_seed(1)
    seen = []
    for _ in range(traversals):
        batches = iter(loader)
        seen.append(("begun", states(plain)))
        while True:
            try:
                batch = next(batches)
            except StopIteration:
                seen.append(("end", states(plain)))
                break
            except (LookupError, RuntimeError, TypeError) as error:
                seen.append((type(error), states(plain)))
                continue
            seen.append((batch, states(plain)))
    return seen


def same(one, other):
    assert type(one) is type(other)
    if isinstance(one, torch.Tensor):
        assert (one.dtype, one.shape, one.stride(), one.device) == (
            other.dtype,
            other.shape,
            other.stride(),
            other.device,
        )
        assert one.is_contiguous()
        assert one._base is None
        assert one._version == 0
        assert one.data_ptr() % 64 == 0
        assert torch.equal(one.view(torch.uint8), other.view(torch.uint8))  # NaN equals NaN
    elif isinstance(one, dict):
        assert list(one) == list(other)
        for key in one:
            same(one[key], other[key])
    elif isinstance(one, (list, tuple)):
        assert len(one) == len(other)
        for a, b in zip(one, other, strict=True):
            same(a, b)
    else:
        assert one == other


def same_states(one, other):
    assert len(one) == len(other)
    for (a, states_a), (b, states_b) in zip(one, other, strict=True):
        same(a, b)
        assert all(map(torch.equal, states_a, states_b))


def sinks(length):
    return functools.partial(next, itertools.cycle([length, max(1, length - 1)]))


def check(make, ahead=lambda: 1000, traversals=2):
    """The two loaders are made apart, from the same seed, so that none can draw from the other's generator."""
    torch.manual_seed(0)
    plain = make()
    torch.manual_seed(0)
    inner = make()
    fast = gathered(inner, ahead)
    assert fast is not None
    same_states(trace(fast, inner, traversals), trace(plain, plain, traversals))


@given(
    length=st.integers(1, 40),
    size=st.integers(1, 17),
    dataset=st.sampled_from(sorted(DATASETS)),
    sampler=st.sampled_from(sorted(SAMPLERS)),
    drop_last=st.booleans(),
    sink=st.integers(1, 9),
)
def test_the_same_batches_and_draws(length, size, dataset, sampler, drop_last, sink):
    def make():
        data = DATASETS[dataset](length)
        return DataLoader(data, size, sampler=SAMPLERS[sampler](data), drop_last=drop_last)

    check(make, sinks(sink))


def trace_rows(loader, plain, counts):
    """As `trace` of one traversal, in rows where a count is not 0: of a group it has only the states behind that.

    Returns also how many came together.
    """
    torch.manual_seed(1)
    batches, counts, together = iter(loader), itertools.cycle(counts), 0
    seen = [("begun", states(plain))]
    while seen[-1][0] != "end":
        count = next(counts)
        taken = 0
        for found, number in batches.row(count):
            taken += number
            if isinstance(found, Gathered):
                together += number
                assert len(found) == number
                many = [found.batch(place) for place in range(number)]
                assert found.nbytes == sum(leaf.nbytes for leaf in tree_leaves(many))
                assert all(map(torch.equal, tree_leaves(many[-1]), [column[-1] for column in found.columns]))
                assert all(column[number - 1].data_ptr() % 64 == 0 for column in found.columns)
            else:
                assert number == 1
                many = [found]
            seen += [(batch, None) for batch in many[:-1]] + [(many[-1], states(plain))]
        assert taken <= count
        if taken == 0:
            batch = next(batches, "end")
            seen.append((batch, states(plain)))
    return seen, together


@given(
    length=st.integers(1, 60),
    size=st.sampled_from([1, 3, 8, 16]),
    dataset=st.sampled_from(sorted(DATASETS)),
    sampler=st.sampled_from(sorted(SAMPLERS)),
    drop_last=st.booleans(),
    sink=st.integers(1, 30),
    counts=st.lists(st.integers(0, 9), min_size=1, max_size=5).filter(any),
)
def test_batches_in_a_row_are_those_one_by_one(length, size, dataset, sampler, drop_last, sink, counts):
    def make():
        torch.manual_seed(0)
        data = DATASETS[dataset](length)
        return DataLoader(data, size, sampler=SAMPLERS[sampler](data), drop_last=drop_last)

    plain, inner = make(), make()
    found, _ = trace_rows(gathered(inner, sinks(sink)), inner, counts)
    expected = trace(plain, plain)
    assert len(found) == len(expected)
    for (batch, drawn), (other, should_have_drawn) in zip(found, expected, strict=True):
        same(batch, other)
        assert drawn is None or all(map(torch.equal, drawn, should_have_drawn))


@pytest.mark.parametrize("width", [16, 3])
def test_batches_come_together_where_each_begins_as_one_of_a_loader_does(width):
    """The last one is smaller. Of 3 numbers a row, 8 rows do not fill 64 bytes."""
    loader = DataLoader(TensorDataset(torch.randn(100, width), torch.arange(100)), 8, shuffle=True)
    _, together = trace_rows(gathered(loader, lambda: 100), loader, [100])
    assert together == (12 if width == 16 else 0)


def test_a_change_between_two_rows_is_seen():
    data = TensorDataset(torch.arange(160.0).reshape(10, 16))
    batches = iter(gathered(DataLoader(data, 1), lambda: 100))
    next(batches)
    (first,) = [found for found, _ in batches.row(3)]
    data.tensors[0].mul_(-1)
    (second,) = [found for found, _ in batches.row(3)]
    assert torch.equal(first.columns[0].flatten(0, 1), -data.tensors[0][1:4])
    assert torch.equal(second.columns[0].flatten(0, 1), data.tensors[0][4:7])


def test_an_error_in_a_row_arises_at_its_batch():
    data = TensorDataset(torch.arange(160.0).reshape(10, 16))
    batches = iter(gathered(DataLoader(data, 1, sampler=[0, 1, 2, 99, 4]), lambda: 100))
    found = []
    with pytest.raises(IndexError):
        found.extend(number for _, number in batches.row(5))
    assert found == [1] * 3
    assert [number for _, number in batches.row(5)] == [1]


@pytest.mark.parametrize("sampler", sorted(SAMPLERS))
@pytest.mark.parametrize("drop_last", [False, True])
def test_each_sampler(sampler, drop_last):
    def make():
        data = tensors(24)
        return DataLoader(data, 4, sampler=SAMPLERS[sampler](data), drop_last=drop_last)

    check(make)


@pytest.mark.parametrize("generator", [False, True])
def test_shuffle_draws_from_the_loaders_generator(generator):
    check(lambda: DataLoader(tensors(20), 3, shuffle=True, generator=seeded() if generator else None), traversals=3)


@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("sampler", ["random", "default generator", "odd"])
def test_workers_draw_earlier(persistent, sampler):
    def make():
        data = tensors(23)
        options = {"num_workers": 1, "prefetch_factor": 2, "persistent_workers": persistent}
        return DataLoader(data, 4, sampler=SAMPLERS[sampler](data), **options)

    check(make)


def test_control_a_wrong_order_or_draw_is_noticed():
    plain = DataLoader(tensors(20), 3, shuffle=True)
    with pytest.raises(AssertionError):
        same_states(trace(gathered(DataLoader(tensors(20), 3), lambda: 9), plain), trace(plain, plain))
    expected, found = trace(plain, plain), trace(plain, plain)
    found[3], found[4] = found[4], found[3]
    with pytest.raises(AssertionError):
        same_states(found, expected)


def test_own_batch_samplers():
    batches = [[3, 1], (2,), torch.tensor([0, 4]), [np.int64(1), 2], [True, 1], [], [7, 7, -1], [99], [0]]
    check(lambda: DataLoader(tensors(9), batch_sampler=batches))
    check(lambda: DataLoader(tensors(9), batch_sampler=BatchSampler(RandomSampler(range(9)), 2, True)))


def test_an_error_arises_at_its_batch():
    check(lambda: DataLoader(tensors(9), 2, sampler=[0, 1, 2, 77, 3, 4]))
    check(lambda: DataLoader(tensors(9), 1, sampler=SubsetRandomSampler([*range(9), 9])))
    check(lambda: DataLoader(Subset(tensors(9), [0, 1, 55, 2]), 1))
    check(lambda: DataLoader(Subset(tensors(9), [0, 1, True, 1.5, 2]), 1))


def test_an_error_of_the_sampler_arises_at_its_batch():
    def make():
        sampler = SubsetRandomSampler(list(range(8)))
        loader = DataLoader(tensors(8), 2, sampler=sampler)
        del sampler.indices[5:]
        sampler.__dict__["indices"] = Short(sampler.indices)
        return loader

    class Short(list):
        def __len__(self):
            return 8

    check(make)


@pytest.mark.parametrize("passed", [0, 1, 3, 5, 50])
@pytest.mark.parametrize("sampler", ["random", "default generator", "odd"])
def test_skip(passed, sampler):
    data = tensors(22)
    rests = []
    for fast in (False, True):
        loader = DataLoader(data, 2, sampler=SAMPLERS[sampler](data))
        torch.manual_seed(3)
        batches = iter(gathered(loader, lambda: 5) if fast else loader)
        if fast:
            batches.skip(passed)
        else:
            list(itertools.islice(batches, passed))
        drawn = torch.get_rng_state()
        rests.append((list(batches), drawn))
    same(rests[0][0], rests[1][0])
    assert torch.equal(rests[0][1], rests[1][1])


def write(data):
    data.tensors[0].mul_(-1)


def replace(data):
    data.tensors = tuple(-tensor for tensor in data.tensors[:1])


def replace_by_what_cannot_be_gathered(data):
    data.tensors = (data.tensors[0].clone().requires_grad_(), data.tensors[1])


@pytest.mark.parametrize("change", [write, replace, replace_by_what_cannot_be_gathered])
def test_a_change_of_the_data_is_seen_at_the_next_batch(change):
    found = []
    for fast in (False, True):
        data = tensors(12)
        loader = DataLoader(data, 2)
        batches = iter(gathered(loader, lambda: 100) if fast else loader)
        first = list(itertools.islice(batches, 2))
        change(data)
        found.append(first + [[x.detach() for x in batch] for batch in batches])
    for a, b in zip(*found, strict=True):
        assert all(map(torch.equal, a, b))
    assert found[0][2][0].sum() != tensors(12)[4:6][0].sum() or change is replace_by_what_cannot_be_gathered


@pytest.mark.parametrize("change", ["indices", "dataset", "write", "dict"])
def test_a_change_around_the_data_is_seen_at_the_next_batch(change):
    found = []
    for fast in (False, True):
        part = Subset(tensors(12), torch.arange(12))
        data = StackDataset(a=part)
        loader = DataLoader(data, 2)
        batches = iter(gathered(loader, lambda: 100) if fast else loader)
        first = list(itertools.islice(batches, 2))
        if change == "indices":
            part.indices = list(range(12))[::-1]
        elif change == "dataset":
            part.dataset = tensors(12, 1)
        elif change == "write":
            part.indices.zero_()
        else:
            data.datasets["b"] = tensors(12)
        found.append(first + list(batches))
    same(*found)


def test_what_workers_may_have_had_a_copy_of_must_not_change():
    data = tensors(12)
    fast = gathered(DataLoader(data, 2, num_workers=1), lambda: 100)
    batches = iter(fast)
    next(batches)
    write(data)
    with pytest.raises(UnsupportedError, match="num_workers=0"):
        next(batches)
    assert len(list(fast)) == 6


def test_a_run_holds_no_more_batches_than_are_certain():
    data = tensors(40)
    batches = iter(gathered(DataLoader(data, 2), sinks(3)))
    array = data.tensors[0].numpy()
    first = list(itertools.islice(batches, 3))
    array[:] = -1  # a write that torch does not count
    assert all((x >= 0).all() for x, _ in first)
    assert all((x == -1).all() for x, _ in batches)


def test_batches_are_tensors_of_their_own():
    data = TensorDataset(torch.arange(64.0).reshape(16, 4))
    before = data.tensors[0].clone()
    (a,), (b,), (c,), (d,) = gathered(DataLoader(data, 4), lambda: 9)
    b.requires_grad_()
    loss = (b * b).sum()
    a += 1
    c.detach_()
    c += torch.ones(4, requires_grad=True)
    assert c.requires_grad
    c.sum().backward()
    loss.backward()
    assert torch.equal(b.grad, 2 * b.detach())
    assert torch.equal(a, before[:4] + 1)
    assert torch.equal(d, before[12:])
    assert torch.equal(data.tensors[0], before)
    torch.save(d, "batch.pt")
    assert torch.equal(torch.load("batch.pt"), d)


def test_batches_follow_inference_mode():
    batches = iter(gathered(DataLoader(tensors(12), 2), lambda: 9))
    assert not next(batches)[0].is_inference()
    with torch.inference_mode():
        assert next(batches)[0].is_inference()
    assert not next(batches)[0].is_inference()


COLUMNS = {
    **{
        str(kind): torch.ones(9, 2).to(kind)
        for kind in (torch.bool, torch.uint8, torch.int16, torch.float64, torch.bfloat16, torch.complex64)
    },
    "zero wide": torch.ones(9, 0),
    "nan": torch.full((9,), torch.nan),
    "transposed": torch.arange(36.0).reshape(4, 9).t(),
    "strided": torch.arange(72.0).reshape(9, 8)[:, ::2],
    "expanded": torch.arange(9.0)[:, None].expand(9, 5),
    "channels last": torch.randn(9, 3, 4, 5).to(memory_format=torch.channels_last),
    "five": torch.randn(9, 2, 3, 4, 5),
}


@pytest.mark.parametrize("name", COLUMNS)
@pytest.mark.parametrize("size", [1, 2, 4])
def test_columns_of_every_kind(name, size):
    data = TensorDataset(COLUMNS[name])
    fast = gathered(DataLoader(data, size), lambda: 9)
    for found, expected in zip(fast, DataLoader(data, size), strict=True):
        same(found, expected) if COLUMNS[name].numel() else None
        assert found[0].stride() == expected[0].stride()


class OwnLoader(DataLoader):
    pass


class OwnData(TensorDataset):
    pass


def own_method():
    data = tensors(4)
    data.__getitems__ = lambda rows: [(torch.zeros(1),) for _ in rows]
    return data


INELIGIBLE = {
    "no loader": lambda: [1, 2],
    "subclass": lambda: OwnLoader(tensors(4)),
    "collate": lambda: DataLoader(tensors(4), collate_fn=lambda rows: default_collate(rows)),
    "no batches": lambda: DataLoader(tensors(4), batch_size=None),
    "dataset": lambda: DataLoader(OwnData(torch.zeros(4))),
    "list": lambda: DataLoader([1.0, 2.0]),
    "method": lambda: DataLoader(own_method()),
    "inner dataset": lambda: DataLoader(Subset(OwnData(torch.zeros(4)), [0, 1])),
    "bools": lambda: DataLoader(Subset(tensors(4), [True, False])),
    "gradient": lambda: DataLoader(TensorDataset(torch.zeros(4, requires_grad=True))),
    "parameter": lambda: DataLoader(TensorDataset(torch.nn.Parameter(torch.zeros(4), False))),
    "sparse": lambda: DataLoader(TensorDataset(torch.eye(4).to_sparse())),
    "conjugate": lambda: DataLoader(TensorDataset(torch.zeros(4, dtype=torch.complex64).conj())),
    "channels last rows": lambda: DataLoader(TensorDataset(torch.randn(4, 2, 4, 5, 3).permute(0, 1, 4, 2, 3))),
    "empty": lambda: DataLoader(tensors(0)),
    "no columns": lambda: DataLoader(Subset(TensorDataset(), [0])),
    "worker init": lambda: DataLoader(tensors(4), num_workers=1, worker_init_fn=print),
    "no order": lambda: DataLoader(tensors(4), num_workers=1, in_order=False),
}


@pytest.mark.parametrize("name", INELIGIBLE)
def test_what_only_the_loader_itself_can_do(name):
    assert gathered(INELIGIBLE[name](), lambda: 9) is None


@pytest.mark.narrow(13)
@pytest.mark.usefixtures("fake")
@pytest.mark.parametrize("pins", [True, False])
@pytest.mark.parametrize(
    ("kind", "size", "workers"), [*((kind, 3, 0) for kind in DATASETS), ("tensors", 64, 0), ("tensors", 16, 2)]
)
def test_where_the_loader_pins_its_batches_those_that_are_gathered_are_pinned(kind, size, workers, pins):
    loader = DataLoader(DATASETS[kind](40), size, pin_memory=pins, num_workers=workers)
    expected, found = list(loader), list(gathered(loader, lambda: 9))
    same(found, expected)
    for batch in (*expected, *found):
        assert {leaf.is_pinned() for leaf in tree_leaves(batch)} == {pins}


@pytest.mark.usefixtures("fake")
def test_batches_that_the_loader_pins_and_cannot_be_gathered_are_pinned():
    batches = iter(gathered(DataLoader(tensors(6), 2, sampler=[0, 1, 2, 3, 99, 4], pin_memory=True), lambda: 9))
    assert all(leaf.is_pinned() for _ in range(2) for leaf in tree_leaves(next(batches)))
    with pytest.raises(IndexError):
        next(batches)


@pytest.mark.usefixtures("fake")
@pytest.mark.parametrize("pins", [True, False])
def test_what_lies_on_a_device_cannot_be_pinned(pins):
    loader = DataLoader(TensorDataset(torch.arange(6.0).to("fake:0")), 2, pin_memory=pins)
    assert (gathered(loader, lambda: 1) is None) == pins


def test_where_a_loader_says_that_it_does_not_pin_it_is_asked(monkeypatch):
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: torch.device("mps"))
    assert gathered(DataLoader(tensors(4), pin_memory=True), lambda: 1) is None
    assert gathered(DataLoader(tensors(4)), lambda: 1) is not None


def test_replaced_collate_functions_are_the_loaders(monkeypatch):
    table = torch.utils.data._utils.collate.default_collate_fn_map
    monkeypatch.setitem(table, torch.Tensor, lambda rows, collate_fn_map: torch.stack(rows) + 1)
    assert gathered(DataLoader(tensors(4)), lambda: 1) is None


def test_a_copy_on_another_device():
    data = tensors(6)
    size = sum(tensor.nbytes for tensor in data.tensors)
    loader = DataLoader(data, 2, sampler=[0, 1, 2, 3, 99, 4])
    meta = torch.device("meta")
    with pytest.raises(ValueError, match=rf"{size} bytes.*{size - 1} are allowed"):
        gathered(loader, lambda: 9, device=meta, cache_bytes=size - 1)
    fast = gathered(loader, lambda: 9, device=meta, cache_bytes=size)
    batches = iter(fast)
    assert [x.device for x in next(batches)] == [meta, meta]
    assert [x.device for x in next(batches)] == [meta, meta]
    with pytest.raises(IndexError):
        next(batches)
    copies = dict(fast.cache._copies)
    write(data)
    next(iter(fast))
    changed = [key for key, copy in fast.cache._copies.items() if copy is not copies[key]]
    assert changed == [id(data.tensors[0])]


def test_on_the_same_device_nothing_is_copied():
    fast = gathered(DataLoader(tensors(6), 2), lambda: 9, device=torch.device("cpu"), cache_bytes=0)
    same(list(fast), list(DataLoader(tensors(6), 2)))
    assert not fast.cache._copies


@pytest.mark.parametrize(
    "column",
    [
        torch.randn(400, 300),
        torch.randn(400, 600)[:, ::2],
        torch.randn(400, 3, 16, 16).to(memory_format=torch.channels_last),
        torch.randn(300, 400).t(),
        torch.arange(400),
        torch.randn(400, 50_000)[:, :40_000],  # a row is more than is read at a time
    ],
    ids=["rows", "every second", "channels last", "transposed", "labels", "long"],
)
def test_columns_that_are_read_piece_by_piece(column):
    """More numbers than one thread of torch's reads by itself; the batches lie in memory as the loader's do."""
    loader = DataLoader(TensorDataset(column, torch.arange(400)), batch_size=30, shuffle=True)
    torch.manual_seed(3)
    expected = list(loader)
    torch.manual_seed(3)
    found = list(gathered(loader, lambda: 1000))
    for (x, y), (gathered_x, gathered_y) in zip(expected, found, strict=True):
        assert torch.equal(x, gathered_x)
        assert x.stride() == gathered_x.stride()
        assert torch.equal(y, gathered_y)
