"""Hooks of a LightningModule that do nothing but set the optimizers' options: a warmup in `optimizer_step`, say.

They are no part of a program: where one runs the step, `OptionHooks` calls them on the host, with an optimizer that is
not stepped. A recorded step calls them with plain numbers, and takes the options as they are where the optimizer steps.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lightning.pytorch.utilities.model_helpers import is_overridden

from lightning_sink.engine.state.schedulers import keep_schedulers
from lightning_sink.engine.step import Tape
from lightning_sink.trainer.only_options import CLOSURE, NUMBER, OPTIMIZER, what_it_asks_for

_START, _STEP, _END = "on_train_batch_start", "optimizer_step", "on_train_batch_end"

_ARGUMENTS = {_START: ("", NUMBER), _STEP: (NUMBER, NUMBER, OPTIMIZER, CLOSURE), _END: ("", "", NUMBER)}
"""What the hooks are called with; batches and outputs are not known where they are run ahead."""


class OptionHooks:
    """The hooks of a Trainer's module, once that is connected, that only set options.

    Attributes:
        asked: The names of attributes that they ask for.
    """

    def __init__(self, trainer: Any) -> None:
        self._trainer, module = trainer, trainer.lightning_module
        names = [name for name in _ARGUMENTS if name != _STEP or module.automatic_optimization]
        hooks = {name: getattr(module, name) for name in names if is_overridden(name, module)}
        groups = [group for optimizer in trainer.optimizers for group in optimizer.param_groups] if hooks else []
        asked = {name: what_it_asks_for(hook, module, _ARGUMENTS[name], groups) for name, hook in hooks.items()}
        self._hooks = {name: hooks[name] for name, names in asked.items() if names is not None}
        self.asked = frozenset().union(*(names for names in asked.values() if names is not None))

    def __bool__(self) -> bool:
        return bool(self._hooks)

    @property
    def end_no_epoch(self) -> bool:
        """Whether `on_train_batch_start` only sets options, and so returns None."""
        return _START in self._hooks

    @property
    def leave_end(self) -> bool:
        """Whether the module has an `on_train_batch_end` that does something else."""
        return is_overridden(_END, self._trainer.lightning_module) and _END not in self._hooks

    @property
    def sets(self) -> bool:
        """Whether a step computes with other options than it finds."""
        return _START in self._hooks or _STEP in self._hooks

    def set(self, batch_idx: int, steps: bool, seen: Callable[[], None]) -> Callable[[], None]:
        """Sets the options for the step that is about to run; returns what takes that back.

        `steps`: the optimizer is stepped in it. `seen` is called when the options are what the step computes with; not
        where the optimizer is not stepped.
        """
        restore = keep_schedulers((), self._trainer.optimizers)
        try:
            if _START in self._hooks:
                self._hooks[_START](None, batch_idx)
            if _STEP not in self._hooks or not steps:
                seen()
            else:
                optimizer, given = self._trainer.strategy._lightning_optimizers[0], object()
                around = _OptimizerInHook(optimizer, given, lambda **options: seen())
                self._hooks[_STEP](self._trainer.current_epoch, batch_idx, around, given)
        except BaseException:
            restore()
            raise
        return restore

    def set_behind(self, batch_idx: int) -> None:
        """Sets the options behind a step."""
        if _END in self._hooks:
            self._hooks[_END](None, None, batch_idx)

    def recorded(self, tape: Tape) -> dict[str, Callable[..., Any]]:
        """Returns what takes the place of the hooks in a step that is recorded, by their names."""
        trainer = self._trainer

        def start(batch: Any, batch_idx: Any) -> Any:
            with tape.setting_options(last=_STEP not in self._hooks):
                return self._hooks[_START](batch, trainer.fit_loop.epoch_loop.batch_idx)

        def step(epoch: int, batch_idx: int, optimizer: Any, closure: Any) -> None:
            def compute(**options: Any) -> Any:
                with tape.computing():
                    return optimizer.step(**options)

            around = _OptimizerInHook(optimizer, closure, compute)
            with tape.setting_options(last=False):
                self._hooks[_STEP](epoch, batch_idx, around, closure)
            if around.steps != 1:
                tape.hazard("`optimizer_step` does not step the optimizer once, with the closure")

        def end(outputs: Any, batch: Any, batch_idx: Any) -> None:
            with tape.setting_options(last=False):
                self._hooks[_END](outputs, batch, trainer.fit_loop.epoch_loop.batch_idx)

        return {name: put for name, put in ((_START, start), (_STEP, step), (_END, end)) if name in self._hooks}


class _OptimizerInHook:
    """An optimizer as such a hook sees it, to be stepped with the closure; `compute` takes the place of its step.

    Attributes:
        steps: How often it was stepped so.
    """

    def __init__(self, optimizer: Any, closure: Any, compute: Callable[..., Any]) -> None:
        self._optimizer, self._closure, self._compute = optimizer, closure, compute
        self.steps = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._optimizer, name)

    def step(self, closure: Any = None) -> Any:
        self.steps += closure is self._closure
        return self._compute(closure=closure)
