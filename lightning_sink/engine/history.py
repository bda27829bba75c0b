"""The history of a sink: what each of its steps gave, kept where it was computed until the sink ends."""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import reduce
from itertools import groupby

import torch
from torch import Tensor

_MOST_PARTS = 256
"""Tensors that are kept one by one: each takes as much memory as a hundred numbers."""


class _Column:
    """The values of one name: tensors of one or several steps each, and numbers of steps that gave none."""

    def __init__(self) -> None:
        self.parts: list[Tensor | int] = []
        self.size = 0
        self._most = _MOST_PARTS

    def add(self, value: Tensor | int, first: int, steps: int) -> None:
        """Takes the values of `steps` steps from the `first` on; replaces what they gave before."""
        if self.size > first:
            self.parts.pop()
        elif self.size < first:
            self.parts.append(first - self.size)
        # The last one may still be replaced.
        if len(self.parts) >= self._most:
            runs = groupby(self.parts, lambda part: isinstance(part, Tensor))
            self.parts = [part for joins, run in runs for part in ([_join(list(run))] if joins else run)]
            self._most = max(_MOST_PARTS, 2 * len(self.parts))
        self.parts.append(value)
        self.size = first + steps

    def tensor(self, steps: int) -> Tensor:
        """Returns the values of all steps, on the CPU; NaN where there is none."""
        return _join([*self.parts, steps - self.size] if self.size < steps else self.parts).cpu()

    def given(self, steps: int) -> Tensor:
        """Returns which of all steps gave a value, as booleans."""
        given, first = torch.zeros(steps, dtype=torch.bool), 0
        for part in self.parts:
            number = part.numel() if isinstance(part, Tensor) else part
            given[first : first + number] = isinstance(part, Tensor)
            first += number
        return given


def _join(parts: list[Tensor | int]) -> Tensor:
    """Returns parts of a column as one tensor of shape `[n]`, in a type that holds all of them.

    It is on the device where any of them is: steps of one kind may log a tensor of the host's, such as a loss of 0.
    """
    present = [part for part in parts if isinstance(part, Tensor)]
    if not present:
        return torch.full((sum(part for part in parts if isinstance(part, int)),), math.nan)
    dtype = reduce(torch.promote_types, {part.dtype for part in present})
    device = next((part.device for part in present if not part.is_cpu), torch.device("cpu"))
    if len(present) < len(parts) and not dtype.is_floating_point:
        dtype = torch.get_default_dtype()
    absent = math.nan if dtype.is_floating_point else 0
    return torch.cat(
        [
            part.detach().to(device, dtype).reshape(-1)
            if isinstance(part, Tensor)
            else torch.full((part,), absent, dtype=dtype, device=device)
            for part in parts
        ]
    )


class History:
    """Collects one sink's values."""

    def __init__(self) -> None:
        self._columns: dict[str, _Column] = {"loss": _Column()}
        self._steps = 0
        self._tensors: dict[str, Tensor] | None = None

    def __len__(self) -> int:
        return self._steps

    def add(self, loss: Tensor | None, named: Iterable[tuple[str, Tensor]], steps: int = 1) -> None:
        """Takes the values of one step, or of several in a row.

        Args:
            loss: The loss, a tensor with one element for each step; None, or one with more of them, for steps that gave
                no such loss.
            named: Other values, by name, likewise. A value named "loss" gives way to the step's loss.
            steps: How many steps.
        """
        if loss is not None and loss.numel() != steps:
            loss = None
        self._columns["loss"].add(steps if loss is None else loss, self._steps, steps)
        self._steps += steps
        self.note(named, steps)

    def note(self, named: Iterable[tuple[str, Tensor]], steps: int = 1) -> None:
        """Takes further values of the last step, or of the last ones."""
        self._tensors = None
        for name, value in named:
            if name != "loss":
                column = self._columns.get(name)
                if column is None:
                    column = self._columns[name] = _Column()
                column.add(value, self._steps - steps, steps)

    def tensors(self) -> dict[str, Tensor]:
        """Returns name to a tensor of shape `[n]`, on the CPU; NaN at steps that gave no value of that name."""
        if self._tensors is None:
            self._tensors = {name: column.tensor(self._steps) for name, column in self._columns.items()}
        return self._tensors

    def invalid_from(self) -> tuple[int, ...]:
        """Returns the steps, counted from 0, at which the loss became NaN or infinite."""
        losses = self.tensors()["loss"]
        if losses.is_floating_point() and not losses.isfinite().all():
            steps = self._columns["loss"].given(self._steps).nonzero().flatten()
            invalid = ~losses[steps].isfinite()
            begins = invalid & ~torch.cat([invalid.new_zeros(1), invalid[:-1]])
            return tuple(steps[begins].tolist())
        return ()
