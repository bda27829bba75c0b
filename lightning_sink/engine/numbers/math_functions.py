"""Functions of Python's `math` of numbers that change from step to step: a cosine of `global_step`.

They are C code, which asks a stand-in for the number itself. While a step is recorded, others take their place that
know stand-ins; a function that was imported by its name (`from math import cos`) is not among them.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor

from lightning_sink.engine.numbers.number import TRUTHS, Number
from lightning_sink.engine.numbers.released import released

_MOST_OF_EXP = 709.0
"""Up to which `math.exp` does not overflow, within one."""

_DOMAINS: dict[str, Callable[[Tensor], Tensor] | None] = {
    **dict.fromkeys(("tanh", "atan", "fabs"), None),
    **dict.fromkeys(("cos", "sin", "tan"), torch.isfinite),
    **dict.fromkeys(("log", "log2", "log10"), lambda x: x > 0),
    "log1p": lambda x: x > -1,
    "sqrt": lambda x: x >= 0,
    "exp": lambda x: x < _MOST_OF_EXP,
    **dict.fromkeys(("cosh", "sinh"), lambda x: x.abs() < _MOST_OF_EXP),
}
"""Where Python raises no error (`math.sqrt(-1)`), and torch gives no NaN or infinity in its place; None: anywhere."""

_FUNCTIONS = {name: getattr(torch, "abs" if name == "fabs" else name) for name in _DOMAINS}

KNOWN_TO_MATH = frozenset(_DOMAINS)


@contextmanager
def known_to_math() -> Iterator[None]:
    """Lets the functions of `math` take stand-ins for a while."""
    present = {name: _plain(getattr(math, name)) for name in (*KNOWN_TO_MATH, *TRUTHS, "pow")}
    for name, plain in present.items():
        setattr(math, name, partial(_call, name, plain))
    try:
        yield
    finally:
        for name, plain in present.items():
            setattr(math, name, plain)


def _plain(function: Any) -> Any:
    """Returns a function itself, where another thread records a step, too."""
    return function.args[1] if isinstance(function, partial) and function.func is _call else function


def _call(name: str, plain: Callable[..., Any], *arguments: Any) -> Any:
    if name == "pow" and len(arguments) == 2 and _is_share(arguments[0]) and type(arguments[1]) is Number:
        return operator.pow(float(arguments[0]), arguments[1])
    number = arguments[0] if len(arguments) == 1 else None
    if type(number) is Number:
        if name in TRUTHS:
            return number.decided(name, plain, TRUTHS[name])
        computed = number.computed(name, plain, _FUNCTIONS[name], _DOMAINS[name])
        if computed is not None:
            return computed
    return plain(*released(arguments))


def _is_share(base: Any) -> bool:
    """Tells whether a number's powers are those of `**`: none is too large, and none is complex."""
    return type(base) in (int, float) and 0 < base <= 1
