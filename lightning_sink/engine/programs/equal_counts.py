"""Which step counts a program takes to be equal: most parameters have made the same number of steps.

Each has a tensor of its own, and one number stands for all of them.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from lightning_sink.engine.programs.binding import Binding
from lightning_sink.engine.state.slot import Slot

Place = Slot | Tensor
"""Where a count is: in a tensor that stays, or in whichever one an optimizer has put there last."""


class EqualCounts:
    """The counts of one program.

    Args:
        pairs: Tensors of one step whose counts were equal.
        inputs: The recorded step's, each with its binding.
        filled: Slots that the step has put other tensors into, which are there.
    """

    def __init__(
        self,
        pairs: Sequence[tuple[Tensor, Tensor]],
        inputs: Sequence[Tensor],
        bindings: Sequence[Binding],
        filled: Sequence[Slot],
    ) -> None:
        replaced = {id(tensor): b.slot for tensor, b in zip(inputs, bindings, strict=True) if b.slot is not None}
        replaced |= {id(slot.get()): slot for slot in filled} if pairs else {}
        self._pairs: list[tuple[Place, Place]] = [
            (replaced.get(id(one), one), replaced.get(id(other), other)) for one, other in pairs
        ]

    def hold(self) -> bool:
        """Tells whether they are equal now."""
        return all(_are_equal(_count(one), _count(other)) for one, other in self._pairs)

    def are_kept_by(self, slots: Sequence[Slot], written: Sequence[Tensor]) -> bool:
        """Tells whether who changes what these slots hold, and writes to these tensors, leaves equal what was so."""
        if not self._pairs:
            return True
        # At each change of programs, of hundreds of counts: which tensors these are, their storages would take longer.
        touched, names = {*map(id, written)}, {slot.name for slot in slots}

        def is_touched(place: Place) -> bool:
            return place.name in names if isinstance(place, Slot) else id(place) in touched

        return all(is_touched(one) == is_touched(other) for one, other in self._pairs)


def _count(place: Place) -> Tensor | None:
    return place.get() if isinstance(place, Slot) else place


def _are_equal(one: Tensor | None, other: Tensor | None) -> bool:
    return one is not None and other is not None and torch.equal(one, other)
