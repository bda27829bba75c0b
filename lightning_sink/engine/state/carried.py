"""Attributes by which Python carries a value from step to step: `self.steps += 1`, a temperature that is annealed.

A number may be in a dictionary that an attribute holds, `self.sums["loss"] += loss.item()`, also one that is made anew.

What a step sets such an attribute to is most often computed of numbers that the host knows without running it: of the
attribute itself, of counters, of constants. A program computes that for each of its steps, on the host, in Python; what
it takes of the attribute is an input, as a counter is, or decided before the step. What is computed of a tensor's value
is the program's to compute (`tensor_watch.py`). `Carried` knows the attributes that steps were seen to set; a `Carry`
is one of them, and owns the 0-dim tensors that stand for it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Hashable, Iterable, Iterator
from contextlib import contextmanager
from types import CodeType, MappingProxyType
from typing import Any

import torch
from torch import Tensor

from lightning_sink.engine.numbers.flows import KEYS, TABLES
from lightning_sink.engine.numbers.guards import Host
from lightning_sink.engine.state.ahead import Left
from lightning_sink.engine.state.attribute_watch import (
    AttributeWatches,
    Looks,
    asking_for_types,
    is_plain,
    may_read_past,
)
from lightning_sink.engine.state.attributes import NUMBERS, SCALARS, TENSOR_HOLDERS
from lightning_sink.engine.state.carry_watch import AttributeInStep, CarryWatch
from lightning_sink.engine.state.collected import Place
from lightning_sink.engine.state.tensor_watch import TensorWatch
from lightning_sink.held import ABSENT
from lightning_sink.whose import is_users

_NONE = frozenset[str]()

_NOTHING: Any = MappingProxyType[Any, Any]({})

_PARTS = 4
"""Parts of a step at most in which such an attribute is used."""


class Carry(Left):
    """One attribute, or an item of the dictionary that one holds.

    Attributes:
        name: What users call it.
        holder: What has the attribute.
        attribute, item: The attribute's own name; where in the dictionary, or `ABSENT`.
        number: Which it is of those that have its name: two objects may be called alike.
        place: Where programs put what only they know.
        is_of_tensors: Whether steps set it to that.
        is_bounded: Whether it is known how much they add to a whole number.
        tensors: What may stand for it in programs, by the part of a step in which it is used.
        kept: What programs have it in that write to it, by its type.
    """

    def __init__(self, name: str, holder: Any, attribute: str, item: Any = ABSENT, number: int = 0) -> None:
        super().__init__()
        self.name, self.holder, self.attribute, self.item, self.number = name, holder, attribute, item, number
        self.place = Place(name, holder, attribute, is_last=True, item=item)
        self.is_of_tensors, self.is_bounded = False, True
        self.tensors = [torch.zeros((), dtype=torch.float64) for _ in range(_PARTS)]
        self.kept: dict[type, Tensor] = {}

    @property
    def is_item(self) -> bool:
        """Whether it is in a dictionary."""
        return self.item is not ABSENT

    @property
    def key(self) -> Any:
        """Where it is in what has it."""
        return self.item if self.is_item else self.attribute

    @property
    def held(self) -> dict[Any, Any]:
        """What has it: the attributes of the holder, or the dictionary; an empty one where there is none."""
        attributes: dict[str, Any] = vars(self.holder)
        table: Any = attributes.get(self.attribute) if self.is_item else attributes
        held: dict[Any, Any] = table if type(table) in TABLES else _NOTHING
        return held

    def present(self) -> Any:
        """Returns what it is."""
        return self.held.get(self.key, ABSENT)

    def watch(self) -> AttributeInStep:
        """Returns what is to stand before it in a recorded step."""
        if self.is_of_tensors:
            types = {float: torch.float64, int: torch.int64}
            self.kept = self.kept or {kind: torch.zeros((), dtype=dtype) for kind, dtype in types.items()}
            return TensorWatch(self.name, self.held, self.key, self.present, self.kept, self.is_bounded)
        return CarryWatch(self.name, self.held, self.key, self.found, self.tensors, self.number)

    def put(self, value: Any) -> None:
        """Sets it."""
        self.held[self.key] = value


class Carried:
    """The attributes that steps were seen to set."""

    def __init__(self) -> None:
        self._all: list[Carry] = []
        self._watches: list[tuple[Carry, AttributeInStep]] = []

    def __bool__(self) -> bool:
        return bool(self._all)

    def has(self, holder: Any, key: Any) -> bool:
        """Tells whether an attribute of an object, or an item of a dictionary, is one of them."""
        if type(holder) in TABLES:
            return any(carry.is_item and carry.held is holder and carry.item == key for carry in self._all)
        return key in self.names(holder)

    def names(self, holder: Any) -> frozenset[str]:
        """Returns those of an object, but for dictionaries."""
        if not self._all:  # as in most trainings; asked of each module at each look
            return _NONE
        return frozenset(carry.attribute for carry in self._all if carry.holder is holder and not carry.is_item)

    def items(self, holder: Any) -> dict[str, list[Any]]:
        """Returns those that an object has in dictionaries, by attribute."""
        found: dict[str, list[Any]] = {}
        for carry in self._all:
            if carry.is_item and carry.holder is holder and carry.present() is not ABSENT:
                found.setdefault(carry.attribute, []).append(carry.item)
        return found

    def places(self) -> set[tuple[int, Any]]:
        """Returns them by the identity of the dictionary that each is in, and where there."""
        return {(id(carry.held), carry.key) for carry in self._all}

    def state(self, holders: Collection[int]) -> dict[str, Hashable]:
        """Returns what programs take for granted of them: that they are carried; what they are is asked before a step.

        Those of objects that are not among these, by identity, are forgotten.
        """
        self._all = [carry for carry in self._all if id(carry.holder) in holders]
        return {carry.name: ("carried", carry.is_bounded) for carry in self._all}

    def learn(
        self,
        holders: Iterable[tuple[str, Any]],
        changed: Collection[str],
        items: Collection[tuple[int, Any]],
        codes: Collection[CodeType],
    ) -> list[str]:
        """Takes note of what a step has set; returns the names of what is new.

        Args:
            holders: Objects whose attributes these may be, with what the attributes' names begin with.
            changed: Names of Python values that are others behind the step.
            items: Identities of dictionaries, and where in them numbers are others, or may come to be.
            codes: The code of the step.
        """
        if may_read_past(codes):
            return []
        # What stands in a dictionary is given to whoever looks there, and also to who asks for its type.
        known, holders, items = len(self._all), [*holders], () if asking_for_types(codes) else items
        places = Counter(id(value) for _, holder in holders for value in vars(holder).values()) if items else {}
        for prefix, holder in holders:
            kind, held = type(holder), vars(holder)
            if not is_users(kind.__module__):
                continue
            left_out = TENSOR_HOLDERS | self.names(holder)
            keys = [key for key, value in held.items() if type(value) in SCALARS and prefix + key in changed]
            found = [(key, ABSENT) for key in keys if key not in left_out and is_plain(kind, key)]
            # The values of one that is in two places are looked at in the other.
            tables = [
                (key, value) for key, value in held.items() if type(value) in TABLES and places.get(id(value)) == 1
            ]
            found += [(key, item) for key, table in tables for item in self._new_items(table, items)]
            for key, item in found:
                name = prefix + key if item is ABSENT else f"{prefix}{key}[{item!r}]"
                numbers = (carry.number for carry in self._all if carry.name == name)
                self._all.append(Carry(name, holder, key, item, max(numbers, default=-1) + 1))
        return [carry.name for carry in self._all[known:]]

    def _new_items(self, table: dict[Any, Any], items: Collection[tuple[int, Any]]) -> list[Any]:
        """Returns where in a dictionary numbers are that steps set, and are not known yet."""
        numbers = [key for key, value in table.items() if type(key) in KEYS and type(value) in NUMBERS]
        return [key for key in numbers if (id(table), key) in items and not self.has(table, key)]

    # -- one recording ------------------------------------------------------------------------------------------------

    def begin(self) -> list[Tensor]:
        """Looks at them before a step is recorded; returns the tensors that may stand for them."""
        self._watches = [(carry, carry.watch()) for carry in self._all]
        return [tensor for carry in self._all for tensor in (*carry.tensors, *carry.kept.values())]

    @contextmanager
    def watched(self, step: Looks) -> Iterator[None]:
        """Lets a part of the step use them."""
        watches = AttributeWatches()
        try:
            for carry, watch in self._watches:
                watch.begin(step)
                if not carry.is_item and watches.watch(carry.holder, carry.attribute, watch) is None:
                    watch.tell("while something else watches it")
            yield
        finally:
            reads_past = bool(step.past) or may_read_past(step.ran.values())
            asks = self.tables() and asking_for_types(step.ran.values())
            for carry, watch in self._watches:
                if carry.is_item and asks:
                    watch.tell("and asks for types (`type()`, `__class__`)")
                watch.end(reads_past and not carry.is_item, carry.held)
                carry.is_of_tensors |= watch.is_of_tensors
                carry.is_bounded &= watch.is_bounded
            watches.end()

    def tables(self) -> set[int]:
        """Returns the identities of the dictionaries that have some."""
        return {id(carry.held) for carry in self._all if carry.is_item}

    def stand_in_dictionaries(self) -> None:
        """Puts what stands for them into dictionaries, which nobody is told of who looks there; recorded, too."""
        for carry, watch in self._watches:
            if carry.is_item:
                watch.put_stand_in()

    def leave(self) -> list[tuple[Place, Any]]:
        """Returns what the part that is being recorded has set them to, where only a program knows that."""
        return [(carry.place, item) for carry, watch in self._watches for item in watch.leave()]

    @property
    def changes_types(self) -> bool:
        """Whether the recorded step leaves one with a number of another type than it finds."""
        return any(isinstance(watch, TensorWatch) and watch.changes_type for _, watch in self._watches)

    def put_back(self) -> None:
        """Puts back what the present part of a step found, which is to be run again."""
        for _, watch in self._watches:
            watch.put_back()

    def set_by_step(self) -> list[tuple[Carry, Host, str]]:
        """Returns what the recorded step sets, with what gives the value in later steps, and a text."""
        return [(carry, *left) for carry, watch in self._watches if (left := watch.left()) is not None]

    def inputs(self, written: bool = False) -> list[tuple[Tensor, Host]]:
        """Returns the tensors that stand for attributes, with what gives their values before a step.

        `written`: those in which programs have what they write, and not the others.
        """
        watches = (watch for _, watch in self._watches if isinstance(watch, TensorWatch) is written)
        return [pair for watch in watches for pair in watch.inputs]
