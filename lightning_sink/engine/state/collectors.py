"""What stands for a list, or a number, while a recorded step collects in it, and sees what is done with it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from dis import get_instructions
from functools import lru_cache
from types import CodeType, FrameType
from typing import Any

from lightning_sink.engine.numbers.flows import is_only_added_to
from lightning_sink.engine.numbers.given import Given, given
from lightning_sink.engine.numbers.passed_on import ADDED
from lightning_sink.engine.numbers.released import as_they_are, frozen
from lightning_sink.engine.numbers.taken import Several, Taken, as_list
from lightning_sink.engine.numbers.value import is_value, plain_value
from lightning_sink.engine.private import pytree
from lightning_sink.engine.state.attributes import NUMBERS, are_the_same
from lightning_sink.held import ABSENT


class ListWatch(list[Any]):
    """Stands for a list; all that is done with it is done with the list.

    C code looks into this one, without a word: it holds the same.

    Args:
        take: Takes what is appended, `Given` in the place of numbers that the step gives.
        read: Told of whatever else is done with it.
        apart: Identities of dictionaries with stand-ins that are to be themselves in it.
    """

    receives = frozenset(["append", "extend", ADDED])

    def __init__(
        self,
        held: list[Any],
        take: Callable[[Any], None],
        read: Callable[[], None],
        apart: Collection[int] = (),
    ) -> None:
        super().__init__(held)
        self._apart = apart
        self.held = held
        self._take, self._read = take, read
        self._expected = held.copy()
        self._of_numbers: list[tuple[Any, Any, tuple[list[Any], Any]]] = []

    def append(self, item: Any) -> None:
        """Appends, and tells of it."""
        if self._apart and any(id(inside) in self._apart for inside in containers_in([item])):
            self._read()
            for items in (self._expected, self.held):
                items.append(item)
            super().append(item)
            return
        self._take(given(item))
        plain = as_they_are(item)
        if plain is not item and not is_value(item):
            self._of_numbers.append((item, plain, pytree.tree_flatten(item)))
        item = plain
        for items in (self._expected, self.held):
            items.append(item)
        super().append(item)

    def extend(self, items: Iterable[Any]) -> None:
        """Appends each of them."""
        if type(items) is Taken:
            held = given(items)
            # What an array of one dimension is asked for one by one are copies, and no views.
            self._take(Several(Given(held.tensor.clone(), held.kind) if held.tensor.dim() == 1 else held))
            own = [*plain_value(items)]
            for held in (self._expected, self.held):
                held.extend(own)
            super().extend(own)
            return
        for item in [*items]:
            self.append(item)

    def __iadd__(self, items: Iterable[Any]) -> Any:  # type: ignore[misc]
        is_list = items.kind is as_list if type(items) is Taken else not hasattr(type(items), "__radd__")
        if not is_list:  # an array adds itself to each item
            self._read()
            items = frozen(items)
            held = self.held
            held += items
            return held
        self.extend(items)
        return self

    def __radd__(self, items: list[Any]) -> list[Any]:
        self._read()
        return items + self.held

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        self._read()
        return list, ([*self.held],)

    def end(self) -> None:
        """Sees what C code has done, with this one or with the list, and does it with the other."""
        for item, plain, (leaves, spec) in self._of_numbers:
            present, form = pytree.tree_flatten(item)
            if form != spec or not are_the_same(present, leaves):
                self._read()
                _fill(plain, as_they_are(item))
        own = [*list.__iter__(self)]
        if not are_the_same(own, self._expected):
            self._read()
            if are_the_same(self.held, self._expected):
                self.held[:] = own
        elif not are_the_same(self.held, self._expected):
            self._read()


def containers_in(items: Iterable[Any]) -> Iterator[Any]:
    """Yields the lists and dictionaries in some values, as often as they are met."""
    for item in items:
        if isinstance(item, (list, dict)):
            yield item
        if isinstance(item, (list, tuple, dict)):
            yield from containers_in(item.values() if isinstance(item, dict) else item)


def _fill(container: Any, content: Any) -> None:
    """Has a list or a dictionary hold what another one does."""
    if isinstance(container, dict):
        container.clear()
        container.update(content)
    elif isinstance(container, list):
        container[:] = content


_READ = "which it reads, too, or changes otherwise than by adding to it"
_REPLACED = "in the place of which it puts another one"


class Sum:
    """One number that is added to, as `AttributeWatch` asks for it.

    The number stays where it is. Code of which the source says that it only adds to the attribute gets an `_Adder`,
    which is gone before the next line; whoever else asks for it gets the number, and that is told.

    Args:
        take: Takes what is added, `Given` for a number that the step gives.
        tell: Told of whatever else is done with it.
    """

    def __init__(
        self, held: dict[str, Any], key: str, take: Callable[[Any], None], tell: Callable[[str], None]
    ) -> None:
        self._held, self._key, self._take, self._tell = held, key, take, tell
        self._expected = held[key]

    def got(self, value: Any, frame: FrameType) -> Any:
        """Returns what a frame gets that asks for it."""
        is_read = _loads(frame.f_code, frame.f_lasti) == self._key
        if is_read and is_only_added_to(self._key, [frame.f_code]):
            return _Adder(self, value)
        self._tell(_READ)
        return value

    def add(self, value: Any, other: Any) -> Any:
        """Returns the sum of what it held when it was asked for and of what is added."""
        if type(as_they_are(other)) not in NUMBERS or self._held.get(self._key, ABSENT) is not value:
            self._tell(_READ)  # what is added has set it to another number itself, which is lost
            return value + other
        self._take(given(other))
        self._expected = value + as_they_are(other)
        return self._expected

    def changed(self) -> None:
        """Sees whether it holds what was added up."""
        if self._held.get(self._key, ABSENT) is not self._expected:
            self._tell(_REPLACED)


class _Adder:
    """What is on the left of `+=`, or of `+`, for as long as that takes."""

    def __init__(self, of: Sum, value: float) -> None:
        self._of, self._value = of, value

    def __iadd__(self, other: Any) -> Any:
        return self._of.add(self._value, other)

    __add__ = __iadd__


@lru_cache(maxsize=1024)
def _loads(code: CodeType, offset: int) -> str | None:
    """Returns the attribute that an instruction reads; None for any other instruction."""
    found = (each for each in get_instructions(code) if each.offset == offset)
    return next((each.argval for each in found if each.opname == "LOAD_ATTR"), None)


def _reading(function: Callable[..., Any]) -> Callable[..., Any]:
    def read(self: Any, *arguments: Any, **options: Any) -> Any:
        self._read()
        return function(self.held, *arguments, **options)

    return read


_OF_LISTS = ["add", "contains", "delitem", "eq", "ge", "getitem", "gt", "imul", "iter", "le", "len", "lt", "mul", "ne"]
_OF_LISTS += ["repr", "reversed", "rmul", "setitem", "sizeof"]
_METHODS = ["clear", "copy", "count", "index", "insert", "pop", "remove", "reverse", "sort"]
for _name in [*(f"__{name}__" for name in _OF_LISTS), *_METHODS]:
    setattr(ListWatch, _name, _reading(getattr(list, _name)))
