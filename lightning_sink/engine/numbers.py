"""Python numbers that are inputs of a program: a learning rate, the step count that Adam keeps.

A recording keeps every Python number that reaches an operation as a constant. `Number` takes the place of one that must
not be: arithmetic on it is recorded as operations on a 0-dim float64 tensor, so the program computes what eager
computes in Python. Where it would have to become a real number again (a branch, `math.sqrt`, an index) it says so.
"""

from __future__ import annotations

import math
import numbers
import operator
from collections.abc import Callable
from functools import reduce
from typing import Any

import torch
from torch import Tensor

Leak = Callable[[str], None]
"""Called with a description when a stand-in has to give its value away."""

Memo = dict[Any, tuple["Number", Any, Any]]


class Number:
    """A Python number that is an input of the program.

    Args:
        tensor: The value as the recording sees it, 0-dim float64.
        value: The same value in Python.
        leak: Told of every use that freezes the value into the recording.
        guard: For numbers whose value is known on the host: told of comparisons as `(operator, other, outcome)`, which
            are then no leak.
        memo: Results of arithmetic so far, shared by all numbers of a recording. An optimizer computes the same bias
            correction for each parameter; the program computes it once.
    """

    def __init__(
        self,
        tensor: Tensor,
        value: float,
        leak: Leak,
        guard: Callable[[Callable[[Any, Any], bool], Any, bool], None] | None = None,
        memo: Memo | None = None,
    ) -> None:
        self.tensor = tensor
        self.value = value
        self._leak = leak
        self._guard = guard
        self._memo = {} if memo is None else memo

    def _compare(self, symbol: Callable[[Any, Any], bool], other: Any) -> bool:
        value = other.value if isinstance(other, Number) else other
        outcome = bool(symbol(self.value, value))
        if self._guard is not None and not isinstance(other, Number):
            self._guard(symbol, value, outcome)
        else:
            self._leak("a comparison of a number that changes with the step")
        return outcome

    def _freeze(self, use: str) -> float:
        self._leak(f"`{use}` of a number that changes with the step")
        return self.value

    def __float__(self) -> float:
        return float(self._freeze("float()"))

    def __int__(self) -> int:
        return int(self._freeze("int()"))

    def __index__(self) -> int:
        return int(self._freeze("index"))

    def __bool__(self) -> bool:
        return self._compare(operator.ne, 0)

    def __hash__(self) -> int:
        return hash(self._freeze("hash()"))

    def __repr__(self) -> str:
        return repr(self._freeze("repr()"))

    def __format__(self, spec: str) -> str:
        return format(self._freeze("format()"), spec)

    def __neg__(self) -> Number:
        return self._combine("neg", lambda: torch.neg(self.tensor), -self.value)

    def __pos__(self) -> Number:
        return self

    def _combine(self, name: str, compute: Callable[[], Tensor], value: float, *others: Any) -> Number:
        key = (
            name,
            id(self),
            *((id(other) if isinstance(other, Number) else (type(other), other)) for other in others),
        )
        known = self._memo.get(key)
        if known is None:
            # The operands are kept so that their identity stays theirs.
            known = self._memo[key] = (Number(compute(), value, self._leak, memo=self._memo), self, others)
        return known[0]

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Lets a tensor operation take the number as the tensor it stands for.

        The few operations of optimizers that take a scalar only (`alpha=`, `value=`, the weight of `lerp`) are
        rewritten; anything else that refuses a tensor raises here, and the step is not compiled.
        """
        kwargs = dict(kwargs or {})
        name = getattr(func, "__name__", "")
        if isinstance(kwargs.get("alpha"), Number):
            wide = args[1].to(torch.promote_types(args[0].dtype, args[1].dtype))
            scaled = wide * kwargs.pop("alpha").tensor
            return func(args[0], scaled, **kwargs)
        if isinstance(kwargs.get("value"), Number) and name in ("addcdiv", "addcdiv_", "addcmul", "addcmul_"):
            scaled = args[1] * kwargs.pop("value").tensor
            return func(args[0], scaled, args[2], **kwargs)
        if name in ("lerp", "lerp_") and isinstance(args[2], Number):
            return func(args[0], args[1], args[2].tensor.to(args[0].dtype), **kwargs)
        given = [item for item in (*args, *kwargs.values()) if isinstance(item, Tensor)]
        out = func(*(_plain(arg) for arg in args), **{key: _plain(arg) for key, arg in kwargs.items()})
        return _as_with_python_number(out, *given) if given and isinstance(out, Tensor) else out


def _as_with_python_number(out: Tensor, *operands: Tensor) -> Tensor:
    """Undoes what a 0-dim float64 tensor, and no Python number, does to the type of a result."""
    if out.dtype not in (torch.float64, torch.complex128):
        return out
    types = [torch.result_type(operand, 1.0) for operand in operands]
    return out.to(reduce(torch.promote_types, types))


def _plain(value: Any) -> Any:
    return value.tensor if isinstance(value, Number) else value


def _value(value: Any) -> Any:
    return value.value if isinstance(value, Number) else value


def _tensor(symbol: Callable[[Any, Any], Any], left: Any, right: Any) -> Tensor:
    if symbol is operator.pow and isinstance(left, float) and left > 0.0:
        # The same to the last digits, and Inductor keeps an `exp` that is used twice in a place of its own; a `pow` it
        # would compute anew for every 16 elements of every parameter (a third of an MLP's step with Adam).
        return torch.exp(right * math.log(left))
    result: Tensor = symbol(left, right)
    return result


def _arithmetic(symbol: Callable[[Any, Any], Any]) -> tuple[Callable[..., Any], Callable[..., Any]]:
    def forward(self: Number, other: Any) -> Any:
        if isinstance(other, Tensor):
            return _as_with_python_number(symbol(self.tensor, other), other)
        value = symbol(self.value, _value(other))
        return self._combine(symbol.__name__, lambda: _tensor(symbol, self.tensor, _plain(other)), value, other)

    def reflected(self: Number, other: Any) -> Any:
        if isinstance(other, Tensor):
            return _as_with_python_number(symbol(other, self.tensor), other)
        value = symbol(_value(other), self.value)
        return self._combine(
            f"reflected {symbol.__name__}", lambda: _tensor(symbol, _plain(other), self.tensor), value, other
        )

    return forward, reflected


def _comparison(symbol: Callable[[Any, Any], bool]) -> Callable[[Number, Any], bool]:
    return lambda self, other: self._compare(symbol, other)


for _name in ("add", "sub", "mul", "truediv", "pow"):
    _forward, _reflected = _arithmetic(getattr(operator, _name))
    setattr(Number, f"__{_name}__", _forward)
    setattr(Number, f"__r{_name}__", _reflected)
for _name in ("eq", "ne", "lt", "le", "gt", "ge"):
    setattr(Number, f"__{_name}__", _comparison(getattr(operator, _name)))

# `LightningModule.log` and others accept what is a `numbers.Number`.
numbers.Number.register(Number)
