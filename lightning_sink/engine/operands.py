"""The arguments and results of one operation: values, and lists of them, which is all that a schema allows.

A step has hundreds of operations, and the trees of PyTorch, which know every kind of container, take long for each
of them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeVar

T = TypeVar("T")


def members(kind: type[T], values: Iterable[Any]) -> list[T]:
    """Returns what is of a kind among values and in lists of them, in their order."""
    found: list[T] = []
    for value in values:
        if isinstance(value, kind):
            found.append(value)
        elif isinstance(value, (tuple, list)):
            found += members(kind, value)
    return found
