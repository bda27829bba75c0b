"""What a `GradScaler` does to gradients and to its scale, and operations on lists, by what they are made of."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from loop import record

from lightning_sink.engine.compiler.inductor import graph_module
from lightning_sink.engine.tracing.rewritten import in_parts

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
        in_parts(UNSCALE, arguments, {})() if ours else UNSCALE(*arguments)
        left.append([*gradients, arguments[1]])
    for expected, seen in zip(*left, strict=True):
        torch.testing.assert_close(seen, expected, rtol=0, atol=0, equal_nan=True)


@given(scale=SCALES, tracker=st.integers(0, 4), found=st.sampled_from([0.0, 1.0, 2.0]), growth=FACTORS, backoff=FACTORS)
def test_a_scale_is_updated_bit_by_bit(scale, tracker, found, growth, backoff):
    left = []
    for ours in False, True:
        tensors = torch.tensor(scale), torch.tensor(tracker, dtype=torch.int32)
        arguments = *tensors, torch.tensor(found), growth, backoff, 4
        result = in_parts(UPDATE, arguments, {})() if ours else UPDATE(*arguments)
        assert result is tensors[0]
        left.append([tensor.item() for tensor in tensors])
    assert left[0] == left[1]
    assert math.isfinite(left[1][0]) or backoff > 1


def test_other_operations_are_left_alone():
    assert in_parts(ATEN.add_.Tensor, (), {}) is None


# -- operations on lists --------------------------------------------------------------------------------------------


def tensors(shift=0.0):
    return [torch.linspace(0.5, 1.5, 4) + shift, torch.linspace(1.0, 2.0, 3) - shift]


CALLS = {
    "add": lambda a, b: torch._foreach_add(a, b, alpha=0.3),
    "add a number": lambda a, b: torch._foreach_add(a, 2.5),
    "add numbers": lambda a, b: torch._foreach_add(a, [2.5, 1.5]),
    "add in place": lambda a, b: torch._foreach_add_(a, b, alpha=-2),
    "add a tensor in place": lambda a, b: torch._foreach_add_(a, torch.tensor(2.0), alpha=3),
    "multiply": lambda a, b: torch._foreach_mul(a, b),
    "multiply by a tensor": lambda a, b: torch._foreach_mul(a, torch.tensor(0.5)),
    "multiply in place": lambda a, b: torch._foreach_mul_(a, 0.5),
    "divide": lambda a, b: torch._foreach_div(a, b),
    "subtract in place": lambda a, b: torch._foreach_sub_(a, b),
    "norms": lambda a, b: torch._foreach_norm(a),
    "norms of another order": lambda a, b: torch._foreach_norm(a, 1),
    "roots": lambda a, b: torch._foreach_sqrt(a),
    "roots in place": lambda a, b: torch._foreach_sqrt_(a),
    "negatives": lambda a, b: torch._foreach_neg(a),
    "interpolate": lambda a, b: torch._foreach_lerp_(a, b, 0.2),
    "interpolate by tensors": lambda a, b: torch._foreach_lerp(a, b, b),
    "add quotients": lambda a, b: torch._foreach_addcdiv_(a, b, b, 0.1),
    "add quotients by numbers": lambda a, b: torch._foreach_addcdiv_(a, b, b, [0.1, 0.2]),
    "add products": lambda a, b: torch._foreach_addcmul(a, b, b, value=0.1),
    "copy": lambda a, b: torch._foreach_copy_(a, b),
    "clear": lambda a, b: torch._foreach_zero_(a),
    "limit in place": lambda a, b: torch._foreach_clamp_max_(a, 1.0),
    "powers": lambda a, b: torch._foreach_pow(a, [2.0, 3.0]),
    "the largest": lambda a, b: torch._foreach_max(a),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_list_is_taken_apart(name):
    def step(*given):
        made = CALLS[name]([*given[:2]], [*given[2:]])
        return torch.cat([item.reshape(-1) for item in made or given[:2]])

    leaves = [*tensors(), *tensors(0.25)]
    before = [leaf.clone() for leaf in leaves]
    recording = record(step, *leaves)
    assert not any("_foreach_" in str(node.target) for node in recording.graph.nodes)
    original = {id(leaf): kept.clone() for leaf, kept in zip(leaves, before, strict=True)}
    given = [original.get(id(tensor), tensor) for tensor in recording.inputs]
    assert torch.allclose(graph_module(recording).forward(*given)[0], step(*before))


def all_on_lists():
    operations = [getattr(ATEN, name) for name in dir(ATEN) if name.startswith("_foreach_")]
    kinds = [getattr(operation, kind) for operation in operations for kind in operation.overloads()]
    return [kind for kind in kinds if not any(argument.is_out for argument in kind._schema.arguments)]


READ_BY_VALUE = [getattr(ATEN, f"_foreach_{name}").Tensor for name in ("addcdiv", "addcdiv_", "addcmul", "addcmul_")]


def test_all_of_torchs_are_made_of_others():
    key = torch._C.DispatchKey.CompositeExplicitAutograd
    apart = [kind for kind in all_on_lists() if in_parts(kind, (), {}) is not None]
    assert len(apart) > 100
    assert [kind for kind in apart if not kind.has_kernel_for_dispatch_key(key)] == []
    assert {*all_on_lists()} - {*apart} == {*READ_BY_VALUE}


def of_one_tensor():
    """Operations that take a tensor that is in no list: what it holds must not become a number in the recording."""
    tensors = [[str(argument.type) for argument in kind._schema.arguments].count("Tensor") for kind in all_on_lists()]
    return [kind for kind, count in zip(all_on_lists(), tensors, strict=True) if count]


@pytest.mark.parametrize("kind", of_one_tensor(), ids=str)
def test_numbers_in_a_tensor_are_no_constants(kind):
    def step(*given):
        lists, one = [[*given[0:2]], [*given[2:4]], [*given[4:6]]], given[6]
        arguments = [one if str(item.type) == "Tensor" else lists.pop(0) for item in kind._schema.arguments
                     if "List" in str(item.type) or str(item.type) == "Tensor"]  # fmt: skip
        made = kind(*arguments) or given[:2]
        return torch.cat([item.reshape(-1) for item in made])

    numbers = torch.tensor([2.0, 3.0]) if kind in READ_BY_VALUE else torch.tensor(2.0)
    leaves = [*tensors(), *tensors(0.25), *tensors(0.5), numbers]
    before = [leaf.clone() for leaf in leaves]
    recording = record(step, *leaves)
    others = [leaf.clone() for leaf in before[:-1]] + [numbers + 1]
    given = {id(leaf): other for leaf, other in zip(leaves, others, strict=True)}
    found = graph_module(recording).forward(*(given.get(id(tensor), tensor) for tensor in recording.inputs))[0]
    assert torch.equal(found, step(*before[:-1], numbers + 1))
