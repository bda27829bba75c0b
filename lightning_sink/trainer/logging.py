"""`self.log` inside sinks: what a step logs, noted as it is recorded or run the plain way.

Private names of Lightning (checked against 2.6), each here because no public one exists:
`LightningModule._current_fx_name` (which hook is logging).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from torch import Tensor
from torchmetrics import Metric

from lightning_sink.engine.numbers.number import Number
from lightning_sink.engine.shadows import shadowed
from lightning_sink.engine.step import Tape
from lightning_sink.trainer.by_hand import DueCalls, HandCall
from lightning_sink.trainer.metrics import MetricCalls, Source


@dataclass(frozen=True)
class LogCall:
    """One call of `self.log` in a step, without its value.

    Attributes:
        options: The other arguments of the call.
        batch_size: The weight of the value in a mean over the epoch.
        source: Where the value comes from if not from the step itself: from a metric.
    """

    name: str
    hook: str
    options: tuple[tuple[str, Any], ...]
    batch_size: int
    source: Source | None = None


Entry = LogCall | HandCall
"""What a step logs, by `self.log` or by hand."""


@dataclass
class StepLog:
    """What one step logged.

    Attributes:
        values: Their values, 0-dim; of a metric, what it measured in the batch; of a `HandCall`, `[numbers]`.
        hazards: Why these calls cannot be repeated by a program.
        due: Makes the calls of loggers.
    """

    calls: list[Entry] = field(default_factory=list)
    values: list[Any] = field(default_factory=list)
    metrics: MetricCalls = field(default_factory=MetricCalls)
    hazards: list[str] = field(default_factory=list)
    due: DueCalls = field(default_factory=DueCalls)

    def copy(self) -> StepLog:
        """Returns what is logged so far, with nothing that is due."""
        return StepLog(list(self.calls), list(self.values), self.metrics.copy(), list(self.hazards))

    @property
    def computed(self) -> list[Tensor]:
        """What a program has to put out so that the step can be logged: values, then what metrics get."""
        pairs = zip(self.calls, self.values, strict=True)
        return [value for entry, value in pairs if entry.source is None] + self.metrics.tensors


def numbers_in(calls: Iterable[Entry], values: Iterable[Any]) -> list[tuple[str, Tensor]]:
    """Returns the names and values that are one number each."""
    pairs = zip(calls, values, strict=True)
    named = ((entry.name, value) for entry, value in pairs if entry.name is not None)
    return [(name, value) for name, value in named if isinstance(value, Tensor) and value.numel() == 1]


@contextmanager
def captured(trainer: Trainer, log: StepLog, tape: Tape) -> Iterator[None]:
    """Notes what `self.log` of the module is called with; Lightning sees the calls as ever.

    Shadows the method on the instance, so that an overridden `log` is called as the user wrote it. The tape does not
    see what Lightning makes of the value: for steps that a program runs, `LogBuffer` does that.
    """
    module = trainer.lightning_module
    original = module.log
    for method in ("log", "log_dict"):
        if getattr(getattr(module, method), "__func__", None) is vars(LightningModule)[method]:
            tape.goes_to(module, method)  # an overridden one may do anything with a number

    def note(name: str, value: Any, *args: Any, **options: Any) -> None:
        plain = value
        if type(value) is Number:
            plain, value = value.value, value.tensor.to(number_type())
        source = log.metrics.source(value)
        with tape.paused():
            original(name, plain, *args, **options)
        if args:
            options = {**dict(zip(_POSITIONAL, args, strict=False)), **options}
        explicit = options.pop("batch_size", None)
        if isinstance(value, Metric) and source is None:
            log.hazards.append(f"`self.log({name!r}, ...)` logs a torchmetrics `Metric` that is no part of the module")
        results = trainer._results
        known = results.batch_size if results is not None else None
        size = explicit if explicit is not None else (known or 1)
        hook = module._current_fx_name or "training_step"
        log.calls.append(LogCall(name, hook, tuple(sorted(options.items())), int(size), source))
        with tape.paused() if source is not None else nullcontext():
            log.values.append(value._forward_cache if isinstance(value, Metric) else _kept(value))

    with _logs_by(module, note):
        yield


@contextmanager
def told_of_logs(module: LightningModule, tell: Callable[[], None]) -> Iterator[None]:
    """Calls something before each `module.log`: rows that wait are not to have values of a later step in them."""
    original = module.log

    def log(*args: Any, **options: Any) -> None:
        tell()
        original(*args, **options)

    with _logs_by(module, log):
        yield


@contextmanager
def _logs_by(module: LightningModule, log: Callable[..., None]) -> Iterator[None]:
    """Has a function take the place of `module.log`, and of what Lightning gives to callbacks as their own `log`."""
    with ExitStack() as stack:
        for callback in module.trainer.callbacks:  # type: ignore[attr-defined]
            if getattr(getattr(callback, "__dict__", {}).get("log"), "__self__", None) is module:
                stack.enter_context(shadowed(callback, {"log": log}))
        stack.enter_context(shadowed(module, {"log": log}))
        yield


_POSITIONAL = [*inspect.signature(LightningModule.log).parameters][3:]
"""The arguments behind the name and the value."""


def _kept(value: Any) -> Tensor:
    """A copy: what a step does to the tensor after it has logged it changes nothing."""
    if isinstance(value, Tensor):
        return value.detach().reshape(()).clone()
    return torch.tensor(value, dtype=number_type())


def number_type() -> torch.dtype:
    """Returns the type in which Lightning keeps numbers that are logged: no half precision."""
    default = torch.get_default_dtype()
    return default if default in (torch.float32, torch.float64) else torch.float32
