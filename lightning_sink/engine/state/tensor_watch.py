"""What a recorded step does with an attribute whose number only the step knows: `self.loss = loss.item()`.

`self.mean = 0.9 * self.mean + 0.1 * loss.item()` is computed in the program, which has what the attribute holds in a
tensor, and writes to that. Behind each step the attribute is given what is there, as what steps collect is
(`appends.py`); before a step that follows no other the tensor is given what the attribute holds.
"""

from __future__ import annotations

from types import FrameType
from typing import Any

from torch import Tensor

from lightning_sink.engine.held import ABSENT
from lightning_sink.engine.numbers.given import given
from lightning_sink.engine.numbers.number import Number, as_they_are
from lightning_sink.engine.numbers.result_types import exactly, is_wide
from lightning_sink.engine.state.carry_watch import NUMBERS, AttributeInStep
from lightning_sink.engine.state.looks import Looks


class TensorWatch(AttributeInStep):
    """Stands before one.

    Args:
        tensors: What the program has it in, by the number's type.
    """

    is_of_tensors = True

    def __init__(self, name: str, held: dict[str, Any], key: str, tensors: dict[type, Tensor]) -> None:
        super().__init__(name, held, key, held.get(key, ABSENT))
        self._tensors = tensors

    def begin(self, step: Looks) -> None:
        """A part of the step begins."""
        super().begin(step)
        self._kind = type(self._found)
        if self._kind in NUMBERS and not is_wide(self._found):
            self._tensors[self._kind].fill_(self._found)

    def _get(self, step: Looks, value: Any, frame: FrameType) -> Any:
        held, key = self._held, self._key
        if self._kind not in NUMBERS or is_wide(value):
            host = lambda: exactly(held.get(key, ABSENT))  # noqa: E731
            step.uses.froze(f"{self._words} decides what Python does", (id(held), key), exactly(value), host)
            return value
        if self._number is None:
            own = self._input(step).clone()  # what is there now: it is written to before the part ends
            whole = own if self._kind is int else None
            name = id(held), self._words
            self._number = Number(own.double(), value, step.uses, name, whole=whole, plain=step.plain)
        return self._number if step.plain.reads(frame, key) else self._number.freeze()

    def _input(self, step: Looks) -> Tensor:
        """Returns the tensor; the recording stands for steps that find a number of its type."""
        held, key, tensor = self._held, self._key, self._tensors[self._kind]
        if not self.inputs:
            kind = lambda: None if is_wide(now := held.get(key)) else type(now)  # noqa: E731
            step.uses.decide((id(held), key, "is a"), self._kind, kind)
            self.inputs.append((tensor, lambda: held[key]))
        return tensor

    def leave(self) -> list[Any]:
        """Has the program write what the part has set it to; returns that for the attribute."""
        step, value = self._step, self._held.get(self._key, ABSENT)
        if step is None or not self._is_set:
            return []
        plain = as_they_are(value)
        if type(plain) is not self._kind or self._kind not in NUMBERS or is_wide(plain):
            self.tell("to what is no number of the same type as before")
            return []
        item, tensor = given(value), self._input(step)
        if type(value) is not Number:
            tensor.fill_(value)
        else:
            tensor.copy_(value.tensor if value.whole is None else value.whole)
        return [item]

    def _is_left(self, value: Any, plain: Any) -> None:
        """The program has it, and gives it, by now."""
