"""The step counts that optimizers keep in tensors and look at with `.item()`: numbers that stay inputs of a program."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

import torch
from torch import Tensor

from lightning_sink.engine.numbers.guards import Uses
from lightning_sink.engine.numbers.number import Number
from lightning_sink.engine.state.slots import Snapshot
from lightning_sink.engine.tracing.undo import Undo


class StepCounts:
    """Stand-ins for the step counts of one recording.

    Args:
        before: What every slot held before the step.
        undo: Knows what tensors held before the step wrote to them.
        uses: Told of what is done with the numbers.
        equal: Takes pairs of counts of which the second was taken to be the first.
        paused: Keeps operations from being recorded.
    """

    def __init__(
        self,
        before: Snapshot,
        undo: Undo,
        uses: Uses,
        equal: list[tuple[Tensor, Tensor]],
        paused: Callable[[], AbstractContextManager[None]],
    ) -> None:
        self._before = before
        self._undo = undo
        self._uses = uses
        self._equal = equal
        self._paused = paused
        self._known: dict[float, tuple[Tensor, Number]] = {}

    @property
    def numbers(self) -> list[Number]:
        """The stand-ins that exist."""
        return [number for _, number in self._known.values()]

    def number(self, tensor: Tensor) -> Number | None:
        """Returns the stand-in for a count; None for any other tensor."""
        if not self._before.is_optimizer_state(tensor):
            return None
        with self._paused():
            value = float(tensor)
            earlier = self._undo.before(tensor)
            added = 0.0 if earlier is None else value - float(earlier)
        # All parameters of an optimizer have made the same number of steps, each in a tensor of its own; the first one
        # stands for all, and the program looks at each start whether they still agree.
        if value in self._known:
            leader, number = self._known[value]
            self._equal.append((leader, tensor))
            return number
        count = tensor.detach().to(torch.float64, copy=True)
        name = len(self._known), "an optimizer's step count"
        number = Number(count, value, self._uses, name, lambda: float(tensor) + added)
        self._known[value] = tensor, number
        return number
