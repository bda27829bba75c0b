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

from lightning_sink.engine.numbers.number import Number
from lightning_sink.engine.numbers.released import released

_EVERYWHERE: dict[str, Callable[..., torch.Tensor]] = {
    **{name: getattr(torch, name) for name in ("cos", "sin", "tanh", "atan")},
    "fabs": torch.abs,
}
_MAY_FAIL = ("exp", "log", "log2", "log10", "log1p", "sqrt", "tan", "cosh", "sinh")
_IN_PLACES: dict[str, Callable[..., torch.Tensor]] = {name: getattr(torch, name) for name in _MAY_FAIL}
"""Where Python raises an error (`math.sqrt(-1)`), torch gives NaN or infinity: such a step is no program's."""

KNOWN_TO_MATH = frozenset([*_EVERYWHERE, *_IN_PLACES])


@contextmanager
def known_to_math() -> Iterator[None]:
    """Lets the functions of `math` take stand-ins for a while."""
    present = {name: _plain(getattr(math, name)) for name in (*_EVERYWHERE, *_IN_PLACES)}
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


def _call(name: str, plain: Callable[..., float], *arguments: Any) -> Any:
    number = arguments[0] if len(arguments) == 1 else None
    if type(number) is Number:
        computed = number.computed(name, plain, _EVERYWHERE.get(name) or _IN_PLACES[name], name in _IN_PLACES)
        if computed is not None:
            return computed
    return plain(*released(arguments))
