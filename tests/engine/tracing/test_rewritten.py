"""What a step computes in torch's default type, its program computes in the same where that is another one."""

import pytest
import torch
from test_record import record

from lightning_sink.engine.compiler.inductor import graph_module
from lightning_sink.engine.tracing.rewritten import WHOLE as WHOLE_TYPES
from lightning_sink.engine.tracing.rewritten import distinct, in_parts, of_one_value, sorted_with_firsts

WHOLE = torch.tensor([1, 2, 7])
TRUTH = torch.tensor([True, False, True])
REAL = torch.tensor([0.1, 0.2, 0.7])
COMPLEX = torch.complex(REAL.double(), WHOLE.double())

OPERATIONS = {
    "a quotient": lambda: WHOLE / 3,
    "a quotient of two": lambda: WHOLE / (WHOLE + 4),
    "a product with a number": lambda: WHOLE * 0.1,
    "a power": lambda: WHOLE**0.5,
    "a function": lambda: (WHOLE + 0).sin(),
    "a root in place of nothing": lambda: torch.sqrt(WHOLE),
    "a mean of truths": lambda: TRUTH.sum() / TRUTH.numel(),
    "bounds": lambda: WHOLE.clamp(1.7, 3.3),
    "full": lambda: torch.full((2,), 0.1),
    "full of whole numbers": lambda: torch.full((2,), 3),
    "zeros": lambda: torch.zeros(2) + 0.1,
    "linspace": lambda: torch.linspace(0, 1, 4),
    "arange": lambda: torch.arange(0, 1, 0.3),
    "arange of whole numbers": lambda: torch.arange(4),
    "where": lambda: torch.where(TRUTH, 0.1, 0.3),
    "where beside whole numbers": lambda: torch.where(TRUTH, WHOLE, 0.3),
    "filled": lambda: WHOLE.masked_fill(TRUTH, 3.0),
    "a comparison": lambda: WHOLE * 1000001 > 2000001.4,
    "a comparison of truths": lambda: TRUTH > 0.5,
    "a sum": lambda: WHOLE.sum(),
    "a sum in a type": lambda: WHOLE.sum(dtype=torch.float16),
    "beside another type": lambda: REAL * WHOLE / 3,
    "in another type": lambda: WHOLE.to(torch.float16) / 3,
    "a view of bits": lambda: WHOLE.view(torch.float64) / 3,
    "a number": lambda: torch.tensor(0.1) * 3,
    "a norm of complex numbers": lambda: torch.linalg.vector_norm(COMPLEX) / 3,
    "a sum of complex numbers": lambda: COMPLEX.sum(),
    "one hot": lambda: torch.nn.functional.one_hot(WHOLE, 9) / 3,
}


@pytest.mark.parametrize("name", OPERATIONS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float32], ids=str)
def test_a_program_gives_the_type_and_the_numbers_of_the_step(dtype, name):
    torch.set_default_dtype(dtype)
    try:
        _, expected, recording = record(OPERATIONS[name])
    finally:
        torch.set_default_dtype(torch.float32)
    assert recording.hazards == []
    (found,) = graph_module(recording)(*recording.inputs)
    assert found.dtype is expected.dtype
    assert torch.equal(found, expected)


def test_control_without_that_most_are_others(monkeypatch):
    monkeypatch.setattr(
        "lightning_sink.engine.tracing.operations.with_types", lambda func, args, kwargs, *_: (args, kwargs)
    )
    wrong = []
    for name in OPERATIONS:
        try:
            test_a_program_gives_the_type_and_the_numbers_of_the_step(torch.float64, name)
        except AssertionError:
            wrong.append(name)
    assert len(wrong) > 10


@pytest.mark.parametrize("dtype", sorted(WHOLE_TYPES, key=str), ids=str)
@pytest.mark.parametrize("shape", [(1,), (), (40,), (4, 5, 2)])
@pytest.mark.parametrize("lies", ["side by side", "transposed"])
def test_distinct_numbers_are_those_of_torch(dtype, shape, lies):
    values = torch.randint(0, 9, shape, generator=torch.Generator().manual_seed(1)) - 4
    values = values.to(dtype)
    values = values if lies == "side by side" else values.mT.contiguous().mT if values.dim() > 1 else values
    ordered, mask = sorted_with_firsts(values)
    (places,) = mask.nonzero().unbind(1)
    found, expected = (distinct(values, ordered, places, True, True), torch.unique(values, True, True, True))
    for one, other in zip(found, expected, strict=True):
        assert (one.dtype, one.stride()) == (other.dtype, other.stride())
        assert torch.equal(one, other)
    found, expected = distinct(values, ordered, places, False, False), torch._unique2(values)
    assert [(one.dtype, one.shape) for one in found] == [(one.dtype, one.shape) for one in expected]


ATEN = torch.ops.aten
ONE_VALUE = {
    "zeros": (ATEN.zeros_like.default, (REAL,), {}),
    "zeros of another type": (ATEN.zeros_like.default, (REAL,), {"dtype": torch.int32}),
    "ones": (ATEN.ones_like.default, (TRUTH,), {}),
    "a number": (ATEN.full_like.default, (WHOLE, 3), {}),
    "zeros of a size": (ATEN.new_zeros.default, (REAL, [2, 3]), {}),
    "ones of a size": (ATEN.new_ones.default, (REAL, [2]), {"dtype": torch.bool}),
    "a number of a size": (ATEN.new_full.default, (REAL, [], 0.1), {"dtype": torch.float64}),
    "none": (ATEN.zeros_like.default, (torch.empty(0, 3),), {}),
}


@pytest.mark.parametrize("name", ONE_VALUE)
def test_a_tensor_of_one_value_is_made_of_its_shape(name):
    func, args, kwargs = ONE_VALUE[name]
    expected = func(*args, **kwargs)
    given, options = of_one_value(func, args, expected)
    found = torch.full(*given, **options)
    assert (found.dtype, found.stride()) == (expected.dtype, expected.stride())
    assert torch.equal(found, expected)


@pytest.mark.parametrize(
    "of", [REAL.expand(2, 3).t().contiguous().t(), torch.eye(2).to_sparse(), torch.ones(4, 1, 2).mT]
)
def test_not_where_it_lies_otherwise(of):
    func = ATEN.zeros_like.default
    assert of_one_value(func, (of,), func(of)) is None


def test_nor_where_it_is_of_more_than_one():
    assert of_one_value(ATEN.neg.default, (REAL,), -REAL) is None


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("shape", [(7,), (5, 9), (64, 130)])
@pytest.mark.parametrize("how", [(1, True), (1,), (3,)])
def test_samples_in_parts_are_those_of_torch_and_leave_its_generator_as_that_does(dtype, shape, how):
    weights = torch.rand(shape, generator=torch.Generator().manual_seed(1), dtype=dtype)
    for given in [weights, weights.mT.contiguous().mT if len(shape) > 1 else weights, weights.round()]:
        torch.manual_seed(4)
        expected, behind = torch.multinomial(given, *how), torch.get_rng_state()
        torch.manual_seed(4)
        found = in_parts(ATEN.multinomial.default, (given, *how), {})()
        assert torch.equal(found, expected)
        assert torch.equal(torch.get_rng_state(), behind)


@pytest.mark.parametrize("weights", [torch.zeros(3), torch.eye(3)[:2] * torch.tensor([[1.0], [0.0]]), -REAL, REAL / 0])
def test_weights_that_are_none_are_refused_in_torchs_words(weights):
    with pytest.raises(RuntimeError) as expected:
        torch.multinomial(weights, 1)
    with pytest.raises(RuntimeError) as found:
        in_parts(ATEN.multinomial.default, (weights, 1), {})()
    assert str(found.value) == str(expected.value)


@pytest.mark.parametrize(
    "args", [(REAL, 2, True), (REAL, 4), (REAL, 0), (REAL.half(), 1), (torch.ones(2, 2, 2), 1), (torch.ones(0), 1)]
)
def test_other_samples_stay_whole(args):
    assert in_parts(ATEN.multinomial.default, args, {}) is None
