"""The type of a result where a 0-dim float64 tensor takes the place of a Python number.

A Python number gives way to the tensors beside it (`torch.result_type`): a float32 tensor times a learning rate is
float32, whole numbers times `batch_idx` are whole. A float64 tensor does not always. The type of what Python itself
computes may go by the numbers.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from functools import reduce
from typing import Any

import torch
from torch import Tensor

# These look into a tensor that stands for a number, which only shows as a value taken out of the step.
_TAKE_NUMBERS = frozenset(["new_full", "full_like", "__getitem__", "__setitem__"])

# What becomes of whole numbers alone is known of these; any other function gets the number itself.
DIVIDE = frozenset(["div", "true_divide", "divide", "__truediv__", "__rtruediv__", "__rdiv__"])
_OPERATORS = [f"__{side}{name}__" for side in ("", "r") for name in ("add", "sub", "mul", "floordiv", "mod")]
COMPARE = frozenset([name for plain in ("eq", "ne", "lt", "le", "gt", "ge") for name in (plain, f"__{plain}__")])
_OF_WHOLE_NUMBERS = DIVIDE | COMPARE | {"add", "sub", "mul", "multiply", "floor_divide", "remainder", "fmod"}
_OF_WHOLE_NUMBERS |= {*_OPERATORS, "where", "clamp", "minimum", "maximum"}

REMAINDERS = frozenset(["floor_divide", "remainder", "fmod", "__floordiv__", "__mod__"])
"""Of whole numbers these are errors where the divisor is 0."""

_NARROW = (torch.float16, torch.bfloat16)

MOST_WHOLE = 1 << 53
"""The largest whole number up to which float64 has all of them."""


def result_type_is_known(name: str, tensors: list[Tensor], values: list[Any]) -> bool:
    """Tells whether a function may take tensors for its numbers, and its result be given the type that it has to have.

    Beside these numbers it takes these tensors.
    """
    if not tensors or name in _TAKE_NUMBERS:
        return False
    return not are_whole(tensors, values) or name in _OF_WHOLE_NUMBERS


def are_whole(tensors: list[Tensor], values: list[Any]) -> bool:
    """Tells whether tensors and numbers are whole ones, of which float64 has not all."""
    of_tensors = not any(item.is_floating_point() or item.is_complex() for item in tensors)
    return of_tensors and all(isinstance(value, int) for value in values)


def _common_type(tensors: list[Tensor], values: list[Any]) -> torch.dtype:
    """Returns the type in which torch computes with tensors and Python's numbers."""
    tensors = [item for item in tensors if item.dtype is not torch.bool] or tensors  # what `where` chooses by
    return reduce(torch.promote_types, [torch.result_type(item, value) for item in tensors for value in values])


def as_wrapped(number: Tensor, value: Any, beside: list[Tensor], divides: bool = False) -> Tensor:
    """Returns a number, 0-dim float64, in the type in which torch computes with a Python number beside some tensors.

    That is theirs, in which a whole number may be another one. Kernels for tensors of floats with dimensions take a
    Python number as it is, and so do those for narrow ones. `divides`: whole numbers give a fraction.
    """
    dtype = torch.get_default_dtype() if divides and are_whole(beside, [value]) else _common_type(beside, [value])
    if dtype in _NARROW or all(item.dim() and (item.is_floating_point() or item.is_complex()) for item in beside):
        return number
    return number.to(dtype) if dtype.is_floating_point or dtype.is_complex else number.to(torch.int64).to(dtype)


def is_zero_beside(value: Any, beside: list[Tensor]) -> bool:
    """Tells whether a whole number is 0 in the type in which torch computes with it."""
    return bool(value % (1 << torch.iinfo(_common_type(beside, [value])).bits) == 0)


def as_with_python_number(out: Tensor, operands: list[Tensor], values: list[Any], divides: bool = False) -> Tensor:
    """Undoes what a 0-dim float64 tensor, and no Python number, does to the type of a result.

    These tensors and numbers went into it. `divides`: of whole numbers it gives no whole one.
    """
    if out.dtype not in (torch.float64, torch.complex128):
        return out
    dtype = _common_type(operands, values)
    whole = not (dtype.is_floating_point or dtype.is_complex)
    return out.to(torch.get_default_dtype() if divides and whole else dtype)


def may_be_another_kind(symbol: Callable[..., Any], right: Any, varies: bool) -> bool:
    """Tells whether Python's arithmetic is an error for other numbers, or gives a number of another type.

    A quotient by zero is an error; a power may be too large, and is whole, a fraction or complex as the numbers go.
    `varies`: the right operand may be another number.
    """
    if symbol is operator.pow:
        return varies or not (isinstance(right, int) and right >= 0)
    return varies and symbol in (operator.truediv, operator.floordiv, operator.mod)


def most_of(symbol: Callable[..., Any], left: int | None, right: int | None) -> int | None:
    """Returns how large whole numbers are at most in what is computed of two; None where that is not known."""
    if left is None or right is None:
        return None
    if symbol in (operator.add, operator.sub):
        return left + right
    if symbol is operator.mul:
        return left * right
    return max(left, right) if symbol is operator.truediv else None


def kind_of(host: Callable[[], Any]) -> type:
    """Returns the type of what a computation with numbers gives, or of its error."""
    try:
        return type(host())
    except (ArithmeticError, LookupError, ValueError) as error:
        return type(error)


def is_real(value: Any) -> bool:
    """Tells whether a value is a number of a kind that float64 stands for: no fraction, none of numpy's narrow ones."""
    if isinstance(value, (int, float)):
        return True
    # An array of numpy's, of one element too, may be written to.
    return hasattr(value, "dtype") and not hasattr(value, "__setitem__") and str(value.dtype) == "int64"


def is_large(value: Any) -> bool:
    """Tells whether a value is a whole number that float64 may not have."""
    return isinstance(value, int) and abs(value) > MOST_WHOLE


def is_wide(value: Any) -> bool:
    """Tells whether sums of a whole number may be large, which no guard asks about."""
    return isinstance(value, int) and abs(value) > MOST_WHOLE >> 1


def exactly(value: Any) -> Any:
    """Returns what is equal for the same number only: 0.0 and -0.0 are two."""
    return (value, math.copysign(1.0, value)) if isinstance(value, float) else value
