"""Functions that look at values: what they give in another way is what they give."""

import warnings
from contextlib import nullcontext

import pytest
import torch
from torch.nn import functional as F

from lightning_sink.engine.tracing.stand_in import StandInMode


def alike(function):
    """What a function gives as it is, and in the mode."""
    expected = function()
    with StandInMode(lambda tensor, caller: None, None, nullcontext):
        return expected, function()


ONE = torch.tensor(1.5)
LISTS = {
    "floats": [ONE, ONE + 1],
    "a tuple": (ONE, ONE),
    "integers": [ONE.long(), ONE.long() + 3],
    "booleans": [ONE > 0, ONE < 0],
    "halves": [ONE.bfloat16()],
    "of two types": [ONE, ONE.double()],
    "with a number": [ONE, 2.0],
    "rows": [torch.ones(1), torch.zeros(1)],
    "lists": [[ONE, ONE], [ONE, ONE]],
    "nothing": [],
}


@pytest.mark.parametrize("make", [torch.tensor, torch.as_tensor])
@pytest.mark.parametrize("name", LISTS)
def test_a_tensor_of_a_list(name, make):
    expected, found = alike(lambda: make(LISTS[name]))
    assert (expected.dtype, expected.shape, expected.requires_grad) == (found.dtype, found.shape, found.requires_grad)
    assert torch.equal(expected, found)


def test_a_tensor_of_a_list_of_tensors_is_no_part_of_the_graph():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", category=UserWarning)  # torch warns of it once in a process
        _, found = alike(lambda: torch.tensor([torch.ones((), requires_grad=True)]))
    assert not found.requires_grad


@pytest.mark.parametrize(
    "function",
    [
        lambda: F.one_hot(torch.tensor([[0, 2], [1, 1]]), 3),
        lambda: F.one_hot(torch.tensor(2), num_classes=4),
        lambda: F.one_hot(torch.tensor([0, 2])),
        lambda: F.one_hot(torch.tensor([0, 2]), -1),
        lambda: F.one_hot(torch.empty(0, 2, dtype=torch.int64), 3),
    ],
)
def test_one_hot(function):
    expected, found = alike(function)
    assert expected.dtype == found.dtype
    assert torch.equal(expected, found)


@pytest.mark.parametrize(("classes", "values"), [(3, [0, 3]), (3, [-1, 0]), (0, [0, 1]), (3, [0.5])])
def test_one_hot_refuses_what_it_refuses(classes, values):
    with pytest.raises(RuntimeError) as expected:
        F.one_hot(torch.tensor(values), classes)
    with (
        pytest.raises(RuntimeError) as found,
        StandInMode(lambda tensor, caller: None, None, nullcontext),
    ):
        F.one_hot(torch.tensor(values), classes)
    assert str(found.value) == str(expected.value)


def test_a_distribution_refuses_with_torchs_own_words():
    with (
        StandInMode(lambda tensor, caller: None, None, nullcontext),
        pytest.raises(ValueError, match="Expected parameter scale"),
    ):
        torch.distributions.Normal(0.0, -ONE, validate_args=True)


def test_other_code_gets_what_it_asks_for():
    with StandInMode(lambda tensor, caller: None, None, nullcontext):
        assert isinstance(torch._is_all_true(torch.ones(2, dtype=torch.bool)), torch.Tensor)
