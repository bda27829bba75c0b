"""What the steps of a call returned: which of it is the loss, what the rest is called, and all of it, step by step."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from lightning_sink.engine.history import History


def values_of(output: Any) -> tuple[Tensor | None, dict[str, Tensor]]:
    """Returns the loss among a step's outputs, None where there is none, and the other tensors by name.

    The loss is the output itself, the first of several, or the one named "loss", if it has one element. Others go by
    their key in a dictionary or by their place; an output that is neither is called "output".
    """
    if isinstance(output, dict):
        items = {str(key): value for key, value in output.items()}
    elif isinstance(output, (tuple, list)):
        items = {str(number): value for number, value in enumerate(output)}
    else:
        items = {"output": output}
    named = {key: value for key, value in items.items() if isinstance(value, Tensor)}
    first = next((key for key in ("loss", "0", "output") if key in items), "")
    loss = named.pop(first) if first in named and named[first].numel() == 1 else None
    return loss, named


class Outputs:
    """Collects what the steps of one call returned."""

    def __init__(self) -> None:
        self._numbers = History()
        self._stacks: dict[str, list[Tensor]] = {}
        self._loses = False
        self._names: set[str] = set()

    def add(self, loss: Tensor | None, named: Iterable[tuple[str, Tensor]], steps: int | None = None) -> None:
        """Takes what one step returned, or several in a row: their tensors have one dimension more, the first."""
        numbers = []
        for name, tensor in named:
            if tensor.numel() == (steps or 1) and name not in self._stacks:
                numbers.append((name, tensor))
                self._names.add(name)
                continue
            parts = self._stacks.setdefault(name, [])
            if name in self._names:  # single elements so far, as of a batch of one row
                self._names.remove(name)
                parts.append(self._numbers.tensors()[name].unsqueeze(1))
            parts.append(tensor if steps is not None else tensor.unsqueeze(0))
        self._loses = self._loses or loss is not None
        self._numbers.add(loss, numbers, steps or 1)

    def tensors(self) -> dict[str, Any]:
        """Returns name to a tensor of shape `[steps, ...]` on the CPU; to a list of tensors where shapes differ."""
        found: dict[str, Any] = dict(self._numbers.tensors())
        if not self._loses:
            del found["loss"]
        for name, parts in self._stacks.items():
            alike = len({(part.shape[1:], part.dtype) for part in parts}) == 1
            if alike:  # but one may be a tensor of the host's
                found[name] = torch.cat([part.to(parts[0].device) for part in parts]).cpu()
            else:
                found[name] = [item.cpu() for part in parts for item in part]
        return found
