"""What a recorded step does with an attribute whose number only the step knows: `self.last = loss.item()`.

`self.mean = 0.9 * self.mean + 0.1 * loss.item()` is computed in the program, which has what the attribute holds in a
tensor, and writes to that. Behind each step the attribute is given what is there, as what steps collect is
(`appends.py`); before a step that follows no other the tensor is given what the attribute holds.
"""

from __future__ import annotations

from types import FrameType
from typing import Any

from torch import Tensor

from lightning_sink.engine.numbers.given import given
from lightning_sink.engine.numbers.guards import Host
from lightning_sink.engine.numbers.number import Number
from lightning_sink.engine.numbers.released import as_they_are
from lightning_sink.engine.numbers.result_types import exactly
from lightning_sink.engine.state.attribute_watch import Looks
from lightning_sink.engine.state.attributes import NUMBERS
from lightning_sink.engine.state.carry_watch import AttributeInStep
from lightning_sink.held import ABSENT

_MOST, _LITTLE = 1 << 46, 1 << 33
"""How large a whole number is at most that a step finds, where each one adds little: programs are for half as much, and
are asked no more than 2,048 steps ahead. A hundred times that is less than float64 has."""

_WIDE = 1 << 63


class TensorWatch(AttributeInStep):
    """Stands before one.

    Args:
        present: Returns what it is before a step.
        tensors: What the program has it in, by the number's type.
        is_bounded: Whether it is known how much steps add to a whole number.

    Attributes:
        changes_type: Whether the step finds something else than a number of the type that it leaves.
    """

    is_of_tensors = True

    def __init__(
        self,
        name: str,
        held: dict[Any, Any],
        key: Any,
        present: Host,
        tensors: dict[type, Tensor],
        is_bounded: bool,
    ) -> None:
        super().__init__(name, held, key, present())
        self._present, self._tensors, self.is_bounded, self.changes_type = present, tensors, is_bounded, False

    def begin(self, step: Looks) -> None:
        """A part of the step begins."""
        super().begin(step)
        self._kind = _kind_of(self._found)
        if self._kind in NUMBERS:
            self._tensors[self._kind].fill_(self._found)

    def _get(self, step: Looks, value: Any, frame: FrameType | None) -> Any:
        if self._kind not in NUMBERS:
            if self._found is ABSENT:
                self.tell("where it is none of the object's own")
            what, present = f"{self._words} decides what Python does", self._present
            step.uses.froze(what, id(self._tensors), exactly(value), lambda: exactly(present()))
            return value
        if self._number is None:
            own = self._tensor(step, self._kind).clone()  # what is there now: it is written to before the part ends
            whole, most = (own, _MOST if self.is_bounded else None) if self._kind is int else (None, None)
            name, plain = (id(self._tensors), self._words), step.plain
            self._number = Number(own.double(), value, step.uses, name, whole=whole, plain=plain, most=most)
        return self._number if self._is_plain(step, frame) else self._number.freeze()

    def _tensor(self, step: Looks, kind: type) -> Tensor:
        """Returns the tensor for a type of number; the recording stands for steps that find one of the present type."""
        present, tensor = self._present, self._tensors[kind]
        if all(known is not tensor for known, _ in self.inputs):
            step.uses.decide((id(self._tensors), "is a"), self._kind, lambda: _kind_of(present()))
            self.inputs.append((tensor, _of_kind(present, kind)))
        return tensor

    def leave(self) -> list[Any]:
        """Has the program write what the part has set it to; returns that for the attribute."""
        self._look()
        step, value = self._step, self._held.get(self._key, ABSENT)
        if step is None or not self._is_set:
            return []
        kind = _kind_of(as_they_are(value))
        if kind not in NUMBERS:
            self.tell("to what is no number, or too large a one")
            return []
        self.changes_type |= kind is not self._kind
        item, tensor = given(value), self._tensor(step, kind)
        if kind is int:
            most = value.most if type(value) is Number else 0
            self.is_bounded &= most is not None and most <= _MOST + _LITTLE
        if type(value) is not Number:
            tensor.fill_(value)
        else:
            tensor.copy_(value.tensor if value.whole is None else value.whole)
        return [item]

    def _is_left(self, value: Any, plain: Any) -> None:
        """The program has it, and gives it, by now."""


def _kind_of(value: Any) -> type | None:
    """Returns the type of what an attribute holds; None for what is too large to be computed with."""
    return None if type(value) is int and abs(value) > _MOST >> 1 else type(value)


def _of_kind(present: Host, kind: type) -> Host:
    """Returns what gives an attribute's number, also one that is too large for programs; None for another type."""

    def found() -> Any:
        value = present()
        is_wide = type(value) is int and abs(value) >= _WIDE
        return value if type(value) is kind and not is_wide else None

    return found
