"""Functions of Python's `math` of numbers that change from step to step: a cosine of `global_step`, the least loss.

They are C code, which asks a stand-in for the number itself. While a step is recorded, others take their place that
know stand-ins; a function that was imported by its name (`from math import cos`) is not among them. `min` and `max`
are for numbers that only the program knows: of others Python decides.
"""

from __future__ import annotations

import builtins
import math
import operator
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch

from lightning_sink.engine.numbers.number import Number, as_they_are, released

_EVERYWHERE: dict[str, Callable[..., torch.Tensor]] = {
    **{name: getattr(torch, name) for name in ("cos", "sin", "tanh", "atan")},
    "fabs": torch.abs,
}
_MAY_FAIL = ("exp", "log", "log2", "log10", "log1p", "sqrt", "tan", "cosh", "sinh")
_IN_PLACES: dict[str, Callable[..., torch.Tensor]] = {name: getattr(torch, name) for name in _MAY_FAIL}
"""Where Python raises an error (`math.sqrt(-1)`), torch gives NaN or infinity: such a step is no program's."""

_CHOICES: dict[str, Callable[[Any, Any], Any]] = {"min": operator.lt, "max": operator.gt}
"""Of two numbers they give the second one if it is so beside the first one."""

KNOWN_TO_MATH = frozenset([*_EVERYWHERE, *_IN_PLACES])


@contextmanager
def known_to_math() -> Iterator[None]:
    """Lets the functions of `math`, `min` and `max` take stand-ins for a while."""
    names = [(math, name, _call) for name in (*_EVERYWHERE, *_IN_PLACES)]
    names += [(builtins, name, _choose) for name in _CHOICES]
    present = [(module, name, _plain(getattr(module, name)), other) for module, name, other in names]
    for module, name, plain, other in present:
        setattr(module, name, partial(other, name, plain))
    try:
        yield
    finally:
        for module, name, plain, _ in present:
            setattr(module, name, plain)


def _plain(function: Any) -> Any:
    """Returns a function itself, where another thread records a step, too."""
    return function.args[1] if isinstance(function, partial) and function.func in (_call, _choose) else function


def _call(name: str, plain: Callable[..., float], *arguments: Any) -> Any:
    number = arguments[0] if len(arguments) == 1 else None
    if type(number) is Number:
        computed = number.computed(name, plain, _EVERYWHERE.get(name) or _IN_PLACES[name], name in _IN_PLACES)
        if computed is not None:
            return computed
    return plain(*released(arguments))


def _choose(name: str, plain: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    if len(arguments) == 2 and not options:
        numbers = [item for item in arguments if type(item) is Number]
        if any(item.host is None for item in numbers) and all(type(as_they_are(item)) is float for item in arguments):
            return numbers[0].chosen(name, _CHOICES[name], *arguments)
    return plain(*arguments, **options)
