"""The callbacks' batch hooks: who is called for each batch, who once for a sink, and who takes part in the step.

A `StepCallback` belongs to the step and is recorded with it. What Lightning ships and is wrong unless it sees every
batch (weight averaging, throughput, spikes of the loss) is shown every batch on the host. Everybody else is called with
the sink's first batch and its last one. A callback that changes weights or an optimizer's options there would do so
after every step of plain training; in a sink it does so once, and is told about it. `LearningRateMonitor` only looks,
so it is shown every step that it would log.

Private names of Lightning (2.6): `LightningModule._current_fx_name` (which hook is logging),
`_TrainingEpochLoop._batches_that_stepped` (the number of the step that loggers see).
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from itertools import groupby
from typing import Any

from lightning.pytorch import Callback, Trainer
from lightning.pytorch.callbacks import (
    Checkpoint,
    LearningRateMonitor,
    SpikeDetection,
    ThroughputMonitor,
    WeightAveraging,
)
from lightning.pytorch.utilities.model_helpers import is_overridden
from torch import nn
from torch.nn.parameter import is_lazy

from lightning_sink.engine.state.holders import Seen
from lightning_sink.engine.watch import first_line, is_library
from lightning_sink.errors import warn_at
from lightning_sink.trainer.callback_code import decides_by_counts, function_of, overrides, uses
from lightning_sink.trainer.host_state import HostState
from lightning_sink.trainer.step_callback import StepCallback

_SHOWN = (WeightAveraging, ThroughputMonitor, SpikeDetection)
_STEP_HOOKS = ("on_before_zero_grad", "on_before_backward", "on_after_backward", "on_before_optimizer_step")


def in_step(trainer: Trainer) -> list[Callback]:
    """Returns the callbacks whose code is part of every step: their attributes belong to the training's state."""
    callbacks = trainer.callbacks  # type: ignore[attr-defined]
    return [item for item in callbacks if isinstance(item, StepCallback) or _overrides_step_hook(item)]


def _overrides_step_hook(callback: Callback) -> bool:
    return any(overrides(callback, hook) for hook in _STEP_HOOKS)


def behind(trainer: Any, others: list[Any]) -> StepCallback | None:
    """Returns a callback that belongs to the step, and whose turn, where batches end, is behind one of some others'.

    Those of Lightning's, but for averages and checkpoints, look at nothing that it may change.
    """
    ends = [item for item in trainer.callbacks if overrides(item, "on_train_batch_end")]
    look = [item for item in others if isinstance(item, (WeightAveraging, Checkpoint)) or _runs_users(item)]
    first = next((place for place, item in enumerate(ends) if any(item is one for one in look)), len(ends))
    return next((item for item in ends[first:] if isinstance(item, StepCallback)), None)


def _runs_users(callback: Callback) -> bool:
    """Tells whether code of the user's runs where batches end."""
    return not is_library(function_of(callback, "on_train_batch_end").__module__ or "")


def are_shown_every_batch(trainer: Trainer) -> bool:
    """Tells whether a callback is shown every batch on the host, between the two parts of its step."""
    return any(map(is_shown, trainer.callbacks))  # type: ignore[attr-defined]


def is_shown(callback: Any) -> bool:
    """Tells whether a callback is shown every batch on the host."""
    return isinstance(callback, _SHOWN)


def are_met_every_batch(trainer: Trainer) -> bool:
    """Tells whether a callback has something to do behind every step, where a sink is a single one."""
    callbacks = trainer.callbacks  # type: ignore[attr-defined]
    return any(overrides(item, "on_train_batch_end") for item in callbacks)


class Turn(Enum):
    """What a callback is to the batches of a sink.

    STEP: It belongs to each step. SHOWN: It is shown every batch on the host. MET: It is called once for the sink.
    """

    STEP = "step"
    SHOWN = "shown"
    MET = "met"


_BATCH = {"on_train_batch_start": 2, "on_train_batch_end": 3}
"""Where the batch is among the arguments of a callback's hooks."""


_FEW, _FEW_OF_MANY = 8, 2
"""Sinks around whose hooks all numbers in memory are compared; behind them fewer and fewer, at no regular distance, so
that what a callback does in every tenth sink is met."""

_MANY = 1 << 22
"""Parameters that it takes 35 ms to look at, before a hook and again behind it: those of a vocoder with its critics, 40
million, had sinks of 20 steps take a second longer."""


@dataclass
class Compared:
    """What is known of the callbacks' hooks in a fit.

    Attributes:
        seen: What was seen of the module around them.
        told: What the user has been told of, or need not be.
    """

    seen: Seen = field(default_factory=Seen)
    told: set[str] = field(default_factory=set)
    _counts: Counter[str] = field(default_factory=Counter)

    def is_due(self, hook: str, module: nn.Module) -> bool:
        """Tells whether numbers in memory are to be compared this time, too: that takes as long as there are many."""
        self._counts[hook] += 1
        count = self._counts[hook]
        numbers = sum(parameter.numel() for parameter in module.parameters() if not is_lazy(parameter))
        few = _FEW if numbers < _MANY else _FEW_OF_MANY
        return count <= few or random.Random(count).random() * count < few


class BatchHooks:
    """Calls `on_train_batch_start` and `on_train_batch_end` of a Trainer's callbacks.

    Args:
        alone: Whether the sink is a single step, where everybody sees every step in Lightning's own order.
        late: Whether the last sink had several steps, so that callbacks have missed the starts of some.
        compared: What is known of hooks in other sinks of the fit.

    Attributes:
        monitors: Whether somebody is to be shown every step that the loggers are.
        shows: Whether somebody is to be shown every batch on the host.
        shown: Those to whom it is shown.
        shows_users: Whether it is code of the user's to which it is shown.
        shown_first: Whether one to whom it is shown has its turn before one that belongs to the step.
        met_first: Whether one that only a sink's end is shown to has.
    """

    def __init__(self, trainer: Any, alone: bool, late: bool, compared: Compared) -> None:
        self._trainer, self._of_fit = trainer, compared
        self._looks = {"on_train_batch_start": late or not alone, "on_train_batch_end": not alone}
        self._selects = trainer.log_every_n_steps if trainer.loggers else 0
        others = (item for item in trainer.callbacks if not isinstance(item, StepCallback))
        monitors = (item for item in others if isinstance(item, LearningRateMonitor))
        self._monitors = [item for item in monitors if item.logging_interval != "epoch"]
        self._traced = [item for item in trainer.callbacks if isinstance(item, StepCallback)]  # programs have them in
        self.shown = [] if alone else [item for item in trainer.callbacks if is_shown(item)]
        self._turns = {id(item): Turn.STEP for item in self._traced} | {id(item): Turn.SHOWN for item in self.shown}
        self._others = [item for item in trainer.callbacks if id(item) not in self._turns]
        self._shown_starts = [item for item in self.shown if overrides(item, "on_train_batch_start")]
        self.shows_users = any(not is_library(type(item).__module__) for item in self.shown)
        self.monitors, self.shows = bool(self._monitors), bool(self.shown)
        self.shown_first = behind(trainer, self.shown) is not None
        self.met_first = behind(trainer, self._others) is not None
        self._showed = -1

    @property
    def are_met(self) -> bool:
        """Whether a callback has something to do at a sink's end."""
        return any(overrides(item, "on_train_batch_end") for item in self._others)

    def end_steps(self, module: Any) -> bool:
        """Tells whether code of the user's ends each step, of the module's or of callbacks that belong to steps."""
        return is_overridden("on_train_batch_end", module) or any(
            overrides(item, "on_train_batch_end") for item in self._traced
        )

    @property
    def look_at_batch(self) -> bool:
        """Whether a callback looks at a batch that it is shown, or may keep it for later."""
        own = [*self.shown, *self._others]
        return any(overrides(item, hook) and uses(item, hook, place) for item in own for hook, place in _BATCH.items())

    def start(self, batch: Any, batch_idx: int) -> None:
        """The first batch of the sink is about to be trained."""
        with self._compared("on_train_batch_start", batch):
            self._call("on_train_batch_start", [*self.shown, *self._others], batch, batch_idx)

    def begin_step(self, *arguments: Any) -> None:
        """A step begins, for callbacks that belong to it."""
        if self._traced:
            self._call("on_train_batch_start", self._traced, *arguments)

    def end_step(self, callbacks: list[Any], *arguments: Any) -> None:
        """A step ends, for some callbacks that belong to it."""
        self._call("on_train_batch_end", callbacks, *arguments)

    def turns(self, last: bool) -> list[tuple[Turn, list[Any]]]:
        """Returns whose turn it is behind a batch, in Lightning's order; `last`: whether it is the sink's last one."""
        others = self._others if last else []
        due = [*self._traced, *self.shown, *others]
        if self._traced:  # who does nothing there does not part those that belong to the step
            due = [item for item in due if overrides(item, "on_train_batch_end")]
        places = {id(item): place for place, item in enumerate(self._trainer.callbacks)}
        groups = groupby(sorted(due, key=lambda item: places.get(id(item), len(places))), key=self._turn)
        return [(turn, [*group]) for turn, group in groups]

    def _turn(self, callback: Any) -> Turn:
        return self._turns.get(id(callback), Turn.MET)

    def show(self, callbacks: list[Any], output: Any, batch: Any, batch_idx: int) -> None:
        """Shows a batch to some of those that are wrong unless they see every one."""
        self._showed = batch_idx
        self._call("on_train_batch_end", callbacks, output, batch, batch_idx)

    def meet(self, callbacks: list[Any], output: Any, batch: Any, batch_idx: int) -> None:
        """Shows the sink's last batch to callbacks that see no other."""
        with self._compared("on_train_batch_end", batch):
            self._call("on_train_batch_end", callbacks, output, batch, batch_idx)

    def end(self, output: Any, batch: Any, batch_idx: int) -> None:
        """The last batch of the sink has been trained."""
        is_new = self._showed != batch_idx
        for turn, callbacks in self.turns(last=True):
            if turn is Turn.MET:
                self.meet(callbacks, output, batch, batch_idx)
            elif turn is Turn.SHOWN and is_new:
                self.show(callbacks, output, batch, batch_idx)

    def is_monitored(self) -> bool:
        """Tells whether somebody is to be shown the start of the next step although it does not begin the sink."""
        return bool(self._shown_starts) or self._are_monitors_due

    @property
    def _are_monitors_due(self) -> bool:
        number = self._trainer.fit_loop.epoch_loop._batches_that_stepped
        return bool(self._monitors) and self._selects > 0 and (number + 1) % self._selects == 0

    def monitor(self, batch: Any, batch_idx: int) -> None:
        """Shows the start of a step to those that are."""
        due = [*self._shown_starts, *(self._monitors if self._are_monitors_due else [])]
        self._call("on_train_batch_start", due, batch, batch_idx)

    def _call(self, hook: str, callbacks: list[Any], *arguments: Any) -> None:
        """Does for some callbacks what `_call_callback_hooks` does for all; `trainer.callbacks` stays as it is."""
        module = self._trainer.lightning_module
        present, module._current_fx_name = module._current_fx_name, hook
        for callback in callbacks:
            function = getattr(callback, hook)
            if callable(function):
                with self._trainer.profiler.profile(f"[Callback]{callback.state_key}.{hook}"):
                    function(self._trainer, module, *arguments)
        module._current_fx_name = present

    def _tell_of_counts(self, hook: str, users: list[Any]) -> None:
        """Warns of a callback that does something at some batches only: the sink may call it at none of these."""
        if (asked := f"{hook} decides") in self._of_fit.told:
            return
        self._of_fit.told.add(asked)
        one = next((item for item in users if decides_by_counts(function_of(item, hook), hook)), None)
        if one is None:
            return
        name, which = f"{type(one).__name__}.{hook}", "last" if hook == "on_train_batch_end" else "first"
        text = (
            f"`{name}` decides by `batch_idx` or `global_step` what it does, and a sink calls it once, for its {which}"
            " batch: what it would do at others is left out. Derive it from `lightning_sink.StepCallback`, move that"
            " into the LightningModule's hook of the same name, or train with sinks that end where it acts."
        )
        warn_at(text, first_line(getattr(one, hook)))

    @contextmanager
    def _compared(self, hook: str, batch: Any) -> Iterator[None]:
        """Warns where a user's callback changes what the training depends on; Lightning's own are known."""
        users = [item for item in self._others if not is_library(function_of(item, hook).__module__ or "")]
        if self._looks[hook]:
            self._tell_of_counts(hook, users)
        if not users or not self._looks[hook] or hook in self._of_fit.told:
            yield
            return
        reads = self._of_fit.is_due(hook, self._trainer.lightning_module)
        look = partial(HostState, self._trainer, self._others, batch, self._of_fit.seen, reads)
        before = look()
        yield
        if not before.differs_from(look()):
            return
        self._of_fit.told.add(hook)  # by Python itself once more whenever anybody sets a filter
        where = " or ".join(f"`{type(item).__name__}.{hook}`" for item in users)
        text = (
            "A callback changes weights, the optimizer's options or something else that the training depends on in"
            f" {where}, which a sink calls once, not for every step: the training differs from plain Lightning's."
            " Derive it from `lightning_sink.StepCallback`, move that into the LightningModule's hook of the same"
            " name, or train with `SinkStrategy(sink_size=1, epoch='dataset')`."
        )
        warn_at(text, first_line(getattr(users[0], hook)))
