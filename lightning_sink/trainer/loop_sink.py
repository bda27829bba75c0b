"""A sink inside a Trainer of which many steps may run in one call: Lightning's part of steps in a row.

Steps that nobody on the host has to see are found ahead of time; the counters, schedulers and logged values of all of
them are seen to at once, behind them, as if each had been met. A program that takes counters or options as inputs is
given those of many steps at once, so what Lightning does between two steps is done before the first of them is run;
where fewer are run than were gone through, it is undone.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Hashable, Sequence
from dataclasses import dataclass, field, replace
from typing import cast

import torch
from torch import Tensor

from lightning_sink.data.batch import flatten
from lightning_sink.data.run import Part
from lightning_sink.engine.step import Result, Step
from lightning_sink.errors import add_note
from lightning_sink.trainer.logged_turns import LoggedTurns, numbers_in_row
from lightning_sink.trainer.note import Note, TurnsNote
from lightning_sink.trainer.schedules import keep_schedules, step_by_hand, step_in_row
from lightning_sink.trainer.sink import Kind, TrainerSink

_MOST_LEFT, _MOST_BYTES = 1024, 1 << 26
"""Steps, and bytes of what they put out, that are left for later at most."""


@dataclass
class _Left:
    """What steps in a row that measure left, all of them alike.

    Attributes:
        note: The note of each.
        stretch: How many of them have one number for loggers.
        first: The index of the first one's batch.
        number: Its number for loggers.
    """

    note: Note
    stretch: int
    first: int
    number: int
    steps: int = 0
    _parts: list[list[Tensor]] = field(default_factory=list)
    _bytes: int = 0

    def add(self, logged: list[Tensor], steps: int) -> bool:
        """Takes what a program put out for further steps; tells whether that is enough."""
        self._parts.append(logged)
        self.steps += steps
        self._bytes += sum(column.nbytes for column in logged)
        return self.steps >= _MOST_LEFT or self._bytes >= _MOST_BYTES

    def columns(self) -> list[Tensor]:
        """Returns what was put out, `[steps, ...]` each."""
        return self._parts[0] if len(self._parts) == 1 else [*map(torch.cat, zip(*self._parts, strict=True))]


class LoopSink(TrainerSink):
    """The next steps of a Trainer, of which the engine may run many in one call. Arguments as `TrainerSink`."""

    _left: _Left | None = None
    _has_failed = False

    def turns(self) -> int:
        """Returns the steps of an accumulation window; 0 in the midst of one, 1 where nothing is accumulated."""
        count = self._trainer.accumulate_grad_batches
        return count if (self._loop.batch_idx + 1) % count == 0 else 0

    def note_of_turns(
        self, kinds: Sequence[Hashable], notes: Sequence[Note], layouts: Sequence[Sequence[Hashable]]
    ) -> TurnsNote | None:
        """Returns a note for the steps of whole windows, or for such as are of one kind; None for others."""
        options, last = cast(Kind, kinds[-1])[2], len(kinds) - 1
        if options != self._options():
            return None
        if self._trainer.accumulate_grad_batches == 1:
            return TurnsNote.of(notes, 1, layouts) if len({*kinds}) == 1 else None
        if any(kind != (turn == 0, turn == last, options) for turn, kind in enumerate(kinds)):
            return None
        return TurnsNote.of(notes, len(kinds), layouts)

    def ahead(self, step: Step, note: Note | TurnsNote, most: int, behind: int = 0) -> Part | None:
        """Returns the batches of steps between this one and the sink's last that nobody on the host has to see."""
        if self._is_attended(note) or not self._is_here:
            return None  # batches like this one are transferred in their turn
        if self.logs.buffer.is_full:
            if behind:
                return None  # loggers are not to be called while steps run
            self.logs.all()
        turns = len(note.turns)
        room = (self._length - self._index - 1 - behind) // turns  # the last one is met by callbacks
        number = self._loop._batches_that_stepped + behind // note.stretch
        if self._hooks.logs and self._selects:
            room = min(room, (self._selects - 1 - number % self._selects) * note.stretch // turns)
        each = [of.optimizer_steps for of in note.turns]
        room = int(min(room, self._ends.rounds_before(each, (behind - self.passages.steps) // turns)))
        if room < 1:
            return None
        self.progress.tell(self.passages.steps)
        self._interrupt.held = False
        try:
            batches = self._fetcher.ahead(max(1, min(most // turns, room)) * turns, behind)
        finally:
            self._interrupt.held = True
        if batches is None or len(batches) < turns:
            return None
        if over := len(batches) % turns:
            batches = batches.cut(len(batches) - over)
        # Batches of the same signature lie in the same place.
        looked = self._fetcher.queue.looked
        return batches if flatten(batches.batch(0), looked)[1] == step.signature else None

    def _is_attended(self, note: Note | TurnsNote) -> bool:
        """Tells whether the host has something to do after every step."""
        by_windows = self._automatic and len(note.turns) > 1
        if self._last or self.disturbed or (self._trainer.accumulate_grad_batches > 1 and not by_windows):
            return True
        return bool(self._hooks.shown) or self._ends.is_asked_for

    def passing(self, steps: int, note: Note | TurnsNote, seen: Callable[[], None]) -> Generator[None, None, None]:
        """Counts steps between the first and the last one, and steps the schedulers behind each."""
        loop, trainer, counters = self._loop, self._trainer, self._counters
        step_schedulers, counted = step_in_row(loop), counters.present()
        put_back = keep_schedules(trainer, in_row=True) if self.schedules(note) else lambda: None
        turns, first = note.turns, loop.batch_idx + 1

        def restore() -> None:
            put_back()
            counters.restore(counted)

        def present() -> int:
            number: int = loop.batch_idx - first
            return number % len(turns)

        def end() -> None:
            of = turns[present()]
            counters.trained(of.clearings, of.optimizer_steps)
            step_by_hand(of.schedulers)
            if (present() + 1) % note.stretch == 0:
                step_schedulers()  # at a window's end, where gradients are accumulated
            step_by_hand(of.late_schedulers)
            counters.completed()

        return self.passages.go(steps, restore, end, counters.ready, seen)

    def account_chunk(
        self,
        steps: int,
        result: Callable[[], Result],
        loss: Tensor | None,
        logged: list[Tensor],
        note: Note | TurnsNote,
    ) -> None:
        """Does Lightning's part of steps that a program ran in a row."""
        loop, turns = self._loop, note.turns
        first = self._fetcher.fetched
        batch = self._fetcher.skip(steps)
        if not self.passages.end():
            pairs = [(len(range(turn, steps, len(turns))), of) for turn, of in enumerate(turns)]
            cleared = sum(count * of.clearings for count, of in pairs)
            self._counters.passed(steps, cleared, sum(count * of.optimizer_steps for count, of in pairs))
        number = loop._batches_that_stepped
        loop._batches_that_stepped += steps // note.stretch
        self._index += steps
        parts = note.together(logged, steps)
        self.history.add(loss, () if note.measures else numbers_in_row(parts, steps).items(), steps)
        step = replace(cast(tuple[Step, object], self._trained)[0], batch=batch, leaves=flatten(batch)[0])
        self._trained = step, result
        self.progress.trained(step, steps)
        self._batch.take(batch)
        if not note.measures:
            self.logs.buffer.add(parts, number, steps, self._selects, note.stretch)
            return
        self._left = self._left or _Left(turns[0], note.stretch, first, number)
        if self._left.add(parts[0].values, steps):
            self._catch_up()

    def _catch_up(self) -> None:
        """Logs what steps in a row left, and makes their calls of metrics: many rows' cost as one's.

        By now the steps are counted. Behind an error of a metric's, what later steps left is given up: training ends.

        Raises:
            BaseException: What a metric raised, when what steps before that logged is on its way.
        """
        left, self._left = self._left, None
        if left is None or self._has_failed:
            return
        values, done, error = left.note.values_in_row(left.columns(), left.steps)
        if done:
            by_themselves = values if done > 1 else [value[0] for value in values]
            parts = [LoggedTurns(left.note.calls, by_themselves)]
            self.logs.buffer.add(parts, left.number, done, self._selects, left.stretch)
        if error is not None:
            self._has_failed = True
            if isinstance(error, Exception):
                place = f"batch {left.first + done} of epoch {self._trainer.current_epoch}"
                add_note(error, f"[lightning_sink] raised by a metric for {place}; later steps had run, and count")
            raise error
        named = [(entry.name, value) for entry, value in zip(left.note.calls, values, strict=True)]
        numbers = ((n, v) for n, v in named if n is not None and isinstance(v, Tensor) and v.numel() == done)
        self.history.note(numbers, done)
