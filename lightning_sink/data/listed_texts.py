"""Lists of texts in a batch: names of files, ids, sentences. Most steps hand them on and look at none.

`Looked` knows which parts of a batch steps look at; it is told by who can read their source. What lists elsewhere hold
is no part of a batch's signature, but for their length: it keeps no batch from being served by another one's program.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import Any, NamedTuple

Path = tuple[Hashable, ...]
"""Indices and keys that lead from a batch to a part of it."""


class Parts(NamedTuple):
    """Parts of a batch at which steps look.

    Attributes:
        paths: What leads to those of which they may look at everything.
        lengths: What leads to those that they ask for their length, or for something in them, which a text has, too.
    """

    paths: frozenset[Path]
    lengths: frozenset[Path] = frozenset()


class Looked:
    """The parts of batches at which steps look; all, as long as nothing is known.

    Attributes:
        changes: How often that has become another set.
    """

    def __init__(self) -> None:
        self.changes = 0
        self._parts: Parts | None = None  # while nothing is known

    def __repr__(self) -> str:
        return f"Looked({'all' if self._parts is None else ', '.join(sorted(map(repr, self._parts.paths)))})"

    def see(self, parts: Parts) -> None:
        """Takes the parts at which steps look from now on; those at which others have looked stay."""
        known = self._parts
        both = parts if known is None else Parts(known.paths | parts.paths, known.lengths | parts.lengths)
        if both != known:
            self._parts = both
            self.changes += 1

    def at(self, path: Path) -> bool:
        """Tells whether steps may look at a list of texts, or at a text in it; they do at the batch itself.

        The list's own length is the same wherever nobody looks.
        """
        if self._parts is None or not path:
            return True
        paths, lengths = self._parts
        if any(path[: len(other)] == other[: len(path)] for other in paths):
            return True
        return any(len(other) > len(path) and other[: len(path)] == path for other in lengths)


def are_texts(item: Any) -> bool:
    """Tells whether something is a list or tuple of texts, of as many as a batch has samples, say."""
    return type(item) in (tuple, list) and bool(item) and all(type(text) is str for text in item)


def parts_of(item: Any, path: Path) -> Iterator[tuple[Path, Any]]:
    """Yields what a container holds that source can be told to look at, or not; nothing of any other."""
    if type(item) in (tuple, list):
        yield from (((*path, number), part) for number, part in enumerate(item))
    elif type(item) is dict:
        yield from (((*path, key), part) for key, part in item.items())


def texts_of(batch: Any, looked: Looked, path: Path = ()) -> dict[Path, Any]:
    """Returns copies of a batch's lists of texts at which no step looks."""
    if are_texts(batch):
        return {} if looked.at(path) else {path: type(batch)(batch)}
    found: dict[Path, Any] = {}
    for place, part in parts_of(batch, path):
        found |= texts_of(part, looked, place)
    return found


def with_texts(batch: Any, texts: dict[Path, Any], path: Path = ()) -> Any:
    """Returns a batch with such lists in the place of its own."""
    if path in texts:
        return texts[path]
    parts = [with_texts(part, texts, place) for place, part in parts_of(batch, path)]
    if type(batch) is dict:
        return dict(zip(batch, parts, strict=True))
    return type(batch)(parts) if type(batch) in (tuple, list) else batch
