"""Whether another program is worth its compiling, by what steps without one have taken and what the last ones ran.

Where chance takes steps many ways, batches have many shapes, or each epoch needs another program
(`table[self.current_epoch]`), compiling them all would take longer than many a training; and a smaller batch at the end
of each traversal is a step among many. The first shape, and the first few ways through its steps, are compiled at once.
Any other program may take as long as the steps have that had none since the last one; and where one after another then
runs too few steps to be worth it, twice as long each time: all of that together is no more than a few times what one of
them takes.
"""

from __future__ import annotations

from lightning_sink.engine.programs.candidates import LONG

_PROMPT = 3
"""Ways through steps of one shape that are compiled however long it takes: a window of accumulation has as many."""

_MOST_DOUBLED = 16

_SHARE = 4
"""One in so many steps without a program is much: the last batch of a traversal may be smaller, and seldom is."""


class Economy:
    """What was spent on programs, and what was missed without; steps are those that programs had run by then.

    Attributes:
        held_back: Steps of shapes that have no program since it is not worth it yet, behind the last that was compiled.
    """

    def __init__(self) -> None:
        self._missed_seconds = self._compiling_seconds = 0.0
        self._plain_seconds, self._plain_steps = 0.0, 0
        self._last: tuple[float, int] | None = None  # what the last one took, and the steps
        self.held_back = 0
        self._unpaid = 0  # how many before that were not worth it, in a row

    def missed(self, seconds: float) -> None:
        """Takes note of a step that ran without a program."""
        self._missed_seconds += seconds
        self._plain_seconds += seconds
        self._plain_steps += 1

    def compiled(self, seconds: float, steps: int) -> None:
        """Takes note of a program that was compiled."""
        self._unpaid = self._not_worth(steps)
        self._last = seconds, steps
        self._compiling_seconds = max(self._compiling_seconds, seconds)
        self._missed_seconds = 0.0
        self.held_back = 0

    def are_many_held_back(self, steps: int) -> bool:
        """Tells whether much of a training waits for programs."""
        ran = steps - self._last[1] if self._last is not None else 0
        return self.held_back > max(LONG, ran / (_SHARE - 1))

    def is_losing(self, steps: int) -> bool:
        """Tells whether one program after another was not worth its compiling."""
        return self._not_worth(steps) >= _PROMPT

    def is_prompt(self, known: int, steps: int) -> bool:
        """Tells whether another program is compiled however long it takes, where so many are known for such steps."""
        return known < _PROMPT and self._not_worth(steps) < 2 * _PROMPT

    def is_worth(self, steps: int) -> bool:
        """Tells whether another one may be, by what steps have missed."""
        doubled = min(max(0, self._not_worth(steps) - _PROMPT), _MOST_DOUBLED)
        return self._missed_seconds >= self._compiling_seconds * (1 << doubled)

    def _not_worth(self, steps: int) -> int:
        """Returns how many programs in a row have run fewer steps than plain ones run in the time that they took."""
        if self._last is None:
            return 0
        seconds, before = self._last
        saved = self._plain_seconds / max(1, self._plain_steps) * (steps - before)
        return 0 if saved >= seconds else self._unpaid + 1
