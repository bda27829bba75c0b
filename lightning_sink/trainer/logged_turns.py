"""What steps in a row log that take turns, and not all alike.

Say three take turns; the first logs "critic", the others log "loss" and "critic", and seven steps have run:

    step of the row      0        1        2        3        4        5        6
    turn                 0        1        2        0        1        2        0
    "critic" alone       a        .        .        b        .        .        c      places (0,), turns 3
    "loss", "critic"     .        d        e        .        f        g        .      places (1, 2), turns 3

are two `LoggedTurns`, with values `[a, b, c]` and, by name, `[d, e, f, g]`. Of the second `step(2)` is 4, the step of
the row that gave f, and `before(4)` is 2, how many of these values come before that step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import torch
from torch import Tensor

from lightning_sink.trainer.logging import Entry


@dataclass(frozen=True)
class LoggedTurns:
    """What some steps in a row logged, those of them that log alike.

    Attributes:
        calls: What each of them logged.
        values: The values: `[steps]` each, or lists of what a metric measured; of a single step, that by itself.
        places: Which of the steps they are that take turns: the first one where all steps are alike.
        turns: How many take turns.
    """

    calls: tuple[Entry, ...]
    values: list[Any]
    places: tuple[int, ...] = (0,)
    turns: int = 1

    def before(self, step: int) -> int:
        """Returns how many of them there are before a step of the row."""
        rounds, turn = divmod(step, self.turns)
        return rounds * len(self.places) + sum(place < turn for place in self.places)

    def step(self, index: int) -> int:
        """Returns which step of the row one of them is."""
        rounds, which = divmod(index, len(self.places))
        return rounds * self.turns + self.places[which]

    def by_name(self) -> dict[str, Any]:
        """Returns the values by the names that they were logged under; of two of one name, the last."""
        pairs = zip(self.calls, self.values, strict=True)
        return {entry.name: values for entry, values in pairs if entry.name is not None}


def numbers_in_row(parts: Sequence[LoggedTurns], steps: int) -> dict[str, Tensor]:
    """Returns the values of so many steps by name, `[steps]` each; NaN for steps that log otherwise."""
    if len(parts) == 1:
        return parts[0].by_name()
    found, given = dict[str, Tensor](), [(part, part.by_name()) for part in parts]
    for name in dict.fromkeys(name for _, own in given for name in own):
        named = [(part, own[name]) for part, own in given if name in own]
        number = reduce(torch.promote_types, [values.dtype for _, values in named])
        if not number.is_floating_point and sum(len(part.places) for part, _ in named) < parts[0].turns:
            number = torch.get_default_dtype()
        every = torch.empty(steps, dtype=number, device=named[0][1].device)
        if number.is_floating_point:
            every.fill_(torch.nan)
        for part, values in named:
            for which, place in enumerate(part.places):
                every[place :: part.turns] = values[which :: len(part.places)].to(number)
        found[name] = every
    return found
