"""Attributes that change between sinks: when an epoch began, the best loss so far, a weight that is annealed.

Programs take every attribute for granted; one that changes would have them all forgotten. So an attribute that has
changed is watched from then on while steps are recorded. It does not count until a step uses it; and a float that
steps compute with is an input of their programs, as a learning rate is. Anything else that a step does with it makes it
count for good. `Varying` knows which attributes these are, and owns the 0-dim tensors that stand for floats.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from threading import get_ident
from types import FrameType
from typing import Any

import torch
from torch import Tensor

from lightning_sink.engine.numbers.number import Number
from lightning_sink.engine.numbers.value import PLAINLY
from lightning_sink.engine.state.attribute_watch import AttributeWatch, AttributeWatches, Looks, is_plain, may_read_past
from lightning_sink.engine.state.attributes import CONTAINERS, SCALARS, TENSOR_HOLDERS
from lightning_sink.engine.watch import is_user_frame
from lightning_sink.whose import is_users


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
        self._keys: dict[str, frozenset[str]] = {}
        self._reads_past = False

    def suspect(self, names: Iterable[str]) -> None:
        """Has attributes watched that have changed; there is no program that was made before."""
        self.names |= {*names} - self._counting
        self._keys.clear()

    def count(self, name: str) -> None:
        """Has an attribute count, whatever becomes of it."""
        self.names.discard(name)
        self._keys.clear()
        self._counting.add(name)

    def cover(self, name: str, before: Any, after: Any) -> bool:
        """Tells whether no program depends on a change of an attribute; its fingerprint is None if it was not there."""
        are_floats = all(isinstance(seen, tuple) and seen[0] is float for seen in (before, after))
        return name in self.names and (name not in self._taken or are_floats)

    def keys(self, prefix: str) -> frozenset[str]:
        """Returns the attributes of an object with what their names begin with."""
        if prefix not in self._keys:
            keys = (name.removeprefix(prefix) for name in self.names if name.startswith(prefix))
            self._keys[prefix] = frozenset(key for key in keys if "." not in key)
        return self._keys[prefix]

    @property
    def tensors(self) -> list[Tensor]:
        """The tensors that stand for floats."""
        return [held.tensor for held in self._inputs.values()]

    def update(self) -> None:
        """Takes over the floats' values."""
        for held in self._inputs.values():
            held.update()

    # -- one recording ------------------------------------------------------------------------------------------------

    def begin(self, holders: Iterable[tuple[str, Any]]) -> None:
        """Looks for floats before a step is recorded, in objects, with what the attributes' names begin with."""
        self._taken_now.clear()
        found = self._places(holders) if self.names else []
        for name, holder, key in found:
            known = self._inputs.get(name)
            if type(vars(holder)[key]) is float and (known is None or known.holder is not holder):
                self._inputs[name] = _Input(holder, key)
        self.update()

    @contextmanager
    def watched(self, holders: Iterable[tuple[str, Any]], step: Looks) -> Iterator[None]:
        """Watches them, in holders as for `begin`, while a step is recorded."""
        if self._reads_past:  # what stands on a class is seen by who looks at all that there is
            self._count_all(self.names)
        places = [place for place in self._places(holders) if _can_be_watched(*place[1:])] if self.names else []
        watches = AttributeWatches()
        seen: dict[str, AttributeWatch] = {}
        try:
            for name, holder, key in places:
                watch = watches.watch(holder, key, _Use(self, name, key, step))
                if watch is not None:
                    seen[name] = watch
            self._count_all(self.names - seen.keys())  # the step may find that one is not there
            yield
        finally:
            self._reads_past = self._reads_past or bool(step.past) or may_read_past(step.ran.values())
            self._count_all(name for name, watch in seen.items() if self._reads_past or not watch.is_there)
            watches.end()

    def takes(self, name: str, value: Any) -> bool:
        """Tells whether there may be a stand-in for the value of an attribute."""
        held = self._inputs.get(name)
        return held is not None and name in self.names and type(value) is float and held.value is value

    def number(self, name: str, step: Looks) -> Number:
        """Returns a stand-in for the value of an attribute."""
        self._taken.add(name)
        self._taken_now.add(name)
        held, known_as = self._inputs[name], ("an attribute", f"`{name}`")
        return Number(held.tensor, held.value, step.uses, known_as, held.present, counts=True, plain=step.plain)

    def check(self, frozen: Iterable[str], stands: bool) -> None:
        """Has floats count that a step needs as plain numbers (`frozen`), and those of which it makes no program.

        `stands`: the recording may stand for other steps.
        """
        plainly = [what for what in frozen if what.endswith(PLAINLY)]
        taken = self._taken_now & self.names
        self._count_all(n for n in taken if not stands or any(f"`{n}`" in what for what in plainly))

    def _count_all(self, names: Iterable[str]) -> None:
        for name in [*names]:
            self.count(name)

    def _places(self, holders: Iterable[tuple[str, Any]]) -> list[tuple[str, Any, str]]:
        places = ((prefix + key, holder, key) for prefix, holder in holders for key in vars(holder))
        return [place for place in places if place[0] in self.names]


class _Input:
    """A float as an input of programs."""

    def __init__(self, holder: Any, key: str) -> None:
        self.holder, self._key = holder, key
        self.tensor = torch.zeros((), dtype=torch.float64)
        self.value: Any = None

    def update(self) -> None:
        self.value = self.present()
        if type(self.value) is float:
            self.tensor.fill_(self.value)

    def present(self) -> Any:
        return vars(self.holder).get(self._key)


class _Use:
    """What becomes of one attribute in a step."""

    def __init__(self, of: Varying, name: str, key: str, step: Looks) -> None:
        self._of, self._name, self._key, self._step = of, name, key, step
        self._thread = get_ident()
        self._number: Number | None = None

    def got(self, value: Any, frame: FrameType) -> Any:
        is_of_step = get_ident() == self._thread  # a number that is recorded is of use to the step alone
        if not (is_of_step and self._of.takes(self._name, value) and self._is_computed_with(frame)):
            self._of.count(self._name)
            return value
        if self._number is None:
            self._number = self._of.number(self._name, self._step)
        return self._number  # one and the same object, as the number is

    def changed(self) -> None:
        self._of.count(self._name)

    def _is_computed_with(self, frame: FrameType) -> bool:
        """Tells whether a line of the user's names the attribute, and does nothing with it that needs the number."""
        return is_user_frame(frame) and self._step.plain.reads(frame, self._key)


_MOST = 1_000
"""Values in a container that are looked at, to see that nothing in it has attributes or memory of its own."""


def _can_be_watched(holder: Any, key: str) -> bool:
    """Tells whether an attribute is the user's own, and is all that leads to what it holds.

    Programs know tensors by where they are held, and an object may be known to others that no fingerprint sees.
    """
    kind, value = type(holder), vars(holder)[key]
    is_own = is_users(kind.__module__) and is_plain(kind, key) and key not in TENSOR_HOLDERS
    return is_own and _is_plain_data([value])


def _is_plain_data(values: Iterable[Any]) -> bool:
    left, below = _MOST, [*values]
    while below:
        left -= len(below)
        containers = [value for value in below if type(value) not in SCALARS]
        if left < 0 or not all(type(value) in CONTAINERS for value in containers):
            return False
        items = [[*value.keys(), *value.values()] if isinstance(value, dict) else value for value in containers]
        below = [item for inside in items for item in inside]
    return True
