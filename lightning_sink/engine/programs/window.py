"""Programs that take turns: the steps of an accumulation window, one after another, run in a row.

The first step of a window makes gradients, later ones add to them, and the last one is the optimizer's. None of their
programs can be run twice in a row, but all of them together can: what one reads from a slot is what an earlier one of
the same window has left there. `window_of` links these; a `Window` stands for a `Program` as far as rows go.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from lightning_sink.engine.compiler.row import Layout, Row
from lightning_sink.engine.programs.program import Program
from lightning_sink.engine.programs.registry import Key
from lightning_sink.engine.state.appends import Appends
from lightning_sink.engine.step import Column, Result, Sink

_MOST_TURNS = 64
"""Steps of a window at most: longer ones run one call each."""

Links = dict[int, tuple[int, int]]
"""As `row.Turn.links`."""


class Window:
    """Programs that take turns, all of which have run.

    Args:
        programs: Those of a window's steps, in order.
        links: For each of them, which inputs earlier ones give.
        note: The owner's note of such steps.

    Attributes:
        turns: The programs.
        note: As given.
        function: What runs rows of the steps.
        appends: What the steps append: nothing.
        seconds: What a step took, on average, when some were last run.
        kept_bytes: What is kept of a step.
    """

    def __init__(self, programs: Sequence[Program], links: Sequence[Links], note: Any) -> None:
        self.turns, self._links, self.note = programs, links, note
        self.function = programs[0].function.in_turns([program.function for program in programs])
        self.appends = Appends([])
        self.grad_mode = any(program.grad_mode for program in programs)
        self.seconds = sum(program.seconds for program in programs) / len(programs)
        self.kept_bytes = max(program.kept_bytes for program in programs)

    def takes(self, columns: list[Column]) -> bool:
        """Tells whether leaves that were the same in the recorded steps are so in these batches."""
        return all(program.takes(self._of_turn(columns, which)) for which, program in enumerate(self.turns))

    def leading(self, columns: list[Column], steps: int) -> int:
        """Returns how many of the steps that come next it is for: those of whole windows."""
        return steps - steps % len(self.turns)

    def row(self, columns: list[Column], numbers: list[list[Tensor]], steps: int) -> Row:
        """Returns steps in a row, as a program does, right behind the last one of a window."""
        count, turns = len(self.turns), []
        for which, (program, links) in enumerate(zip(self.turns, self._links, strict=True)):
            turn = program.turn(self._of_turn(columns, which), numbers[which::count], steps // count)
            turns.append(replace(turn, links=links))
        with torch.enable_grad() if self.grad_mode else nullcontext():
            return self.function.row(turns, steps)

    def store(self, outputs: tuple[Tensor, ...]) -> None:
        """Fills the slots with what the functions returned that were reached."""
        for program, own in self._parts(outputs, [program.num_all for program in self.turns]):
            program.store((*own,))

    def result(self, outputs: tuple[Tensor, ...]) -> Result:
        """Rebuilds what the last step of a window returned, or the last one that was reached."""
        program, own = self._parts(outputs, [program.num_all for program in self.turns])[-1]
        return program.result((*own,))

    def taken_apart(self, kept: list[Tensor]) -> tuple[Tensor | None, list[Tensor], list[Tensor]]:
        """Returns the losses of steps in a row, None where there are none, what they log, and what they append."""
        counts = [program.num_kept for program in self.turns]
        parts = [program.taken_apart(own) for program, own in self._parts(kept, counts)]
        losses = [part[0] for part in parts if part[0] is not None]
        logged = [self._in_order(columns) for columns in zip(*(part[1] for part in parts), strict=True)]
        return self._in_order(losses) if losses else None, logged, []

    def _parts(self, given: Sequence[Tensor], counts: Sequence[int]) -> list[tuple[Program, list[Tensor]]]:
        """Returns what belongs to each program that was reached."""
        rest, found = iter(given), []
        for program, count in zip(self.turns, counts, strict=True):
            own = [*islice(rest, count)]
            if len(own) == count:
                found.append((program, own))
        return found

    def _of_turn(self, columns: list[Column], which: int) -> list[Column]:
        return [column[which :: len(self.turns)] for column in columns]

    def _in_order(self, values: Sequence[Tensor]) -> Tensor:
        """Returns what steps gave in their order, of what those of each turn gave."""
        found = values[0].new_empty((sum(map(len, values)), *values[0].shape[1:]))
        for which, own in enumerate(values):
            found[which :: len(self.turns)] = own
        return found


def window_of(programs: Sequence[Program], note: Any) -> Window | None:
    """Returns programs that take turns; None where one needs what no other gives it, or changes what another is for."""
    if not all(program.takes_turns for program in programs):
        return None
    if any(not one.is_kept_by(other) for one in programs for other in programs if one is not other):
        return None
    links, left = list[Links](), dict[str, tuple[int, int] | None]()
    for which, program in enumerate(programs):
        places = {position: left.get(slot.name) for position, slot in program.slots}
        if None in places.values():
            return None
        links.append({position: place for position, place in places.items() if place is not None})
        touched: dict[str, tuple[int, int] | None] = {slot.name: None for slot in program.cleared}
        touched |= {slot.name: (which, program.num_given + index) for index, slot in enumerate(program.filled)}
        if left.keys() & touched.keys():
            return None  # which of them is left would depend on where a row ends
        left |= touched
    finds_same = all(program.finds({name: place is not None for name, place in left.items()}) for program in programs)
    return Window(programs, links, note) if finds_same else None


class Windows:
    """The programs that have run one after another, each by itself, and the window that was found last."""

    def __init__(self) -> None:
        self._ran: deque[tuple[Key, Program, list[Layout] | None]] = deque(maxlen=_MOST_TURNS)
        self._known: tuple[tuple[Program, ...], Window | None] = (), None

    def forget(self) -> None:
        """Steps have run otherwise, or in a row: those before them and behind them are no window."""
        self._ran.clear()

    def add(self, key: Key, program: Program, outputs: tuple[Tensor, ...]) -> None:
        """Takes note of a program that has run a step, and of what that gave."""
        self._ran.append((key, program, program.kept_layouts(outputs) if program.may_keep(outputs) else None))

    def find(self, sink: Sink, turns: int) -> Window | None:
        """Returns what may run the steps that come next, where so many take turns; None where nothing does."""
        if not 1 < turns <= len(self._ran):
            return None
        keys, programs, layouts = zip(*islice(self._ran, len(self._ran) - turns, None), strict=True)
        kinds, signatures = zip(*keys, strict=True)
        if None in layouts or any(own != layouts[0] for own in layouts):
            return None
        if any(signature != signatures[0] for signature in signatures):
            return None  # the batches that come next are all alike
        if any(program.looked_at != programs[-1].looked_at for program in programs):
            return None
        note = sink.note_of_turns(kinds, [program.note for program in programs])
        if note is None:
            return None
        if self._known[0] != programs:
            self._known = programs, window_of(programs, note)
        return self._known[1]
