"""Stand-ins for numbers: they behave like the number, and every use that a recording would freeze is told."""

import copy
import math
import numbers
import operator
import pickle

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lightning_sink.engine.numbers import Number
from lightning_sink.engine.watched import Watched


def number(value, leaks=None, guards=None):
    told = [] if leaks is None else leaks
    guard = None if guards is None else lambda *taken: guards.append(taken)
    return Number(torch.tensor(float(value), dtype=torch.float64), value, told.append, guard)


def watched(value):
    reads = []
    return Watched(value, lambda: reads.append(1)), reads


ARITHMETIC = [operator.add, operator.sub, operator.mul, operator.truediv]
sensible = st.floats(0.1, 10.0)


@pytest.mark.parametrize("symbol", [*ARITHMETIC, operator.pow])
@given(left=sensible, right=sensible)
def test_arithmetic_is_pythons_on_either_side(symbol, left, right):
    leaks = []
    for result in (symbol(number(left, leaks), right), symbol(left, number(right, leaks))):
        assert result.value == symbol(left, right)
        assert float(result.tensor) == pytest.approx(symbol(left, right), rel=1e-12)
    assert leaks == []


@pytest.mark.parametrize("symbol", ARITHMETIC)
@pytest.mark.parametrize("shape", [(), (3,)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64, torch.complex64, torch.int64])
def test_a_tensor_meets_it_as_it_meets_a_python_number(symbol, shape, dtype):
    tensor = torch.full(shape, 3).to(dtype)
    for found, expected in [
        (symbol(number(2.0), tensor), symbol(2.0, tensor)),
        (symbol(tensor, number(2.0)), symbol(tensor, 2.0)),
    ]:
        assert found.dtype == expected.dtype
        assert torch.allclose(found, expected)


def test_the_scalar_arguments_of_optimizers():
    parameter, step = torch.ones(3), torch.full((3,), 2.0)
    assert torch.equal(torch.add(parameter, step, alpha=number(0.5)), torch.add(parameter, step, alpha=0.5))
    assert torch.equal(
        torch.addcdiv(parameter, step, step, value=number(0.5)), torch.addcdiv(parameter, step, step, value=0.5)
    )
    assert torch.equal(torch.lerp(parameter, step, number(0.5)), torch.lerp(parameter, step, 0.5))


def test_a_narrow_step_is_scaled_in_the_type_of_the_parameter():
    parameter, step = torch.ones(3), torch.full((3,), 1.0078125).bfloat16()
    assert torch.equal(torch.add(parameter, step, alpha=number(0.001)), torch.add(parameter, step, alpha=0.001))


LEAKS = [float, int, bool, repr, str, hash, math.sqrt, "{:.2f}".format, lambda n: [0, 1, 2][n], lambda n: n < 3]


@pytest.mark.parametrize("use", LEAKS)
def test_what_needs_the_value_is_told_and_works(use):
    leaks = []
    assert use(number(2, leaks)) == use(2)
    assert leaks


@pytest.mark.parametrize("symbol", [operator.lt, operator.le, operator.eq, operator.ne, operator.gt, operator.ge])
def test_comparisons_of_a_number_known_on_the_host_become_guards(symbol):
    leaks, guards = [], []
    assert symbol(number(2.0, leaks, guards), 3.0) == symbol(2.0, 3.0)
    assert leaks == []
    ((found, other, outcome),) = guards
    assert found(2.0, other) is outcome


def test_a_number_counts_as_one():
    assert isinstance(number(1.0), numbers.Number)
    assert (-number(2.0)).value == -2.0
    assert (+number(2.0)).value == 2.0


BINARY = [*ARITHMETIC, operator.floordiv, operator.mod, operator.lshift, operator.and_, operator.or_, operator.xor]


@pytest.mark.parametrize("symbol", [*BINARY, operator.pow, divmod, operator.lt, operator.eq, math.gcd, max])
@given(left=st.integers(1, 9), right=st.integers(1, 9))
def test_watched_arithmetic_is_that_of_the_integer(symbol, left, right):
    stand_in, reads = watched(left)
    assert symbol(stand_in, right) == symbol(left, right)
    assert symbol(right, stand_in) == symbol(right, left)
    assert symbol(stand_in, watched(right)[0]) == symbol(left, right)
    assert len(reads) >= 3


WATCHED_USES = {
    "int": int, "float": float, "bool": bool, "complex": complex, "repr": repr, "str": str, "hash": hash,
    "format": "{:03d}".format, "percent": lambda i: "%d" % i, "round": round, "floor": math.floor, "sine": math.sin,  # noqa: UP031
    "negative": operator.neg, "absolute": abs, "invert": operator.invert, "index": lambda i: [0, 1, 2, 3, 4][i],
    "slice": lambda i: [0, 1, 2, 3, 4][:i], "range": lambda i: list(range(i)), "key": lambda i: {3: "three"}[i],
    "in": lambda i: i in [1, 2, 3], "sum": lambda i: sum([i, 1]), "repeat": lambda i: "ab" * i,
    "bit length": lambda i: i.bit_length(), "real": lambda i: i.real, "bytes": lambda i: i.to_bytes(2, "little"),
    "copy": copy.copy, "deepcopy": copy.deepcopy, "pickle": lambda i: pickle.loads(pickle.dumps(i)),
    "numpy": lambda i: np.float32(i).item(), "numpy array": lambda i: np.full(2, i).tolist(),
    "tensor": lambda i: (torch.ones(2) * i).tolist(), "left of a tensor": lambda i: (i * torch.ones(2)).tolist(),
    "size": lambda i: torch.zeros(i).tolist(), "sizes": lambda i: torch.zeros((i, 2)).shape,
    "tensor index": lambda i: torch.arange(5)[i].item(), "tensor slice": lambda i: torch.arange(5)[1:i].tolist(),
    "fill": lambda i: torch.full((2,), i).tolist(),
}  # fmt: skip


@pytest.mark.parametrize("name", WATCHED_USES)
def test_watched_behaves_like_the_integer_and_tells(name):
    stand_in, reads = watched(3)
    assert WATCHED_USES[name](stand_in) == WATCHED_USES[name](3)
    assert reads


def test_control_passing_a_watched_number_on_tells_nothing():
    stand_in, reads = watched(3)
    held = {"index": [stand_in]}
    assert isinstance(held["index"][0], int)
    assert held["index"][0] is stand_in
    assert reads == []
