"""The callbacks' batch hooks as a sink calls them, each in its turn (`turns.py`).

A callback on the host that changes weights or an optimizer's options there would do so after every step of plain
training; in a sink it does so once, and is told about it.

Private names of Lightning (2.6): `LightningModule._current_fx_name` (which hook is logging),
`_TrainingEpochLoop._batches_that_stepped` (the number of the step that loggers see).
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from lightning.pytorch.utilities.model_helpers import is_overridden
from torch import nn
from torch.nn.parameter import is_lazy

from lightning_sink.engine.state.attributes import are_the_same
from lightning_sink.engine.watch import first_line
from lightning_sink.errors import warn_at
from lightning_sink.trainer.callback_code import decides_by_counts, overrides, uses_batch
from lightning_sink.trainer.host_state import HostState
from lightning_sink.trainer.turns import END, ON_HOST, START, Groups, Turn, Turns, is_of_step, runs_users
from lightning_sink.whose import is_library

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
        told: What the user has been told of, or need not be.
    """

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
        logs: Whether somebody is to be shown the start of every step that the loggers are.
        shown: Those who are shown every batch on the host.
        shows_users: Whether it is code of the user's to which they are shown.
        ends_inside: Whether the end of the sink's last step is met in the step's midst (`Turns.inside`).
    """

    def __init__(self, trainer: Any, alone: bool, late: bool, compared: Compared) -> None:
        self._trainer, self._of_fit = trainer, compared
        self._looks = {START: late or not alone, END: not alone}
        self._selects = trainer.log_every_n_steps if trainer.loggers else 0
        self._turns = Turns(trainer, alone)
        self._of_step, self.shown = self._turns.having({Turn.STEP}), self._turns.having({Turn.SHOWN})
        self._met = self._turns.having({Turn.LOGGED, Turn.MET})
        self.logs = bool(self._turns.having({Turn.LOGGED}))
        self.shows_users = any(not is_library(type(item).__module__) for item in self.shown)
        self.ends_inside = self._turns.inside(END, ON_HOST) is not None
        self._starts_shown = any(overrides(item, START) for item in self.shown)
        self._showed = -1

    @property
    def are_met(self) -> bool:
        """Whether a callback has something to do at a sink's end."""
        return any(overrides(item, END) for item in self._met)

    @property
    def end_steps(self) -> bool:
        """Whether code of the user's ends each step, of the module's or of callbacks that belong to steps."""
        return is_overridden(END, self._trainer.lightning_module) or any(overrides(item, END) for item in self._of_step)

    @property
    def look_at_batch(self) -> bool:
        """Whether a callback looks at a batch that it is shown, or may keep it for later."""
        own = self._turns.having(ON_HOST)
        return any(overrides(item, hook) and uses_batch(item, hook) for item in own for hook in (START, END))

    # -- where a batch begins ---------------------------------------------------------------------------------------

    def is_start_seen(self) -> bool:
        """Tells whether somebody on the host is to see the next step begin although it does not begin the sink."""
        return self._starts_shown or self._is_logged()

    def _is_logged(self) -> bool:
        number = self._trainer.fit_loop.epoch_loop._batches_that_stepped
        return self.logs and self._selects > 0 and (number + 1) % self._selects == 0

    def _who_sees_start(self, first: bool) -> set[Turn]:
        """Returns the turns of those on the host who see a step begin; `first`: whether it begins the sink."""
        if first:
            return {*ON_HOST}
        return {Turn.SHOWN, Turn.LOGGED} if self._is_logged() else {Turn.SHOWN}

    def starts_inside(self, first: bool) -> bool:
        """Tells whether the next step's start is met in the step's midst (`Turns.inside`)."""
        return self._turns.inside(START, self._who_sees_start(first)) is not None

    def starts(self, first: bool) -> Groups:
        """Yields whose turn it is before a step, those too who belong to it, and who has come meanwhile."""
        yield from self._turns.groups(START, {Turn.STEP, *self._who_sees_start(first)}, with_new=True)

    def start(self, turn: Turn, callbacks: list[Any], batch: Any, batch_idx: int) -> None:
        """A step begins, for some callbacks whose turn it is."""
        with self._compared(START, callbacks, batch) if turn is Turn.MET else nullcontext():
            self._call(START, callbacks, batch, batch_idx)

    def start_step(self, batch: Any, batch_idx: int) -> None:
        """A step begins, for all callbacks that belong to it, and for who comes by them."""
        for _, callbacks in self._turns.groups(START, {Turn.STEP}, with_new=True) if self._of_step else ():
            self._call(START, callbacks, batch, batch_idx)

    # -- where a batch ends -----------------------------------------------------------------------------------------

    def ends(self, last: bool, late: bool = False) -> Groups:
        """Yields whose turn it is behind a step, and if it is the sink's last one, who has come meanwhile.

        `late`: whether their turn was over before anybody knew that it is; who has come since sees the next one.
        """
        yield from self._turns.groups(END, {*Turn} if last else {Turn.STEP, Turn.SHOWN}, with_new=last and not late)

    def end(self, turn: Turn, callbacks: list[Any], output: Any, batch: Any, batch_idx: int) -> None:
        """A step ends, for some callbacks whose turn it is."""
        if turn is Turn.SHOWN:
            self._showed = batch_idx
        with self._compared(END, callbacks, batch) if turn is Turn.MET else nullcontext():
            self._call(END, callbacks, output, batch, batch_idx)

    def end_on_host(self, output: Any, batch: Any, batch_idx: int, *, last: bool = True, late: bool = False) -> None:
        """A batch has been trained: those on the host see it who have not yet; `last` and `late` as for `ends`."""
        is_new = self._showed != batch_idx
        for turn, callbacks in self.ends(last, late):
            if turn is Turn.MET or (turn is Turn.SHOWN and is_new):
                self.end(turn, callbacks, output, batch, batch_idx)

    # -- what both share --------------------------------------------------------------------------------------------

    def _call(self, hook: str, callbacks: list[Any], *arguments: Any) -> None:
        """Does for some callbacks what `_call_callback_hooks` does for all.

        Where one changes `trainer.callbacks`, those behind it are taken out, and not called.
        """
        module, present = self._trainer.lightning_module, [*self._trainer.callbacks]
        outer, module._current_fx_name = module._current_fx_name, hook
        for number, callback in enumerate(callbacks, start=1):
            function = getattr(callback, hook)
            if callable(function):
                with self._trainer.profiler.profile(f"[Callback]{callback.state_key}.{hook}"):
                    function(self._trainer, module, *arguments)
            if not are_the_same(self._trainer.callbacks, present):
                del callbacks[number:]
        module._current_fx_name = outer

    def _tell_of_counts(self, hook: str) -> None:
        """Warns of a callback that does something at some batches only: the sink may call it at none of these."""
        if (asked := f"{hook} decides") in self._of_fit.told:
            return
        self._of_fit.told.add(asked)
        found = [item for item in self._met if runs_users(item, hook) and decides_by_counts(item, hook)]
        if not found:
            return
        who = " and ".join(f"`{type(item).__name__}.{hook}`" for item in found)
        decide, which = "decides" if len(found) == 1 else "decide", "last" if hook == END else "first"
        text = (
            f"{who} {decide} by `batch_idx` or `global_step` what to do, and a sink calls a callback once, for its"
            f" {which} batch: what would be done at others is left out. Derive it from `lightning_sink.StepCallback`,"
            " move that into the LightningModule's hook of the same name, or train with sinks that end where it acts."
        )
        warn_at(text, first_line(getattr(found[0], hook)))

    @contextmanager
    def _compared(self, hook: str, callbacks: list[Any], batch: Any) -> Iterator[None]:
        """Warns where a user's callback changes what the training depends on; Lightning's own are known."""
        if self._looks[hook]:
            self._tell_of_counts(hook)
        users = [item for item in callbacks if runs_users(item, hook) and not is_of_step(item)]
        if not users or not self._looks[hook] or hook in self._of_fit.told:
            yield
            return
        reads = self._of_fit.is_due(hook, self._trainer.lightning_module)
        look = partial(HostState, self._trainer, self._met, batch, reads)
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
