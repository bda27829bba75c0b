"""A batch seen as a flat list of tensors and a signature of everything else.

Two batches with equal signatures have the same structure, the same shapes, dtypes, layouts and devices, and equal
values in every place that holds no tensor; a step that was compiled for one of them is right for the other.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable, Mapping
from typing import Any

import torch
from torch import Tensor

Signature = tuple[Hashable, ...]


def flatten(batch: Any) -> tuple[list[Tensor], Signature]:
    """Returns the tensors of a batch in a fixed order, and its signature.

    Goes through tuples, lists, mappings, named tuples and dataclasses. Anything else that is no tensor is compared by
    value if it is hashable and by identity if not.
    """
    leaves: list[Tensor] = []
    signature: list[Hashable] = []
    kind: type[Any] = type(batch)
    if (kind is tuple or kind is list) and all(type(item) is Tensor for item in batch):
        # What most loaders give, a third of the time of the general case.
        signature.append(kind)  # type: ignore[arg-type]
        for item in batch:
            signature.append((item.shape, item.dtype, item.stride(), item.device, item.requires_grad))
        return list(batch), tuple(signature)
    _walk(batch, leaves, signature)
    return leaves, tuple(signature)


def nbytes(batch: Any) -> int:
    """Returns the bytes of a batch's tensors; 0 for what holds none."""
    kind = type(batch)
    if kind is Tensor:
        return int(batch.nbytes) if batch.layout is torch.strided else 0
    if kind is tuple or kind is list:
        total = 0
        for item in batch:  # a third of the time of `sum(map(...))`
            total += item.nbytes if type(item) is Tensor and item.layout is torch.strided else nbytes(item)
        return total
    if isinstance(batch, Mapping):
        return sum(map(nbytes, batch.values()))
    leaves: list[Tensor] = []
    _walk(batch, leaves, [])
    return sum(leaf.nbytes for leaf in leaves if leaf.layout is torch.strided)


def _walk(item: Any, leaves: list[Tensor], signature: list[Hashable]) -> None:
    if isinstance(item, Tensor):
        leaves.append(item)
        signature.append((item.shape, item.dtype, item.stride(), item.device, item.requires_grad))
    elif isinstance(item, (tuple, list)):
        signature.append((type(item), len(item)))
        for child in item:
            _walk(child, leaves, signature)
    elif isinstance(item, Mapping):
        signature.append((type(item), tuple(item)))
        for child in item.values():
            _walk(child, leaves, signature)
    elif dataclasses.is_dataclass(item) and not isinstance(item, type):
        signature.append(type(item))
        # Beside its fields it may hold what `__post_init__` made.
        fields = [field.name for field in dataclasses.fields(item)]
        for name in dict.fromkeys([*fields, *getattr(item, "__dict__", ())]):
            _walk(getattr(item, name), leaves, signature)
    else:
        signature.append((type(item), item if isinstance(item, Hashable) else _Same(item)))


class _Same:
    """Equal while it is the same object; holds it, so that no later one takes its identity."""

    def __init__(self, item: Any) -> None:
        self._item = item

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and self._item is other._item

    def __hash__(self) -> int:
        return id(self._item)
