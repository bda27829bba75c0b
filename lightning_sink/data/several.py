"""Batches that were fetched in one go."""

from __future__ import annotations

from abc import ABC, abstractmethod
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor

from lightning_sink.data.batch import Signature, flatten, nbytes
from lightning_sink.data.private import likeness

_IS_NESTED, _ATTRIBUTES = attrgetter("is_nested"), attrgetter("__dict__")


class Several(ABC):
    """Batches that are alike and were fetched in one go.

    Attributes:
        nbytes: Bytes of all of them.
        signature: What they have in common with other batches that are like them.
    """

    nbytes: int
    signature: Signature

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def batch(self, number: int) -> Any:
        """Returns one of them."""


class Bunch(Several):
    """Batches as a loader gave them, one after the other.

    Args:
        batches: They.
        leaves: The tensors of the first.
        signature: What it has in common with others that are like it.
        columns: Each tensor of it, with those in its place in the others.

    Attributes:
        batches: They.
        columns: For each tensor of a batch, in the order of `flatten`, that of each.
    """

    def __init__(
        self, batches: list[Any], leaves: list[Tensor], signature: Signature, columns: list[tuple[Tensor, ...]]
    ) -> None:
        self.batches, self.signature, self.columns = batches, signature, columns
        self.nbytes = nbytes(batches[0]) * len(batches)

    def __len__(self) -> int:
        return len(self.batches)

    def batch(self, number: int) -> Any:
        """Returns one of them."""
        return self.batches[number]


def bunch_of(batches: list[Any]) -> Bunch | None:
    """Returns batches as one, if they are certainly alike: tensors, or tuples, lists or dicts of tensors.

    What is the same for all is asked once for all, where `flatten` takes each apart, ten times the time.
    """
    first, kind = batches[0], type(batches[0])
    rows: list[Any]
    if any(type(batch) is not kind for batch in batches):
        return None
    if kind is tuple or kind is list:
        rows = batches
    elif kind is dict:
        names = [*first]
        if any([*batch] != names for batch in batches):
            return None
        rows = [batch.values() for batch in batches]
    elif kind is Tensor:
        rows = [(batch,) for batch in batches]
    else:
        return None
    leaves, signature = flatten(first)
    if not leaves or any(len(row) != len(leaves) for row in rows):
        return None
    columns = [*zip(*rows, strict=True)]
    return Bunch(batches, leaves, signature, columns) if all(map(_are_alike, columns)) else None


def _are_alike(tensors: tuple[Any, ...]) -> bool:
    """Tells whether these are tensors and no more, like one another."""
    if {*map(type, tensors)} != {Tensor} or any(map(_IS_NESTED, tensors)) or any(map(_ATTRIBUTES, tensors)):
        return False
    return tensors[0].layout is torch.strided and all(map(likeness(tensors[0]), tensors))
