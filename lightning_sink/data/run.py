"""Batches that come next, fetched before their turn, in runs of batches that are alike.

Steps in a row are made of one program, for batches of one signature. So what comes next is kept as runs of such
batches: `HeldRun` as they were fetched, `GatheredRun` as they were gathered, `Load` (`load.py`) side by side on a
device. `Early` owns those of a queue, in order.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator
from itertools import chain, groupby, islice, repeat
from operator import itemgetter
from typing import Any

from torch import Tensor

from lightning_sink.data.batch import flatten
from lightning_sink.data.gathered import Gathered
from lightning_sink.data.listed_texts import Looked

Found = tuple[Any, Any, int]
"""A batch, its note and its bytes; or a `Gathered`, a list of the notes of its batches, and the bytes of all.

As it was fetched a batch may be an `Arriving`, on its way to a device."""


def count_of(found: Found) -> int:
    """Returns how many batches were found."""
    return len(found[0]) if type(found[0]) is Gathered else 1


def notes_of(found: Found) -> list[Any]:
    """Returns the note of each batch that was found."""
    return found[1] if type(found[0]) is Gathered else [found[1]]


class Run(ABC):
    """Batches that come one after another and have the same signature; numbered, from 0, and taken in order.

    Args:
        looked: The lists of texts at which steps look, where others may differ; None where nothing may.

    Attributes:
        first: Number of the first that was not taken.
    """

    def __init__(self, looked: Looked | None = None) -> None:
        self.first = 0
        self._looked, self._as_of = looked, 0 if looked is None else looked.changes
        # Note, bytes, and whatever else belongs to a batch. All in one entry: Ctrl-C may come at any time.
        self._kept: deque[tuple[Any, int, Any]] = deque()

    def __len__(self) -> int:
        return len(self._kept)

    @property
    def last(self) -> Any:
        """The last batch's note."""
        return self._kept[-1][0]

    @property
    def are_alike(self) -> bool:
        """Whether all have the signature that the first of them has now: no step has looked at other texts since."""
        return self._looked is None or self._looked.changes == self._as_of

    @abstractmethod
    def add(self, found: Found) -> bool:
        """Takes what was found as the last, unless it is not like the others, or there is no room."""

    @abstractmethod
    def batch(self, number: int) -> Any:
        """Returns a batch."""

    def handed_out(self, number: int) -> Any:
        """Returns a batch for who may keep it."""
        return self.batch(number)

    @abstractmethod
    def columns(self, begin: int, end: int) -> list[Tensor | list[Tensor]]:
        """Returns, for each tensor of a batch, that of each of some batches: a list, or one tensor `[batches, ...]`."""

    def notes(self, begin: int, end: int) -> list[Any]:
        """Returns the notes of some batches."""
        return [note for note, _, _ in self._some(begin, end)]

    def _some(self, begin: int, end: int) -> Iterator[tuple[Any, int, Any]]:
        return islice(self._kept, begin - self.first, end - self.first)

    def take(self, count: int) -> int:
        """Forgets the first batches that were not taken; returns their bytes."""
        self.first += count
        return sum([self._kept.popleft()[1] for _ in range(count)])


class HeldRun(Run):
    """A run of batches as they were fetched; their texts may be others, if no step has `looked` at them."""

    def __init__(self, found: Found, looked: Looked) -> None:
        super().__init__(looked)
        batch, note, size = found
        leaves, self._signature = flatten(batch, looked)
        self._kept.append((note, size, (batch, leaves)))

    def add(self, found: Found) -> bool:
        """Takes a batch as the last one, unless it is not like the others."""
        batch, note, size = found
        if type(batch) is Gathered:
            return False
        leaves, signature = flatten(batch, self._looked)
        if signature != self._signature:
            return False
        self._kept.append((note, size, (batch, leaves)))
        return True

    def batch(self, number: int) -> Any:
        """Returns a batch."""
        return self._kept[number - self.first][2][0]

    def columns(self, begin: int, end: int) -> list[Tensor | list[Tensor]]:
        """Returns, for each tensor of a batch, a list of those of some batches."""
        rows = [leaves for _, _, (_, leaves) in self._some(begin, end)]
        return [list(column) for column in zip(*rows, strict=True)]


class GatheredRun(Run):
    """A run of batches that were gathered, several at a time."""

    def __init__(self, found: Found) -> None:
        super().__init__()
        self._signature = found[0].signature
        self.add(found)

    def add(self, found: Found) -> bool:
        """Takes batches as the last ones, unless they are not like the others."""
        batches, notes, size = found
        if type(batches) is not Gathered or batches.signature != self._signature:
            return False
        places = zip(repeat(batches), range(len(batches)))
        self._kept.extend(zip(notes, repeat(size // len(batches)), places))
        return True

    def batch(self, number: int) -> Any:
        """Returns a batch."""
        batches, place = self._kept[number - self.first][2]
        return batches.batch(place)

    def handed_out(self, number: int) -> Any:
        """Returns a batch for who may keep it: it is a copy, and keeps no other that was gathered with it."""
        batches, place = self._kept[number - self.first][2]
        return batches.copy(place)

    def columns(self, begin: int, end: int) -> list[Tensor | list[Tensor]]:
        """Returns each tensor of some batches: side by side if they were gathered at once, a list of them if not."""
        parts = []
        for batches, group in groupby((place for _, _, place in self._some(begin, end)), key=itemgetter(0)):
            numbers = [number for _, number in group]
            parts.append([column[numbers[0] : numbers[-1] + 1] for column in batches.columns])
        if len(parts) == 1:
            return [*parts[0]]
        return [[*chain.from_iterable(column.unbind() for column in columns)] for columns in zip(*parts, strict=True)]


class Part:
    """Some batches of a run, one after another: from number `begin` up to `end`."""

    def __init__(self, run: Run, begin: int, end: int) -> None:
        self._run, self._begin, self._end = run, begin, end

    def __len__(self) -> int:
        return self._end - self._begin

    def __repr__(self) -> str:
        return f"Part({len(self)} of {len(self._run)} batches)"

    @property
    def notes(self) -> list[Any]:
        """Their notes."""
        return self._run.notes(self._begin, self._end)

    def batch(self, number: int) -> Any:
        """Returns one of them; they are numbered from 0 here."""
        return self._run.batch(self._begin + number)

    def columns(self) -> list[Tensor | list[Tensor]]:
        """Returns, for each tensor of a batch, that of each: a list, or one tensor `[batches, ...]`."""
        return self._run.columns(self._begin, self._end)

    def cut(self, most: int) -> Part:
        """Returns the first of them."""
        return Part(self._run, self._begin, min(self._end, self._begin + most))


class Early:
    """The batches that were fetched before their turn.

    `let_go` is told of those that are no longer kept here: how many, and their bytes.
    """

    def __init__(self, let_go: Callable[[int, int], None], looked: Looked) -> None:
        self._let_go, self._looked = let_go, looked
        self._runs: deque[Run] = deque()

    def __len__(self) -> int:
        return sum(map(len, self._runs))

    @property
    def last(self) -> Any:
        """The last batch's note; None where there is no batch."""
        return self._runs[-1].last if self._runs else None

    def hold(self, found: Found) -> None:
        """Takes batches as they are."""
        if not (self._runs and self._runs[-1].add(found)):
            self._runs.append(GatheredRun(found) if type(found[0]) is Gathered else HeldRun(found, self._looked))

    def append(self, run: Run) -> None:
        """Takes a run."""
        self._runs.append(run)

    def part(self, begin: int, most: int) -> Part | None:
        """Returns batches that are alike, behind the first `begin` ones; None where there are none."""
        for run in self._runs:
            if begin < len(run):
                end = min(len(run), begin + (most if run.are_alike else 1))
                return Part(run, run.first + begin, run.first + end) if end > begin else None
            begin -= len(run)
        return None

    def take(self, count: int) -> tuple[Any, list[Any]]:
        """Forgets the first batches, which are alike; returns the last of them, and the notes of the last two."""
        run = self._runs[0]
        end = run.first + count
        batch, notes = run.handed_out(end - 1), run.notes(max(run.first, end - 2), end)
        self._let_go(count, run.take(count))
        if not run:
            self._runs.popleft()
        return batch, notes

    def clear(self) -> None:
        """Forgets all."""
        while self._runs:
            run = self._runs.popleft()
            self._let_go(len(run), run.take(len(run)))
