"""What Python decided by numbers in a recorded step: for which other steps the recording stands."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lightning_sink.engine.numbers.value import Value

Host = Callable[[], Any]
"""Gives a number's value in the step that is about to run."""


@dataclass(frozen=True)
class Guard:
    """Something that Python decided by a number in a recorded step.

    Attributes:
        name: What was decided, without the outcome; equal for the same decision in another step.
        outcome: How it came out.
        decide: Decides it for the step that is about to run.
        why: What users are told of it; "" for what they need not know.
    """

    name: Any
    outcome: Any
    decide: Host
    why: str = ""

    def holds(self) -> bool:
        """Tells whether it would come out the same in the step that is about to run."""
        try:
            return bool(self.decide() == self.outcome)
        except (ArithmeticError, ValueError, TypeError):  # the user's expression has no value then; running it says so
            return False


@dataclass
class Uses:
    """What was done with the numbers of one recording.

    Attributes:
        leak: Told of a use that freezes a number whose value in other steps nobody knows.
        frozen: Told of a use that freezes a number; a guard says for which steps.
        is_recorded: Tells whether what is computed now goes into the program, which then finds out truths that Python
            takes out of it.
        guards: The decisions, in their order, each once.
        memo: Results of arithmetic so far. An optimizer computes the same bias correction for each parameter; the
            program computes it once.
        closed: Whether the step has ended, so that stand-ins are nothing but numbers.
    """

    leak: Callable[[str], None]
    frozen: Callable[[str], None]
    is_recorded: Callable[[], bool] = lambda: False
    guards: dict[Any, Guard] = field(default_factory=dict)
    memo: dict[Any, Value] = field(default_factory=dict)
    closed: bool = False
    _made: list[weakref.ref[Value]] = field(default_factory=list)

    def add(self, number: Value) -> None:
        """Takes note of a stand-in."""
        self._made.append(weakref.ref(number))

    def close(self) -> None:
        """Ends a span: from now on stand-ins are plain numbers."""
        self.closed = True
        self.memo.clear()

    def kept(self, known: Collection[Value] = ()) -> list[Value]:
        """Returns the stand-ins that somebody keeps, but for those of which that is known."""
        held = {id(number) for number in known}
        alive = (made() for made in self._made)
        return [number for number in alive if number is not None and id(number) not in held]

    def froze(self, what: str, name: Any, outcome: Any, host: Host | None) -> None:
        """Takes note of a use that freezes a number.

        Args:
            what: The use, in words.
            name: What was decided by it.
            outcome: How it came out.
            host: Decides it in later steps; None where only the program knows the number.
        """
        if host is None:
            self.leak(what)
        else:
            self.frozen(what)
            self.decide(name, outcome, host, what)

    def decide(self, name: Any, outcome: Any, host: Host, why: str = "") -> None:
        """Takes note of a decision."""
        self.guards.setdefault(name, Guard(name, outcome, host, why))
