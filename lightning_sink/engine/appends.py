"""Lists in which the steps of a training collect what they give: `self.losses.append(loss.detach())`.

Such a list holds more after each step, and no step depends on it as long as none reads it. `Lists` knows which these
are, and sees while a step is recorded that it appends to them and does nothing else; `Appends` is what one step
appended, for programs to append again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from lightning_sink.engine.attributes import SCALARS, fingerprint
from lightning_sink.engine.private import pytree
from lightning_sink.engine.replacing import put_in_place_of
from lightning_sink.engine.step import Column, taken_apart


@dataclass(frozen=True)
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
        return {p.name: (type(value), first[id(value)]) for p, value in zip(self.places, values, strict=True)}

    def learn(self, holders: Iterable[tuple[str, Any]], grown: Iterable[list[Any]]) -> None:
        """Takes note of lists that a step has appended to.

        Args:
            holders: Objects whose attributes may hold them, with what the attributes' names begin with.
            grown: The lists.
        """
        those = {id(content) for content in grown}
        for prefix, holder in holders if those else ():
            known = self.names(holder)
            found = [key for key, value in vars(holder).items() if id(value) in those and key not in known]
            self.places += [Place(prefix + key, holder, key) for key in found]

    @contextmanager
    def watched(self, report: Callable[[str], None]) -> Iterator[list[tuple[Place, Any]]]:
        """Puts lists in their place that see what is done with them; yields what is appended, in order.

        Args:
            report: Told of whatever else is done with them.
        """
        appended: list[tuple[Place, Any]] = []
        watches: dict[int, _Watch] = {}
        for place in self.places:
            held = place.value
            if type(held) is list:
                if id(held) not in watches:
                    watches[id(held)] = _Watch(held, place, appended, report)
                vars(place.holder)[place.key] = watches[id(held)]
        try:
            yield appended
        finally:
            for watch in [*watches.values()]:
                watch.end()


class _Watch(list[Any]):
    """Stands for a list while a step is recorded."""

    def __init__(
        self, held: list[Any], place: Place, appended: list[tuple[Place, Any]], report: Callable[[str], None]
    ) -> None:
        super().__init__(held)
        self._held, self._place, self._appended, self._report = held, place, appended, report

    def append(self, item: Any) -> None:
        self._appended.append((self._place, item))
        super().append(item)

    def extend(self, items: Iterable[Any]) -> None:
        for item in items:
            self.append(item)

    def __iadd__(self, items: Iterable[Any]) -> _Watch:  # type: ignore[misc]
        self.extend(items)
        return self

    def __radd__(self, items: list[Any]) -> list[Any]:
        self.read()
        return items + [*list.__iter__(self)]

    def read(self) -> None:
        self._report(f"the step changes Python state: `{self._place.name}`, and not only by appending to it")

    def end(self) -> None:
        """Gives the list what was done with this one, and everybody who holds this one the list."""
        self._held[:] = [*list.__iter__(self)]
        put_in_place_of(self, self._held)


def _reading(name: str) -> Callable[..., Any]:
    method = getattr(list, name)

    def read(self: _Watch, *arguments: Any, **options: Any) -> Any:
        self.read()
        return method(self, *arguments, **options)

    return read


_OPERATORS = ["add", "contains", "delitem", "eq", "ge", "getitem", "gt", "imul", "iter", "le", "len", "lt", "mul", "ne"]
_OPERATORS += ["reduce_ex", "repr", "reversed", "rmul", "setitem", "sizeof"]
_METHODS = ["clear", "copy", "count", "index", "insert", "pop", "remove", "reverse", "sort"]
for _name in [*(f"__{name}__" for name in _OPERATORS), *_METHODS]:
    setattr(_Watch, _name, _reading(_name))


class Appends:
    """What a step appends.

    Args:
        appended: What a recorded step appended, and where.

    Attributes:
        names: For each tensor in that, what users call the list.
        problem: Why no program can append the same; None where one can.
    """

    def __init__(self, appended: list[tuple[Place, Any]]) -> None:
        self._places = [place for place, _ in appended]
        self.names = [place.name for place, item in appended for _ in tensors_in([(place, item)])]
        leaves, self._spec = pytree.tree_flatten([item for _, item in appended])
        self._constants = [None if isinstance(leaf, Tensor) else leaf for leaf in leaves]
        self._shapes = {index: leaf.shape for index, leaf in enumerate(leaves) if isinstance(leaf, Tensor)}
        odd = (leaf for leaf in leaves if not isinstance(leaf, Tensor) and type(leaf) not in SCALARS)
        kind = next((type(leaf).__name__ for leaf in odd), None)
        self.problem = None if kind is None else f"the step appends a `{kind}` to `{self._places[0].name}`"

    @property
    def key(self) -> Hashable:
        """Equal for steps that append the same, but for what is in the tensors."""
        constants = tuple(map(fingerprint, self._constants))
        return tuple((p.name, id(p.holder)) for p in self._places), constants, self._spec, tuple(self._shapes)

    def append(self, tensors: Sequence[Tensor]) -> None:
        """Appends what one step gave: copies, for the program may use its memory again."""
        leaves = self._constants.copy()
        for (index, shape), tensor in zip(self._shapes.items(), tensors, strict=True):
            leaves[index] = tensor.view(shape).clone()
        for place, item in zip(self._places, pytree.tree_unflatten(leaves, self._spec), strict=True):
            place.value.append(item)

    def append_row(self, columns: Sequence[Column], steps: int) -> None:
        """Appends what steps in a row gave."""
        varying = [*map(taken_apart, columns)]
        for number in range(steps if self._places else 0):
            self.append([tensors[number] for tensors in varying])

    def last(self) -> list[Tensor]:
        """Returns the tensors that the step before appended; none where somebody has taken some away."""
        counts = Counter(self._places)
        tails = {place: iter(place.items[-count:]) for place, count in counts.items()}
        items = [next(tails[place], None) for place in self._places]
        leaves, spec = pytree.tree_flatten(items)
        return [leaf for leaf in leaves if isinstance(leaf, Tensor)] if spec == self._spec else []


def tensors_in(appended: Iterable[tuple[Place, Any]]) -> list[Tensor]:
    """Returns the tensors in what was appended, in order."""
    return [leaf for leaf in pytree.tree_leaves([item for _, item in appended]) if isinstance(leaf, Tensor)]
