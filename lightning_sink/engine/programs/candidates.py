"""Kinds of steps that have no program yet: which of them are worth recording, and what was seen of them.

Recording costs a few steps' time and compiling seconds, so a kind has to come again before either is done for it. The
first kind of a training comes at every step. A batch of another shape may be the last one of a dataset, once in a pass;
it waits until it has come `PATIENCE` times, and longer where compiling takes long (`economy.py`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import chain, pairwise
from typing import Any

from lightning_sink.engine.numbers.guards import Guard
from lightning_sink.engine.programs.binding import Binding, bind
from lightning_sink.engine.programs.observation import Observation
from lightning_sink.engine.step import Key
from lightning_sink.engine.watch import Hazard

PATIENCE = 16
"""Steps of a kind seen before it is compiled although it is rare."""

MAX_RECORDINGS = 5
"""Steps of a kind recorded in a row before it is left to the eager path: lazy state needs one, agreement two."""

MOST_BRANCHES = 8
"""Ways through a step, by what its numbers decide, that are recorded in a row before one of them comes again."""

_MOST_REST = 512
"""Steps that are not recorded behind recordings that were no examples, at most: where a scaler leaves out each step."""

_MOST_KINDS = 64
"""Kinds of steps that are remembered at a time."""

_MANY_STEPS = 32
"""Steps that came without one of their kinds coming again, after which it is time to say so."""

LONG = 10 * PATIENCE
"""Steps that waited for their kinds to come again, after which it is said where values keep them apart: ten kinds that
take turns have programs by then."""

_LOOKS = 4
"""Pairs of batches that are compared, to name what keeps changing."""

TOO_MANY_KINDS = Hazard(
    "batches are of too many kinds: shapes, or values that are no tensors, keep changing",
    way_out="pad batches to few shapes, and leave out of them what is no tensor",
)


@dataclass
class Candidate:
    """A kind of step that has no program yet, or one for other branches only.

    Attributes:
        last: The last recording of each way through the step.
        recordings: How many steps were recorded since a program was found.
        seen: How many steps came in all.
        seen_in_sink: How many of them came in the present sink.
        sink: Number of that sink.
        problem: Why the last recording made no program.
        hazard: Why there will be no program.
        unlike: How many recordings in a row were no example of other steps.
        rest: How many steps are not to be recorded behind such.
        missed_seconds: What steps took that were not recorded, since a program was found.
    """

    last: dict[Hashable, Observation] = field(default_factory=dict)
    recordings: int = 0
    seen: int = 0
    seen_in_sink: int = 0
    sink: int = -1
    problem: Hazard | None = None
    hazard: Hazard | None = None
    unlike: int = 0
    rest: int = 0
    missed_seconds: float = 0.0

    def is_due(self, first_of_its_kind: bool) -> bool:
        """Tells whether the next such step is to be recorded.

        It is the first of its kind where no batch of another shape has a program for the same kind of step.
        """
        if self.hazard is not None:
            return False
        return self.seen >= PATIENCE or (first_of_its_kind and self.seen_in_sink >= 2)

    def rests(self) -> bool:
        """Tells whether the present step is not to be recorded, since the last ones that were had nothing to show."""
        self.rest = max(0, self.rest - 1)
        return self.rest > 0

    def compare(self, observation: Observation, volatile: set[str], cleared: set[str]) -> list[Binding] | None:
        """Takes a recorded step; returns where its program's inputs come from, None where there is no program yet.

        `volatile` are the slots that some step fills, `cleared` gradients that the owner was seen to clear.
        """
        recording = observation.recording
        if recording.is_no_example and not recording.failed:
            self.unlike += 1
            self.rest = min(1 << self.unlike, _MOST_REST)
            return None
        if recording.parts_counts:  # what was recorded before had one count for them
            self.recordings = 0
            self.last.clear()
        self.recordings, self.unlike = self.recordings + 1, 0
        last, self.last[observation.way] = self.last.get(observation.way), observation
        problems = list(observation.recording.hazards)
        if not problems and last is not None and not last.recording.hazards:
            for each in (last, observation):
                each.clears(cleared)
            bindings, problems = bind(last, observation, volatile)
            if not problems:
                return bindings
        if not problems and self.recordings >= MOST_BRANCHES:
            problems = self._frozen(observation)
        # Way after way and none of them twice: that is why, should the kind be forgotten before there are many.
        suspects = problems or (self._frozen(observation) if len(self.last) > 2 else [])
        self.problem = suspects[0] if suspects else None
        if problems and (self.recordings >= MAX_RECORDINGS or observation.recording.acts_twice):
            self.give_up(problems[0])
        return None

    def _frozen(self, observation: Observation) -> list[Hazard]:
        """Returns what froze numbers in a step, first what came out in the most ways in those like it."""
        return most_first(observation.recording.frozen, (each.recording.guards for each in self.last.values()))

    def found(self, observation: Observation) -> None:
        """Takes note that a step has a program."""
        self.last.pop(observation.way, None)
        self.recordings = self.seen = self.seen_in_sink = 0
        self.missed_seconds = 0.0
        self.problem = None

    def give_up(self, hazard: Hazard) -> None:
        """Leaves steps of this kind to the eager path."""
        self.hazard = hazard
        self.last.clear()


class Candidates:
    """The candidates of a training."""

    def __init__(self) -> None:
        self._known: dict[Key, Candidate] = {}
        self._begin_anew()

    def _begin_anew(self) -> None:
        self._steps = self._came_again = 0
        self._values: list[dict[str, Hashable]] = []

    def __bool__(self) -> bool:
        return bool(self._known)

    def see(self, key: Key, sink: int) -> Candidate | None:
        """Counts a step and returns its candidate; None where too many kinds are known to remember another."""
        if key not in self._known and len(self._known) >= _MOST_KINDS:
            return None
        candidate = self._known.setdefault(key, Candidate())
        candidate.seen += 1
        candidate.seen_in_sink = candidate.seen_in_sink + 1 if candidate.sink == sink else 1
        candidate.sink = sink
        self._steps += 1
        self._came_again += candidate.seen_in_sink > 1
        return candidate

    @property
    def never_come_again(self) -> bool:
        """Whether many steps came, and none of a kind that had come before, so that nothing is ever compiled."""
        return self._steps >= _MANY_STEPS and len(self._known) == self._steps

    @property
    def wait_for_long(self) -> bool:
        """Whether many steps came, most of them the first of their kind in a sink: programs are not near."""
        return self._steps >= LONG and 2 * self._came_again < self._steps

    def miss_no_more_than(self, candidate: Candidate) -> bool:
        """Tells whether others that may have a program have missed no more seconds, on average."""
        missed = [known.missed_seconds for known in self._known.values() if known.hazard is None]
        return candidate.missed_seconds * len(missed) >= sum(missed)

    @property
    def is_looking(self) -> bool:
        """Whether batches are being compared."""
        return bool(self._values)

    def why(self, values: dict[str, Hashable]) -> Hazard | None:
        """Takes what a batch holds besides tensors, by place; returns why kinds are too many, once enough have come."""
        self._values.append(values)
        if len(self._values) <= _LOOKS:
            return None
        compared, changed = Counter[str](), Counter[str]()
        for before, after in pairwise(self._values):
            both = [place for place in after if place in before]
            compared.update(both)
            changed.update(place for place in both if not _are_equal(before[place], after[place]))
        self._values.clear()
        places = [place for place, count in changed.most_common() if 2 * count > compared[place]]
        if not places:
            return TOO_MANY_KINDS
        others = f" and {len(places) - 1} more" if len(places) > 1 else ""
        return Hazard(
            "batches hold values that keep changing and are no tensors, each of which would need a program of its own:"
            f" `{places[0]}`{others}",
            way_out="leave them out of the batch, or make them tensors",
        )

    def problems(self) -> list[tuple[Key, Hazard]]:
        """Returns the kinds whose last recording made no program, and why; not those that have been given up."""
        items = self._known.items()
        return [(key, known.problem) for key, known in items if known.problem is not None and known.hazard is None]

    def try_again(self, hazard: Hazard | None) -> None:
        """Takes back that kinds were given up for a reason, which may be gone."""
        for candidate in self._known.values():
            if candidate.hazard is not None and candidate.hazard == hazard:
                candidate.hazard, candidate.recordings = None, 0

    def drop(self, key: Key) -> None:
        """Forgets one kind."""
        self._known.pop(key, None)

    def clear(self) -> None:
        """Forgets all kinds."""
        self._known.clear()
        self._begin_anew()


def most_first(frozen: Sequence[Hazard], guards: Iterable[Iterable[Guard]]) -> list[Hazard]:
    """Returns what froze numbers, first what came out in the most ways among the guards of some steps."""
    outcomes: dict[str, set[Any]] = {}
    for guard in chain.from_iterable(guards):
        outcomes.setdefault(guard.why, set()).add(guard.outcome)
    return sorted(frozen, key=lambda hazard: -len(outcomes.get(hazard.what, ())))


def _are_equal(one: Hashable, other: Hashable) -> bool:
    """Compares values as keys are compared: the same object is equal, whatever it says itself (NaN)."""
    try:
        return one is other or bool(one == other)
    except Exception:  # it is the user's, and may say that it cannot be compared, or how element by element
        return False
