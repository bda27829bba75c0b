"""Stands before loggers while a step is recorded, and notes what the user's code has them write by hand.

In the place of a logger of the Trainer the user's code gets a stand-in, which takes calls of `log_metrics`, and of the
methods of its `experiment` that write numbers (`add_scalar` of TensorBoard's, `log` of wandb's); whatever else is asked
of it makes no program. A writer of TensorBoard's that the module keeps as an attribute is called by its own name.

Private names of Lightning (2.6): `lightning.fabric.loggers.logger` has the class that a dry run has for a writer.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from typing import Any

from lightning.pytorch import LightningModule, Trainer

from lightning_sink.engine.numbers.given import given
from lightning_sink.engine.numbers.released import as_they_are
from lightning_sink.engine.private import pytree
from lightning_sink.engine.shadows import replaced, shadowed
from lightning_sink.engine.state.attributes import Same
from lightning_sink.engine.state.referrers import is_held, put_in_place_of
from lightning_sink.engine.step import Tape
from lightning_sink.engine.watch import is_user_frame
from lightning_sink.trainer.by_hand import DueCalls, HandCall, may_be_written, numbers_of
from lightning_sink.whose import module_of

_OF_TENSORBOARD, _OF_WANDB = ("add_scalar", "add_scalars"), ("log",)
_OF_TORCH = "torch.utils.tensorboard.writer"
_OF_WRITERS = {
    _OF_TORCH: _OF_TENSORBOARD,
    "tensorboardX.writer": _OF_TENSORBOARD,
    "wandb.sdk.wandb_run": _OF_WANDB,
    "lightning.fabric.loggers.logger": (*_OF_TENSORBOARD, *_OF_WANDB),
}
"""The methods by which writers write numbers, by the module of their class."""


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
        self._made: list[_InStep] = []
        self._is_over = False

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Has the user's code call the loggers so."""
        with ExitStack() as stack:
            if self._trainer.loggers:
                self._stand_before(self._trainer.loggers, stack)
            for writer in self._own_writers():
                stack.enter_context(self._called(writer))
            yield
        self._is_over = True
        while self._made:
            _leave([self._made.pop()])

    def _stand_before(self, loggers: list[Any], stack: ExitStack) -> None:
        module, trainer = self._trainer.lightning_module, self._trainer
        notes = [partial(self._note, number) for number in range(len(loggers))]
        others = [self.stand_in(of, ["log_metrics"], note) for of, note in zip(loggers, notes, strict=True)]
        shown = {"logger": others[0], "loggers": others}
        for kind, owner in ((LightningModule, module), (Trainer, trainer)):
            for name, other in shown.items():
                stack.enter_context(_given(kind, owner, name, other))
        # By these, what a line names is found without a property being asked.
        stack.enter_context(shadowed(trainer, shown))
        stack.enter_context(shadowed(module, {**shown, "trainer": trainer}))

    def stand_in(self, of: Any, methods: Sequence[str], note: Callable[..., None]) -> _InStep:
        """Returns what stands for a logger, or a writer."""
        self._made.append(_InStep(of, methods, note, self))
        for method in methods:
            self._tape.goes_to(self._made[-1], method)
        return self._made[-1]

    def is_read(self) -> None:
        """Takes note that something else is asked of a logger."""
        if not self._is_over:
            self._tape.hazard("`logger` is read")

    def _own_writers(self) -> list[Any]:
        """Returns those that are attributes of the module."""
        held = vars(self._trainer.lightning_module).values()
        return list({id(item): item for item in held if module_of(type(item)) == _OF_TORCH}.values())

    def _called(self, writer: Any) -> AbstractContextManager[None]:
        """Takes the calls of a writer that goes by its own name."""
        for method in _OF_TENSORBOARD:
            self._tape.goes_to(writer, method)
        note = partial(self._note, Same(writer, hold=True))
        return shadowed(writer, {name: partial(note, name, getattr(writer, name)) for name in _OF_TENSORBOARD})

    def _note(
        self,
        target: int | Same,
        method: str,
        function: Callable[..., Any],
        /,
        *args: Any,
        is_of_writer: bool = False,
        **kwargs: Any,
    ) -> None:
        """Notes a call, which is made when the part of the step has ended."""
        plain, held = as_they_are((args, kwargs)), given((args, kwargs))
        with self._tape.paused():
            self._due.add(function, *plain)
        if self._is_over:
            self._due.make()
            return
        leaves, spec = pytree.tree_flatten(held)
        odd = next((leaf for leaf in leaves if not may_be_written(leaf)), None)
        if odd is not None:
            self._tape.hazard(f"`{method}()` of a logger gets a `{type(odd).__name__}` that is no number")
            with self._tape.paused():
                self._due.make()
            return
        self._calls.append(HandCall.of(target, is_of_writer, method, leaves, spec))
        self._values.append(numbers_of(leaves))


class _InStep:
    """Stands for a logger in a recorded step, or for its writer: to Python's `isinstance` it is that.

    Args:
        of: What it stands for.
        methods: Those whose calls are noted.
        note: Notes them.
        watch: Told of whatever else it is asked for.
    """

    def __init__(self, of: Any, methods: Sequence[str], note: Callable[..., None], watch: LoggerWatch) -> None:
        self._of, self._methods, self._note, self._watch = of, methods, note, watch

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        return type(self._of)

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._of, name)
        if name in self._methods:
            return partial(self._note, name, found)
        methods = _OF_WRITERS.get(module_of(type(found)), ()) if name == "experiment" else ()
        if not methods:
            self._watch.is_read()
            return found
        other = self._watch.stand_in(found, methods, partial(self._note, is_of_writer=True))
        vars(self)[name] = other  # where it is found that the source names it
        return other


def _leave(owner: list[_InStep]) -> None:
    """Has whoever keeps a stand-in keep what it stands for."""
    vars(owner[0]).pop("experiment", None)
    if is_held(owner):
        put_in_place_of(owner[0], vars(owner[0])["_of"])


def _given(kind: type, owner: Any, name: str, other: Any) -> AbstractContextManager[None]:
    """Has the user's lines get something else by a name of the owner's."""
    present: Any = vars(kind)[name]
    thread = threading.get_ident()

    def get(self: Any) -> Any:
        is_asked = self is owner and threading.get_ident() == thread and is_user_frame(sys._getframe(1))
        return other if is_asked else present.fget(self)

    return replaced(kind, name, property(get, present.fset, present.fdel, present.__doc__))
