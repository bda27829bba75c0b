"""Functions of Python's `math`, `float` and `int`, of numbers that change from step to step: a cosine of `global_step`.

They are C code, which asks a stand-in for the number itself. While a step is recorded, others take their place that
know stand-ins; of `float` and `int`, and of a function that was imported by its name (`from math import cos`), in
modules that do nothing with that name but call it (`bound_names.py`).
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from functools import partial, update_wrapper
from typing import Any

import torch
from torch import Tensor, nn

from lightning_sink.engine.numbers import bound_names
from lightning_sink.engine.numbers.known_functions import DOMAINS, FUNCTIONS, TRUTHS
from lightning_sink.engine.numbers.number import Number
from lightning_sink.engine.numbers.released import released

_TENSORS = frozenset([Tensor, nn.Parameter, nn.Buffer])


@contextmanager
def known_to_math() -> Iterator[None]:
    """Lets the functions of `math`, and `float` and `int` where these may, take stand-ins for a while."""
    present = {name: _plain(getattr(math, name)) for name in (*DOMAINS, *TRUTHS, "pow")}
    for name, plain in present.items():
        setattr(math, name, _knowing(name, plain))
    try:
        with bound_names.known_to(partial(_in_place_of, present)):
            yield
    finally:
        for name, plain in present.items():
            setattr(math, name, plain)


def _in_place_of(known: Collection[str], function: Any) -> Any:
    """Returns what takes the place of a function of `math`, or of `float` or `int`; None where nothing does."""
    if function in bound_names.CONVERSIONS:
        return partial(_converted, function)
    return _knowing(function.__name__, function) if function.__name__ in known else None


def _knowing(name: str, plain: Any) -> Any:
    """Returns a function that knows stand-ins, and is called like the plain one."""
    return update_wrapper(partial(_call, name, plain), plain)


def _plain(function: Any) -> Any:
    """Returns a function itself, where another thread records a step, too."""
    return function.args[1] if isinstance(function, partial) and function.func is _call else function


def _converted(kind: Any, *arguments: Any, **options: Any) -> Any:
    if len(arguments) != 1 or options:
        return kind(*arguments, **options)
    value = arguments[0]
    if type(value) in _TENSORS and value.numel() == 1 and _is_as_item(value, kind):
        value = value.item()
    return value.converted(kind) if type(value) is Number else kind(value)


CONVERTS = _converted.__code__
"""Whose caller gets the number of the tensor that it asks."""

CONVERTING = frozenset([Tensor.__float__, Tensor.__int__])
"""The methods by which Python's own `float` and `int` ask a tensor."""


def _is_as_item(tensor: Tensor, kind: type) -> bool:
    """Tells whether what `float` or `int` makes of a tensor is what it makes of its `item()`."""
    return not (tensor.is_complex() or (kind is int and tensor.is_floating_point()))


def _call(name: str, plain: Callable[..., Any], *arguments: Any) -> Any:
    if name == "pow" and len(arguments) == 2 and _is_share(arguments[0]) and type(arguments[1]) is Number:
        return operator.pow(float(arguments[0]), arguments[1])
    if name == "pow" and len(arguments) == 2 and type(arguments[0]) is Number and type(arguments[1]) in (int, float):
        return _power(plain, *arguments)
    number = arguments[0] if len(arguments) == 1 else None
    if type(number) is Number:
        if name in TRUTHS:
            return number.decided(name, plain, TRUTHS[name])
        computed = number.computed(name, plain, FUNCTIONS[name], DOMAINS[name])
        if computed is not None:
            return computed
    return plain(*released(arguments))


def _power(plain: Callable[[Any, Any], float], number: Number, exponent: float) -> Any:
    """Returns a power of a number, which for positive ones is no error unless it is too large."""

    def function(base: Tensor) -> Tensor:
        return base.pow(exponent)

    name = f"pow {exponent!r}"
    domain = lambda base: (base > 0) & torch.isfinite(function(base))  # noqa: E731
    computed = number.computed(name, lambda base: plain(base, exponent), function, domain)
    return plain(number.freeze(), exponent) if computed is None else computed


def _is_share(base: Any) -> bool:
    """Tells whether a number's powers are those of `**`: none is too large, and none is complex."""
    return type(base) in (int, float) and 0 < base <= 1
