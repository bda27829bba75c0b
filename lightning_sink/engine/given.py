"""Numbers of Python's that a step gives, and its program as tensors: `self.losses.append(loss.item())`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from lightning_sink.engine.numbers import Number


@dataclass(frozen=True, eq=False)
class Given:
    """Such a number.

    Attributes:
        tensor: What the program gives, 0-dim float64.
        kind: The number's type.
    """

    tensor: Tensor
    kind: type

    @classmethod
    def of(cls, number: Number) -> Given:
        """Returns what a stand-in stands for."""
        return cls(number.tensor, type(number.value))


def with_numbers(item: Any, function: Callable[[Number], Any]) -> Any:
    """Returns an item with something in the place of a stand-in: of itself, or of members of a tuple."""
    if type(item) is tuple and any(type(value) in (Number, tuple) for value in item):
        return tuple(with_numbers(value, function) for value in item)
    return function(item) if type(item) is Number else item
