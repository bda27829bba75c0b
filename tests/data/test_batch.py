"""Equal signatures mean that the same program serves both batches."""

import collections
import dataclasses

import numpy as np
import pytest
import torch

from lightning_sink.data.batch import flatten, nbytes, values_in

Pair = collections.namedtuple("Pair", "x y")


@dataclasses.dataclass
class Record:
    x: torch.Tensor
    name: str = "a"


def x(*shape, **options):
    return torch.zeros(*(shape or (2, 3)), **options)


KINDS = {
    "tensor": lambda: x(),
    "tuple": lambda: (x(), x(4)),
    "list": lambda: [x(), x(4)],
    "dict": lambda: {"a": x(), "b": [x(4)]},
    "named tuple": lambda: Pair(x(), x(4)),
    "dataclass": lambda: Record(x()),
    "numbers and text": lambda: (x(), 3, "a", None, 1.5),
    "other numbers": lambda: (x(), 0.0, float("inf"), 1j, np.float32(2.5), np.int64(3)),
    "empty": lambda: (),
}


@pytest.mark.parametrize("kind", KINDS)
def test_batches_of_one_kind_have_equal_signatures(kind):
    assert flatten(KINDS[kind]())[1] == flatten(KINDS[kind]())[1]
    hash(flatten(KINDS[kind]())[1])


def test_batches_of_different_kinds_have_different_signatures():
    signatures = [flatten(make())[1] for make in KINDS.values()]
    assert len(set(signatures)) == len(KINDS)


def test_tensors_come_in_a_fixed_order():
    a, b, c, d = (torch.full((1,), float(i)) for i in range(4))
    leaves, _ = flatten({"first": (a, [b]), "second": Pair(c, Record(d))})
    assert [id(leaf) for leaf in leaves] == [id(a), id(b), id(c), id(d)]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (x(2, 3), x(3, 2)),
        (x(), x(dtype=torch.float64)),
        (x(3, 2).t(), x(2, 3)),
        (x(), x(requires_grad=True)),
        (x(), x(device="meta")),
        ((x(), 1), (x(), 2)),
        ((x(), 1), (x(), True)),
        ((x(), 1), (x(), 1.0)),
        ((x(), 0.0), (x(), -0.0)),
        ((x(), 0j), (x(), complex(-0.0, 0.0))),
        ((x(), np.float32(0.0)), (x(), np.float32(-0.0))),
        ((x(), np.float64(0.0)), (x(), np.float64(-0.0))),
        ((x(), np.int32(1)), (x(), np.int64(1))),
        ((x(), np.datetime64(1, "s")), (x(), np.datetime64(1, "D"))),
        ((x(), np.timedelta64(1, "s")), (x(), np.timedelta64(1, "ms"))),
        (x(dtype=torch.complex64), x(dtype=torch.complex64).conj()),
        (x(dtype=torch.complex64).imag, x(dtype=torch.complex64).conj().imag),
        (x(), x().to_sparse()),
        ((x(), "a"), (x(), "b")),
        ({"a": x()}, {"b": x()}),
        ({"a": x(), "b": x()}, {"b": x(), "a": x()}),
        ({1: x()}, {True: x()}),
        ([x()], (x(),)),
        ([[x()], x()], [[x(), x()]]),
        (Record(x(), "a"), Record(x(), "b")),
        (Pair(x(), x()), (x(), x())),
    ],
)
def test_what_makes_another_program_makes_another_signature(one, other):
    for wrap in (lambda item: item, lambda item: [item], lambda item: {"a": (item,)}):
        assert flatten(wrap(one))[1] != flatten(wrap(other))[1]


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta:UserWarning")
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
def test_tensors_that_have_no_strides_or_no_shape():
    rows, columns, others = x().to_sparse_csr(), x().to_sparse_csc(), x(3, 2).to_sparse_csr()
    nested = [torch.nested.nested_tensor([x(), x(1, 3)]) for _ in range(2)]
    signatures = [flatten((item, x()))[1] for item in (x(), rows, columns, others, *nested)]
    assert len(set(signatures)) == len(signatures)
    assert flatten([x().to_sparse_csr()])[1] == flatten([rows])[1]
    assert flatten([nested[0]]) == ([nested[0]], flatten([nested[0]])[1])


def test_what_cannot_be_hashed_is_compared_by_identity():
    class Plain:
        __hash__ = None

    first, second = Plain(), Plain()
    assert flatten((x(), first))[1] == flatten((x(), first))[1]
    assert flatten((x(), first))[1] != flatten((x(), second))[1]


def test_an_object_that_cannot_be_hashed_and_is_gone_is_no_other():
    class Plain:
        __hash__ = None

    signatures = [flatten((x(), Plain()))[1] for _ in range(20)]
    assert len(signatures) == 20
    assert all(one != other for index, one in enumerate(signatures) for other in signatures[index + 1 :])


SIZES = {
    "tensor": (lambda: x(), 24),
    "doubles": (lambda: x(3, dtype=torch.float64), 24),
    "no elements": (lambda: x(0, 3), 0),
    "tuple": (lambda: (x(), x(4)), 40),
    "list": (lambda: [x(), x(4)], 40),
    "nested": (lambda: [x(), (x(4), [x(1)])], 44),
    "dict": (lambda: {"a": x(), "b": [x(4)]}, 40),
    "ordered": (lambda: collections.OrderedDict(a=x(), b=(x(4),)), 40),
    "named tuple": (lambda: Pair(x(), x(4)), 40),
    "dataclass": (lambda: Record(x()), 24),
    "dataclass in list": (lambda: [Record(x()), {"a": Pair(x(4), 1)}], 40),
    "parameter": (lambda: [torch.nn.Parameter(x())], 24),
    "numbers and text": (lambda: (x(), 3, "a", None, 1.5), 24),
    "text": (lambda: "abc", 0),
    "nothing": (lambda: None, 0),
    "empty": (lambda: (), 0),
    "view": (lambda: (x(10)[:2],), 8),
    "expanded": (lambda: [x(1, 1).expand(2, 3)], 24),
    "sparse": (lambda: [torch.eye(3).to_sparse(), x(1)], 4),
    "sparse alone": (lambda: torch.eye(3).to_sparse(), 0),
    "the class of a dataclass": (lambda: [Record, x(1)], 4),
}


@pytest.mark.parametrize("name", SIZES)
def test_bytes_of_a_batch(name):
    make, size = SIZES[name]
    found = nbytes(make())
    assert found == size
    assert type(found) is int


@pytest.mark.parametrize("name", SIZES)
def test_bytes_are_those_of_the_flattened_tensors(name):
    batch = SIZES[name][0]()
    assert nbytes(batch) == sum(leaf.nbytes for leaf in flatten(batch)[0] if leaf.layout is torch.strided)


def test_attributes_of_tensors_are_part_of_a_batch():
    one, other = torch.ones(2), torch.ones(2)
    one.scale, other.scale = 1.0, 2.0
    assert flatten((one,))[1] != flatten((other,))[1]
    other.scale = 1.0
    assert flatten((one,))[1] == flatten((other,))[1]
    assert dict(values_in((one,))) == {"batch[0].scale": (1.0, 1.0, 1.0)}


def test_tensors_that_know_each_other_are_gone_through_once():
    batch = [torch.ones(2) for _ in range(30)]
    for tensor in batch:
        tensor.others = batch
    assert len(flatten(batch)[0]) == 30 + 30 * 30
    assert [*values_in(batch)] == []
