"""What a recorded step does with an attribute by which Python carries a value from step to step (`carried.py`).

`CarryWatch` is for values that the host knows without running the step. What only the step knows is for
`tensor_watch.py`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from threading import get_ident
from types import FrameType
from typing import Any, NamedTuple

from torch import Tensor

from lightning_sink.engine.numbers.guards import Host
from lightning_sink.engine.numbers.number import Number
from lightning_sink.engine.numbers.released import as_they_are
from lightning_sink.engine.numbers.result_types import exactly, is_wide
from lightning_sink.engine.state.attribute_watch import Looks
from lightning_sink.engine.state.attributes import NUMBERS, SCALARS
from lightning_sink.engine.watch import CHANGES
from lightning_sink.held import ABSENT

_PLAINLY = "is needed as a plain number, as far as the source shows (not by arithmetic, `self.log`, `math.cos`)"
_PAST = "and asks for all that there is (`vars()`, `__dict__`)"


class AttributeInStep(ABC):
    """Stands before one attribute in a recorded step, whose parts begin and end one after the other.

    Args:
        name: What users call the attribute.
        held: The dictionary that it is in: of an object, or one that an attribute holds.
        present: What the step is about to find.

    Attributes:
        inputs: The tensors that stand for it in the program, with what gives their values before a step.
        is_of_tensors: Whether the step sets it to what only the program knows.
        is_bounded: Whether it is known how much steps add to a whole number.
    """

    is_of_tensors, is_bounded = False, True

    def __init__(self, name: str, held: dict[Any, Any], key: Any, present: Any) -> None:
        self._words, self._held, self._key = f"`{name}`", held, key
        self.inputs: list[tuple[Tensor, Host]] = []
        self._number: Number | None = None
        self._step: Looks | None = None
        self._expected: Any = present
        self._found: Any = ABSENT
        self._is_used = self._is_set = self._was_set = False
        # What stands in the place of an item of a dictionary, where nobody is told of who asks for it.
        self._put: Any = ABSENT
        self._is_item = False

    def begin(self, step: Looks) -> None:
        """A part of the step begins."""
        self._step, self._thread = step, get_ident()
        self._is_used = self._is_set = False
        self._found = self._held.get(self._key, ABSENT)
        if self._found is not self._expected:
            self.tell("which others set in its midst")

    def put_stand_in(self) -> None:
        """Puts what the part of the step is to find into the dictionary, if that has the item."""
        step, self._is_item = self._step, True
        if step is not None and self._found is not ABSENT:
            step.plain.handed.are_given = True
            self._put = self._held[self._key] = self._get(step, self._found, None)

    def _look(self) -> None:
        """Sees whether the step has set an item by now."""
        if self._is_item and self._held.get(self._key, ABSENT) is not self._put:
            self.changed()

    def got(self, value: Any, frame: FrameType) -> Any:
        """Returns what a frame gets that asks for it."""
        step = self._step
        if step is None or get_ident() != self._thread:
            return as_they_are(value)
        self._is_used = True
        if self._is_set:
            return value.freeze() if type(value) is Number and not step.plain.reads(frame, self._key) else value
        return self._get(step, value, frame)

    @abstractmethod
    def _get(self, step: Looks, value: Any, frame: FrameType | None) -> Any:
        """Returns what a frame gets before this part of the step has set it; None for who is not known."""

    def _is_plain(self, step: Looks, frame: FrameType | None) -> bool:
        """Tells whether a frame may get a stand-in; of an item, all may, and what they do with it is seen then."""
        return frame is None or step.plain.reads(frame, self._key)

    def changed(self) -> None:
        """Called when it was set or deleted."""
        if self._step is not None and get_ident() != self._thread:
            self.tell("elsewhere than in the step")
        self._is_used = self._is_set = self._was_set = True

    def leave(self) -> list[Any]:
        """Returns what the part has set it to, if the program is to give that; called while it is still recorded."""
        return []

    def end(self, reads_past: bool, held: dict[Any, Any]) -> None:
        """A part of the step ends: the attribute holds a plain value again.

        Args:
            reads_past: Whether the step may have seen it past what stands before it.
            held: The dictionary that it is to be in by now.
        """
        self._look()
        if held is not self._held:
            self.tell("in the place of whose dictionary it puts another one")
        if self._put is not ABSENT and not self._is_set:
            self._held[self._key] = self._found
        self._put, self._is_item = ABSENT, False
        self._number, value = None, self._held.get(self._key, ABSENT)
        plain = self._expected = as_they_are(value)
        if type(value) is Number:
            self._held[self._key] = plain
        if reads_past and self._is_used:
            self.tell(_PAST)
        if self._is_set:
            self._is_left(value, plain)
        elif value is not self._found:
            self.tell("past the attribute")
        self._step = None

    @abstractmethod
    def _is_left(self, value: Any, plain: Any) -> None:
        """Takes what the part has set it to, as it is and with plain numbers in the place of stand-ins."""

    def left(self) -> tuple[Host, str] | None:
        """Returns what gives what later steps set it to, and a text; None where the host sets nothing."""
        return None

    def put_back(self) -> None:
        """Puts back what the present part of the step found."""
        if self._found is ABSENT:
            self._held.pop(self._key, None)
        else:
            self._held[self._key] = self._found

    def tell(self, what: str) -> None:
        """Reports what no program does with the attribute."""
        if self._step is not None:
            self._step.uses.leak(f"{CHANGES}: {self._words}, {what}")


class _Held(NamedTuple):
    """What the attribute holds where a part of the step begins.

    Attributes:
        value: The value in the recorded step.
        host: What gives it in later steps; None where that is the same one, or nobody knows.
        name: What tells it from what is computed otherwise.
    """

    value: Any
    host: Host | None
    name: Any


class CarryWatch(AttributeInStep):
    """Stands before one whose value the host knows.

    Args:
        get: Returns it, as the step that is about to run finds it.
        tensors: For each part of the step, what may stand for it.
        number: Which it is of those that have its name.
    """

    def __init__(
        self, name: str, held: dict[Any, Any], key: Any, get: Callable[[], Any], tensors: list[Tensor], number: int
    ) -> None:
        present = get()
        super().__init__(name, held, key, present)
        self._tensors = tensors
        self._now = _Held(present, get, (number, self._words))
        self._part = -1
        self._may_stand_in = False

    def begin(self, step: Looks) -> None:
        """A part of the step begins."""
        super().begin(step)
        self._part += 1
        is_number = type(self._now.value) in NUMBERS and not is_wide(self._now.value)
        self._may_stand_in = is_number and self._part < len(self._tensors)
        if self._may_stand_in:
            self._tensors[self._part].fill_(self._now.value)

    def _get(self, step: Looks, value: Any, frame: FrameType | None) -> Any:
        if self._now.host is None:
            return value
        if not self._may_stand_in or not self._is_plain(step, frame):
            host, what = self._now.host, _PLAINLY if self._may_stand_in else "decides what Python does"
            named = self._now.name, "is"
            step.uses.froze(f"{self._words} {what}", named, exactly(value), lambda: exactly(host()))
            return value
        if self._number is None:
            self._number = self._stand_in(step, self._now.host)
        return self._number

    def _stand_in(self, step: Looks, host: Host) -> Number:
        """Returns what stands for the number that it holds."""
        value, name, kind = self._now.value, self._now.name, type(self._now.value)
        step.uses.decide((name, "is a"), kind, lambda: None if is_wide(now := host()) else type(now))
        tensor = self._tensors[self._part]
        self.inputs.append((tensor, host))
        whole = tensor if kind is int else None
        return Number(tensor, value, step.uses, name, host, True, whole, step.plain)

    def _is_left(self, value: Any, plain: Any) -> None:
        self._now = _Held(plain, None, exactly(plain))
        if type(value) is Number:
            self._now = _Held(plain, value.host, value.key)
            if value.host is None:
                self.is_of_tensors = True
                self.tell("by what only the step knows")
        elif type(plain) not in SCALARS:
            self.tell("to what is no number")

    def left(self) -> tuple[Host, str] | None:
        """Returns what gives what later steps set it to, and a text; None where the step sets nothing."""
        if not self._was_set:
            return None
        value, host, name = self._now
        return host or (lambda: value), f"{self._words} = {type(value).__name__} {name!r}"
