"""Numbers of Python's that a step gives, and its program as tensors: `self.losses.append(loss.item())`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
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
    if number.whole is None and number.host is None:  # of whole numbers: too large for float64 in later steps, maybe
        return number.freeze()
    return Given(number.tensor if number.whole is None else number.whole, type(number.value))


class Gives(NamedTuple):
    """What stands for a tensor, or a number, that a step computes, among values that stay as they are.

    Attributes:
        kind: The type of what it is.
        dtype: Of a number, that of the tensor that the program gives for it; None for a tensor.
    """

    kind: type
    dtype: torch.dtype | None

    @classmethod
    def of(cls, item: Any) -> Any:
        """Returns what stands for a tensor or a `Given`; any other item itself."""
        if isinstance(item, Given):
            return cls(item.kind, item.tensor.dtype)
        return cls(Tensor, None) if isinstance(item, Tensor) else item

    def made_of(self, tensor: Tensor) -> Any:
        """Returns the like of it, for what a program gives."""
        return tensor if self.dtype is None else self.kind(tensor.item())

    def as_tensor(self, item: Any) -> Tensor:
        """Returns what a program gives for the like of it."""
        return item if self.dtype is None else torch.tensor(item, dtype=self.dtype, device="cpu")


def tensors_of(leaves: Iterable[Any]) -> list[Tensor]:
    """Returns what a program gives for those of some leaves that it computes."""
    found = (leaf.tensor if isinstance(leaf, Given) else leaf for leaf in leaves)
    return [leaf for leaf in found if isinstance(leaf, Tensor)]
