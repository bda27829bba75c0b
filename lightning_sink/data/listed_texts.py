"""Lists of texts in a batch: names of files, ids, sentences. Most steps hand them on and look at none.

A program has none of them, so it serves batches with others. `Looked` owns at which of a batch's lists steps have
looked: what those hold is part of a batch's signature, as any other value. `with_stand_ins` puts something in the place
of the rest, which sees whether a step does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

Make = Callable[[int, str, Any], Any]
"""Given a list's number in its batch, where it is as users write it, and the list, returns what is put there."""


class Looked:
    """The lists of texts at which steps look, by their numbers in a batch; grows only."""

    def __init__(self) -> None:
        self._numbers: set[int] = set()

    def __len__(self) -> int:
        return len(self._numbers)

    def __repr__(self) -> str:
        return f"Looked({sorted(self._numbers)})"

    def add(self, number: int) -> None:
        """Takes note of a list that a step has looked at."""
        self._numbers.add(number)

    def numbered(self) -> Iterator[bool]:
        """Tells of one list after another whether steps look at it."""
        return (number in self._numbers for number in count())


def are_texts(item: Any) -> bool:
    """Tells whether something is a list or tuple of texts, of as many as a batch has samples, say."""
    return type(item) in (tuple, list) and bool(item) and all(type(text) is str for text in item)


def may_hold_texts(item: Any) -> bool:
    """Tells whether lists in something are numbered: it can be given others."""
    return type(item) in (tuple, list, dict)


def with_stand_ins(batch: Any, looked: Looked, make: Make) -> tuple[Any, Callable[[], None]]:
    """Puts what `make` gives in the place of a batch's lists of texts, but for those at which steps have `looked`.

    Lists and dictionaries around them are changed, tuples made anew.

    Returns:
        The batch, and what puts the texts back.
    """
    put_back: list[tuple[Any, Any, Any, Any]] = []
    lists = enumerate(looked.numbered())

    def walk(item: Any, place: str) -> Any:
        if are_texts(item):
            number, is_looked_at = next(lists)
            return item if is_looked_at else make(number, place, item)
        if not may_hold_texts(item):
            return item
        keys = list(item) if type(item) is dict else range(len(item))
        found = [walk(item[key], f"{place}[{key!r}]") for key in keys]
        others = [(key, item[key], own) for key, own in zip(keys, found, strict=True) if own is not item[key]]
        if others and type(item) is tuple:
            return tuple(found)
        put_back.extend((item, key, before, own) for key, before, own in others)
        return item

    watched = walk(batch, "batch")

    def restore() -> None:
        for held, key, before, own in put_back:
            if (held.get(key) if type(held) is dict else held[key] if key < len(held) else None) is own:
                held[key] = before
        put_back.clear()  # who asks whether somebody holds what was there does not mean this

    for held, key, _, own in put_back:
        held[key] = own
    return watched, restore


def texts_of(batch: Any, looked: Looked) -> dict[int, Any]:
    """Returns copies of a batch's lists of texts, but for those at which steps have `looked`, by number."""
    found: dict[int, Any] = {}
    with_stand_ins(batch, looked, lambda number, place, texts: found.setdefault(number, texts) and texts)
    return {number: type(texts)(texts) for number, texts in found.items()}


def with_texts(batch: Any, texts: dict[int, Any]) -> Any:
    """Returns a batch with such lists in the place of its own."""
    return with_stand_ins(batch, Looked(), lambda number, place, own: texts.get(number, own))[0]
