"""The attributes in which the steps of a training collect what they give: `self.losses.append(loss.detach())`.

Lists hold more after each step, and numbers to which steps add are larger; no step depends on them as long as none
reads them. A list may be in a dictionary that an attribute holds: `self.history["loss"]`. `Collected` knows which these
are, and sees while a step is recorded that it collects in them and does nothing else. What one step collected is
`Appends` (`appends.py`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial, reduce
from operator import add
from types import CodeType
from typing import Any

from lightning_sink.engine.numbers.flows import KEYS, TABLES, is_only_added_to
from lightning_sink.engine.state.attribute_watch import AttributeWatches, asking_for_types, is_plain, may_read_past
from lightning_sink.engine.state.attributes import NUMBERS
from lightning_sink.engine.state.collectors import ListWatch, Sum
from lightning_sink.engine.state.referrers import is_held, put_in_place_of
from lightning_sink.engine.watch import CHANGES
from lightning_sink.held import ABSENT

_COLLECTED = "what steps collect"


@dataclass(frozen=True, eq=False)
class Place:
    """An attribute in which steps collect.

    Attributes:
        name: What users call it.
        holder: What has the attribute.
        key: The attribute's own name.
        is_sum: Whether it holds a number to which steps add, and not a list.
        is_last: Whether it holds a number in the place of which steps put another one.
        item: Where in a dictionary, which the attribute holds.
    """

    name: str
    holder: Any
    key: str
    is_sum: bool = False
    is_last: bool = False
    item: Any = ABSENT

    @property
    def value(self) -> Any:
        """What it holds now: a list or a number, unless somebody has put something else there."""
        value = vars(self.holder).get(self.key)
        if self.item is ABSENT:
            return value
        return value.get(self.item) if type(value) in TABLES else None

    def put(self, value: Any) -> None:
        """Has it hold a list or a number, where it holds one."""
        if self.item is ABSENT:
            vars(self.holder)[self.key] = value
        else:
            vars(self.holder)[self.key][self.item] = value

    @property
    def is_there(self) -> bool:
        """Whether it holds what steps can collect in."""
        return type(self.value) in NUMBERS if self.is_sum else type(self.value) is list

    def take(self, items: Iterable[Any]) -> None:
        """Collects some items, one after the other."""
        if self.is_sum:
            # `sum` of floats is no longer what adding one after the other gives, from Python 3.12 on.
            self.put(reduce(add, items, self.value))
        elif self.is_last:
            self.put(deque(items, maxlen=1)[0])
        else:
            self.value.extend(items)


@dataclass
class Collected:
    """The attributes in which steps were seen to collect.

    Attributes:
        places: These; of two that hold the same list, both.
        left_out: Names of attributes that are none of these, whatever steps do with them.
    """

    places: list[Place] = field(default_factory=list)
    left_out: set[str] = field(default_factory=set)

    def leave_out(self, names: Iterable[str]) -> None:
        """Takes note of names of attributes that steps ask for."""
        self.left_out |= {*names}
        self.places = [place for place in self.places if place.key not in self.left_out]

    def names(self, holder: Any) -> frozenset[str]:
        """Returns those of an object, but for dictionaries."""
        return frozenset(place.key for place in self.places if place.holder is holder and place.item is ABSENT)

    def in_tables(self) -> set[int]:
        """Returns the identities of the lists that are in dictionaries."""
        return {id(place.value) for place in self.places if place.item is not ABSENT and place.is_there}

    def tables(self, holder: Any) -> dict[str, dict[Any, Any]]:
        """Returns the dictionaries of an object that have some, by attribute, with a word in the place of each."""
        found: dict[str, dict[Any, Any]] = {}
        for place in self.places:
            if place.holder is holder and place.item is not ABSENT and place.is_there:
                found.setdefault(place.key, {**vars(holder)[place.key]})[place.item] = _COLLECTED
        return found

    def sums(self, holder: Any) -> frozenset[str]:
        """Returns those of an object that hold another number after each step."""
        return frozenset(place.key for place in self.places if place.holder is holder and place.is_sum)

    def state(self) -> dict[str, Hashable]:
        """Returns what programs take for granted of them: that they are there, and which of the lists are one."""
        values = [place.value for place in self.places]
        first = {id(value): number for number, value in reversed([*enumerate(values)])}
        found: dict[str, tuple[Any, ...]] = {}
        for place, value in zip(self.places, values, strict=True):
            held = ("a number",) if place.is_sum and place.is_there else (type(value), first[id(value)])
            found[place.name] = (*found.get(place.name, ()), *held)
        return dict(found)

    def learn(
        self,
        holders: Iterable[tuple[str, Any]],
        grown: Iterable[list[Any]],
        changed: Collection[tuple[int, str]] = (),
        codes: Collection[CodeType] = (),
    ) -> None:
        """Takes note of what a step has collected in.

        Args:
            holders: Objects whose attributes these may be, with what the attributes' names begin with.
            grown: Lists that hold more.
            changed: Attributes that hold other numbers, each with the identity of the dictionary that it is in.
            codes: The code of the step. A list whose type it may ask for is none that another can stand for, and a
                number that it reads is none to which it only adds.
        """
        lists = {id(content) for content in grown}
        asked = {name for code in asking_for_types(codes) for name in code.co_names}
        changed = () if may_read_past(codes) else changed
        for prefix, holder in holders if lists or changed else ():
            held, known = vars(holder), self.names(holder) | asked | self.left_out
            found = [key for key, value in held.items() if id(value) in lists and key not in known]
            self.places += [Place(prefix + key, holder, key) for key in found]
            tables = [(key, value) for key, value in held.items() if type(value) in TABLES and key not in asked]
            inside = [(key, item) for key, table in tables for item, value in table.items() if id(value) in lists]
            has = {(place.key, place.item) for place in self.places if place.holder is holder}
            self.places += [
                Place(f"{prefix}{key}[{item!r}]", holder, key, item=item)
                for key, item in inside
                if type(item) in KEYS and key not in self.left_out and (key, item) not in has
            ]
            sums = [key for where, key in changed if where == id(held) and key not in known]
            sums = [key for key in sums if is_only_added_to(key, codes) and is_plain(type(holder), key)]
            self.places += [Place(prefix + key, holder, key, is_sum=True) for key in sums]

    @contextmanager
    def watched(self, report: Callable[[str], None], apart: Collection[int] = ()) -> Iterator[Watched]:
        """Puts something in their place that reports whatever else than collecting is done with them.

        `apart`: identities of dictionaries with stand-ins, which are themselves where they are appended.
        """
        watched = Watched(report, apart)
        try:
            for place in self.places:
                if place.is_there:
                    (watched.watch_sum if place.is_sum else watched.watch_list)(place)
            yield watched
        finally:
            watched.end()


class Watched:
    """What a step collected; `report` is told of whatever else it does. Arguments as of `Collected.watched`.

    Attributes:
        taken: What it collected, and where, in order.
        items: By identity, what lists held before, with what users call the list.
        read: Numbers with which it did something else than to add to them.
    """

    def __init__(self, report: Callable[[str], None] = lambda what: None, apart: Collection[int] = ()) -> None:
        self.taken: list[tuple[Place, Any]] = []
        self.items: dict[int, str] = {}
        self.read: list[Place] = []
        self._report, self._apart = report, apart
        self._lists: dict[int, ListWatch] = {}
        self._list_places: list[tuple[Place, int]] = []
        self._watches = AttributeWatches()
        self._sums: list[tuple[Place, Sum]] = []

    def watch_list(self, place: Place) -> None:
        """Puts something in the place of a list."""
        held = place.value
        if id(held) not in self._lists:
            read = partial(self.tell, place, "which it reads, too, or changes otherwise than by appending")
            self._lists[id(held)] = ListWatch(held, partial(self._take, place), read, self._apart)
            self.items.update((id(item), place.name) for item in held)
        self._list_places.append((place, id(held)))
        place.put(self._lists[id(held)])

    def watch_sum(self, place: Place) -> None:
        """Puts something before a number."""
        held = Sum(vars(place.holder), place.key, partial(self._take, place), partial(self.tell, place))
        if self._watches.watch(place.holder, place.key, held) is None:
            self.tell(place, "while a step of another thread is recorded")
        else:
            self._sums.append((place, held))

    def has_sum(self, holder: Any, key: str) -> bool:
        """Tells whether an attribute is a number that is watched."""
        return any(place.holder is holder and place.key == key for place, _ in self._sums)

    def check(self, codes: Iterable[CodeType]) -> None:
        """Tells of numbers that some code may read past the attribute."""
        if self._sums and may_read_past(codes):
            self.tell(self._sums[0][0], "and asks for all that there is (`vars()`, `__dict__`)")

    def tell(self, place: Place, what: str) -> None:
        """Reports what is done with a place."""
        self.read += [place] if place.is_sum else []
        self._report(f"{CHANGES}: `{place.name}`, {what}")

    def end(self) -> None:
        """Leaves everything as it was, but for what was collected."""
        for place, key in self._list_places:
            if place.value is self._lists[key]:
                place.put(self._lists[key].held)
            else:
                self.tell(place, "in the place of which it puts another one")
        while self._lists:
            owner = [self._lists.popitem()[1]]
            owner[0].end()
            if is_held(owner):
                put_in_place_of(owner[0], owner[0].held)
        for _, held in self._sums:
            held.changed()
        self._watches.end()

    def _take(self, place: Place, item: Any) -> None:
        self.taken.append((place, item))
