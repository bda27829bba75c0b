"""Python's arithmetic and comparisons with numbers that change from step to step."""

from __future__ import annotations

import math
import numbers
import operator
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from lightning_sink.engine.numbers.beside_tensors import as_tensor
from lightning_sink.engine.numbers.of_numpy import is_of_numpy, is_usual, quietly, stays_finite
from lightning_sink.engine.numbers.released import ended, frozen
from lightning_sink.engine.numbers.result_types import (
    MOST_WHOLE,
    are_whole,
    as_with_python_number,
    exactly,
    is_large,
    is_real,
    is_wide,
    may_be_another_kind,
    most_of,
)
from lightning_sink.engine.numbers.value import Value, is_value, plain_value
from lightning_sink.engine.source import is_in_place

if TYPE_CHECKING:
    from lightning_sink.engine.numbers.plain_uses import PlainUses

_MOST_TERMS = 128
"""Terms of an expression. Its name is looked up for each, and a loop may double them with each round."""


def compare(number: Value, symbol: Callable[[Any, Any], Any], other: Any) -> Any:
    """Returns how a number compares with another value."""
    other = ended(other)
    if number.uses.closed:
        return symbol(number.value, other)
    if number.plain is not None and not _is_plain_operand(other):
        return symbol(number.freeze(), other)
    if isinstance(other, Tensor):
        return symbol(as_tensor(number, [other], compared=True), other)
    found, host = symbol(number.value, plain_value(other)), number.hosted(symbol, other, reflected=False)
    outcome = bool(found)
    later = None if host is None else lambda: bool(host())
    truth = (lambda: _truth(number, symbol, other)) if _can_be_compared(number, other) else None
    number.decides((number.key, symbol.__name__, _key(other)), outcome, later, truth)
    return found  # of numpy's numbers, its own kind of truth


def combine(number: Value, symbol: Callable[..., Any], other: Any, reflected: bool) -> Any:
    """Returns what is computed of a number and another value, which is on the left if `reflected`.

    It is asked for by the frame behind the one that calls this.
    """
    other = ended(other)
    other = int(other) if type(other) is bool else other  # tensors compute with truths otherwise
    if number.uses.closed:
        return symbol(other, number.value) if reflected else symbol(number.value, other)
    operands: tuple[Any, Any] = (other, number) if reflected else (number, other)
    if reflected and _grows(other) and is_in_place(sys._getframe(2)):  # `items *= number`
        return getattr(operator, f"i{symbol.__name__}")(other, number.freeze())
    uses = number.plain or (other.plain if is_value(other) else None)
    if uses is not None and not _is_plain_operand(other):
        return symbol(*map(frozen, operands))
    if isinstance(other, Tensor):
        whole = are_whole([other], [number.value])
        if (whole and symbol is operator.pow) or number.is_needed_plainly:
            return symbol(*map(frozen, operands))
        divides = symbol is operator.truediv
        out = symbol(*(as_tensor(operand, [other], divides=divides) for operand in operands))
        return as_with_python_number(out, [other], [number.value], divides)
    if uses is not None and not uses.gives(sys._getframe(2)):
        return symbol(*map(frozen, operands))
    size = number.terms + (other.terms if is_value(other) else 0)
    if size > _MOST_TERMS:
        return symbol(*map(frozen, operands))
    name = symbol.__name__, number.key, _key(other), reflected
    known = number.uses.memo.get(name)
    if known is None:
        known = _computed(number, symbol, operands, name, uses)
        if known is None:
            return symbol(*map(frozen, operands))
        known.terms = size
        number.uses.memo[name] = known
    return known


def _computed(
    number: Value, symbol: Callable[..., Any], operands: tuple[Any, Any], name: Any, uses: PlainUses | None
) -> Value | None:
    """Returns a stand-in for what is computed of a number; None where that takes the number itself."""
    reflected = operands[1] is number
    other = operands[not reflected]
    left, right = map(plain_value, operands)
    is_known = is_value(other) or is_real(other)
    if not is_known or is_large(left) or is_large(right):
        return None
    host = number.hosted(symbol, other, reflected)
    is_of_step = uses is not None and host is None
    fails_late = is_of_step and _may_fail_late(symbol, *operands)
    most = _most_of(symbol, operands) if is_of_step else None
    if is_of_step and (most is None or (fails_late and not _is_finite(symbol, left, right))):
        return None
    counts = number.is_counted or (is_value(other) and other.is_counted)
    # Numbers that no counter gives are an optimizer's, whose arithmetic is not the user's.
    may_fail = counts and may_be_another_kind(symbol, right, varies=is_value(operands[1]))
    # What a tensor gives is of one type, and whether a division by a counter is an error is the counter's.
    tried = number.hosted(symbol, other, reflected, present=True) if may_fail else host
    value = number.tried(name, lambda: symbol(left, right), tried, may_fail)
    if is_wide(value) or isinstance(value, complex):
        return None
    if is_of_numpy(value) and host is not None:
        if not is_usual(value):
            return None
        host = quietly(host)
        number.uses.decide((name, "is finite"), True, stays_finite(host))
    grows = symbol in (operator.mul, operator.pow) or (is_value(operands[0]) and is_value(operands[1]))
    if isinstance(value, int) and host is not None and grows:
        number.uses.decide((name, "is wide"), False, lambda: is_wide(host()))

    def tensor() -> Tensor:
        left, right = map(as_tensor, operands)
        return _by_exponents(symbol, left, right) if uses is None else symbol(left, right)

    # 0 has no sign.
    exact = symbol(*map(_whole, operands)) if is_of_step and isinstance(value, int) else None
    given = tensor if exact is None else lambda: exact.to(torch.float64)
    known = type(number)(given, value, number.uses, name, host, counts, whole=exact, plain=uses, most=most)
    return None if fails_late and not known.finds_out(lambda: torch.isfinite(known.tensor), True) else known


def _is_plain_operand(value: Any) -> bool:
    """Tells whether nobody's own code, and none of numpy's, sees what a value is computed with."""
    return type(value) in (int, float, bool, Tensor, nn.Parameter) or is_value(value)


def _can_be_compared(number: Value, other: Any) -> bool:
    """Tells whether tensors compare as Python's numbers do."""
    are_known = not (is_value(other) and other.is_inexact) and type(plain_value(other)) in (int, float, bool)
    return are_known and not is_large(number.value) and not is_large(plain_value(other))


def _truth(number: Value, symbol: Callable[[Any, Any], Any], other: Any) -> Tensor:
    found: Tensor = symbol(number.tensor, other.tensor if is_value(other) else float(other))
    return found


def _grows(value: Any) -> bool:
    """Tells whether arithmetic in place changes a value, and is not asked for by a method of its own first."""
    return hasattr(type(value), "__imul__") and not isinstance(value, Tensor)


def _key(value: Any) -> Any:
    if is_value(value):
        return value.key
    return type(value), exactly(value) if isinstance(value, (numbers.Number, str)) else id(value)


def _bound(value: Any) -> int | None:
    """Returns how large a whole number is at most in all steps; None where nobody knows that."""
    if is_value(value):
        return value.most if value.host is None else MOST_WHOLE >> 1  # larger ones are told by a guard
    return abs(value) if isinstance(value, int) else None


def _whole(value: Any) -> Any:
    """Returns a whole number as the recording sees it, in a type that has all of them."""
    if not is_value(value):
        return value
    return value.tensor.to(torch.int64) if value.whole is None else value.whole.to(torch.int64)


def _most_of(symbol: Callable[..., Any], operands: tuple[Any, Any]) -> int | None:
    """Returns how large at most what only the program knows is, if it is whole; None if Python is to compute it."""
    if not all(isinstance(item, int) for item in operands):
        return None if symbol in (operator.floordiv, operator.mod) else 0  # which Inductor computes by a quotient
    if symbol is not operator.truediv and _may_fail_late(symbol, *operands):  # a quotient is no whole number
        return None
    most = most_of(symbol, *map(_bound, operands))
    return None if most is None or most > MOST_WHOLE else most


def _may_fail_late(symbol: Callable[..., Any], left: Any, right: Any) -> bool:
    """Tells whether arithmetic may be an error, or give a number of another type, by what only the program knows."""
    is_of_step = is_value(right) and right.host is None
    return symbol is operator.pow or may_be_another_kind(symbol, right, varies=is_of_step)


def _is_finite(symbol: Callable[..., Any], left: Any, right: Any) -> bool:
    """Tells whether Python computes a finite float: where torch does, too, that is the same."""
    try:
        value = symbol(left, right)
    except ArithmeticError:
        return False
    return isinstance(value, float) and math.isfinite(value)


def _by_exponents(symbol: Callable[[Any, Any], Any], left: Any, right: Any) -> Tensor:
    """Computes with what an optimizer or a counter gives; nothing is decided by the last digit of that."""
    if symbol is operator.pow and isinstance(left, float) and left > 0.0:
        # The same to the last digits, and Inductor keeps an `exp` that is used twice in a place of its own; a `pow` it
        # would compute anew for every 16 elements of every parameter (a third of an MLP's step with Adam).
        return torch.exp(right * math.log(left))
    result: Tensor = symbol(left, right)
    return result
