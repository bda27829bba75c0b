"""Stand-ins for numbers: they behave like the number, and every use that a recording would freeze is told."""

import copy
import math
import numbers
import operator
import pickle
from array import array
from collections import deque
from datetime import timedelta
from decimal import Decimal
from fractions import Fraction
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lightning_sink.engine.numbers.beside_tensors import tensor_of
from lightning_sink.engine.numbers.guards import Uses
from lightning_sink.engine.numbers.number import Number
from lightning_sink.engine.numbers.released import released
from lightning_sink.engine.state.referrers import put_in_place_of


def number(value, leaks=None, uses=None, host=None, name="`n`"):
    uses = uses or Uses(([] if leaks is None else leaks).append, lambda what: None)
    return Number(torch.tensor(float(value), dtype=torch.float64), value, uses, name, host)


def hosted(value):
    """A number whose value in later steps is the list's last item, and what was told of it."""
    values, frozen = [value], []
    uses = Uses(frozen.append, frozen.append)
    return number(value, uses=uses, host=lambda: values[-1]), uses, values, frozen


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


@pytest.mark.parametrize("symbol", [*ARITHMETIC, operator.floordiv, operator.mod, operator.gt])
@pytest.mark.parametrize("shape", [(), (3,)])
@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8, torch.bool])
def test_whole_tensors_meet_it_as_they_meet_a_whole_number(symbol, shape, dtype):
    if dtype is torch.bool and symbol is operator.sub:
        pytest.skip("torch has none")
    tensor = torch.full(shape, 100).to(dtype)
    pairs = [(symbol(tensor, hosted(7)[0]), symbol(tensor, 7))]
    pairs += [(symbol(hosted(7)[0], tensor), symbol(7, tensor))] if dtype is not torch.bool else []
    for found, expected in pairs:
        assert found.dtype == expected.dtype
        assert torch.equal(found, expected)


@pytest.mark.narrow(11)
@pytest.mark.parametrize("symbol", [*ARITHMETIC, operator.floordiv, operator.mod])
@pytest.mark.parametrize("value", [300, 256 * 3 + 7, -5, 0.1, 1 / 3, 1e8])
@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int32, torch.int64, torch.float32])
@pytest.mark.parametrize("shape", [(), (3,)])
def test_it_is_taken_in_the_type_in_which_torch_takes_it(symbol, value, dtype, shape):
    tensor = torch.full(shape, 200).to(dtype) + torch.arange(3)[: len(shape) or None].sum().to(dtype)
    for left, right in ((tensor, value), (value, tensor)):
        expected = symbol(left, right)
        found = symbol(*(hosted(item)[0] if item is value else item for item in (left, right)))
        # A number divided by a tensor is the number times the tensor's inverse.
        torch.testing.assert_close(found, expected, rtol=3e-7 if symbol is operator.truediv else 0, atol=0)


def test_a_divisor_that_is_zero_in_the_tensors_type():
    stand_in, uses, values, _ = hosted(255)
    assert int(torch.tensor(200, dtype=torch.uint8) // stand_in) == 0
    (guard,) = uses.guards.values()
    values.append(256)
    assert not guard.holds()


@pytest.mark.parametrize(
    "items", [[1, 2], deque([1, 2]), bytearray(b"ab"), array("d", [1.0])], ids=lambda x: type(x).__name__
)
def test_what_is_made_longer_stays_itself(items):
    same, copied = items, copy.copy(items)
    items *= number(3)
    assert items is same
    assert [*items] == [*copied] * 3
    assert copied * number(2) is not copied
    assert len(copied) * 3 == len(items)


def test_factors_of_whole_tensors():
    large = torch.tensor([2**60 + 1])
    assert torch.equal(torch.sub(large, large, alpha=hosted(3)[0]), torch.sub(large, large, alpha=3))
    with pytest.raises(RuntimeError, match="overflow"):
        torch.sub(torch.ones(2, dtype=torch.uint8), torch.ones(2, dtype=torch.uint8), alpha=hosted(300)[0])


def test_whole_numbers_that_no_float_has():
    large = torch.tensor([2**60 + 1, -(2**62) - 1])
    for symbol in (operator.add, operator.mul, operator.floordiv, operator.mod):
        assert torch.equal(symbol(large, hosted(3)[0]), symbol(large, 3))


DIVISIONS = {
    "%": operator.mod, "//": operator.floordiv, "fmod": torch.fmod, "remainder": torch.remainder,
    "floor": partial(torch.div, rounding_mode="floor"), "by name": lambda x, n: x.remainder(other=n),
}  # fmt: skip


@pytest.mark.parametrize("name", DIVISIONS)
def test_whole_tensors_are_not_divided_by_zero(name):
    tensor, divide = torch.arange(5), DIVISIONS[name]
    stand_in, uses, values, frozen = hosted(2)
    assert torch.equal(divide(tensor, stand_in), divide(tensor, 2))
    assert frozen == []
    (guard,) = uses.guards.values()
    assert guard.holds()
    values.append(0)
    assert not guard.holds()
    with pytest.raises(RuntimeError, match="ZeroDivisionError"):
        divide(tensor, hosted(0)[0])
    assert divide(torch.ones(2), hosted(0)[0]).isnan().any() or name in ("//", "floor")


@pytest.mark.parametrize("call", [lambda x, n: x.sub(0.5, alpha=n), lambda x, n: x.add_(other=x, alpha=n)])
def test_a_factor_of_what_is_no_second_tensor(call):
    assert torch.equal(call(torch.ones(2), hosted(0.5)[0]), call(torch.ones(2), 0.5))


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
@given(first=st.integers(-3, 3), later=st.integers(-3, 3), modulus=st.integers(1, 3))
def test_a_branch_stands_for_the_steps_that_take_it(symbol, first, later, modulus):
    def decide(n):
        return symbol(n * 2 % modulus, 1), 0 if n else 1, min(n - 1, 0)

    stand_in, uses, values, _ = hosted(first)
    assert decide(stand_in) == decide(first)
    values.append(later)
    holds = all(guard.holds() for guard in uses.guards.values())
    if holds:
        assert decide(later)[:2] == decide(first)[:2]
    if later == first:
        assert holds


def test_two_numbers_are_compared_as_they_will_be():
    uses, values = Uses(lambda what: None, lambda what: None), {"a": 1, "b": 2}
    a, b = (number(values[name], uses=uses, host=partial(values.get, name), name=name) for name in "ab")
    assert a < b
    (guard,) = uses.guards.values()
    assert guard.holds()
    values["a"] = 3
    assert not guard.holds()


def test_a_step_without_a_value_of_the_expression_is_none_of_the_guarded_ones():
    stand_in, uses, values, _ = hosted(2)
    assert 1 / stand_in < 1
    values.append(0)
    assert not any(guard.holds() for guard in uses.guards.values())


def test_the_plain_number_stands_for_steps_with_the_same():
    stand_in, uses, values, frozen = hosted(4)
    assert [0, 1, 2, 3, 4][stand_in] == 4
    assert [what.partition(",")[0] for what in frozen] == ["`n` is needed as a plain number"]
    (guard,) = uses.guards.values()
    assert guard.holds()
    values.append(5)
    assert not guard.holds()


@pytest.mark.parametrize("symbol", ARITHMETIC)
@pytest.mark.parametrize("kind", [np.float64, np.int64])
def test_arithmetic_with_other_kinds_of_numbers(symbol, kind):
    leaks = []
    for result, expected in [
        (symbol(number(2.0, leaks), kind(4)), symbol(2.0, kind(4))),
        (symbol(kind(4), number(2.0, leaks)), symbol(kind(4), 2.0)),
    ]:
        assert type(result) is Number
        assert result.value == expected
        assert float(result.tensor) == expected
    assert leaks == []


NO_NUMBERS = {
    "array": lambda n: np.arange(3.0) * n,
    "array on the right": lambda n: n - np.arange(3.0),
    "array of it": lambda n: np.array([n, 2.0]),
    "array as it is": lambda n: np.asarray(n),
    "function of numpy": lambda n: np.sin(n),
    "sum of numpy": lambda n: np.add.reduce([n, n]),
    "array of one": lambda n: np.add(n, 1),
    "narrow": lambda n: np.float32(0.1) * n,
    "narrow on the right": lambda n: n + np.uint8(250),
    "large": lambda n: n + (1 << 60),
    "large on the left": lambda n: (1 << 60) * n,
    "time": lambda n: n * timedelta(seconds=1),
    "time on the left": lambda n: timedelta(seconds=1) / n,
    "decimal": lambda n: Decimal(2) * n,
    "fraction": lambda n: Fraction(1, 3) * n,
    "complex": lambda n: 1j + n,
    "text": lambda n: "ab" * n,
}


@pytest.mark.parametrize("use", NO_NUMBERS.values(), ids=NO_NUMBERS)
def test_what_else_is_computed_with_it_gets_the_number_and_is_told(use):
    leaks = []
    found, expected = use(number(3, leaks)), use(3)
    assert type(found) is type(expected)
    assert np.asarray(found).dtype == np.asarray(expected).dtype
    assert np.all(found == expected)
    assert leaks


def test_arithmetic_that_no_tensor_meets_is_not_recorded():
    def refuse():
        raise AssertionError("recorded")

    uses = Uses(lambda what: None, lambda what: None)
    stand_in = Number(refuse, 5, uses, "`n`", lambda: 5)
    assert (stand_in * 3 + 1) % 4 == 0


def test_numbers_are_put_back_wherever_they_were_kept():
    stand_in, _, _, frozen = hosted(3)
    kept = {"index": stand_in, "list": [stand_in, 1], "pair": (stand_in, "a"), "other": "b"}
    assert released(kept) is kept
    assert kept == {"index": 3, "list": [3, 1], "pair": (3, "a"), "other": "b"}
    assert all(type(item) is int for item in (kept["index"], kept["list"][0], kept["pair"][0]))
    assert frozen
    untouched = (1, [2])
    assert released(untouched) is untouched


@pytest.mark.parametrize("dtype", [None, torch.float32, torch.int64])
@pytest.mark.parametrize("value", [3, 0.5])
def test_a_tensor_made_of_one_has_the_type_of_one_made_of_the_number(value, dtype):
    made = tensor_of(number(value), dtype)
    assert torch.equal(made, torch.tensor(value, dtype=dtype))
    assert made.dtype == torch.tensor(value, dtype=dtype).dtype


def test_a_number_counts_as_one():
    assert isinstance(number(1.0), numbers.Number)
    assert isinstance(number(1.0), float)
    assert isinstance(number(1), int)
    assert (-number(2.0)).value == -2.0
    assert (+number(2.0)).value == 2.0


BINARY = [*ARITHMETIC, operator.floordiv, operator.mod, operator.lshift, operator.and_, operator.or_, operator.xor]


@pytest.mark.parametrize("symbol", [*BINARY, operator.pow, divmod, operator.lt, operator.eq, math.gcd, max])
@given(left=st.integers(1, 9), right=st.integers(1, 9))
def test_arithmetic_is_that_of_the_integer(symbol, left, right):
    stand_in = number(left)
    assert symbol(stand_in, right) == symbol(left, right)
    assert symbol(right, stand_in) == symbol(right, left)
    assert symbol(stand_in, number(right, name="`m`")) == symbol(left, right)


MEETS = {
    "tensor": lambda i: (torch.ones(2) * i).tolist(), "left of a tensor": lambda i: (i * torch.ones(2)).tolist(),
    "compared with a tensor": lambda i: (i < torch.arange(5)).tolist(),
    "made": lambda i: (torch.arange(5) * i).tolist(),
    "where": lambda i: torch.where(torch.tensor([True, False]), i, 0).tolist(),
}  # fmt: skip
READS = {
    "int": int, "float": float, "bool": bool, "complex": complex, "repr": repr, "str": str, "hash": hash,
    "format": "{:03d}".format, "percent": lambda i: "%d" % i, "round": round, "floor": math.floor, "sine": math.sin,  # noqa: UP031
    "absolute": abs, "invert": operator.invert, "index": lambda i: [0, 1, 2, 3, 4][i],
    "slice": lambda i: [0, 1, 2, 3, 4][:i], "range": lambda i: list(range(i)), "key": lambda i: {3: "three"}[i],
    "in": lambda i: i in [1, 2, 3], "repeat": lambda i: "ab" * i, "truncate": math.trunc, "ceiling": math.ceil,
    "bit length": lambda i: i.bit_length(), "real": lambda i: i.real, "bytes": lambda i: i.to_bytes(2, "little"),
    "copy": copy.copy, "deepcopy": copy.deepcopy, "pickle": lambda i: pickle.loads(pickle.dumps(i)),
    "numpy": lambda i: np.float32(i).item(), "numpy array": lambda i: np.full(2, i).tolist(),
    "size": lambda i: torch.zeros(i).tolist(), "sizes": lambda i: torch.zeros((i, 2)).shape,
    "tensor index": lambda i: torch.arange(5)[i].item(), "tensor slice": lambda i: torch.arange(5)[1:i].tolist(),
    "fill": lambda i: torch.full((2,), i).tolist(),
    "new full": lambda i: torch.ones(1).new_full((2,), i).tolist(),
}  # fmt: skip


@pytest.mark.parametrize("name", READS)
def test_what_needs_the_integer_gets_it_and_is_told(name):
    leaks = []
    assert READS[name](number(3, leaks)) == READS[name](3)
    assert leaks


@pytest.mark.parametrize("name", MEETS)
def test_what_meets_a_tensor_is_not_told(name):
    leaks = []
    assert MEETS[name](number(3, leaks)) == MEETS[name](3)
    assert leaks == []


def test_control_passing_a_number_on_tells_nothing():
    leaks = []
    stand_in = number(3, leaks)
    held = {"index": [stand_in]}
    assert isinstance(held["index"][0], int)
    assert held["index"][0] is stand_in
    assert leaks == []


class Held:
    """What a step may keep a number in."""

    def __init__(self, kept):
        self.attribute, self.list, self.deque, self.mapping = kept, [kept], deque([kept]), {"key": kept}
        self.pair, self.set, self.nested = (1, kept), {kept}, [("a", (kept, "b"))]
        self.closure = lambda: kept


def test_a_number_that_is_kept_is_a_plain_one_when_the_step_has_ended():
    leaks = []
    uses = Uses(leaks.append, lambda what: None)
    stand_in = Number(torch.tensor(3.0, dtype=torch.float64), 3, uses, "`n`")
    held = Held(stand_in)
    uses.closed = True
    put_in_place_of(stand_in, 3)
    inner = (held.attribute, held.list[0], held.deque[0], held.mapping["key"], held.pair[1], held.nested[0][1][0])
    assert [type(value) for value in (*inner, *held.set, held.closure())] == [int] * 8


def test_a_number_of_an_earlier_step_is_a_plain_one_beside_one_of_this_step():
    ended, uses = Uses(print, lambda what: None), Uses(lambda what: None, lambda what: None)
    old = Number(torch.tensor(2.0, dtype=torch.float64), 2, ended, "`n`", lambda: 2)
    ended.closed = True
    new = Number(torch.tensor(5.0, dtype=torch.float64), 5, uses, "`n`", lambda: 5)
    for result, value in [(new - old, 3), (old - new, -3), (old / new, 0.4), (new * new, 25), (new * old, 10)]:
        assert type(result) is Number
        assert result.value == value
        assert float(result.tensor) == pytest.approx(value)
    assert old < new
    assert not old > new
    assert len(uses.guards) == 4  # that no product grows too large, too


OF_WHOLE = {
    "divided": lambda t, n: t / n,
    "divides": lambda t, n: n / t,
    "div": lambda t, n: torch.div(t, n),
    "div, floor": lambda t, n: torch.div(t, n, rounding_mode="floor"),
    "floor": lambda t, n: t // n,
    "modulo": lambda t, n: t % n,
    "power": lambda t, n: t**n,
    "float_power": lambda t, n: torch.float_power(t, n),
    "shift": lambda t, n: torch.bitwise_left_shift(t, n),
    "alpha": lambda t, n: torch.add(t, t, alpha=n),
    "alpha, in place": lambda t, n: t.clone().sub_(t, alpha=n),
    "where": lambda t, n: torch.where(t > 2, n, t),
}


@pytest.mark.parametrize("tensor", [torch.tensor([1, 2, 7]), torch.tensor(5), torch.tensor([3], dtype=torch.int8)])
@pytest.mark.parametrize("name", OF_WHOLE)
def test_whole_numbers_among_themselves(name, tensor):
    expected, found = OF_WHOLE[name](tensor, 3), OF_WHOLE[name](tensor, number(3, []))
    assert found.dtype == expected.dtype
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("scale", [torch.tensor(0.1), torch.tensor([0.1])])
def test_a_comparison_is_made_in_the_tensors_type(scale):
    stand_in = Number(torch.tensor(0.1, dtype=torch.float64), 0.1, Uses(print, lambda what: None), "`rate`")
    assert torch.equal(scale <= stand_in, scale <= 0.1)
    assert torch.equal(stand_in < scale, scale > 0.1)
    assert torch.add(scale, scale, alpha=stand_in).dtype == torch.float32


@pytest.mark.parametrize("name", ["_foreach_addcdiv_", "_foreach_addcmul_"])
def test_the_number_of_an_operation_on_lists_may_stand_in_its_place(name):
    def lists():
        return [torch.ones(2), torch.full((3,), 2.0)], [torch.ones(2), torch.ones(3)], [torch.ones(2), torch.ones(3)]

    number = Number(torch.tensor(0.5, dtype=torch.float64), 0.5, Uses(lambda what: None, lambda what: None), "a rate")
    found, expected = lists(), lists()
    getattr(torch, name)(*found, number)
    getattr(torch, name)(*expected, 0.5)
    assert all(map(torch.equal, found[0], expected[0]))


def test_zeros_have_their_sign():
    one = number(2.0)
    positive, negative = one * 0.0, one * -0.0
    assert math.copysign(1.0, positive.tensor.item()) == 1.0 == math.copysign(1.0, positive.value)
    assert math.copysign(1.0, negative.tensor.item()) == -1.0 == math.copysign(1.0, negative.value)
