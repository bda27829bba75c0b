"""What autograd leaves on a batch's own tensors: `x.requires_grad_()` in a step, its gradient, hooks on it.

There they are when the batch comes again, as it does from a list of batches, and autograd adds to them; code outside of
the step may look at them, too. A program leaves none of it. So a step that leaves something is one for programs only
where the batch is known to be nobody else's. One that is run again finds its batch as the first run did.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from torch import Tensor

from lightning_sink.engine.private import tensor_hooks, version


class _Look(NamedTuple):
    """What is on a tensor.

    Attributes:
        version: Of the gradient, which counts what is added to it.
        hooks: Of each kind, by their numbers.
    """

    requires_grad: bool
    gradient: Tensor | None
    version: int
    hooks: list[dict[int, Any]]

    @classmethod
    def at(cls, tensor: Tensor) -> _Look:
        gradient = tensor.grad if tensor.is_leaf else None
        hooks = [dict(held or {}) for held in tensor_hooks(tensor)]
        return cls(tensor.requires_grad, gradient, 0 if gradient is None else version(gradient), hooks)

    def is_as(self, other: _Look) -> bool:
        return self.gradient is other.gradient and (*self[:1], *self[2:]) == (*other[:1], *other[2:])


class BatchGradients:
    """What is on a batch's tensors before a step."""

    def __init__(self, leaves: Sequence[Tensor]) -> None:
        self._before = [(leaf, _Look.at(leaf)) for leaf in leaves if leaf.is_leaf]

    def are_left(self) -> bool:
        """Tells whether the step has left something there."""
        return not all(_Look.at(leaf).is_as(look) for leaf, look in self._before)

    def restore(self) -> None:
        """Puts back what was there; what a gradient holds is put back with other memory."""
        for leaf, look in self._before:
            if _Look.at(leaf).is_as(look):
                continue
            if not leaf.is_leaf and leaf._base is None:  # what asks for a gradient was written into it
                leaf.detach_()
            for held, before in zip(tensor_hooks(leaf), look.hooks, strict=True):
                for number in (held or {}).keys() - before.keys():
                    del held[number]
            if leaf.is_leaf:
                leaf.requires_grad_(look.requires_grad)
                leaf.grad = look.gradient
