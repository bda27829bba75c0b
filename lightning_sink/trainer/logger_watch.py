"""Stands before loggers while a step is recorded, and notes what the user's code has them write by hand.

A line that only has a logger of Lightning's write numbers (`logger_uses.py`) gets a stand-in for it, which takes calls
of `log_metrics`, and of the methods of its `experiment` that write numbers: `add_scalar` of TensorBoard's, `log` of
wandb's. Any other gets the logger, and makes no program. A writer of TensorBoard's that the module has is itself, with
other methods for as long as the step is recorded.

Private names of Lightning (2.6): `lightning.fabric.loggers.logger` has the class that a dry run has for a writer.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from types import FrameType
from typing import Any

from lightning.pytorch import LightningModule, Trainer

from lightning_sink.engine.numbers.given import given
from lightning_sink.engine.numbers.released import as_they_are
from lightning_sink.engine.private import pytree
from lightning_sink.engine.shadows import shadowed
from lightning_sink.engine.state.attributes import Same
from lightning_sink.engine.step import Tape
from lightning_sink.engine.watch import is_user_frame
from lightning_sink.trainer.by_hand import DueCalls, HandCall, may_be_written, numbers_of
from lightning_sink.trainer.logger_uses import LOGGER, LOGGERS, METHODS, WRITER, is_statement, only_writes
from lightning_sink.trainer.reads import given_to_users
from lightning_sink.whose import is_library, module_of

_OF_TORCH, _OF_TENSORBOARD = "torch.utils.tensorboard.writer", frozenset(["add_scalar", "add_scalars"])
_OF_WRITERS = {
    _OF_TORCH: _OF_TENSORBOARD,
    "tensorboardX.writer": _OF_TENSORBOARD,
    "wandb.sdk.wandb_run": frozenset(["log"]),
    "lightning.fabric.loggers.logger": METHODS[WRITER],
}
"""The methods of writers that write numbers, by the module of their class."""


class LoggerWatch:
    """Watches one part of a step.

    Args:
        trainer: Whose loggers these are.
        calls: Takes the calls.
        values: Takes the value of each.
        due: Makes them when the part has ended.
        tape: Watches the step.
    """

    def __init__(self, trainer: Any, calls: list[Any], values: list[Any], due: DueCalls, tape: Tape) -> None:
        self._trainer, self._calls, self._values, self._due, self._tape = trainer, calls, values, due, tape
        self._stand_ins: list[_InStep] = []
        self._is_over = False
        if all(map(_writes_itself, trainer.loggers)):
            self._stand_ins = [_InStep(of, number, False, self) for number, of in enumerate(trainer.loggers)]

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Has the user's code call the loggers so."""
        trainer, module, others = self._trainer, self._trainer.lightning_module, self._stand_ins
        shown = {LOGGER: others[0] if others else None, LOGGERS: others}
        with ExitStack() as stack:
            for kind, owner in ((LightningModule, module), (Trainer, trainer)):
                for name, other in shown.items():
                    stack.enter_context(self._given(kind, owner, name, other))
            # By these, what a line names is found without a property being asked.
            for kind, owner in ((LightningModule, module), (Trainer, trainer)) if others else ():
                names = {**shown, "trainer": trainer} if owner is module else shown
                found = {name: each for name, each in names.items() if _is_lightnings(owner, kind, name)}
                stack.enter_context(shadowed(owner, found))
            for stand_in in others:
                self._tape.goes_to(stand_in, "log_metrics")
            for writer in self._own_writers():
                stack.enter_context(self._called(writer))
            yield
        self._is_over = True

    def _given(self, kind: type, owner: Any, name: str, other: Any) -> AbstractContextManager[None]:
        """Has the user's lines get something else by a name of the owner's."""

        def give(asked: Any, value: Any, frame: FrameType) -> Any:
            many = len(self._trainer.loggers)
            if asked is not owner or (many and not other) or not only_writes(frame, name):
                return self.asked_for_more(value)
            self._tape.decided("which loggers there are", self._trainer, True, self._has(many))
            return other if many else value

        return given_to_users(kind, name, give)

    def _has(self, many: int) -> Callable[[], bool]:
        trainer = self._trainer
        return lambda: len(trainer.loggers) == many

    def asked_for_more(self, found: Any) -> Any:
        """Takes note that a line asks for what no program may do; it finds what was written before."""
        self._tape.hazard("`logger` is read")
        with self._tape.paused():
            self._due.make()
        return found

    def writer(self, of: Any, target: int) -> Any:
        """Returns what stands for a logger's writer; the writer itself where it is another one's."""
        if module_of(type(of)) not in _OF_WRITERS:
            return self.asked_for_more(of)
        stand_in = _InStep(of, target, True, self)
        for method in _OF_WRITERS[module_of(type(of))]:
            self._tape.goes_to(stand_in, method)
        return stand_in

    def _own_writers(self) -> list[Any]:
        """Returns those that are attributes of the module."""
        held = vars(self._trainer.lightning_module).values()
        return list({id(item): item for item in held if module_of(type(item)) == _OF_TORCH}.values())

    def _called(self, writer: Any) -> AbstractContextManager[None]:
        """Takes the calls of a writer that goes by its own name."""
        for method in _OF_TENSORBOARD:
            self._tape.goes_to(writer, method)
        call = partial(self._call, Same(writer, hold=True))
        methods = [name for name in dir(type(writer)) if name.startswith("add_")]
        return shadowed(writer, {name: partial(call, name, getattr(writer, name)) for name in methods})

    def _call(self, target: Same, method: str, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        caller = sys._getframe(1)
        if method in _OF_TENSORBOARD and is_user_frame(caller) and is_statement(caller):
            return self.note(target, False, method, function, *args, **kwargs)
        self._tape.hazard(f"`SummaryWriter.{method}()` is called")
        with self._tape.paused():
            self._due.make()
            return function(*as_they_are(args), **as_they_are(kwargs))

    def note(
        self,
        target: int | Same,
        is_of_writer: bool,
        method: str,
        function: Callable[..., Any],
        /,
        *args: Any,
        **kwargs: Any,
    ) -> None:
        """Notes a call, which is made when the part of the step has ended."""
        if self._is_over:
            function(*args, **kwargs)
            return
        plain, held = as_they_are((args, kwargs)), given((args, kwargs))
        leaves, spec = pytree.tree_flatten(held)
        odd = next((leaf for leaf in leaves if not may_be_written(leaf)), None)
        with self._tape.paused():
            self._due.add(function, *plain)
            if odd is not None:
                self._due.make()
        if odd is not None:
            self._tape.hazard(f"`{method}()` of a logger gets a `{type(odd).__name__}` that is no number")
            return
        self._calls.append(HandCall.of(target, is_of_writer, method, leaves, spec))
        self._values.append(numbers_of(leaves))


def _writes_itself(logger: Any) -> bool:
    """Tells whether Lightning's own code logs; another one's may look at anything, and give something back."""
    return is_library(module_of(type(logger))) and "log_metrics" not in vars(logger)


def _is_lightnings(owner: Any, kind: type, name: str) -> bool:
    """Tells whether a name of an object's is the property of Lightning's class."""
    return inspect.getattr_static(type(owner), name, None) is vars(kind)[name]


class _InStep:
    """Stands for a logger in a recorded step, or for its writer: to Python's `isinstance` it is that.

    Args:
        of: What it stands for.
        target: Which of the Trainer's loggers that is.
        is_writer: Whether it stands for the writer.
        watch: Takes its calls.
    """

    def __init__(self, of: Any, target: int, is_writer: bool, watch: LoggerWatch) -> None:
        self._of, self._target, self._is_writer, self._watch = of, target, is_writer, watch

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        return type(self._of)

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._of, name)
        if self._is_writer or name != WRITER:
            return partial(self._watch.note, self._target, self._is_writer, name, found)
        other = vars(self)[name] = self._watch.writer(found, self._target)  # where it is found that the source names it
        return other
