"""Gradients of a batch's own tensors: `x.requires_grad_()` in a step.

The step leaves them on the batch, and there they are when it comes again, as it does from a list of batches; autograd
adds to them. A program leaves none. So a step that looks at them is right in a program only where the batch is nobody
else's, or the step takes them away first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from lightning_sink.engine.watch import user_line


def is_gradient(func: Any) -> bool:
    """Tells whether a function is what `tensor.grad` or `tensor.grad = ...` calls."""
    return getattr(func, "__self__", None) is torch.Tensor.grad


class BatchGradients:
    """Sees which of a batch's tensors a recorded step asks for their gradients."""

    def __init__(self, leaves: Sequence[Tensor]) -> None:
        self._leaves = {id(leaf): leaf for leaf in leaves if leaf.is_leaf}
        self._asked: dict[int, str] = {}
        # That of one that came with a gradient is no constant, but an input of the program's.
        self._known = {key for key, leaf in self._leaves.items() if leaf.grad is not None}

    def called(self, func: Any, args: tuple[Any, ...]) -> None:
        """Takes note of what asks for a gradient, or sets it."""
        if id(args[0]) not in self._leaves:
            return
        if func.__name__ == "__get__":
            self._asked.setdefault(id(args[0]), user_line())
        elif id(args[0]) not in self._asked:  # what there was before is gone
            self._known.add(id(args[0]))

    def check(self, hazard: Callable[[str, str], None]) -> None:
        """Calls `hazard`, with the line, for one that was asked for and has a gradient behind the step."""
        for key, where in self._asked.items():
            if key not in self._known and self._leaves[key].grad is not None:
                hazard("the step looks at the gradient that steps leave on a batch, which may come again", where)
