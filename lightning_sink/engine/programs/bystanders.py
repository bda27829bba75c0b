"""Tensors that a step leaves as they are and computes nothing with, of which it may have asked something.

`if len(self.bank) > 0:`, of a bank that a later epoch fills: no operation shows that the step has looked, and a program
goes on without it. So it is for steps only that find these tensors as the recorded one did.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any

from torch import Tensor

from lightning_sink.engine.state.attributes import asked_of
from lightning_sink.engine.state.slots import Slot, Snapshot, StateSlot


class Asked:
    """What may be asked of the tensors of a training, as of a moment."""

    def __init__(self, before: Snapshot) -> None:
        held = ((slot, before.tensors[name]) for name, slot in before.slots.items() if not slot.is_gradient)
        self._found = [(s, tensor, asked_of(tensor)) for s, tensor in held if not isinstance(s, StateSlot)]

    def of_others(self, names: Collection[str], taken: Iterable[Tensor]) -> Bystanders:
        """Returns what was there in slots but for some, which a step takes or fills; `taken`: what it computes with."""
        found = [(slot, tensor, asked) for slot, tensor, asked in self._found if slot.name not in names]
        slots, tensors, asked = ([*each] for each in zip(*found, strict=True)) if found else ([], [], [])
        return Bystanders(slots, tensors, asked, taken)


class Bystanders:
    """Slots, with what was in them.

    Args:
        tensors: The tensors that were there.
        asked: What could be asked of them.
        taken: The tensors that the step computes with.
    """

    def __init__(
        self, slots: Sequence[Slot], tensors: Sequence[Tensor | None], asked: list[Any], taken: Iterable[Tensor]
    ) -> None:
        self._slots, self._asked = slots, asked
        self._taken = {id(tensor): number for number, tensor in enumerate(taken)}
        self._ones = self._which(tensors)

    def _which(self, tensors: Iterable[Tensor | None]) -> list[int]:
        """Returns numbers equal for slots with one and the same tensor: `if self.a.weight is self.b.weight:`."""
        known = self._taken.copy()
        return [known.setdefault(id(tensor), len(known)) for tensor in tensors]

    def are_the_same(self) -> bool:
        """Tells whether a step would be answered as it was."""
        tensors = [slot.get() for slot in self._slots]
        return [*map(asked_of, tensors)] == self._asked and self._which(tensors) == self._ones
