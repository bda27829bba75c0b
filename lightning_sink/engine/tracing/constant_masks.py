"""Indexing by a mask that is the same in each step: `logits[~torch.eye(n, dtype=torch.bool)]`.

How many elements a mask picks depends on what is in it, so no program can have the operation as it is. Where nothing
that changes went into the mask, it picks the same ones each time, and these can be picked by their places.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from lightning_sink.engine.private import schema_name

_INDEXES = frozenset(["aten::index", "aten::index_put", "aten::index_put_", "aten::_index_put_impl_"])
_ATEN = torch.ops.aten


def by_places(
    func: Any, args: tuple[Any, ...], places_of: Callable[[Tensor], list[Tensor] | None]
) -> tuple[Any, tuple[Any, ...]]:
    """Returns an operation with its arguments, with the places of what masks pick instead of the masks.

    `places_of` returns the places of a mask's ones, by dimension; None where that is another mask in other steps.
    """
    if schema_name(func) in _INDEXES and any(_is_mask(index) for index in args[1]):
        found = [places_of(index) if _is_mask(index) else [index] for index in args[1]]
        if all(places is not None for places in found):
            indices = [index for places in found if places is not None for index in places]
            return func, (args[0], indices, *args[2:])
    elif func is _ATEN.masked_select.default and args[0].shape == args[1].shape:  # not where one is spread for it
        if _is_mask(args[1]) and (places := places_of(args[1])):
            return _ATEN.index.Tensor, (args[0], places)
    elif func is _ATEN.nonzero.default and _is_mask(args[0]) and (places := places_of(args[0])):
        return _ATEN.stack.default, (places, 1)
    return func, args


def _is_mask(index: Any) -> bool:
    return isinstance(index, Tensor) and index.dtype is torch.bool and index.dim() > 0
