"""Copies that lie as the original does."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lightning_sink.engine.compiler.copies import copy_of, refill

KINDS = {
    "dense": lambda: torch.randn(3, 4),
    "transposed": lambda: torch.randn(3, 4).t(),
    "columns": lambda: torch.randn(3, 6)[:, :4],
    "one column": lambda: torch.randn(3, 6)[:, -1],
    "every second row": lambda: torch.randn(6, 2)[::2],
    "expanded": lambda: torch.randn(1, 2).expand(6, 2),
    "windows": lambda: torch.arange(8.0).unfold(0, 3, 1),
    "empty": lambda: torch.randn(0, 4),
    "empty, of columns": lambda: torch.randn(0, 6)[:, :4],
    "number": lambda: torch.randn(5)[2],
    "whole numbers": lambda: torch.arange(12).view(3, 4)[:, 1:3],
    "channels last": lambda: torch.randn(2, 3, 4, 4).to(memory_format=torch.channels_last),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_copy_has_the_strides_and_nothing_else_of_the_original(kind):
    tensor = KINDS[kind]().requires_grad_(kind == "dense")
    copy = copy_of(tensor)
    assert torch.equal(copy, tensor)
    assert copy.stride() == tensor.stride()
    assert not copy.requires_grad
    if tensor.numel():
        assert copy.untyped_storage().data_ptr() != tensor.untyped_storage().data_ptr()


@given(st.lists(st.integers(1, 4), min_size=1, max_size=3), st.data())
def test_any_view_of_any_memory(shape, data):
    strides = [data.draw(st.integers(0, 5)) for _ in shape]
    offset = data.draw(st.integers(0, 3))
    tensor = torch.arange(64.0).as_strided(shape, strides, offset)
    copy = copy_of(tensor)
    assert torch.equal(copy, tensor)
    # `clone()` is free to choose the stride of a dimension with one element, in which nothing lies behind another.
    assert [s for s, n in zip(copy.stride(), shape, strict=True) if n > 1] == [
        s for s, n in zip(strides, shape, strict=True) if n > 1
    ]


def test_it_is_filled_again_but_where_elements_share_their_memory():
    for kind in ("dense", "transposed", "columns", "every second row"):
        tensor = KINDS[kind]()
        assert torch.equal(refill(copy_of(tensor), tensor + 1), tensor + 1)
    for kind in ("expanded", "windows"):
        tensor = KINDS[kind]()
        assert torch.equal(refill(copy_of(tensor), tensor + 1), tensor)
