"""What a queue fetches from, as the queue sees it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any


class NotYet(Exception):
    """The next fetch begins a traversal, which is made in step."""


class Source(ABC):
    """What a queue fetches from; used by one thread at a time."""

    begin_due = False
    """Whether a traversal has to begin before the next fetch."""

    draws_nothing = False
    """Whether a fetch is known not to draw from the process's generators, unless it begins a traversal."""

    gives_copies = False
    """Whether each batch is known to lie in memory of its own, in which nothing is written anew."""

    stacks = False
    """Whether torch's own code makes each batch of samples: in memory of its own, unless code of theirs interferes."""

    reads_further = False
    """Whether a fetch reads one batch beyond the one that it gives, to know whether that is the last."""

    restarts_midway = False
    """Whether a fetch in the middle of a traversal may begin a part of the data again, and draw."""

    @abstractmethod
    def begin(self) -> None:
        """Begins the traversal that is due; called on the trainer's thread."""

    @abstractmethod
    def fetch(self, in_turn: bool) -> tuple[Any, Any]:
        """Returns the next batch and a note that goes with it.

        Args:
            in_turn: Whether the training has used every batch before and waits for this one.

        Raises:
            NotYet: When a traversal would begin and it is not in turn. Nothing has been fetched then.
            StopIteration: When there is no batch left.
        """

    def row(self, most: int, together: bool) -> Iterator[tuple[Any, Any]]:
        """Gives batches with their notes, none of them in turn, until a traversal has to begin or no batch is left.

        With `together`, several may be given as one `Gathered`, with a list of their notes.
        """
        for _ in range(most):
            try:
                found = self.fetch(False)
            except (NotYet, StopIteration):
                return
            yield found

    def retry(self) -> bool:
        """Lets the next fetch make again the one that has just failed; tells whether that can be done."""
        return False

    @abstractmethod
    def describe(self) -> str:
        """Names the next batch for people: "batch 3 of traversal 0"."""

    @abstractmethod
    def name(self, note: Any) -> str:
        """Names the batch that a note goes with, likewise."""

    def abort(self) -> bool:
        """Ends, from another thread, what a fetch waits for; tells whether there was something to end."""
        return False
