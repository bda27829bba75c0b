"""Functions of Python's `math` of numbers that change from step to step: a cosine of `global_step`.

They are C code, which asks a stand-in for the number itself. While a step is recorded, others take their place that
know stand-ins; a function that was imported by its name (`from math import cos`) is not among them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor

from lightning_sink.engine.numbers.number import Number
from lightning_sink.engine.numbers.released import released

_EVERYWHERE: dict[str, Callable[..., Tensor]] = {
    **{name: getattr(torch, name) for name in ("cos", "sin", "tanh", "atan")},
    "fabs": torch.abs,
}
_MAY_FAIL = ("exp", "log", "log2", "log10", "log1p", "sqrt", "tan", "cosh", "sinh")
_IN_PLACES: dict[str, Callable[..., Tensor]] = {name: getattr(torch, name) for name in _MAY_FAIL}
"""Where Python raises an error (`math.sqrt(-1)`), torch gives NaN or infinity: such a step is no program's."""

_MOST_OF_EXP = 709.0
"""Up to which `math.exp` does not overflow, within one."""

_DOMAINS: dict[str, Callable[[Tensor], Tensor]] = {
    **dict.fromkeys(("cos", "sin", "tan"), torch.isfinite),
    **dict.fromkeys(("log", "log2", "log10"), lambda x: x > 0),
    "log1p": lambda x: x > -1,
    "sqrt": lambda x: x >= 0,
    "exp": lambda x: x < _MOST_OF_EXP,
    **dict.fromkeys(("cosh", "sinh"), lambda x: x.abs() < _MOST_OF_EXP),
}
"""Where Python raises no error."""

_TRUTHS: dict[str, Callable[[Tensor], Tensor]] = {name: getattr(torch, name) for name in ("isnan", "isinf", "isfinite")}

KNOWN_TO_MATH = frozenset([*_EVERYWHERE, *_IN_PLACES])
DECIDE = frozenset(_TRUTHS)


@contextmanager
def known_to_math() -> Iterator[None]:
    """Lets the functions of `math` take stand-ins for a while."""
    present = {name: _plain(getattr(math, name)) for name in (*KNOWN_TO_MATH, *DECIDE)}
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
    number = arguments[0] if len(arguments) == 1 else None
    if type(number) is Number and name in DECIDE:
        return number.decided(name, plain, _TRUTHS[name])
    if type(number) is Number:
        function, domain = _EVERYWHERE.get(name) or _IN_PLACES[name], _DOMAINS.get(name)
        computed = number.computed(name, plain, function, name in _IN_PLACES, domain)
        if computed is not None:
            return computed
    return plain(*released(arguments))
