"""What a step did besides its tensors: noted when it is recorded, done again for each step of a program."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from torch import Tensor

from lightning_sink.engine.step import in_order
from lightning_sink.trainer.logged_turns import LoggedTurns
from lightning_sink.trainer.logging import Entry
from lightning_sink.trainer.metric_rows import Column, repeat_in_row
from lightning_sink.trainer.metrics import MetricCall, repeat


@dataclass(frozen=True)
class Note:
    """The same for every step that a program stands for.

    Attributes:
        early: How many of the calls are made before callbacks that do not belong to the step have their turn.
        clearings: How often it cleared the gradients at Lightning's bidding.
        schedulers: Schedulers that it stepped by hand, in order.
        late_schedulers: Those that `on_train_batch_end` stepped.
    """

    calls: tuple[Entry, ...]
    metrics: tuple[MetricCall, ...]
    early: int
    clearings: int
    optimizer_steps: int
    schedulers: tuple[Any, ...] = ()
    late_schedulers: tuple[Any, ...] = ()

    @property
    def turns(self) -> tuple[Note, ...]:
        """The notes of steps that take turns: all are alike."""
        return (self,)

    @property
    def stretch(self) -> int:
        """How many steps have one number for loggers."""
        return 1

    def together(self, logged: list[Tensor], steps: int) -> list[LoggedTurns]:
        """Returns what steps in a row put out: all log alike."""
        return [LoggedTurns(self.calls, logged)]

    @property
    def measures(self) -> bool:
        """Whether such a step calls metrics, or logs some."""
        return bool(self.metrics) or any(entry.source is not None for entry in self.calls)

    def values(self, logged: list[Tensor]) -> list[Any]:
        """Makes the step's calls of metrics; returns the values of what it logged.

        For these a program put out values that it computed, then what the metrics are called with.
        """
        if not self.measures:
            return logged
        own = sum(entry.source is None for entry in self.calls)
        computed = iter(logged[:own])
        hosted = repeat(self.metrics, logged[own:], [entry.source for entry in self.calls])
        pairs = zip(self.calls, hosted, strict=True)
        return [next(computed) if entry.source is None else value for entry, value in pairs]

    def values_in_row(self, logged: list[Tensor], steps: int) -> tuple[list[Column], int, BaseException | None]:
        """Makes the calls of metrics of steps in a row, given as for `values`, `[steps, ...]` each.

        Returns:
            The values of what each logged; of how many steps, where one behind these raised an error; that error.
        """
        sources = [entry.source for entry in self.calls]
        own = sources.count(None)
        computed = iter(logged[:own])
        shapes = [shape for call in self.metrics for shape in call.shapes]
        given = [column.reshape(steps, *shape) for column, shape in zip(logged[own:], shapes, strict=True)]
        hosted, done, error = repeat_in_row(self.metrics, given, sources, steps)
        values = [next(computed)[:done] if values is None else values[:done] for values in hosted]
        return values, done, error


@dataclass(frozen=True)
class TurnsNote:
    """What steps did that take turns.

    Attributes:
        turns: Their notes, in order. All call metrics alike; where they call any, all log alike, too.
        stretch: How many of them have one number for loggers: those of an accumulation window have.
        layouts: Shapes and types of the values that each logs.
    """

    turns: tuple[Note, ...]
    stretch: int
    layouts: tuple[tuple[Hashable, ...], ...]

    @classmethod
    def of(cls, notes: Sequence[Note], stretch: int, layouts: Sequence[Sequence[Hashable]]) -> TurnsNote | None:
        """Returns the note of steps with these; None where they measure, and not alike."""
        found, first = cls((*notes,), stretch, tuple(tuple(own) for own in layouts)), notes[0]
        if not found.measures:
            return found
        for note in notes:
            if note.calls != first.calls or len(note.metrics) != len(first.metrics):
                return None
            if not all(call.is_like(other) for call, other in zip(note.metrics, first.metrics, strict=True)):
                return None
        return found if len({*found.layouts}) == 1 else None

    @property
    def measures(self) -> bool:
        """Whether any calls metrics, or logs some."""
        return any(note.measures for note in self.turns)

    def together(self, logged: list[Tensor], steps: int) -> list[LoggedTurns]:
        """Returns what steps in a row put out, those of turns that log alike together."""
        columns, alike = iter(logged), dict[Hashable, list[int]]()
        for turn, (note, own) in enumerate(zip(self.turns, self.layouts, strict=True)):
            if turn < steps:  # it was reached
                alike.setdefault((note.calls, own), []).append(turn)
        by_turn = [[*islice(columns, len(own))] for own in self.layouts]
        return [
            LoggedTurns(
                self.turns[places[0]].calls,
                [in_order(values, len(places)) for values in zip(*(by_turn[turn] for turn in places), strict=True)],
                (*places,),
                len(self.turns),
            )
            for places in alike.values()
        ]
