"""What the values of a step's tensors come from: whether Python may look at one without depending on the step.

A step that asks whether its attention mask is causal takes a value out of a tensor, but the same value in each step:
nothing but tensors that stay as they are went into it. One that asks whether anything is masked at all depends on the
batch, and on nothing else, so that it can be asked of a batch before its step (`questions.py`). `Origins` follows,
storage by storage, which of the step's inputs went into what; a parameter, a hyperparameter or a random draw makes a
value one that changes with the step.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import Tensor


class Origin(NamedTuple):
    """What a value comes from.

    Attributes:
        inputs: Indices of inputs that stay as they are, or are the batch's.
        of_batch: Whether some are the batch's.
        is_written: Whether something was written to on the way, so that one tensor may have held several values.
    """

    inputs: frozenset[int] = frozenset()
    of_batch: bool = False
    is_written: bool = False


_NOTHING = Origin()


class Origins:
    """Follows where values come from; None stands for what changes with the step.

    `changing` are tensors, besides the batch's, that change with the step although no operation writes to them.
    """

    def __init__(self, batch: Iterable[Tensor], changing: Iterable[Tensor]) -> None:
        self._batch = {memory_of(tensor) for tensor in batch if _is_followed(tensor)}
        self._changing = {memory_of(tensor) for tensor in changing if _is_followed(tensor)}
        self._of: dict[int, Origin | None] = {}

    def input(self, tensor: Tensor, index: int) -> None:
        """Takes note of a tensor that the step did not make."""
        if _is_followed(tensor):
            place = memory_of(tensor)
            changes = tensor.requires_grad or place in self._changing or tensor.is_inference()
            known = self._of.get(place, _NOTHING)
            of_input = None if changes else Origin(frozenset([index]), of_batch=place in self._batch)
            self._of[place] = _together(known, of_input)

    def of(self, tensors: Iterable[Tensor]) -> Origin | None:
        """Returns what some tensors come from, taken together."""
        union: Origin | None = _NOTHING
        for tensor in tensors:
            union = _together(union, self._of.get(memory_of(tensor), _NOTHING) if _is_followed(tensor) else None)
        return union

    def operation(self, inputs: Origin | None, made: Iterable[Tensor], written: Iterable[Tensor]) -> None:
        """Takes note of an operation: what its arguments come from, what it made, which of them it wrote to.

        One that draws random numbers comes from None.
        """
        # What is written to keeps the rest of its content. What is made may lie where a tensor that is gone lay, but a
        # view shares its storage with an argument, whose origin is part of `inputs`.
        for tensor in filter(_is_followed, made):
            self._of[memory_of(tensor)] = inputs
        for tensor in filter(_is_followed, written):
            self._of[memory_of(tensor)] = None if inputs is None else inputs._replace(is_written=True)


def _together(one: Origin | None, other: Origin | None) -> Origin | None:
    if one is None or other is None:
        return None
    return Origin(one.inputs | other.inputs, one.of_batch or other.of_batch, one.is_written or other.is_written)


def memory_of(tensor: Tensor) -> int:
    """Returns where the storage of a tensor begins."""
    return tensor.untyped_storage().data_ptr()


def _is_followed(tensor: Tensor) -> bool:
    return tensor.layout is torch.strided and tensor.numel() > 0
