"""The programs of a training: for each kind of step and signature, one for each way through the step.

What they take for granted may change and change back (a flag that a callback sets in every other epoch): programs are
put aside with it, and are there when it comes again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterator
from itertools import chain
from typing import Any

from torch import Tensor

from lightning_sink.engine.private import holders_of_memory
from lightning_sink.engine.programs.candidates import most_first
from lightning_sink.engine.programs.program import Program
from lightning_sink.engine.step import Key, Step
from lightning_sink.engine.tracing.moved import Follower
from lightning_sink.engine.watch import Hazard

_MOST_BRANCHES = 16
"""Programs of one kind of step; the one that was made first makes room."""

_MOST_ASIDE = 8
"""Times that programs are put aside; those that have waited longest make room."""


class Programs:
    """Holds programs and finds the one that fits a step."""

    def __init__(self) -> None:
        self._known: dict[Key, list[Program]] = {}
        self._aside: list[tuple[Any, dict[Key, list[Program]]]] = []

    def __bool__(self) -> bool:
        return any(self._known.values())

    def _all(self) -> Iterator[Program]:
        return chain.from_iterable(self._known.values())

    def have(self, key: Key) -> bool:
        """Tells whether steps of a kind have a program, for whichever way through them."""
        return bool(self._known.get(key))

    def count(self, key: Key) -> int:
        """Returns how many programs steps of a kind have, one for each way through them."""
        return len(self._known.get(key, ()))

    def count_shapes(self, kind: Hashable) -> int:
        """Returns for how many signatures of batches such steps have programs."""
        return sum(known == kind and bool(programs) for (known, _), programs in self._known.items())

    def count_answers(self, key: Key) -> int:
        """Returns by how many answers of batches programs are told apart for steps of a kind."""
        asking = [program.questions for program in self._known.get(key, ()) if program.questions]
        return len({tuple((question.name, question.value) for question in questions) for questions in asking})

    def deciding(self, key: Key) -> Hazard | None:
        """Returns the number that tells most programs for steps of a kind apart; None where none does."""
        programs = self._known.get(key, ())
        frozen = programs[-1].frozen if programs else []
        return next(iter(most_first(frozen, (program.guards for program in programs))), None)

    def find(self, step: Step, generation: int | None = None) -> Program | None:
        """Returns the program for the way that a step will go, which is about to run; `generation` as it `fits`."""
        for program in self._known.get(step.key, ()):
            if program.fits(generation) and program.is_for(step.leaves):
                return program
        return None

    def add(self, key: Key, program: Program) -> bool:
        """Takes a program; tells whether another one has made room for it."""
        programs = self._known.setdefault(key, [])
        programs.append(program)
        makes_room = len(programs) > _MOST_BRANCHES
        del programs[:-_MOST_BRANCHES]
        return makes_room

    def remove(self, key: Key, program: Program) -> None:
        """Forgets one program, if it is known."""
        if program in (programs := self._known.get(key, [])):
            programs.remove(program)

    def look_again(self, ran: Program) -> None:
        """Has those look again at what they take for granted that a program writes to which has run."""
        for program in self._all():
            if program is not ran and not program.is_kept_by(ran):
                program.generation = -1

    def part_memory(self) -> set[int]:
        """Gives tensors memory of their own that steps give other memory, where somebody else holds what they have.

        What was taken of a tensor before (`state_dict()`, `p.data`) stays as it was when the step moves it. Returns the
        identities of tensors of which that is not so: a step writes to them before it moves them, or to another one
        that has their memory, and what it writes stays in what was taken. No program does that.
        """
        programs = [*self._all()]
        moved = {id(tensor): tensor for program in programs for tensor in program.moved}
        following = {each.slot.name: each for program in programs for each in program.followers if each.follows()}
        followers, held = dict[int, list[Follower]](), set[int]()
        for each in following.values():
            followers.setdefault(id(each.tensor), []).append(each)
        aliases = Counter(place for program in programs for place in program.places()) if moved else Counter()
        written: dict[int, list[Tensor]] = {}
        for other in chain.from_iterable(program.writes for program in programs) if moved else ():
            written.setdefault(other.data_ptr(), []).append(other)
        for key, tensor in moved.items():
            own = followers.get(key, [])
            ours = 2 + len(own) + aliases[tensor.data_ptr()]  # itself, and the look
            if holders_of_memory(tensor) > ours:
                is_anothers = any(id(other) != key for other in written.get(tensor.data_ptr(), ()))
                if is_anothers or any(key in program.written_first for program in programs):
                    held.add(key)
                    continue
                tensor.data = tensor.detach().clone()
                for each in own:
                    each.follow()
        return held

    def replaced(self) -> Iterator[Tensor]:
        """Yields what is in the places where steps put other tensors, but for gradients."""
        contents = (slot.get() for program in self._all() for slot in program.replaced)
        yield from (tensor for tensor in contents if tensor is not None)

    def keep_last(self, key: Key) -> None:
        """Forgets all but the one that was added last, for steps of this kind."""
        self._known = {key: self._known[key][-1:]}

    def remove_homes(self, names: set[str]) -> None:
        """Forgets those that count on a slot with one of these names to keep its tensor."""
        for programs in chain(self._known.values(), *(known.values() for _, known in self._aside)):
            programs[:] = [program for program in programs if not program.homes & names]

    @property
    def only_wait(self) -> bool:
        """Whether there are none but such as have been put aside."""
        return bool(self._aside) and not self

    def put_aside(self, granted: Any) -> None:
        """Has none any more; those that there are wait for what they take for granted."""
        if self:
            self._aside = [*self._aside, (granted, self._known)][-_MOST_ASIDE:]
        self._known = {}

    def take_again(self, is_there: Callable[[Any], bool]) -> bool:
        """Has those again of which what they take for granted is there; tells whether there are any."""
        for number, (granted, known) in enumerate(self._aside):
            if is_there(granted):
                del self._aside[number]
                self._known = known
                for program in self._all():
                    program.generation = -1
                return True
        return False

    def clear(self) -> None:
        """Forgets all of them."""
        self._known.clear()
        self._aside.clear()
