"""The history of a sink: what each of its steps gave, kept where it was computed until the sink ends."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor


class History:
    """Collects one sink's values step by step."""

    def __init__(self) -> None:
        self._columns: dict[str, list[Tensor | None]] = {"loss": []}
        self._steps = 0

    def add(self, loss: Tensor | None, named: Iterable[tuple[str, Tensor]]) -> None:
        """Takes the values of one step.

        Args:
            loss: The step's loss; None for a step that gave none.
            named: Other values, by name. A value named "loss" gives way to the step's loss.
        """
        columns = self._columns
        columns["loss"].append(loss)
        for name, value in named:
            if name != "loss":
                column = columns.get(name)
                if column is None:
                    column = columns[name] = []
                column.extend([None] * (self._steps - len(column)))
                if len(column) == self._steps:
                    column.append(value)
                else:
                    column[-1] = value
        self._steps += 1

    def tensors(self) -> dict[str, Tensor]:
        """Returns name to a tensor of shape `[n]`, on the CPU; NaN at steps that gave no value of that name."""
        return {name: self._stack(column) for name, column in self._columns.items()}

    def _stack(self, column: list[Tensor | None]) -> Tensor:
        padded = column + [None] * (self._steps - len(column))
        present = [value for value in padded if value is not None]
        if not present:
            return torch.full((self._steps,), math.nan)
        dtype = present[0].dtype
        if len(present) < self._steps and not dtype.is_floating_point:
            dtype = torch.get_default_dtype()
        absent = torch.tensor(math.nan if dtype.is_floating_point else 0, dtype=dtype, device=present[0].device)
        return torch.stack([absent if value is None else value.detach().to(dtype) for value in padded]).cpu()
