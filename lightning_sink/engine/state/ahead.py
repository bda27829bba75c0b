"""Values that one step leaves to the next, worked out on the host before a row of steps runs.

Such steps are gone through first, on the host, while those before them may be running.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Any

from lightning_sink.held import ABSENT


class Ahead(ABC):
    """A value that steps leave behind, as the next one finds it."""

    def __init__(self) -> None:
        self._in_row: Any = ABSENT  # what the next step of a row finds
        self._behind_row: Any = ABSENT  # what the first step behind the last row finds

    @abstractmethod
    def present(self) -> Any:
        """Returns what the last step that has run has left."""

    @property
    def is_gone_through(self) -> bool:
        """Whether steps in a row are being gone through."""
        return self._in_row is not ABSENT

    def found(self) -> Any:
        """Returns what the step finds that is about to run, or to be gone through."""
        return self._in_row if self.is_gone_through else self.present()

    def leave(self, value: Any) -> None:
        """Takes what a step leaves that was gone through."""
        self._in_row = value

    def begin_row(self, follows: bool) -> None:
        """Steps in a row are about to be gone through; they may come right behind those gone through last."""
        self._in_row = self._behind_row if follows else self.present()

    def end_row(self) -> None:
        """All of them were."""
        self._behind_row, self._in_row = self._in_row, ABSENT


class Left(Ahead):
    """One that a program sets, as the step does that it stands for."""

    @abstractmethod
    def put(self, value: Any) -> None:
        """Has the next step find a value."""

    def set(self, value: Any) -> None:
        """Takes what a step sets it to that has run, or was gone through in a row."""
        if self.is_gone_through:
            self.leave(value)
        else:
            self.put(value)


@contextmanager
def in_row(values: Collection[Ahead], follows: bool) -> Iterator[None]:
    """Goes through steps in a row."""
    try:
        for value in values:
            value.begin_row(follows)
        yield
    finally:
        for value in values:
            value.end_row()
