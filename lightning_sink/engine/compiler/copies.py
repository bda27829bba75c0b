"""Copies that lie in memory as the original does, for code that takes the layout of its inputs for granted."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def copy_of(tensor: Tensor) -> Tensor:
    """Returns a copy with the same strides, elements that share their memory among them.

    `clone()` packs what has gaps (a slice of columns) or overlaps (`expand`).
    """
    packed = tensor.detach().clone()
    if tensor.layout is not torch.strided or packed.stride() == tensor.stride():
        return packed
    return memory_of(tensor).clone().as_strided(tensor.shape, tensor.stride(), 0)


def is_in_one_piece(shape: Sequence[int], stride: Sequence[int]) -> bool:
    """Tells whether tensors with these strides lie as new ones of the shape do."""
    return tuple(stride) == torch.empty(shape, device="meta").stride()


def memory_of(tensor: Tensor) -> Tensor:
    """Returns all memory from a tensor's first element to its last as a tensor that lies in one piece.

    That of tensors that are laid alike has the same shape.
    """
    if tensor.is_contiguous():
        return tensor.detach() if tensor.requires_grad else tensor
    extent = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.detach().as_strided((extent if tensor.numel() else 0,), (1,))


def refill(copy: Tensor, values: Tensor) -> Tensor:
    """Puts values into a copy, and leaves it as it is where its elements share their memory."""
    if _is_apart(copy):
        copy.copy_(values)
    return copy


def _is_apart(tensor: Tensor) -> bool:
    """Tells whether no two elements lie in one place: each stride goes beyond all that the smaller ones reach."""
    reach = 0
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size > 1:
            if stride <= reach:
                return False
            reach += (size - 1) * stride
    return True
