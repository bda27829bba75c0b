"""Whether another program is worth its price, by what steps without one have taken and what the last ones saved.

Where chance takes steps many ways, batches have many shapes, or each epoch needs another program
(`table[self.current_epoch]`), recording and compiling them all would take longer than many a training; and a smaller
batch at the end of each traversal is a step among many. The first shape, and the first few ways through its steps, have
programs at once. Any other program may take as long as the steps have that had none since the last one; and where one
after another then saves less than it took, twice as long each time: all of that together is no more than a few times
what one of them takes. Behind a change that stays, steps have missed enough in the end, whatever came before.
"""

from __future__ import annotations

from lightning_sink.engine.programs.candidates import LONG

_PROMPT = 3
"""Ways through steps of one shape that have programs however long it takes: a window of accumulation has as many."""

_MOST_DOUBLED = 16

_SHARE = 4
"""One in so many steps without a program is much: the last batch of a traversal may be smaller, and seldom is."""

_NEWEST = 0.1
"""The part of the newest step in what one takes on average: the first ones of a training take longer."""


class Economy:
    """What was spent on programs, in seconds, and what was missed without; steps are those that programs had run.

    Attributes:
        held_back: Steps of shapes that have no program since it is not worth it yet, behind the last that was made.
    """

    def __init__(self) -> None:
        self._missed = self._spent = self._spent_in_all = 0.0
        self._made = 0
        self._plain = self._program = 0.0  # what a step takes
        self._last = 0.0, 0  # what the last program took, and the steps
        self.held_back = 0
        self._unpaid = 0  # how many before that were not worth it, in a row

    def missed(self, seconds: float) -> None:
        """Takes note of a step that ran without a program, and was not recorded."""
        self._missed += seconds
        self._plain += (seconds - self._plain) * (_NEWEST if self._plain else 1.0)

    def ran(self, seconds: float) -> None:
        """Takes note of what a step takes that a program runs."""
        self._program = seconds

    def spent(self, seconds: float) -> None:
        """Takes note of a step that was recorded, and of what was compiled behind it."""
        self._spent += seconds

    def made(self, steps: int) -> None:
        """Takes note of a program, for which all was spent since the last one."""
        self._unpaid = self._not_worth(steps)
        self._last = self._spent, steps
        self._spent_in_all += self._spent
        self._made += 1
        self._missed = self._spent = 0.0
        self.held_back = 0

    def are_many_held_back(self, steps: int) -> bool:
        """Tells whether much of a training waits for programs."""
        return self.held_back > max(LONG, (steps - self._last[1]) / (_SHARE - 1))

    def is_losing(self, steps: int) -> bool:
        """Tells whether one program after another was not worth it."""
        return self._not_worth(steps) >= _PROMPT

    def is_prompt(self, known: int, steps: int) -> bool:
        """Tells whether another program is made however long it takes, where so many are known for such steps."""
        return known < _PROMPT and self._not_worth(steps) < 2 * _PROMPT

    def begin_again(self, steps: int) -> None:
        """From now on steps are counted anew, of which so many have been run."""
        spent, before = self._last
        self._last = spent, before - steps

    def is_paid_by(self, missed: float) -> bool:
        """Tells whether what steps of one kind have missed, while nothing changed, is the price of a program."""
        return missed * self._made >= self._spent_in_all

    def is_worth(self, steps: int) -> bool:
        """Tells whether another one may be, by what all steps have missed since the last one."""
        doubled = min(max(0, self._not_worth(steps) - _PROMPT), _MOST_DOUBLED)
        return self._missed * self._made >= self._spent_in_all * (1 << doubled)

    def _not_worth(self, steps: int) -> int:
        """Returns how many programs in a row have saved less than they took."""
        spent, before = self._last
        saved = max(0.0, self._plain - self._program) * (steps - before)
        return 0 if saved >= spent else self._unpaid + 1
