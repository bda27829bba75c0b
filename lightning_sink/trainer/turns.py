"""Whose turn it is where batches begin and end: the Trainer's callbacks, in their order, and what each is to a sink.

A `StepCallback` belongs to the step and is recorded with it; so does a callback that changes each batch.
What Lightning ships and is wrong unless it sees every batch (weight averaging, throughput, spikes of the loss) is shown
every batch on the host. `LearningRateMonitor` only looks, so it is shown every step that it would log. Everybody else
is called with the sink's first batch and its last.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from enum import Enum
from typing import Any

from lightning.pytorch import Callback
from lightning.pytorch.callbacks import (
    Checkpoint,
    LearningRateMonitor,
    SpikeDetection,
    ThroughputMonitor,
    WeightAveraging,
)
from lightning.pytorch.utilities.model_helpers import is_overridden

from lightning_sink.trainer.callback_code import function_of, overrides, sets_batch, uses_argument
from lightning_sink.trainer.step_callback import StepCallback
from lightning_sink.whose import is_library, module_of

START, END = "on_train_batch_start", "on_train_batch_end"

_SHOWN = (WeightAveraging, ThroughputMonitor, SpikeDetection)
_LOOK = (WeightAveraging, Checkpoint, LearningRateMonitor)
_STEP_HOOKS = ("on_before_zero_grad", "on_before_backward", "on_after_backward", "on_before_optimizer_step")


class Turn(Enum):
    """What a callback is to the batches of a sink.

    STEP: It belongs to each step. SHOWN: It is shown every batch on the host. LOGGED: It is called once for the sink,
    and where a step begins that loggers are shown. MET: It is called once for the sink.
    """

    STEP = "step"
    SHOWN = "shown"
    LOGGED = "logged"
    MET = "met"


ON_HOST = frozenset([Turn.SHOWN, Turn.LOGGED, Turn.MET])

Groups = Iterator[tuple[Turn, list[Any]]]
"""Callbacks in their order, those of one turn in a row together."""


def in_step(trainer: Any) -> list[Callback]:
    """Returns the callbacks whose code is part of every step: their attributes belong to the training's state."""
    return [item for item in trainer.callbacks if is_of_step(item) or _overrides_step_hook(item)]


def is_of_step(callback: Callback) -> bool:
    """Tells whether a callback's batch hooks belong to each step."""
    if isinstance(callback, StepCallback):
        return True
    kinds = [kind for kind in type(callback).__mro__ if issubclass(kind, Callback) and kind is not Callback]
    is_users = not any(is_library(module_of(kind)) for kind in kinds)  # a monitor of Lightning's has its own turn
    return is_users and sets_batch(callback, START)


def outputs_are_seen(trainer: Any) -> bool:
    """Tells whether code that is part of the step may look at what the step has returned."""
    hook, module = getattr(trainer.lightning_module, END), trainer.lightning_module
    if is_overridden(END, module) and uses_argument(hook, 0):
        return True
    callbacks = (item for item in trainer.callbacks if is_of_step(item) and overrides(item, END))
    return any(uses_argument(getattr(item, END), 2) for item in callbacks)


def _overrides_step_hook(callback: Callback) -> bool:
    return any(overrides(callback, hook) for hook in _STEP_HOOKS)


class Turns:
    """The turns of a Trainer's present callbacks.

    Args:
        alone: Whether the sink is a single step, which everybody on the host sees.
    """

    def __init__(self, trainer: Any, alone: bool) -> None:
        self._trainer = trainer
        self._turns = [(item, _turn_of(item, alone)) for item in trainer.callbacks]
        self._have_step = bool(self.having({Turn.STEP}))
        self._every = {*ON_HOST} if alone else {Turn.SHOWN}  # who see every step
        if trainer.loggers and trainer.log_every_n_steps == 1:
            self._every.add(Turn.LOGGED)

    def having(self, turns: Collection[Turn]) -> list[Any]:
        """Returns those who have one of some turns."""
        return [item for item, turn in self._turns if turn in turns]

    def groups(self, hook: str, turns: Collection[Turn], *, with_new: bool) -> Groups:
        """Yields whose hook is due of those who have one of some turns, and `with_new` of those who come meanwhile.

        As Lightning does, it goes through the list while hooks change that: who leaves it is not called, who is behind
        the present one is. Whoever calls them takes those out of a group who are left when it has been changed. Who
        does nothing there does not part those that belong to the step; where there are none, all are given. `LOGGED`
        is given as `MET`.
        """
        live, known, place = self._trainer.callbacks, {id(item): turn for item, turn in self._turns}, 0
        while place < len(live):
            group, places, first = list[Any](), list[int](), None
            for number, item in enumerate(live[place:], start=place):
                turn = known.get(id(item), Turn.MET)
                is_due = turn in turns if id(item) in known else with_new
                if not is_due or (self._have_step and not overrides(item, hook)):
                    continue
                turn = Turn.MET if turn is Turn.LOGGED else turn
                if first not in (None, turn):
                    break
                first = turn
                group.append(item)
                places.append(number)
            if first is None:
                return
            yield first, group
            place = places[len(group) - 1] + 1

    def inside(self, hook: str, turns: Collection[Turn]) -> Callback | None:
        """Returns one that belongs to the step, and with whose hook the step is met in its midst; None for none.

        The turn of one on the host, who has one of some turns, is then between it and the rest of the step. Those of
        Lightning's, but for averages, checkpoints and learning rates, look at nothing that it may change.
        """
        have = [(item, turn) for item, turn in self._turns if overrides(item, hook)]
        outwards = have if hook == END else have[::-1]
        met = False
        for item, turn in outwards:
            if turn is Turn.STEP and met:
                return item  # type: ignore[no-any-return]
            met |= turn in turns and (isinstance(item, _LOOK) or runs_users(item, hook))
        return None

    def always_inside(self) -> tuple[Callback, str] | None:
        """Returns one with whose hook every step is met in its midst, and that hook; None for none."""
        found = ((self.inside(hook, self._every), hook) for hook in (START, END))
        return next(((item, hook) for item, hook in found if item is not None), None)

    @property
    def see_each_end(self) -> bool:
        """Whether somebody on the host has something to do behind every step."""
        return any(overrides(item, END) for item in self.having(self._every))


def _turn_of(callback: Any, alone: bool) -> Turn:
    if is_of_step(callback):
        return Turn.STEP
    if isinstance(callback, _SHOWN) and not alone:
        return Turn.SHOWN
    is_rates = isinstance(callback, LearningRateMonitor) and callback.logging_interval != "epoch"
    return Turn.LOGGED if is_rates else Turn.MET


def runs_users(callback: Callback, hook: str) -> bool:
    """Tells whether code of the user's runs in a callback's hook."""
    return not is_library(function_of(callback, hook).__module__ or "")
