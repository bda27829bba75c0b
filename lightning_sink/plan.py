"""The plan: how many batches the next sink holds.

Pure arithmetic over counters; it owns no state and knows neither torch nor Lightning. A sink may be shorter than
`sink_size` for one reason only: something that the user asked for must happen between two batches, and the host has
to be there when it does. Each such thing is one field of `Limits`, and the next sink ends at the nearest of them.

Triggers by the clock are no arithmetic and are not here: whoever runs the sink compares the time with a deadline
before each step and ends the sink there.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

UNSIZED_SINK = 10_000
"""Longest sink of `sink_size=-1` over data of unknown length, so that an endless stream meets its callbacks."""


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What may end a sink; constant while an epoch runs.

    Attributes:
        sink_size: Most batches in a sink; -1 means the whole epoch.
        epoch_batches: Batches in the epoch; None where the length is unknown.
        accumulate: Batches whose gradients make one optimizer step. The last batch of an epoch always steps.
        max_steps: Optimizer steps after which training ends; -1 means never.
        validate_every: Batches between two validation runs; None where batches do not trigger validation.
        validate_over_epochs: Whether `validate_every` counts all batches since training began, not the epoch's.
        save_every: Optimizer steps between two checkpoints, one number for each callback that counts them.
        judge_every: Those of them that may also save at a batch that makes no optimizer step: where a metric decides.
    """

    sink_size: int = -1
    epoch_batches: int | None = None
    accumulate: int = 1
    max_steps: int = -1
    validate_every: int | None = None
    validate_over_epochs: bool = False
    save_every: tuple[int, ...] = ()
    judge_every: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Position:
    """Where training stands between two sinks.

    Attributes:
        epoch_batches: Batches of this epoch already trained.
        total_batches: Batches trained since training began.
        optimizer_steps: Optimizer steps made since training began.
    """

    epoch_batches: int = 0
    total_batches: int = 0
    optimizer_steps: int = 0


def next_sink(limits: Limits, position: Position) -> int:
    """Returns the length of the next sink in batches, at least 1.

    Anything already due at the position is behind us: the caller acts on it before it asks.
    """
    bounds = [limits.sink_size if limits.sink_size > 0 else limits.epoch_batches or UNSIZED_SINK]
    if limits.epoch_batches is not None:
        bounds.append(limits.epoch_batches - position.epoch_batches)
    if limits.validate_every:
        done = position.total_batches if limits.validate_over_epochs else position.epoch_batches
        bounds.append(limits.validate_every - done % limits.validate_every)
    steps = [every - position.optimizer_steps % every for every in limits.save_every]
    if limits.max_steps >= 0:
        steps.append(limits.max_steps - position.optimizer_steps)
    bounds.extend(batches_until(count, limits.accumulate, position.epoch_batches) for count in steps)
    judged = any(position.optimizer_steps % every == 0 for every in limits.judge_every)
    if judged and batches_until(1, limits.accumulate, position.epoch_batches) > 1:
        return 1
    return max(1, min(bounds))


def batches_until(steps: int, accumulate: int, epoch_batches: int) -> int:
    """Returns the batches up to and with the one that makes the `steps`-th next optimizer step of this epoch.

    The step that an epoch's last batch forces is not counted: a sink ends there anyway.
    """
    return steps * accumulate - epoch_batches % accumulate


@dataclass(frozen=True, kw_only=True)
class Awaited:
    """Numbers of optimizer steps at which the host has to be there, where only the step decides how many it makes.

    The attributes are those of `Limits`.
    """

    max_steps: int = -1
    save_every: tuple[int, ...] = ()
    judge_every: tuple[int, ...] = ()

    def is_met(self, made: int, by: int) -> bool:
        """Tells whether the host has to be there behind a batch: `made` steps have been made, `by` of them in it."""
        if not by:
            return any(made % every == 0 for every in self.judge_every)
        return 0 <= self.max_steps <= made or any(made % every == 0 for every in self.save_every)

    def rounds_before(self, made: int, each: Sequence[int]) -> float:
        """Returns how many rounds of batches there are before one in which the host may have to be there.

        So many optimizer steps were made since training began; the batches of a round make `each`, in order. Infinity
        stands for any number.
        """
        if 0 in each and self.is_met(made, 0):
            return 0
        every = self.save_every + self.judge_every * (len(each) > 1)  # one that makes no step may follow any other
        left = [number - made % number for number in every]
        if self.max_steps >= 0:
            left.append(max(1, self.max_steps - made))
        return (min(left) - 1) // sum(each) if left and any(each) else math.inf
