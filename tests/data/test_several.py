"""Batches that were fetched in one go: those that are alike are one, any others are none."""

from collections import OrderedDict

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lightning_sink.data.batch import flatten
from lightning_sink.data.several import bunch_of


def x(rows=2, columns=3):
    return torch.rand(rows, columns)


def with_attribute():
    tensor = x()
    tensor.mark = "mine"
    return tensor


class Own(torch.Tensor):
    pass


ALIKE = {
    "tuple": lambda: (x(), x(1)),
    "list": lambda: [x(), x(1)],
    "dict": lambda: {"a": x(), "b": x(1)},
    "tensor": x,
    "one number": lambda: (torch.tensor(1.0),),
    "no row": lambda: (x(0),),
    "laid by columns": lambda: (x(3, 2).T, x()),
}

UNLIKE = {
    "another shape": lambda: (x(3), x(1)),
    "another type": lambda: (x().double(), x(1)),
    "another layout": lambda: (x(3, 2).T, x(1)),
    "one more": lambda: (x(), x(1), x()),
    "one less": lambda: (x(),),
    "a list": lambda: [x(), x(1)],
    "a number": lambda: (x(), 1),
    "nothing": tuple,
    "a tensor": x,
    "nested": lambda: (x(), (x(1),)),
    "a dict": lambda: {"a": x(), "b": x(1)},
    "sparse": lambda: (x().to_sparse(), x(1)),
    "of rows": lambda: (torch.nested.nested_tensor([x(), x(1)]), x(1)),
    "of rows, jagged": lambda: (torch.nested.nested_tensor([x(), x(1)], layout=torch.jagged), x(1)),
    "that requires a gradient": lambda: (x().requires_grad_(), x(1)),
    "with an attribute": lambda: (with_attribute(), x(1)),
    "of a class": lambda: (x().as_subclass(Own), x(1)),
    "negative": lambda: (torch._neg_view(x()), x(1)),
}


@pytest.mark.parametrize("kind", ALIKE)
def test_batches_that_are_alike_are_one(kind):
    batches = [ALIKE[kind]() for _ in range(5)]
    bunch = bunch_of(batches)
    assert len(bunch) == 5
    assert [bunch.batch(number) for number in range(5)] == batches
    for number, batch in enumerate(batches):
        leaves, signature = flatten(batch)
        assert [column[number] for column in bunch.columns] == leaves
        assert signature == bunch.signature
    assert bunch.nbytes == sum(leaf.nbytes for batch in batches for leaf in flatten(batch)[0])


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
@pytest.mark.parametrize("place", [0, 2, 4])
@pytest.mark.parametrize("kind", UNLIKE)
def test_batches_of_which_one_is_not_like_the_others_are_none(kind, place):
    batches = [ALIKE["tuple"]() for _ in range(5)]
    batches[place] = UNLIKE[kind]()
    assert len({flatten(batch)[1] for batch in batches}) == 2
    assert bunch_of(batches) is None


def test_what_a_dict_has_in_another_order_is_not_alike():
    assert bunch_of([{"a": x(), "b": x()}, {"b": x(), "a": x()}]) is None


@pytest.mark.parametrize("make", [lambda: OrderedDict(a=x()), lambda: (x(), 1), lambda: 3, lambda: [[x()]], lambda: ()])
def test_others_are_none_even_if_they_are_alike(make):
    """They are taken one by one, which knows more kinds."""
    assert bunch_of([make(), make()]) is None


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
@pytest.mark.parametrize("kind", ["sparse", "of rows", "of rows, jagged", "with an attribute", "of a class"])
def test_tensors_that_are_more_than_numbers_in_memory_are_taken_one_by_one(kind):
    assert bunch_of([UNLIKE[kind]() for _ in range(3)]) is None


@given(st.lists(st.sampled_from(sorted({**ALIKE, "another shape": 0})), min_size=2, max_size=6))
def test_a_bunch_says_what_signatures_say(kinds):
    batches = [{**ALIKE, **UNLIKE}[kind]() for kind in kinds]
    same = len({flatten(batch)[1] for batch in batches}) == 1
    assert (bunch_of(batches) is not None) is same
