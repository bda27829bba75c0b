"""Tensors that a step leaves as they are and computes nothing with, of which it may have asked something.

`if len(self.bank) > 0:`, of a bank that a later epoch fills: no operation shows that the step has looked, and a program
goes on without it. So it is for steps only that find these tensors as the recorded one did: those whose names stand in
the code that ran, which it asked a module for, or all where it may ask for any.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any

from torch import Tensor

from lightning_sink.engine.programs.binding import Binding
from lightning_sink.engine.state.attributes import asked_of
from lightning_sink.engine.state.slot import Slot, StateSlot
from lightning_sink.engine.state.slots import Snapshot
from lightning_sink.engine.tracing.record import Recorder
from lightning_sink.names import names_in
from lightning_sink.whose import is_pythons

_FOR_ANY = frozenset(
    [
        *("getattr", "vars", "__dict__", "modules", "children", "apply", "state_dict", "_parameters", "_buffers"),
        *("parameters", "buffers", "named_parameters", "named_buffers", "named_modules", "named_children"),
    ]
)
"""By these, code asks for tensors whose names do not stand in it."""


class Asked:
    """What may be asked of the tensors of a training, as of a moment."""

    def __init__(self, before: Snapshot) -> None:
        held = ((slot, before.tensors[name]) for name, slot in before.slots.items() if not slot.is_gradient)
        self._found = [(s, tensor, asked_of(tensor)) for s, tensor in held if not isinstance(s, StateSlot)]
        self._before = before.tensors

    def of_others(self, known: Collection[str], bindings: Iterable[Binding], recorder: Recorder) -> Bystanders:
        """Returns what was there in slots of which a step may have asked something.

        Args:
            known: Names of slots that it takes or fills.
            bindings: What it computes with.
            recorder: Has seen the step.
        """
        # The standard library asks for much (`inspect`), and not for these tensors.
        names = frozenset[str]().union(*(names_in(code) for code in recorder.ran.values() if not is_pythons(code)))
        others = [found for found in self._found if found[0].name not in known]
        is_any = not names.isdisjoint(_FOR_ANY)
        found = [
            each for each in others if is_any or each[0].key in names or (each[0].owner_id, each[0].key) in recorder.got
        ]
        slots, tensors, asked = ([*each] for each in zip(*found, strict=True)) if found else ([], [], [])
        bindings = [b for b in bindings if b.leaf is None]
        taken = [b.tensor for b in bindings if b.tensor is not None]
        replaced = [b.slot for b in bindings if b.slot is not None and not isinstance(b.slot, StateSlot)]
        held = [(slot, self._before.get(slot.name)) for slot in replaced if not slot.is_gradient]
        may_ask = recorder.identities.may_ask
        ones = {number: t for number, t in enumerate(tensors) if t is not None and may_ask(t, is_gradient=False)}
        return Bystanders(slots, tensors, asked, taken, held, ones)


class Bystanders:
    """Slots, with what was in them.

    Args:
        tensors: The tensors that were there.
        asked: What could be asked of them.
        taken: The tensors that the step computes with and that stay where they are.
        replaced: The slots with whose contents it computes, with those.
        ones: Those of the tensors, by their numbers, of which the step may have asked whether they are others.
    """

    def __init__(
        self,
        slots: Sequence[Slot],
        tensors: Sequence[Tensor | None],
        asked: list[Any],
        taken: Iterable[Tensor],
        replaced: Sequence[tuple[Slot, Tensor | None]],
        ones: dict[int, Tensor],
    ) -> None:
        self._slots, self._asked, self._ones = slots, asked, ones
        self._taken = {id(tensor): number for number, tensor in enumerate(taken)}
        self._replaced = [(slot, _kind_of(tensor)) for slot, tensor in replaced]
        self._numbers = self._numbered([*tensors, *(tensor for _, tensor in replaced)])

    def _numbered(self, tensors: Iterable[Tensor | None]) -> list[int]:
        """Returns numbers equal for slots with one and the same tensor: `if self.a.weight is self.b.weight:`."""
        known = self._taken.copy()
        return [known.setdefault(id(tensor), len(known)) for tensor in tensors]

    def are_the_same(self) -> bool:
        """Tells whether a step would be answered as it was."""
        tensors = [slot.get() for slot in self._slots]
        held = [slot.get() for slot, _ in self._replaced]
        if not all(_is_of(kind, tensor) for (_, kind), tensor in zip(self._replaced, held, strict=True)):
            return False
        if not all(tensors[number] is one for number, one in self._ones.items()):
            return False
        return [*map(asked_of, tensors)] == self._asked and self._numbered([*tensors, *held]) == self._numbers


def _kind_of(tensor: Tensor | None) -> tuple[Any, bool, bool]:
    """Returns what is told of a tensor in the place of which others come: its class, and whether it has gradients."""
    if tensor is None:
        return type(None), False, False
    return type(tensor), tensor.requires_grad and tensor.is_leaf, tensor.requires_grad


def _is_of(kind: tuple[Any, bool, bool], tensor: Tensor | None) -> bool:
    """Tells whether a tensor is of a kind; those that programs put there have no graph, where those of steps may."""
    of_class, is_leaf, asks = _kind_of(tensor)
    return (of_class, is_leaf) == kind[:2] and (kind[2] or not asks)
