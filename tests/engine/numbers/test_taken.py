"""What stands for all numbers of a tensor, until somebody asks for more than to have it in a list."""

import numpy as np
import pytest
import torch

from lightning_sink.engine.numbers.given import Given, Gives, given
from lightning_sink.engine.numbers.guards import Uses
from lightning_sink.engine.numbers.taken import KINDS, Taken


def taken(method="tolist", tensor=None):
    """Returns a stand-in, what it stands for, and a list of what is told of it."""
    told, tensor = [], torch.tensor([1, 2]) if tensor is None else tensor
    func = getattr(torch.Tensor, method)
    return Taken(tensor, func(tensor), KINDS[func], Uses(told.append, told.append), "numbers"), func(tensor), told


ASKS = {
    "len": len,
    "iter": list,
    "truth": bool,
    "repr": repr,
    "item": lambda value: value[0],
    "in": lambda value: 2 in value,
    "attribute": lambda value: value.__len__(),
    "equal": lambda value: value == [1, 2],
    "added": lambda value: value + [3],
    "added to": lambda value: [3] + value,
    "times": lambda value: 2 * value,
    "max": max,
}


@pytest.mark.parametrize("name", ASKS)
def test_whoever_asks_gets_what_it_stands_for_and_is_told(name):
    stand_in, plain, told = taken()
    assert ASKS[name](stand_in) == ASKS[name](plain)
    assert told
    assert "numbers is needed by more than a list" in told[0]


def test_an_array_is_one_to_numpy():
    stand_in, plain, told = taken("numpy")
    assert np.array_equal(np.concatenate([stand_in, plain]), [1, 2, 1, 2])
    assert (stand_in * 2).tolist() == [2, 4]
    assert stand_in.mean() == 1.5
    assert told


def test_isinstance_needs_no_more():
    stand_in, _, told = taken()
    assert isinstance(stand_in, list)
    assert not told


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.bool, torch.float16])
@pytest.mark.parametrize("method", ["numpy", "tolist"])
def test_a_program_gives_the_like(method, dtype):
    tensor = torch.tensor([[0, 1], [2, 3]]).to(dtype)
    stand_in, plain, told = taken(method, tensor)
    held = given({"all": stand_in})["all"]
    assert isinstance(held, Given)
    assert not held.is_number
    gives = Gives.of(held)
    made = gives.made_of(tensor.clone())
    assert type(made) is type(plain)
    assert np.array_equal(made, plain)
    assert getattr(made, "dtype", None) == getattr(plain, "dtype", None)
    assert torch.equal(gives.as_tensor(plain), tensor)
    assert not told
