"""Steps that are gone through before they are run, and not accounted for yet: going through them, and back."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator
from dataclasses import dataclass


@dataclass(eq=False)
class _Passage:
    """Steps that were gone through for one call; `restore` puts everything back as it was before the first of them."""

    restore: Callable[[], None]
    steps: int = 0


class Passages:
    """The passages of calls that run, or wait for their turn, in their order."""

    def __init__(self) -> None:
        self._passages: deque[_Passage] = deque()

    @property
    def steps(self) -> int:
        """How many steps they have."""
        return sum(passage.steps for passage in self._passages)

    def go(
        self,
        steps: int,
        restore: Callable[[], None],
        end: Callable[[], None],
        ready: Callable[[int], None] = lambda steps: None,
        begin: Callable[[], None] = lambda: None,
    ) -> Generator[None, None, None]:
        """Yields for each step of a new passage, when it is about to run; one that it is closed at is not gone through.

        Args:
            steps: How many.
            restore: Puts everything back as it is now.
            end: Does what is due behind a step.
            ready: Counts a step before it; called with 1, and with -1 to take that back.
            begin: Does what is due before a step.
        """
        passage = _Passage(restore)
        self._passages.append(passage)
        try:
            for _ in range(steps):
                ready(1)
                passage.steps += 1
                try:
                    begin()
                    yield
                except BaseException:  # the step is not run
                    ready(-1)
                    passage.steps -= 1
                    raise
                end()
        finally:
            if not passage.steps:
                self._passages.remove(passage)

    def end(self) -> bool:
        """The first one's steps are accounted for; returns whether there was one."""
        if not self._passages:
            return False
        self._passages.popleft()
        return True

    def take_back(self, kept: int) -> int:
        """Puts back what was changed by all steps but the first `kept` ones.

        Returns how many of these were put back too, and are to be gone through again.
        """
        taken: list[_Passage] = []
        while kept < self.steps:
            taken.append(self._passages.pop())
        if not taken:
            return 0
        taken[-1].restore()
        return kept - self.steps
