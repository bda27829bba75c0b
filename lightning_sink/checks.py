"""Options as users give them: each check returns the value, or raises what was given and what is accepted.

A value of another type is a `TypeError`, one that is not among the accepted ones a `ValueError`.
"""

from __future__ import annotations

import numbers
from typing import Any


def wrong(option: str, value: object, accepted: str) -> str:
    """Returns the text for a value that an option does not take."""
    return f"`{option}` takes {accepted}; got {value!r}."


def integer(option: str, value: object, accepted: str, least: int, besides: int | None = None) -> int:
    """Checks a whole number: `besides`, or one from `least` up."""
    if not isinstance(value, numbers.Integral) or isinstance(value, bool):
        raise TypeError(wrong(option, value, accepted))
    number = int(value)
    if number < least and number != besides:
        raise ValueError(wrong(option, value, accepted))
    return number


def seconds(option: str, value: object, accepted: str) -> float:
    """Checks a finite time above 0."""
    if not isinstance(value, numbers.Real) or isinstance(value, bool):
        raise TypeError(wrong(option, value, accepted))
    if not 0.0 < float(value) < float("inf"):
        raise ValueError(wrong(option, value, accepted))
    return float(value)


def boolean(option: str, value: object) -> bool:
    """Checks True or False."""
    if not isinstance(value, bool):
        raise TypeError(wrong(option, value, "True or False"))
    return value


def choice(option: str, value: Any, choices: tuple[str | None, ...]) -> Any:
    """Checks one of some strings, or None where that is among them."""
    accepted = (" or " if None in choices else ", ").join(map(repr, choices))
    if not isinstance(value, str) and not (value is None and None in choices):
        raise TypeError(wrong(option, value, accepted))
    if value not in choices:
        raise ValueError(wrong(option, value, accepted))
    return value
