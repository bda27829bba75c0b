"""What takes the place of a Python number that changes from step to step (`value.py`), to Python and to torch."""

from __future__ import annotations

import math
import numbers
import operator
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from lightning_sink.engine.numbers import bound_names
from lightning_sink.engine.numbers.beside_tensors import call
from lightning_sink.engine.numbers.combined import combine, compare
from lightning_sink.engine.numbers.known_functions import DOMAINS, FUNCTIONS, TRUTHS
from lightning_sink.engine.numbers.of_numpy import is_usual, quietly, stays_finite
from lightning_sink.engine.numbers.released import released
from lightning_sink.engine.numbers.result_types import is_real
from lightning_sink.engine.numbers.value import Value

_UFUNCS = {"add": operator.add, "subtract": operator.sub, "multiply": operator.mul, "divide": operator.truediv}
"""Numpy's own numbers ask these functions, and not the other one, for what is computed of both."""


class Number(Value):
    """Stands for a number: to Python's `isinstance` it is what it stands for. Arguments as `Value`."""

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        return type(self.value)

    def plus(self, other: int) -> Number:
        """Returns the sum, for a counter that is ahead of what it was."""
        total: Number = combine(self, operator.add, other, reflected=False)
        total.whole = total.tensor
        return total

    def __neg__(self) -> Any:
        return combine(self, operator.mul, -1, reflected=False)

    def __pos__(self) -> Number:
        return self

    def __float__(self) -> float:
        bound_names.asked(sys._getframe(1))
        return float(self.freeze())

    def __int__(self) -> int:
        bound_names.asked(sys._getframe(1))
        return int(self.freeze())

    def converted(self, kind: type) -> Any:
        """Returns it as a `float` or an `int`: as it is if it is one, a stand-in again if all may have such a float."""
        if type(self.value) is kind and not self.uses.closed:
            return self
        may_be_float = kind is float and self.plain is None
        computed = self.computed("float", float, _same, None) if may_be_float else None
        return kind(self.freeze()) if computed is None else computed

    def __abs__(self) -> Any:
        is_whole = isinstance(self.value, int) and self.host is None
        computed = None if is_whole else self.computed("abs", abs, torch.abs, None)
        return abs(self.freeze()) if computed is None else computed

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        return type(self.value), (self.freeze(),)

    def __array__(self, *arguments: Any, **options: Any) -> Any:
        return sys.modules["numpy"].asarray(self.freeze(), *arguments, **options)

    def __array_ufunc__(self, function: Any, method: str, *given: Any, **options: Any) -> Any:
        name = function.__name__
        if name in TRUTHS and method == "__call__" and not options:
            return sys.modules["numpy"].bool_(self.decided(name, getattr(math, name), TRUTHS[name]))
        if name in DOMAINS and method == "__call__" and not options:
            computed = self._computed_by_numpy(function)
            if computed is not None:
                return computed
        symbol = _UFUNCS.get(name)
        others = [value for value in given if type(value) is not Number]
        by_itself = len(others) == 1 and getattr(others[0], "shape", None) == () and is_real(others[0])
        if symbol is not None and method == "__call__" and not options and by_itself:
            reflected = given[0] is not self  # but a number of numpy's
            return combine(self, symbol, given[1 - reflected], reflected)
        return getattr(function, method)(*released(given), **released(options))

    def _computed_by_numpy(self, function: Any) -> Any:
        """Returns what one of numpy's functions gives; None where it has to be asked for the number itself."""
        if self.plain is not None or self.host is None or not is_real(self.value) or not is_usual(self.value, function):
            return None
        name, quiet = f"numpy.{function.__name__}", quietly(function)
        computed = self.computed(name, quiet, FUNCTIONS[function.__name__], None)
        if computed is not None and (host := computed.host) is not None:
            self.uses.decide((computed.key, "is finite"), True, stays_finite(host))
        return computed

    def __getattr__(self, name: str) -> Any:
        if not hasattr(self.value, name):
            raise AttributeError(f"{type(self.value).__name__!r} object has no attribute {name!r}")
        return getattr(self.freeze(), name)

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Lets a tensor operation take the number as the tensor it stands for."""
        return call(func, args, kwargs or {})


def _same(tensor: Tensor) -> Tensor:
    return tensor


def _define(name: str, method: Callable[..., Any]) -> None:
    setattr(Number, f"__{name}__", method)


def _arithmetic(symbol: Callable[[Any, Any], Any], reflected: bool) -> Callable[[Number, Any], Any]:
    return lambda self, other: combine(self, symbol, other, reflected)


def _comparison(symbol: Callable[[Any, Any], Any]) -> Callable[[Number, Any], Any]:
    return lambda self, other: compare(self, symbol, other)


def _freezing(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda self, *rest: function(self.freeze(), *released(rest))


for _name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow"):
    _define(_name, _arithmetic(getattr(operator, _name), reflected=False))
    _define(f"r{_name}", _arithmetic(getattr(operator, _name), reflected=True))
for _name in ("eq", "ne", "lt", "le", "gt", "ge"):
    _define(_name, _comparison(getattr(operator, _name)))
_function: Callable[..., Any]
_WHOLE: dict[str, Callable[..., Any]] = {"divmod": divmod, "lshift": operator.lshift, "rshift": operator.rshift}
_WHOLE |= {"and": operator.and_, "or": operator.or_, "xor": operator.xor}
for _name, _function in _WHOLE.items():
    _define(_name, _freezing(_function))
    _define(f"r{_name}", _freezing(lambda value, other, function=_function: function(other, value)))
_PLAIN: list[Callable[..., Any]] = [hash, repr, str, format, round]
_PLAIN += [operator.index, operator.invert, math.floor, math.ceil, math.trunc]
for _function in _PLAIN:
    _define(_function.__name__, _freezing(_function))
_define("bool", lambda self: compare(self, operator.ne, 0))

# `LightningModule.log` and others accept what is a `numbers.Number`.
numbers.Real.register(Number)
