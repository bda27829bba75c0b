"""Which step counts a program takes to be equal: most parameters have made the same number of steps.

Each has a tensor of its own, and one number stands for all of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from lightning_sink.engine.programs.binding import Binding
from lightning_sink.engine.state.slot import Slot
from lightning_sink.engine.tracing.count import Add

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

    def are_kept_by(self, slots: Sequence[Slot], adds: Mapping[int, list[Add] | None]) -> bool:
        """Tells whether who changes what these slots hold, and adds that to these tensors, leaves equal what was so.

        `adds` goes by identities of tensors, and is None for one to which something else is done.
        """
        if not self._pairs:
            return True
        # At each change of programs, of hundreds of counts: to look at all of them would take longer.
        names = {slot.name for slot in slots}

        def added(place: Place) -> list[Add] | None:
            if isinstance(place, Slot):
                return None if place.name in names else []
            return adds.get(id(place), [])

        return all((found := added(one)) is not None and found == added(other) for one, other in self._pairs)


def _count(place: Place) -> Tensor | None:
    return place.get() if isinstance(place, Slot) else place


def _are_equal(one: Tensor | None, other: Tensor | None) -> bool:
    return one is not None and other is not None and torch.equal(one, other)
