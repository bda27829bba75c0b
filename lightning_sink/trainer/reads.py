"""What a step may read of where the training stands, and what it gets in its place while it is recorded.

The counters that Lightning hands to users, as arguments or as properties, become stand-ins that stay inputs of the
program (`engine/state/counts.py`); a flag decides which program it is. Lightning computes with the same counters on its
own account, so only a read from a line of the user's gets one. A scheduler's step is made again by whoever owns the
training. Other reads that depend on the step, and calls that reach a logger or the terminal, are reported.

The getters are those of Lightning 2.6's classes; no public seam gives a step other counters than the loops keep.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import partial
from types import CodeType, FrameType
from typing import Any

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.loops.fit_loop import _FitLoop
from lightning.pytorch.loops.training_epoch_loop import _TrainingEpochLoop
from lightning.pytorch.trainer.connectors.logger_connector.logger_connector import _LoggerConnector
from lightning.pytorch.utilities.model_helpers import is_overridden
from torch import Tensor
from torch.optim.lr_scheduler import LRScheduler

from lightning_sink.engine.numbers.number import Number
from lightning_sink.engine.numbers.released import released
from lightning_sink.engine.shadows import replaced, shadowed
from lightning_sink.engine.state.schedulers import does_more, only_computes
from lightning_sink.engine.step import Tape
from lightning_sink.engine.watch import is_user_frame
from lightning_sink.held import held_by
from lightning_sink.trainer.schedules import schedulers_of

_COUNTERS: dict[type, tuple[str, ...]] = {
    LightningModule: ("global_step", "current_epoch"),
    Trainer: ("global_step", "current_epoch"),
    _FitLoop: ("batch_idx", "total_batch_idx"),
    _TrainingEpochLoop: ("batch_idx", "total_batch_idx", "global_step"),
}

_FLAGS: dict[type, tuple[str, ...]] = {Trainer: ("is_last_batch",)}

_WATCHED: dict[type, tuple[str, ...]] = {
    Trainer: ("callback_metrics", "logged_metrics", "progress_bar_metrics"),
    _LoggerConnector: ("should_update_logs",),
    _TrainingEpochLoop: ("_is_training_done",),
}

_LOGGERS = frozenset(["logger", "loggers"])
"""Of which `logger_watch.py` tells."""

TOLD = _LOGGERS.union(name for of in (_COUNTERS, _FLAGS, _WATCHED) for names in of.values() for name in names)
"""What is told where it is read: that it is an input of the program, or that it is no part of one."""

_COUNTED = ("optimizer_step", "optimizer_zero_grad")
"""Hooks that Lightning calls with the epoch and the batch index."""


def counters(trainer: Any) -> Mapping[str, Callable[[], int]]:
    """Returns what gives each counter, by the name that users know it by."""
    loop = trainer.fit_loop.epoch_loop
    return {
        "batch_idx": lambda: loop.batch_idx,
        "total_batch_idx": lambda: loop.total_batch_idx,
        "global_step": lambda: loop.global_step,
        "current_epoch": lambda: trainer.current_epoch,
    }


def watched_getters(trainer: Any) -> dict[CodeType, str]:
    """Returns the code objects of what no program may repeat or depend on, with the names that users know them by.

    Behind a name may stand, after a comma, why.
    """
    codes: dict[CodeType, str] = {}
    for owner, names in _WATCHED.items():
        for name in names:
            getter: Any = getattr(owner, name)
            codes[getter.fget.__code__] = name
    # Called past `self.log`, or from a `log` of the user's own: then nobody knows what a step that is replayed logs.
    codes[LightningModule.log.__code__] = "LightningModule.log()"
    codes[LightningModule.print.__code__] = "LightningModule.print()"
    # Whether the batch is the epoch's last one, which nobody knows of a step that is gone through.
    codes[_TrainingEpochLoop._num_ready_batches_reached.__code__] = "_num_ready_batches_reached()"
    codes[_TrainingEpochLoop._should_accumulate.__code__] = "_should_accumulate()"
    # Of those that are not lifted: of another optimizer, or behind an object of the user's.
    codes[LRScheduler.get_last_lr.__code__] = "LRScheduler.get_last_lr()"
    for scheduler in schedulers_of(trainer):
        more = does_more(scheduler, trainer.lightning_module)
        because = f", which does more than arithmetic at {more}" if more else ""
        codes[type(scheduler).step.__code__] = f"{type(scheduler).__name__}.step(){because}"
    return codes


def machinery() -> frozenset[str]:
    """Returns the attributes of a LightningModule that are Lightning's own and say nothing about a step."""
    return frozenset(vars(LightningModule()))


@contextmanager
def lifted_counters(trainer: Any, tape: Tape, stepped: list[Any]) -> Iterator[None]:
    """Gives stand-ins for the counters to the user's part of a step, where they are read and where they are passed.

    `stepped` takes the schedulers that the step steps by hand.
    """
    module = trainer.lightning_module
    owners = {id(item) for item in (module, trainer, trainer.fit_loop, trainer.fit_loop.epoch_loop)}
    with ExitStack() as stack:
        for kind, names in (*_COUNTERS.items(), *_FLAGS.items()):
            for name in names:
                stack.enter_context(_lifted(kind, name, owners, tape))
        stack.enter_context(_lifted_arguments(module, tape))
        within: list[Any] = []
        for scheduler in schedulers_of(trainer):
            steps = only_computes(scheduler, module)
            stack.enter_context(_lifted_scheduler(scheduler, steps, tape, stepped, within))
        yield


def given_to_users(kind: type, name: str, give: Callable[[Any, Any, FrameType], Any]) -> AbstractContextManager[None]:
    """Has lines of the user's, in this thread, get something else by a property of a class.

    `give` is called with the object, what the property gives, and the frame that asks for it.
    """
    present: Any = vars(kind)[name]
    thread = threading.get_ident()

    def get(self: Any) -> Any:
        value, frame = present.fget(self), sys._getframe(1)
        is_users = threading.get_ident() == thread and is_user_frame(frame)
        return give(self, value, frame) if is_users else value

    return replaced(kind, name, property(get, present.fset, present.fdel, present.__doc__))


def _lifted(kind: type, name: str, owners: set[int], tape: Tape) -> AbstractContextManager[None]:
    present: Any = vars(kind)[name]

    def give(asked: Any, value: Any, _: FrameType) -> Any:
        if id(asked) not in owners:
            return value
        if name not in _FLAGS.get(kind, ()):
            return tape.watched(name, value)
        tape.decided(f"`{name}`", asked, value, lambda: present.fget(asked))
        return value

    return given_to_users(kind, name, give)


class _Rates:
    """What `scheduler.get_last_lr()` gives: the optimizer's rates, stand-ins by now, in steps where it tells the same.

    It tells others where another scheduler, or the user, has changed them since.
    """

    def __init__(self, scheduler: Any, tape: Tape) -> None:
        self._scheduler, self._tape = scheduler, tape
        self._told: Any = None
        self._rates: Any = None

    def lift(self) -> None:
        """Lets it give stand-ins."""
        if _tells_the_optimizers(self._scheduler):
            self._told = self._scheduler._last_lr
            self._rates = self._scheduler._last_lr = [group["lr"] for group in self._scheduler.optimizer.param_groups]

    def tell(self, get: Callable[[], Any]) -> Any:
        """Is called in the place of `get_last_lr`."""
        name, lifted = f"`{type(self._scheduler).__name__}.get_last_lr()`", self._rates is not None
        if not lifted:
            self._tape.hazard(f"{name} gives a rate that is not the optimizer's")
        decide = partial(_tells_the_optimizers, self._scheduler)
        self._tape.decided(f"what {name} gives", self._scheduler, lifted, decide)
        return get()

    def drop(self) -> None:
        """Lets it give numbers."""
        if self._rates is not None and self._scheduler._last_lr is self._rates:
            self._scheduler._last_lr = self._told
        self._rates = None


def _tells_the_optimizers(scheduler: Any) -> bool:
    told = held_by(scheduler).get("_last_lr")
    rates = [group["lr"] for group in scheduler.optimizer.param_groups] if hasattr(scheduler, "optimizer") else []
    plain = [rate.value if type(rate) is Number else rate for rate in rates]
    numbers = isinstance(told, list) and not any(isinstance(rate, Tensor) for rate in told)
    return numbers and told == plain  # tensors would be compared by an operation, which would be recorded


@contextmanager
def _lifted_scheduler(scheduler: Any, steps: bool, tape: Tape, stepped: list[Any], within: list[Any]) -> Iterator[None]:
    """Lets a scheduler give stand-ins, and be stepped by hand: that is done again behind each step of a program.

    `steps`: its step only computes. `within` has the schedulers that are being stepped: those that these step are no
    part of what is done again.
    """
    rates = _Rates(scheduler, tape)

    def step(plain_step: Callable[..., None], *arguments: Any, **options: Any) -> None:
        if within:
            return plain_step(*arguments, **options)
        if arguments or options:
            tape.hazard(f"`{type(scheduler).__name__}.step()` is called with arguments")
        rates.drop()
        within.append(scheduler)
        try:
            with tape.changing_options(scheduler.optimizer):
                plain_step(*arguments, **options)
        finally:
            within.pop()
        rates.lift()
        stepped.append(scheduler)
        return None

    with ExitStack() as stack:
        if steps:
            stack.enter_context(_replaced_method(scheduler, "step", step))
        stack.enter_context(_replaced_method(scheduler, "get_last_lr", rates.tell))
        rates.lift()
        try:
            yield
        finally:
            rates.drop()
            released(vars(scheduler))  # stepped by the user's code, it keeps the rates that it has seen


def _replaced_method(item: Any, name: str, method: Callable[..., Any]) -> AbstractContextManager[None]:
    """Calls something else in the place of an object's method, with the method before its arguments.

    The object's attributes stay as they are: a checkpoint that the step writes has them in it.
    """
    kind = next((kind for kind in type(item).__mro__ if name in vars(kind)), None)
    if kind is None or name in vars(item):
        return nullcontext()
    present: Any = vars(kind)[name]
    thread = threading.get_ident()

    def call(self: Any, *arguments: Any, **options: Any) -> Any:
        if self is item and threading.get_ident() == thread:
            return method(partial(present, self), *arguments, **options)
        return present(self, *arguments, **options)

    return replaced(kind, name, call)


def _lifted_arguments(module: LightningModule, tape: Tape) -> AbstractContextManager[None]:
    hooks = {name: getattr(module, name) for name in _COUNTED if is_overridden(name, module)}
    return shadowed(module, {name: partial(_call_lifted, hook, tape) for name, hook in hooks.items()})


def _call_lifted(hook: Callable[..., Any], tape: Tape, epoch: int, batch_idx: int, *rest: Any) -> Any:
    return hook(tape.watched("current_epoch", epoch), tape.watched("batch_idx", batch_idx), *rest)
