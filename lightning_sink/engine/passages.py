"""Steps that were gone through before they were run, and not accounted for yet: how to put back what that changed."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable


class Passage:
    """Steps that were gone through for one call.

    Args:
        passages: Where it is kept while it has steps.
        restore: Puts everything back as it was before the first of them.
    """

    def __init__(self, passages: deque[Passage], restore: Callable[[], None]) -> None:
        self._passages, self.restore = passages, restore
        self.steps = 0

    def add(self) -> None:
        """One more is gone through."""
        if not self.steps:
            self._passages.append(self)
        self.steps += 1

    def withdraw(self) -> None:
        """The last one was not gone through after all."""
        self.steps -= 1
        if not self.steps:
            self._passages.pop()


class Passages:
    """The passages of calls that run, or wait for their turn, in their order."""

    def __init__(self) -> None:
        self._passages: deque[Passage] = deque()

    @property
    def steps(self) -> int:
        """How many steps they have."""
        return sum(passage.steps for passage in self._passages)

    def begin(self, restore: Callable[[], None]) -> Passage:
        """Returns a passage without steps."""
        return Passage(self._passages, restore)

    def end(self) -> bool:
        """The first one's steps are accounted for; returns whether there was one."""
        if not self._passages:
            return False
        self._passages.popleft()
        return True

    def take_back(self, kept: int) -> int:
        """Puts back what was changed by all steps but the first ones.

        Args:
            kept: How many those are.

        Returns:
            How many of them were put back too, and are to be gone through again.
        """
        taken: list[Passage] = []
        while kept < self.steps:
            taken.append(self._passages.pop())
        if not taken:
            return 0
        taken[-1].restore()
        return kept - self.steps
