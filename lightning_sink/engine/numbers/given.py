"""Python's numbers that a step gives, and its program as tensors: `self.losses.append(loss.item())`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lightning_sink.engine.numbers.number import Number
from lightning_sink.engine.numbers.taken import Taken
from lightning_sink.engine.private import pytree


@dataclass(frozen=True, eq=False)
class Given:
    """Such a number, or all of a tensor's at once.

    Attributes:
        tensor: What the program gives; for a number 0-dim and of float64, or a type that has all whole numbers.
        kind: The number's type, or what makes the like of all.
    """

    tensor: Tensor
    kind: Callable[[Any], Any]

    @property
    def is_number(self) -> bool:
        """Whether it is one number."""
        return isinstance(self.kind, type)


def given(item: Any) -> Any:
    """Returns an item with `Given` in the place of stand-ins; the item itself where it holds none."""
    if not any(type(leaf) in _STAND_INS for leaf in pytree.tree_leaves(item)):
        return item
    return pytree.tree_map(lambda leaf: _given(leaf) if type(leaf) in _STAND_INS else leaf, item)


_STAND_INS = frozenset([Number, Taken])


def _given(value: Any) -> Any:
    if type(value) is Taken:
        return Given(value.of, value.kind)
    value.stays_of_its_type()
    if not isinstance(value.value, int):
        return Given(value.tensor, type(value.value))
    if value.whole is None and value.host is None:  # of whole numbers: too large for float64 in later steps, maybe
        return value.freeze()
    return Given(value.tensor if value.whole is None else value.whole, type(value.value))


class Gives(NamedTuple):
    """What stands for a tensor, or for `Given`, among values that stay as they are.

    Attributes:
        kind: The type of what it is, or what makes it.
        dtype: That of the tensor that the program gives for `Given`; None for a tensor.
    """

    kind: Callable[[Any], Any]
    dtype: torch.dtype | None

    @classmethod
    def of(cls, item: Any) -> Any:
        """Returns what stands for a tensor or a `Given`; any other item itself."""
        if isinstance(item, Given):
            return cls(item.kind, item.tensor.dtype)
        return cls(Tensor, None) if isinstance(item, Tensor) else item

    def made_of(self, tensor: Tensor) -> Any:
        """Returns the like of it, for what a program gives."""
        if self.dtype is None:
            return tensor
        return self.kind(tensor.item() if isinstance(self.kind, type) else tensor)

    def as_tensor(self, item: Any) -> Tensor:
        """Returns what a program gives for the like of it."""
        return item if self.dtype is None else torch.tensor(item, dtype=self.dtype, device="cpu")


def tensors_of(leaves: Iterable[Any]) -> list[Tensor]:
    """Returns what a program gives for those of some leaves that it computes."""
    found = (leaf.tensor if isinstance(leaf, Given) else leaf for leaf in leaves)
    return [leaf for leaf in found if isinstance(leaf, Tensor)]
