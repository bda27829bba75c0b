"""Numbers of Python's that a step gives, and its program as tensors: `self.losses.append(loss.item())`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from lightning_sink.engine.numbers.number import Number
from lightning_sink.engine.private import pytree


@dataclass(frozen=True, eq=False)
class Given:
    """Such a number.

    Attributes:
        tensor: What the program gives, 0-dim; float64, or a type that has all whole numbers.
        kind: The number's type.
    """

    tensor: Tensor
    kind: type


def given(item: Any) -> Any:
    """Returns an item with `Given` in the place of stand-ins; the item itself where it holds none."""
    if not any(type(leaf) is Number for leaf in pytree.tree_leaves(item)):
        return item
    return pytree.tree_map(lambda leaf: _given(leaf) if type(leaf) is Number else leaf, item)


def _given(number: Number) -> Any:
    number.stays_of_its_type()
    if not isinstance(number.value, int):
        return Given(number.tensor, type(number.value))
    # What is computed of whole numbers may be too large for float64 in later steps.
    return number.freeze() if number.whole is None else Given(number.whole, type(number.value))
