"""What a `GradScaler` does to gradients and to its scale, by operations that a compiler can join with others."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lightning_sink.engine.tracing.scaled_steps import made_of_others

ATEN = torch.ops.aten
UNSCALE, UPDATE = ATEN._amp_foreach_non_finite_check_and_unscale_.default, ATEN._amp_update_scale_.default
SCALES = st.sampled_from([1.0, 0.5, 3.0, 2.0**-149, 2.0**-140, 2.0**24, 1e-3, 2.0**127, 3e38])
FACTORS = st.sampled_from([2.0, 0.5, 1.5, 1 / 3, 1.1, 4.0])


@given(
    numbers=st.lists(st.floats(width=32), min_size=1, max_size=6),
    found=st.sampled_from([0.0, 1.0]),
    scale=SCALES,
    dtype=st.sampled_from([torch.float32, torch.float64, torch.bfloat16]),
)
def test_gradients_are_unscaled_bit_by_bit(numbers, found, scale, dtype):
    left = []
    for ours in False, True:
        gradients = [torch.tensor(numbers).to(dtype), torch.ones(2, 3, dtype=dtype)]
        arguments = gradients, torch.tensor(found), torch.tensor(scale)
        made_of_others(UNSCALE, arguments)() if ours else UNSCALE(*arguments)
        left.append([*gradients, arguments[1]])
    for expected, seen in zip(*left, strict=True):
        torch.testing.assert_close(seen, expected, rtol=0, atol=0, equal_nan=True)


@given(scale=SCALES, tracker=st.integers(0, 4), found=st.sampled_from([0.0, 1.0, 2.0]), growth=FACTORS, backoff=FACTORS)
def test_a_scale_is_updated_bit_by_bit(scale, tracker, found, growth, backoff):
    left = []
    for ours in False, True:
        tensors = torch.tensor(scale), torch.tensor(tracker, dtype=torch.int32)
        arguments = *tensors, torch.tensor(found), growth, backoff, 4
        result = made_of_others(UPDATE, arguments)() if ours else UPDATE(*arguments)
        assert result is tensors[0]
        left.append([tensor.item() for tensor in tensors])
    assert left[0] == left[1]
    assert math.isfinite(left[1][0]) or backoff > 1


@pytest.mark.parametrize("operation", [ATEN.add_.Tensor, ATEN._foreach_mul_.Tensor])
def test_other_operations_are_left_alone(operation):
    assert made_of_others(operation, ()) is None
