"""The tensors of a batch, and the same batch with others in their place."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

_PLAIN = (int, float, complex, bool, str, bytes, type(None))


def movable(batch: Any) -> list[Tensor]:
    """Returns each tensor of a batch once; none where it holds anything that `rebuilt` cannot put into another batch.

    Tensors that ask for gradients, are sparse, or are not the host's, are left to whoever moves them.
    """
    found: dict[int, Tensor] = {}
    return list(found.values()) if _collect(batch, found) else []


def _collect(item: Any, found: dict[int, Tensor]) -> bool:
    kind = type(item)
    if kind is Tensor:
        found[id(item)] = item
        return item.device.type == "cpu" and item.layout is torch.strided and not item.requires_grad
    if kind in (tuple, list) or _is_named(kind):
        return all(_collect(each, found) for each in item)
    if kind is dict:
        return all(_collect(each, found) for each in item.values())
    return kind in _PLAIN


def rebuilt(batch: Any, others: Mapping[int, Tensor]) -> Any:
    """Returns a batch like another, with tensors of its own.

    Args:
        batch: A batch of which `movable` returned the tensors.
        others: What takes the place of each, by its `id`.
    """
    kind = type(batch)
    if kind is Tensor:
        return others[id(batch)]
    if kind in (tuple, list):
        return kind(rebuilt(item, others) for item in batch)
    if _is_named(kind):
        return kind(*(rebuilt(item, others) for item in batch))
    if kind is dict:
        return {key: rebuilt(value, others) for key, value in batch.items()}
    return batch


def _is_named(kind: type[Any]) -> bool:
    return issubclass(kind, tuple) and hasattr(kind, "_fields")
