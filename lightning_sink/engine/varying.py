"""Attributes that change between sinks: when an epoch began, the best loss so far, a weight that is annealed.

Programs take every attribute for granted; one that changes would have them all forgotten. So an attribute that has
changed is watched from then on while steps are recorded. It does not count until a step uses it; and a number that
steps compute with is an input of their programs, as a learning rate is. Anything else that a step does with it makes it
count for good. `Varying` knows which attributes these are, and owns the 0-dim tensors that stand for numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from threading import get_ident
from types import CodeType, FrameType
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from lightning_sink.engine.attribute_watch import AttributeWatch, is_plain, may_read_past
from lightning_sink.engine.attributes import TENSOR_HOLDERS, is_a
from lightning_sink.engine.collected import NUMBERS
from lightning_sink.engine.guards import Uses
from lightning_sink.engine.numbers import PLAINLY, Number
from lightning_sink.engine.result_types import is_large
from lightning_sink.engine.watch import is_users

if TYPE_CHECKING:
    from lightning_sink.engine.recording import Recording


class Varying:
    """The attributes that were seen to change.

    Attributes:
        names: What users call those that do not count, or of which only the type does.
    """

    def __init__(self) -> None:
        self.names: set[str] = set()
        self._counting: set[str] = set()
        self._inputs: dict[str, _Input] = {}
        self._taken: set[str] = set()
        self._taken_now: set[str] = set()

    def suspect(self, names: Iterable[str]) -> None:
        """Has attributes watched that have changed; there is no program that was made before."""
        self.names |= {*names} - self._counting

    def count(self, name: str) -> None:
        """Has an attribute count, whatever becomes of it."""
        self.names.discard(name)
        self._counting.add(name)

    def cover(self, name: str, before: Any, after: Any) -> bool:
        """Tells whether no program depends on a change.

        Args:
            name: The attribute that has changed.
            before: Its fingerprint before; None if it was not there.
            after: The same, now.
        """
        kinds = [seen[0] if isinstance(seen, tuple) else None for seen in (before, after)]
        is_input = kinds[0] is kinds[1] and kinds[0] in NUMBERS
        return name in self.names and (name not in self._taken or is_input)

    def keys(self, prefix: str) -> frozenset[str]:
        """Returns the attributes of one object, with what their names begin with; other names beside them."""
        return frozenset(name.removeprefix(prefix) for name in self.names if name.startswith(prefix))

    @property
    def tensors(self) -> list[Tensor]:
        """The tensors that stand for numbers."""
        return [held.tensor for held in self._inputs.values()]

    def update(self) -> None:
        """Takes over the numbers' values."""
        for name, held in self._inputs.items():
            if not held.update():
                self.count(name)

    # -- one recording ------------------------------------------------------------------------------------------------

    def begin(self, holders: Iterable[tuple[str, Any]]) -> None:
        """Looks for numbers before a step is recorded, in objects, with what the attributes' names begin with."""
        self._taken_now.clear()
        found = self._places(holders) if self.names else []
        for name, holder, key in found:
            known = self._inputs.get(name)
            if type(vars(holder)[key]) in NUMBERS and (known is None or known.holder is not holder):
                self._inputs[name] = _Input(holder, key)
        self.update()

    @contextmanager
    def watched(
        self,
        holders: Iterable[tuple[str, Any]],
        codes: Mapping[int, CodeType],
        uses: Uses,
        is_apart: Callable[[], bool],
    ) -> Iterator[None]:
        """Watches them while a step is recorded.

        Args:
            holders: As for `begin`.
            codes: Takes the code of the step meanwhile.
            uses: Told of what is done with numbers.
            is_apart: Tells whether what runs now is run before each step, by whatever runs that.
        """
        places = [place for place in self._places(holders) if _can_be_watched(*place[1:])] if self.names else []
        watches: dict[tuple[type, str], AttributeWatch] = {}
        seen: set[str] = set()
        try:
            for name, holder, key in places:
                kind = type(holder), key
                watch = watches.get(kind) or AttributeWatch.of(*kind)
                if watch is not None:
                    watches[kind] = watch
                    watch.watch(holder, _Use(self, name, uses, is_apart))
                    seen.add(name)
            for name in self.names - seen:
                self.count(name)  # the step may find that it is not there
            yield
        finally:
            for watch in watches.values():
                watch.end()
            if may_read_past(codes.values()):
                for name in seen:
                    self.count(name)

    def takes(self, name: str, value: Any) -> bool:
        """Tells whether a step that asks for an attribute gets a stand-in for its value; else the attribute counts."""
        held = self._inputs.get(name)
        is_number = type(value) in NUMBERS
        if held is None or name not in self.names or not is_number or held.value is not value:
            self.count(name)
            return False
        self._taken.add(name)
        self._taken_now.add(name)
        return True

    def number(self, name: str, uses: Uses) -> Number:
        """Returns a stand-in for the value of an attribute."""
        held = self._inputs[name]
        whole = held.tensor if isinstance(held.value, int) else None
        known_as = "an attribute", f"`{name}`"
        return Number(held.tensor, held.value, uses, known_as, held.present, counts=True, whole=whole)

    def take_back(self, recording: Recording) -> bool:
        """Has numbers count that a step needs as plain numbers; tells whether the step is to be recorded anew.

        Args:
            recording: The step. Whatever makes no program of it may be due to a stand-in: it is tried without.
        """
        plainly = [hazard.what for hazard in recording.frozen if hazard.what.endswith(PLAINLY)]
        taken, has_failed = self._taken_now & self.names, bool(recording.hazards)
        for name in taken:
            if has_failed or any(f"`{name}`" in what for what in plainly):
                self.count(name)
        return has_failed and bool(taken)

    def _places(self, holders: Iterable[tuple[str, Any]]) -> list[tuple[str, Any, str]]:
        places = ((prefix + key, holder, key) for prefix, holder in holders for key in vars(holder))
        return [place for place in places if place[0] in self.names]


class _Input:
    """A number as an input of programs."""

    def __init__(self, holder: Any, key: str) -> None:
        self.holder, self._key = holder, key
        self.tensor = torch.zeros((), dtype=torch.float64)
        self.value: Any = None

    def update(self) -> bool:
        """Takes over its value; tells whether the tensor can stand for it.

        Before torch 2.13, `clamp` takes a bound that is NaN as none where it is a number, and not where it is a tensor.
        """
        self.value = self.present()
        if is_large(self.value) or (type(self.value) is float and math.isnan(self.value)):
            return False
        if type(self.value) in NUMBERS:
            self.tensor.fill_(self.value)
        return True

    def present(self) -> Any:
        return vars(self.holder).get(self._key)


class _Use:
    def __init__(self, of: Varying, name: str, uses: Uses, is_apart: Callable[[], bool]) -> None:
        self._of, self._name, self._uses, self._is_apart = of, name, uses, is_apart
        self._thread = get_ident()
        self._number: Any = None

    def got(self, value: Any, frame: FrameType) -> Any:
        if get_ident() != self._thread:  # a number that is recorded is of use to the step alone
            self._of.count(self._name)
            return value
        if self._is_apart() or not self._of.takes(self._name, value):
            return value
        if self._number is None:
            self._number = self._of.number(self._name, self._uses)
        return self._number  # one and the same object, as the number is

    def changed(self) -> None:
        self._of.count(self._name)


def _can_be_watched(holder: Any, key: str) -> bool:
    """Tells whether an attribute is the user's own and holds no tensors, which programs know by where they are held."""
    value, kind = vars(holder)[key], type(holder)
    items: Collection[Any] = [value]
    if is_a(value, list, tuple, set, dict):
        items = dict.values(value) if isinstance(value, dict) else value
    holds_tensors = any(is_a(item, Tensor) for item in items)
    return not holds_tensors and key not in TENSOR_HOLDERS and is_users(kind.__module__) and is_plain(kind, key)
