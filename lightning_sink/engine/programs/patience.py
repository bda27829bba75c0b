"""Which steps without a program are worth recording, and when; and what is said of those that stay without one.

Recording takes as long as some steps, and compiling takes seconds. `Patience` asks what is known of each kind of steps
(`candidates.py`), whether recordings were in vain (`in_vain.py`), what programs are worth (`economy.py`), and for how
long things stayed as programs take them to be. What is trained never depends on any of it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence

from lightning_sink.engine.programs.candidates import (
    LONG,
    PATIENCE,
    TOO_MANY_KINDS,
    Candidate,
    Candidates,
)
from lightning_sink.engine.programs.economy import Economy
from lightning_sink.engine.programs.in_vain import InVain
from lightning_sink.engine.programs.registry import Programs
from lightning_sink.engine.step import Key, Sink, Step
from lightning_sink.engine.tracing.recording import Recording
from lightning_sink.engine.watch import CHANGES, Hazard

_MOST_FAILURES = 3
"""How often a kind of step is given up, each time because of a hazard, before that is said, and it is left alone for
some time."""

_FIRST_REST = 64
"""Steps of such a kind that are not recorded; twice as many each time."""

_KEEP_ELSEWHERE = "keep it outside of the module, or make it a tensor"
_FLAGS, _LEAVE_FLAGS = ("requires_grad", "training"), "have it the same at the start of each step (`toggle_optimizer`)"

_RESTLESS = "what the step takes as constant, attributes or the optimizer's options, keeps changing"

_LOSING = "each program runs too few steps to be worth recording and compiling it"

_SHORT_LIVED = "tensors that the step takes to stay as they are, or whose values decide what Python does, keep changing"

_ENOUGH = 4
"""Steps that programs run between two replacements of objects, for which making them anew is worth it: more than are
recorded."""

_MOST_NAMES = 3
"""Names of what keeps changing that are said."""


class Patience:
    """What is known of steps without a program.

    Args:
        programs: Those that there are.
        costly: Whether compiling takes long enough to wait until a kind of step comes again.
        fallback: Told once of each reason why steps run the plain way, and whether others have programs; may raise.

    Attributes:
        steps: How many steps programs have run, when that was last told.
        candidates: The kinds that have no program, or not for each way through them.
    """

    def __init__(self, programs: Programs, *, costly: bool, fallback: Callable[[Hazard, bool], None]) -> None:
        self._programs, self._costly, self._fallback = programs, costly, fallback
        self.steps = 0
        self.candidates = Candidates()
        self._failures = Counter[Key]()
        self._rests: dict[Key, float] = {}  # steps of kinds that have failed too often, before one is recorded again
        self._in_vain, self._economy = InVain(), Economy()
        self._reported: dict[str, str] = {}  # with what it was said of, where that was all steps
        self._restless = self._short_lives = self._steps_at_loss = 0
        self._changed: Sequence[str] = ()
        self._steps_at_change: int | None = None  # that programs had run when they began behind the last change
        self._losing = 0  # steps that had no program since none is worth it
        self._too_many = self._looked = self._explained = self._has_recorded = False

    # -- before a step ------------------------------------------------------------------------------------------------

    def see(self, sink: Sink, step: Step, number: int, steps: int) -> tuple[Candidate | None, bool]:
        """Counts a step, of the sink of this number, that has no program; by now programs have run so many steps.

        Returns its candidate, None where too many kinds are known, and whether the step is to be recorded.
        """
        self.steps = steps
        candidate = self.candidates.see(step.key, number)
        if candidate is None:
            self._explain(sink, step, too_many=True)
        elif self._restless > PATIENCE:
            self.report(self._why_restless())
        elif self._short_lives > PATIENCE:
            self.report(Hazard(_SHORT_LIVED))
        elif step.key in self._rests:
            self._rests[step.key] -= 1
            if not self._rests[step.key]:
                del self._rests[step.key]
        else:
            return candidate, self._is_due(sink, step, candidate)
        return candidate, False

    def _is_due(self, sink: Sink, step: Step, candidate: Candidate) -> bool:
        never = self.candidates.never_come_again
        waits = never or self.candidates.is_looking or (self._costly and self.candidates.wait_for_long)
        are_many = self._economy.are_many_held_back(self.steps)
        if (waits and not self._programs) or are_many:
            self._explain(sink, step, too_many=never or are_many)
        due = candidate.is_due(not self._programs.count_shapes(step.kind)) and self._is_worth(step, candidate)
        # What keeps changing may be nothing but what steps collect in: a recorded one tells.
        due = due or (self._restless > 1 and not self._has_recorded)
        may = not self._waits() and (due or not (self._costly or candidate.hazard is not None))
        # Where other steps have programs, a step may be seldom no example, and is not to hold up a new way.
        return may and (self._programs.have(step.key) or not candidate.rests())

    def _is_worth(self, step: Step, candidate: Candidate) -> bool:
        """Tells whether another program may be compiled for steps of a kind: those first that missed it most."""
        ways, is_first = self._programs.count(step.key), not self._programs.count_shapes(step.kind)
        if (ways or is_first) and self._economy.is_prompt(ways, self.steps):
            return True
        if not ways and self._economy.is_paid_by(candidate.missed_seconds):
            return True
        if self._economy.is_worth(self.steps) and self.candidates.miss_no_more_than(candidate):
            return True
        why = self._why_losing(step.key) if self._economy.is_losing(self.steps) else None
        if why is None:
            self._economy.held_back += not ways
            return False
        self._losing += 1
        if self._losing > LONG:
            self.report(why)
        return False

    def _why_losing(self, key: Key) -> Hazard | None:
        """Returns why one program after another ran too few steps, as far as that is known."""
        decides = self._programs.deciding(key)
        why = decides or (self._why_restless() if self._changed else None)
        return None if why is None else Hazard(f"{_LOSING}: {why.what}", why.where, why.way_out)

    def _waits(self) -> bool:
        """Tells whether the present step is not recorded since step after step has made no program, for one reason."""
        if self._programs or not self._in_vain.waits:
            return False
        if self._in_vain.has_waited():
            self.candidates.try_again(self._in_vain.reason)
            # Those that have failed too often have rests of their own.
            self._failures = Counter({key: many for key, many in self._failures.items() if many >= _MOST_FAILURES})
        return True

    # -- behind a step ------------------------------------------------------------------------------------------------

    def ran_plainly(self, candidate: Candidate | None, seconds: float) -> None:
        """Takes note of a step that ran without a program, and was not recorded."""
        if candidate is not None and candidate.hazard is None:
            candidate.missed_seconds += seconds
            self._economy.missed(seconds)

    def begins_to_record(self) -> None:
        """A step is recorded."""
        self._has_recorded = True

    def has_recorded(self, seconds: float, is_made: bool) -> None:
        """Takes note of what a recorded step took, with what was compiled of it, and whether it has a program."""
        self._economy.spent(seconds)
        if is_made:
            self._economy.made(self.steps)

    def made(self, key: Key, candidate: Candidate) -> None:
        """Steps of a kind have a program."""
        self._failures.pop(key, None)
        if not candidate.last:
            self.candidates.drop(key)

    def made_none(self, key: Key, candidate: Candidate, recording: Recording) -> None:
        """Takes note of a recorded step that has made no program."""
        reason = recording.hazards[0] if recording.hazards else None
        if self._in_vain.add(reason) and reason is not None and not self._programs:
            self._in_vain.begin_wait()
            self.report(reason)
        if candidate.hazard is not None:
            self._fail(key, candidate.hazard, for_good=recording.acts_twice)
            self.report(candidate.hazard)
        elif recording.failed:
            self._fail(key, recording.hazards[0])  # also where it comes as another candidate the next time
        if recording.failed_by_raise:
            self.report(recording.hazards[0])  # it may have been the user's own, which is gone now

    def gives_up(self, key: Key, hazard: Hazard) -> None:
        """Leaves a kind of steps to the plain way, and says why."""
        self._fail(key, hazard, for_good=True)

    def _fail(self, key: Key, hazard: Hazard, for_good: bool = False) -> None:
        self._failures[key] += 1
        if for_good or self._failures[key] >= _MOST_FAILURES:
            self._rests[key] = math.inf if for_good else _FIRST_REST << (self._failures[key] - _MOST_FAILURES)
            self.report(hazard)

    # -- what programs take for granted -------------------------------------------------------------------------------

    def settled(self, steps: int, seconds: float) -> None:
        """Takes note that a program ran, for so long: what it takes for granted may stay as it is for some time.

        By then programs have run so many steps.
        """
        self._economy.ran(seconds)
        self.steps = steps
        if self._steps_at_change is None:
            self._steps_at_change = steps
        if steps - self._steps_at_change >= PATIENCE:
            self._restless = 0

    def lost(self, steps: int) -> None:
        """Takes note that tensors, or values of theirs, are others than a program takes them to be.

        By then programs have run so many steps.
        """
        lived_long = steps - self._steps_at_loss >= PATIENCE
        self._short_lives = 0 if lived_long else self._short_lives + 1
        self._steps_at_loss = steps

    def changed(self, names: Sequence[str]) -> None:
        """What programs take for granted has changed, by these names if it has any; kinds of steps are forgotten."""
        if self._programs or self.candidates:
            # Where programs are not worth it, there are none for long, and what changes may stay as it is then.
            self._restless += not (self._costly and self._economy.is_losing(self.steps))
            self._changed = names
        self._steps_at_change = None
        # A step that changes what programs take for granted is forgotten before it has been recorded often enough.
        for key, problem in self.candidates.problems():
            if not self._programs.have(key):
                self._fail(key, problem)
        self._in_vain.changed()
        self.candidates.clear()

    def take_over(self, other: Patience) -> None:
        """Goes on where another one ends, of which objects of the training's have been replaced."""
        self._reported, self._changed = other._reported, other._changed
        self._economy, self._losing = other._economy, other._losing
        self._economy.begin_again(other.steps)
        self._restless = 0 if other.steps >= _ENOUGH else other._restless

    # -- what is said -------------------------------------------------------------------------------------------------

    @property
    def has_given_up(self) -> bool:
        """Whether what programs take for granted was found to keep changing: there will be none, for no step."""
        return not self._reported.keys().isdisjoint((_RESTLESS, _SHORT_LIVED))

    def _why_restless(self) -> Hazard:
        if not self._changed:
            return Hazard(_RESTLESS)
        names = ", ".join(f"`{name}`" for name in self._changed[:_MOST_NAMES])
        others = len(self._changed) - _MOST_NAMES
        more = f" and {others} more" if others > 0 else ""
        way_out = _LEAVE_FLAGS if all(name.endswith(_FLAGS) for name in self._changed) else _KEEP_ELSEWHERE
        return Hazard(f"{_RESTLESS}: {names}{more}", way_out=way_out)

    def _explain(self, sink: Sink, step: Step, too_many: bool) -> None:
        """Says once why kinds of steps do not come again: values that change, or else that they are too many."""
        self._too_many = self._too_many or too_many
        if not self._explained and (too_many or not self._looked):
            why = self.candidates.why(sink.values(step))
            self._looked = self._looked or why is not None
            if why is not None and (self._too_many or why is not TOO_MANY_KINDS):
                self._explained = True
                self.report(why)

    def report(self, hazard: Hazard) -> None:
        """Says why steps run the plain way, if that has not been said."""
        what, _, of = hazard.what.partition(":")
        if what not in self._reported:
            self._reported[what] = of
            partly = (bool(self._programs) or self._programs.only_wait) and not self.has_given_up
            if partly:
                self._reported[what] = ""
            if what != _RESTLESS or not self._is_known():
                self._fallback(hazard, partly)

    def _is_known(self) -> bool:
        """Tells whether it was said of all that keeps changing that the step changes it."""
        told = self._reported.get(CHANGES, "") + self._reported.get(_LOSING, "")
        return bool(self._changed) and all(f"`{name}`" in told for name in self._changed)
