"""What the values of a step's tensors come from: whether Python may look at one without depending on the step.

A step that asks whether its attention mask is causal takes a value out of a tensor, but the same value in each step:
nothing but tensors that stay as they are went into it. `Origins` follows, storage by storage, which of the step's
inputs went into what; a batch, a parameter, a hyperparameter or a random draw makes a value one that changes.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

Origin = frozenset[int] | None
"""Indices of the inputs that a value comes from, None where it changes with the step."""

_NOTHING: Origin = frozenset()


class Origins:
    """Follows where values come from.

    Args:
        changing: Tensors that change with the step although no operation writes to them: the batch's.
    """

    def __init__(self, changing: Iterable[Tensor]) -> None:
        self._changing = {tensor.untyped_storage().data_ptr() for tensor in changing if _is_followed(tensor)}
        self._of: dict[int, Origin] = {}

    def input(self, tensor: Tensor, index: int) -> None:
        """Takes note of a tensor that the step did not make."""
        if _is_followed(tensor):
            pointer = tensor.untyped_storage().data_ptr()
            changes = tensor.requires_grad or pointer in self._changing or tensor.is_inference()
            known = self._of.get(pointer, _NOTHING)
            self._of[pointer] = None if changes or known is None else known | {index}

    def of(self, tensors: Iterable[Tensor]) -> Origin:
        """Returns what some tensors come from, taken together."""
        union: set[int] = set()
        for tensor in tensors:
            origin = self._of.get(tensor.untyped_storage().data_ptr(), _NOTHING) if _is_followed(tensor) else None
            if origin is None:
                return None
            union |= origin
        return frozenset(union)

    def operation(self, inputs: Origin, made: Iterable[Tensor], written: Iterable[Tensor]) -> None:
        """Takes note of an operation.

        Args:
            inputs: What its arguments come from; None for one that draws random numbers.
            made: The tensors that it gave.
            written: The arguments that it wrote to.
        """
        # What is written to keeps the rest of its content. What is made may lie where a tensor that is gone lay, but a
        # view shares its storage with an argument, whose origin is part of `inputs`.
        for tensor in (*made, *written):
            if _is_followed(tensor):
                self._of[tensor.untyped_storage().data_ptr()] = inputs


def _is_followed(tensor: Tensor) -> bool:
    return tensor.layout is torch.strided and tensor.numel() > 0
