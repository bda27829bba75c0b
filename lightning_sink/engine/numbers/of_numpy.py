"""Numbers of numpy's own kind: what it computes may be infinite or NaN, with a warning, or an error by its settings.

Programs compute none of that: a recording stands for steps in which numbers are finite, and where they are not, or
numpy is told to treat errors in another way than it does by itself, numbers are plain ones. Nothing here imports numpy:
where there is such a number, it is there.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from typing import Any

_USUAL = {"divide": "warn", "over": "warn", "under": "ignore", "invalid": "warn"}


def is_of_numpy(value: Any) -> bool:
    """Tells whether a number is one of numpy's."""
    return type(value).__module__ == "numpy"


def quietly(function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a function of numpy's numbers that warns of nothing and raises nothing."""

    def called(*arguments: Any) -> Any:
        with sys.modules["numpy"].errstate(all="ignore"):
            return function(*arguments)

    return called


def is_usual(value: Any, function: Callable[[Any], Any] = lambda value: value) -> bool:
    """Tells whether a function of a number is finite, where numpy does what it does by itself."""
    return sys.modules["numpy"].geterr() == _USUAL and math.isfinite(quietly(function)(value))


def stays_finite(host: Callable[[], Any]) -> Callable[[], bool]:
    """Returns what tells whether a number is finite in the step that is about to run."""
    return lambda: math.isfinite(host())
