"""Lists in which the steps of a training collect what they give: `self.losses.append(loss.detach())`.

Such a list holds more after each step, and no step depends on it as long as none reads it. `Lists` knows which these
are, and sees while a step is recorded that it appends to them and does nothing else; `Appends` is what one step
appended, for programs to append again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import CodeType
from typing import Any

from torch import Tensor

from lightning_sink.engine.attributes import SCALARS, are_the_same, fingerprint
from lightning_sink.engine.private import pytree
from lightning_sink.engine.referrers import put_in_place_of
from lightning_sink.engine.step import Column, taken_apart

_ASKS = frozenset(["type", "__class__"])


@dataclass(frozen=True, eq=False)
class Place:
    """An attribute that holds a list.

    Attributes:
        name: What users call it.
        holder: What has the attribute.
        key: The attribute's own name.
    """

    name: str
    holder: Any
    key: str

    @property
    def value(self) -> Any:
        """What it holds now: a list, unless somebody has put something else there."""
        return vars(self.holder).get(self.key)

    @property
    def items(self) -> list[Any]:
        """The list that it holds; an empty one where it holds none."""
        return self.value if type(self.value) is list else []


@dataclass
class Lists:
    """The lists that steps were seen to append to.

    Attributes:
        places: The attributes that hold them; of two that hold the same one, both.
    """

    places: list[Place] = field(default_factory=list)

    def names(self, holder: Any) -> frozenset[str]:
        """Returns an object's attributes that hold such lists."""
        return frozenset(place.key for place in self.places if place.holder is holder)

    def state(self) -> dict[str, Hashable]:
        """Returns what programs take for granted of them: that they are there, and which of them are one."""
        values = [place.value for place in self.places]
        first = {id(value): number for number, value in reversed([*enumerate(values)])}
        found: dict[str, tuple[Any, ...]] = {}
        for place, value in zip(self.places, values, strict=True):
            found[place.name] = (*found.get(place.name, ()), type(value), first[id(value)])
        return dict(found)

    def learn(
        self, holders: Iterable[tuple[str, Any]], grown: Iterable[list[Any]], codes: Collection[CodeType] = ()
    ) -> None:
        """Takes note of lists that a step has appended to.

        Args:
            holders: Objects whose attributes may hold them, with what the attributes' names begin with.
            grown: The lists.
            codes: The code of the step. A list whose type it may ask for is none that another can stand for.
        """
        those = {id(content) for content in grown}
        asked = {name for code in codes if _ASKS & {*code.co_names} for name in code.co_names}
        for prefix, holder in holders if those else ():
            known = self.names(holder)
            found = [key for key, value in vars(holder).items() if id(value) in those and key not in known | asked]
            self.places += [Place(prefix + key, holder, key) for key in found]

    @contextmanager
    def watched(self, report: Callable[[str], None]) -> Iterator[Watched]:
        """Puts lists in their place that see what is done with them.

        Args:
            report: Told of whatever else than appending is done with them.
        """
        watched = Watched()
        watches: dict[int, _Watch] = {}
        for place in self.places:
            held = place.value
            if type(held) is list:
                if id(held) not in watches:
                    watches[id(held)] = _Watch(held, place, watched.appended, report)
                    watched.items.update((id(item), place.name) for item in held)
                vars(place.holder)[place.key] = watches[id(held)]
        places = [(place, place.value) for place in self.places]
        try:
            yield watched
        finally:
            for place, value in places:
                if place.value is not value:
                    report(f"the step changes Python state: `{place.name}`, in the place of which it puts another one")
            for watch in [*watches.values()]:
                watch.end()


@dataclass
class Watched:
    """What was done with lists in a step.

    Attributes:
        appended: What was appended to which, in order.
        items: By identity, what they held before, with what users call the list.
    """

    appended: list[tuple[Place, Any]] = field(default_factory=list)
    items: dict[int, str] = field(default_factory=dict)


class _Watch(list[Any]):
    """Stands for a list while a step is recorded; all that is done with it is done with the list.

    C code looks into this one, without a word: it holds the same.
    """

    def __init__(
        self, held: list[Any], place: Place, appended: list[tuple[Place, Any]], report: Callable[[str], None]
    ) -> None:
        super().__init__(held)
        self._held, self._place, self._appended, self._report = held, place, appended, report
        self._expected = held.copy()

    def append(self, item: Any) -> None:
        self._appended.append((self._place, item))
        for items in (self._expected, self._held):
            items.append(item)
        super().append(item)

    def extend(self, items: Iterable[Any]) -> None:
        for item in [*items]:
            self.append(item)

    def __iadd__(self, items: Iterable[Any]) -> _Watch:  # type: ignore[misc]
        self.extend(items)
        return self

    def __radd__(self, items: list[Any]) -> list[Any]:
        self.read()
        return items + self._held

    def read(self) -> None:
        self._report(f"the step changes Python state: `{self._place.name}`, and not only by appending to it")

    def end(self) -> None:
        """Gives everybody who holds this one the list."""
        own = [*list.__iter__(self)]
        if not are_the_same(own, self._expected):
            self.read()
            if are_the_same(self._held, self._expected):
                self._held[:] = own
        elif not are_the_same(self._held, self._expected):
            self.read()
        put_in_place_of(self, self._held)


def _reading(name: str) -> Callable[..., Any]:
    method = getattr(list, name)

    def read(self: _Watch, *arguments: Any, **options: Any) -> Any:
        self.read()
        return method(self._held, *arguments, **options)

    return read


_OPERATORS = ["add", "contains", "delitem", "eq", "ge", "getitem", "gt", "imul", "iter", "le", "len", "lt", "mul", "ne"]
_OPERATORS += ["reduce_ex", "repr", "reversed", "rmul", "setitem", "sizeof"]
_METHODS = ["clear", "copy", "count", "index", "insert", "pop", "remove", "reverse", "sort"]
for _name in [*(f"__{name}__" for name in _OPERATORS), *_METHODS]:
    setattr(_Watch, _name, _reading(_name))


class _Item:
    """What is appended once: a tensor, or lists, tuples and dictionaries of tensors and other values."""

    def __init__(self, place: Place, item: Any) -> None:
        leaves, self.spec = pytree.tree_flatten(item)
        self.place, self.is_tensor = place, isinstance(item, Tensor)
        self.constants = [None if isinstance(leaf, Tensor) else leaf for leaf in leaves]
        self.shapes = {index: leaf.shape for index, leaf in enumerate(leaves) if isinstance(leaf, Tensor)}

    @property
    def key(self) -> Hashable:
        constants = tuple(map(fingerprint, self.constants))
        return self.place.name, id(self.place.holder), constants, self.spec, tuple(self.shapes)

    def append(self, tensors: Sequence[Tensor]) -> None:
        if self.is_tensor:
            self.place.value.append(tensors[0].view(self.shapes[0]).clone())
            return
        leaves = self.constants.copy()
        for (index, shape), tensor in zip(self.shapes.items(), tensors, strict=True):
            leaves[index] = tensor.view(shape).clone()  # the program may use its memory again
        self.place.value.append(pytree.tree_unflatten(leaves, self.spec))


class Appends:
    """What a step appends.

    Args:
        appended: What a recorded step appended, and where; in the step, and in what comes behind the owner's turn.

    Attributes:
        names: For each tensor in that, what users call the list.
        problem: Why no program can append the same; None where one can.
    """

    def __init__(self, appended: list[list[tuple[Place, Any]]]) -> None:
        self._spans = [[_Item(place, item) for place, item in span] for span in appended]
        self._items = [item for span in self._spans for item in span]
        self.names = [item.place.name for item in self._items for _ in item.shapes]
        odd = ((item.place.name, type(value)) for item in self._items for value in item.constants)
        found = (f"the step appends a `{kind.__name__}` to `{name}`" for name, kind in odd if kind not in SCALARS)
        self.problem = next(found, None)

    def __bool__(self) -> bool:
        return bool(self._items)

    @property
    def key(self) -> Hashable:
        """Equal for steps that append the same, but for what is in the tensors."""
        return tuple(tuple(item.key for item in span) for span in self._spans)

    def append(self, tensors: Sequence[Tensor], late: bool | None = None) -> None:
        """Appends what one step gave.

        Args:
            tensors: All that it gave.
            late: Whether to append what comes behind the owner's turn, or the rest; None for both.
        """
        given = iter(tensors)
        for number, span in enumerate(self._spans):
            for item in span:
                own = [next(given) for _ in item.shapes]
                if late is None or late == (number > 0):
                    item.append(own)

    def append_row(self, columns: Sequence[Column], steps: int) -> None:
        """Appends what steps in a row gave."""
        varying = [*map(taken_apart, columns)]
        for number in range(steps if self._items else 0):
            self.append([tensors[number] for tensors in varying])

    def last(self) -> list[Tensor]:
        """Returns the tensors that the step before appended; none where somebody has taken some away."""
        counts = Counter(item.place for item in self._items)
        if any(len(place.items) < count for place, count in counts.items()):
            return []
        tails = {place: iter(place.items[-count:]) for place, count in counts.items()}
        there = [(item.place, next(tails[item.place])) for item in self._items]
        same = [_Item(*pair).key for pair in there] == [item.key for item in self._items]
        return tensors_in(there) if same else []


def containers_in(items: Iterable[Any]) -> Iterator[Any]:
    """Yields the lists and dictionaries in some values, as often as they are met."""
    for item in items:
        if isinstance(item, (list, dict)):
            yield item
        if isinstance(item, (list, tuple, dict)):
            yield from containers_in(item.values() if isinstance(item, dict) else item)


def tensors_in(appended: Iterable[tuple[Place, Any]]) -> list[Tensor]:
    """Returns the tensors in what was appended, in order."""
    return [leaf for leaf in pytree.tree_leaves([item for _, item in appended]) if isinstance(leaf, Tensor)]
