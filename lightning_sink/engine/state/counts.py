"""The owner's counters as inputs of programs: `batch_idx`, `global_step`, `current_epoch`.

Owns a 0-dim tensor for each counter. A recorded step that uses a counter gets a `Number` in its place; before a program
that computes with one is run, the tensor is filled with what the owner counts then.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from lightning_sink.engine.numbers.guards import Host, Uses
from lightning_sink.engine.numbers.number import Number


class Counts:
    """Stand-ins for counters; `getters` give their values in the step that is about to run, by the names users know."""

    def __init__(self, getters: Mapping[str, Callable[[], int]]) -> None:
        self._getters = getters
        self._tensors = {name: torch.zeros((), dtype=torch.float64) for name in getters}
        self._present: dict[str, int] = {}

    def begin(self) -> list[Tensor]:
        """Looks at the counters as they are before a step; returns the tensors that stand for them."""
        self._present = {name: get() for name, get in self._getters.items()}
        for name, value in self._present.items():
            self._tensors[name].fill_(value)
        return list(self._tensors.values())

    def number(self, name: str, value: int, uses: Uses) -> Number:
        """Returns a stand-in for a counter as it is now; it may have changed since the step began."""
        tensor, present = self._tensors[name], self._present[name]
        number = Number(tensor, present, uses, f"`{name}`", self._getters[name], counts=True, whole=tensor)
        return number.plus(value - present) if value != present else number

    def inputs(self) -> list[tuple[Tensor, Host]]:
        """Returns the tensors that stand for counters, with what gives their values before a step."""
        return [(tensor, self._getters[name]) for name, tensor in self._tensors.items()]
