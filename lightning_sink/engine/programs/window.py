"""Programs that take turns, run in a row: the steps of an accumulation window, or ways through a step that come again.

The first step of a window makes gradients, later ones add to them, and the last one is the optimizer's. None of their
programs can be run twice in a row, but all of them together can: what one reads from a slot is what an earlier one of
the same window has left there. Likewise with a user's own `if (batch_idx + 1) % 4 == 0`, of which nobody knows but by
the programs that have run (`Windows`). `window_of` links these; a `Window` stands for a `Program` as far as rows go.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import islice, repeat
from typing import Any

from torch import Tensor

from lightning_sink.engine.compiler.row import Layout, Turn
from lightning_sink.engine.programs.program import Program
from lightning_sink.engine.state.appends import Appends
from lightning_sink.engine.step import Column, Key, Sink, in_order

_MOST_TURNS = 64
"""Steps of a window at most: longer ones run one call each."""

_LONGEST = 32
"""Steps at most of a window that is found by the programs that have run: two rounds of it wait in line
(`QueueOptions.in_a_row`). An MLP's step takes 33 us where every 25th is another one, and 65 where each way has rows of
its own; where every 50th is, 41 and 33."""

Links = dict[int, tuple[int, int]]
"""As `row.Turn.links`."""


class Window:
    """Programs that take turns, all of which have run.

    Args:
        links: For each of them, which inputs earlier ones give.

    Attributes:
        appends: What the steps append: nothing.
        seconds: What a step took, on average, when some were last run.
    """

    def __init__(self, programs: Sequence[Program], links: Sequence[Links], note: Any) -> None:
        self.turns, self._links, self.note = programs, links, note
        self.function = programs[0].function.in_turns([program.function for program in programs])
        self.appends = Appends([])
        self.grad_mode = any(program.grad_mode for program in programs)
        self.seconds = sum(program.seconds for program in programs) / len(programs)
        self.kept_bytes = max(program.kept_bytes for program in programs)

    def leading(self, columns: list[Column], steps: int) -> int:
        """Returns how many of the steps that come next it is for: those of whole windows."""
        return steps - steps % len(self.turns)

    def in_row(self, columns: list[Column], numbers: list[list[Tensor]], steps: int) -> list[Turn]:
        """Returns what steps in a row take, right behind the last one of a window."""
        count, turns = len(self.turns), []
        for which, (program, links) in enumerate(zip(self.turns, self._links, strict=True)):
            own = [column[which::count] for column in columns]
            turn = program.turn(own, numbers[which::count], steps // count)
            fixed = [None if position in links else tensor for position, tensor in enumerate(turn.fixed)]
            turns.append(replace(turn, fixed=fixed, links=links))
        return turns

    def left(self, outputs: tuple[Tensor, ...], steps: int) -> list[tuple[Program, tuple[Tensor, ...]]]:
        """Returns the programs that steps in a row have left something of, and what, in the order of the steps."""
        parts = self._parts(outputs, [program.num_all for program in self.turns])
        found = [(program, (*own,)) for program, own in parts[:steps]]
        first = steps % len(self.turns) if steps > len(self.turns) else 0
        return found[first:] + found[:first]

    def taken_apart(self, kept: list[Tensor]) -> tuple[Tensor | None, list[Tensor], list[Tensor]]:
        """Returns the losses of steps in a row, None for none, what those of each turn log, and what they append."""
        parts = [program.taken_apart(own) for program, own in self._parts(kept, [p.num_kept for p in self.turns])]
        losses = [part[0] for part in parts if part[0] is not None]
        return (
            in_order(losses, len(self.turns)) if losses else None,
            [column for part in parts for column in part[1]],
            [],
        )

    def _parts(self, given: Sequence[Tensor], counts: Sequence[int]) -> list[tuple[Program, list[Tensor]]]:
        """Returns what belongs to each program that was reached, and to such as there is nothing of."""
        rest, found = iter(given), []
        for program, count in zip(self.turns, counts, strict=True):
            own = [*islice(rest, count)]
            if len(own) == count:
                found.append((program, own))
        return found


def window_of(programs: Sequence[Program], note: Any) -> Window | None:
    """Returns programs that take turns, in the order in which they ran the last time.

    None where one needs what no other gives it, or changes what another is for.
    """
    if not all(program.takes_turns for program in programs):
        return None
    pairs = [(one, other) for one in programs for other in programs if one is not other]
    if any(not one.is_kept_by(other) or one.counts_with(other) for one, other in pairs):
        return None
    links, left = list[Links](), dict[str, tuple[int, int] | None]()
    # Before the first turn slots are as the last one leaves them.
    filled = {slot.name: there for program in programs for slot, there in program.touches}
    shapes = {name: shape for program in programs for name, shape in program.left_shapes.items()}
    for which, program in enumerate(programs):
        stays = {position for position, slot in program.stays if slot.name not in filled}
        others = ((position, slot) for position, slot, _ in program.slots if position not in stays)
        places = {position: left.get(slot.name) for position, slot in others}
        if None in places.values() or not program.finds(filled):
            return None
        if any(shapes.get(slot.name, shape) != shape for slot, shape in program.asked_shapes):
            return None
        shapes |= program.left_shapes
        links.append({position: place for position, place in places.items() if place is not None})
        left |= {slot.name: None for slot in program.cleared}
        left |= {slot.name: (which, program.num_given + index) for index, slot in enumerate(program.filled)}
        filled |= {slot.name: there for slot, there in program.touches}
    return Window(programs, links, note)


@dataclass(frozen=True, eq=False)
class _Ran:
    """A program that has run.

    Attributes:
        key: Of the steps that it ran.
        layouts: What that looks like which is kept of its steps in a row; None where that does not lie in one piece.
    """

    key: Key
    program: Program
    layouts: list[Layout] | None


class Windows:
    """The programs that have run one after another, and the windows that were found of them."""

    def __init__(self) -> None:
        self._ran: deque[_Ran] = deque(maxlen=2 * _MOST_TURNS)
        self._alike = 0  # how many of the last ones are one and the same
        self._known: dict[tuple[Program, ...], Window | None] = {}  # by the programs, of those that ran last

    def forget(self) -> None:
        """Steps have run otherwise: those before them and behind them are no window."""
        self._ran.clear()
        self._alike = 0

    def add(self, key: Key, program: Program, outputs: tuple[Tensor, ...]) -> None:
        """Takes note of a program that has run a step, and of what that gave."""
        last = self._ran[-1] if self._ran else None
        if last is None or last.program is not program or last.key != key:
            last = _Ran(key, program, program.kept_layouts(outputs) if program.may_keep(outputs) else None)
            self._alike = 0
        self._ran.append(last)
        self._alike += 1

    def add_row(self, of: Program | Window, steps: int) -> None:
        """Takes note of steps in a row, behind one that was run by itself, or behind a window of such."""
        turns, count = len(of.turns), min(steps, 2 * _MOST_TURNS)
        if len(self._ran) < turns:
            return  # what the programs take for granted has changed while the row ran
        if turns == 1:
            self._ran.extend(repeat(self._ran[-1], count))
            self._alike += count
        elif steps % turns:
            self.forget()
        else:
            last = islice(self._ran, len(self._ran) - turns, None)
            self._ran.extend([*last] * min(2, steps // turns))

    def find(self, sink: Sink, turns: int) -> Window | None:
        """Returns what may run the steps that come next; None where there is no window.

        `turns` is how many take turns, as the owner says: one where it is seen from the last steps whether any do.
        """
        turns = turns if turns > 1 else self._period()
        if not 1 < turns <= min(_MOST_TURNS, len(self._ran)):
            return None
        last = [*islice(self._ran, len(self._ran) - turns, None)]
        programs = tuple(ran.program for ran in last)
        if programs not in self._known:
            if any({*programs} != {*others} for others in self._known):
                self._known.clear()  # nobody knows whether those are still in use
            self._known[programs] = self._window_of(sink, last)
        window = self._known[programs]
        return window if all(program.generation == programs[-1].generation for program in programs) else None

    def _window_of(self, sink: Sink, last: Sequence[_Ran]) -> Window | None:
        """Returns the window of programs that have run one after another; None where they or the owner refuse."""
        programs, layouts = [ran.program for ran in last], [ran.layouts or [] for ran in last]
        kinds, signatures = zip(*(ran.key for ran in last), strict=True)
        losses = {(*own[: program.num_losses],) for program, own in zip(programs, layouts, strict=True)}
        if any(ran.layouts is None for ran in last) or len(losses) > 1 or len({*signatures}) > 1:
            return None  # the batches that come next are all alike
        logged = [own[program.num_losses :] for program, own in zip(programs, layouts, strict=True)]
        note = sink.note_of_turns(kinds, [program.note for program in programs], logged)
        return None if note is None else window_of(programs, note)

    def _period(self) -> int:
        """Returns after how many steps programs have come again in the same order, the last two times; one for none."""
        if self._alike == len(self._ran) or not self._ran[-1].program.takes_turns:
            return 1
        ran = [ran.program for ran in self._ran]
        for turns in range(self._alike + 1, min(_LONGEST, len(ran) // 2) + 1):
            if ran[-turns - 1] is ran[-1] and ran[-turns:] == ran[-2 * turns : -turns]:
                return turns
        return 1
