"""Kinds of steps that have no program yet: which of them are worth recording, and what was seen of them.

Recording costs a few steps' time and compiling seconds, so a kind has to come again before either is done for it. The
first kind of a training comes at every step. A batch of another shape may be the last one of a dataset, once in a pass;
it waits until it has come `PATIENCE` times.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field

from lightning_sink.engine.binding import Binding, Observation, bind
from lightning_sink.engine.watch import Hazard

PATIENCE = 16
"""Steps of a kind seen before it is compiled although it is rare."""

MAX_RECORDINGS = 5
"""Steps of a kind recorded in a row before it is left to the eager path: lazy state needs one, agreement two."""

MOST_BRANCHES = 8
"""Ways through a step, by what its numbers decide, that are recorded in a row before one of them comes again."""

_MOST_KINDS = 64
"""Kinds of steps that are remembered at a time."""

_MANY_KINDS = 32
"""Kinds of steps that came without one of them coming again, after which it is time to say so."""

TOO_MANY_KINDS = Hazard("batches are of too many kinds: shapes, or values that are no tensors, keep changing")

_MANY_VALUES = 8
"""Kinds of steps that wait to come again, by what their batches hold besides tensors, after which it is said."""


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
    """

    last: dict[Hashable, Observation] = field(default_factory=dict)
    recordings: int = 0
    seen: int = 0
    seen_in_sink: int = 0
    sink: int = -1
    problem: Hazard | None = None
    hazard: Hazard | None = None

    def is_due(self, first_of_its_kind: bool) -> bool:
        """Tells whether the next such step is to be recorded.

        Args:
            first_of_its_kind: Whether no batch of another shape has a program for the same kind of step.
        """
        if self.hazard is not None:
            return False
        return self.seen >= PATIENCE or (first_of_its_kind and self.seen_in_sink >= 2)

    def compare(self, observation: Observation, volatile: set[str]) -> list[Binding] | None:
        """Takes a recorded step; returns where its program's inputs come from, None where there is no program yet.

        Args:
            observation: The step.
            volatile: Slots that some step fills.
        """
        self.recordings += 1
        last, self.last[observation.way] = self.last.get(observation.way), observation
        problems: list[Hazard] = list(observation.hazards)
        if not problems and last is not None and not last.hazards:
            found = bind(last, observation, volatile)
            if isinstance(found, list) and not any(isinstance(item, Hazard) for item in found):
                return [item for item in found if isinstance(item, Binding)]
            problems = [item for item in found if isinstance(item, Hazard)]
        if not problems and self.recordings >= MOST_BRANCHES:
            problems = observation.recording.frozen
        # Way after way and none of them twice: that is why, should the kind be forgotten before there are many.
        suspects = problems or (observation.recording.frozen if len(self.last) > 2 else [])
        self.problem = suspects[0] if suspects else None
        if problems and self.recordings >= MAX_RECORDINGS:
            self.give_up(problems[0])
        return None

    def found(self, observation: Observation) -> None:
        """Takes note that a step has a program."""
        self.last.pop(observation.way, None)
        self.recordings = self.seen = self.seen_in_sink = 0
        self.problem = None

    def give_up(self, hazard: Hazard) -> None:
        """Leaves steps of this kind to the eager path."""
        self.hazard = hazard
        self.last.clear()


class Candidates:
    """The candidates of a training."""

    def __init__(self) -> None:
        self._known: dict[Hashable, Candidate] = {}
        self._values: dict[str, Hashable] = {}
        self._changed: dict[str, int] = {}

    def __bool__(self) -> bool:
        return bool(self._known)

    def see(self, key: Hashable, sink: int) -> Candidate | None:
        """Counts a step and returns its candidate; None where too many kinds are known to remember another.

        Args:
            key: What steps of a kind have in common.
            sink: Number of the present sink.
        """
        if key not in self._known and len(self._known) >= _MOST_KINDS:
            return None
        candidate = self._known.setdefault(key, Candidate())
        candidate.seen += 1
        candidate.seen_in_sink = candidate.seen_in_sink + 1 if candidate.sink == sink else 1
        candidate.sink = sink
        return candidate

    def wait(self, values: dict[str, Hashable]) -> Hazard | None:
        """Takes note of a step that runs the plain way until its kind has come again.

        Args:
            values: What its batch holds besides tensors, by place.

        Returns:
            Why there will be no program for long, once many steps have waited whose batches differ in such values.
        """
        before, self._values = self._values, values
        if before.keys() == values.keys():
            for place in (place for place in values if values[place] != before[place]):
                self._changed[place] = self._changed.get(place, 0) + 1
        if len(self._known) < _MANY_VALUES or max(self._changed.values(), default=0) < PATIENCE - 1:
            return None
        places = sorted(self._changed, key=lambda place: -self._changed[place])
        others = f" and {len(places) - 1} more" if len(places) > 1 else ""
        return Hazard(
            "batches hold values that keep changing and are no tensors, each of which would need a program of its own:"
            f" `{places[0]}`{others}. Leave them out of the batch, or make them tensors"
        )

    @property
    def never_come_again(self) -> bool:
        """Whether many kinds of steps came and each of them once, so that nothing is ever compiled."""
        return len(self._known) >= _MANY_KINDS and all(known.seen == 1 for known in self._known.values())

    def problems(self) -> list[tuple[Hashable, Hazard]]:
        """Returns the kinds whose last recording made no program, and why; not those that have been given up."""
        items = self._known.items()
        return [(key, known.problem) for key, known in items if known.problem is not None and known.hazard is None]

    def drop(self, key: Hashable) -> None:
        """Forgets one kind."""
        self._known.pop(key, None)

    def clear(self) -> None:
        """Forgets all kinds."""
        self._known.clear()
        self._values, self._changed = {}, {}
