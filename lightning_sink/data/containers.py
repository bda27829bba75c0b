"""Batches taken apart: their tensors, and what makes a batch of others in their place.

`batch.py` looks further into objects, to compare them; what is here knows how to make them again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from lightning_sink.data.private import pytree

_PLAIN = (int, float, complex, bool, str, bytes, type(None))

Rebuild = Callable[[list[Tensor]], Any]
"""Makes a batch of tensors in the order in which it was taken apart."""


def taken_apart(batch: Any, accepts: Callable[[Any], bool]) -> tuple[list[Tensor], Rebuild] | None:
    """Returns the tensors of a batch, one that comes twice twice, and what makes a batch of others in their place.

    None where there is no tensor, or anything but accepted tensors, numbers and texts in containers.
    """
    kind = type(batch)
    if (kind is tuple or kind is list) and batch and all(map(accepts, batch)):  # what most loaders give
        return list(batch), kind
    if kind is dict and batch and all(map(accepts, batch.values())):
        names = [*batch]
        return list(batch.values()), lambda tensors: dict(zip(names, tensors, strict=True))
    items = batch if kind is tuple or kind is list else batch.values() if kind is dict else ()
    if any(type(item) is Tensor and not accepts(item) for item in items):
        return None  # as the general case would find out, in twenty times the time: it may be on the device by now
    # What has a `to` of its own is moved by it: of a `PackedSequence` a part stays on the host.
    leaves, spec = pytree.tree_flatten(batch, is_leaf=lambda item: hasattr(item, "to"))
    places = [place for place, leaf in enumerate(leaves) if isinstance(leaf, Tensor)]
    is_known = all(type(leaf) in _PLAIN or accepts(leaf) for leaf in leaves)
    if not places or not is_known:
        return None

    def rebuild(tensors: list[Tensor]) -> Any:
        filled = leaves.copy()
        for place, tensor in zip(places, tensors, strict=True):
            filled[place] = tensor
        return pytree.tree_unflatten(filled, spec)

    tensors = [leaves[place] for place in places]
    for place in places:
        leaves[place] = None  # the loader's
    return tensors, rebuild


def is_plain(item: Any) -> bool:
    """Tells whether this is a tensor, numbers in memory and no more, attributes of the user's neither."""
    return is_ordinary(item) and not item.__dict__


def is_ordinary(item: Any) -> bool:
    """Tells whether this is a tensor that holds its numbers as they are, and asks for no gradient."""
    if type(item) is not Tensor or item.layout is not torch.strided:
        return False
    return not (item.requires_grad or item.is_quantized or item.is_nested or item.is_conj() or item.is_neg())
