"""`self.log` inside sinks: what a step logs, and the delivery of many steps' values at once.

Owns the values that compiled steps logged until they are delivered. A value reaches Lightning through `self.log`
itself, with the arguments that the user's call had, so defaults, checks, resets and reductions stay Lightning's; a run
of steps is delivered as one call whose value and batch size have the same sum.

Private names of Lightning (checked against 2.6), each here because no public one exists:
`LightningModule._current_fx_name` (which hook is logging), `_LoggerConnector._first_loop_iter` (whether it is the
epoch's first batch, whose values take the place of what was there), `Trainer._results` and
`_ResultMetric._forward_cache` (the value of the last step beside the sum of all), `_LoggerConnector.log_metrics` /
`.metrics` (rows for the loggers), `_TrainingEpochLoop._batches_that_stepped` (the step number of a row).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from itertools import zip_longest
from operator import itemgetter
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from torch import Tensor
from torchmetrics import Metric

from lightning_sink.engine.numbers.number import Number
from lightning_sink.engine.step import Tape
from lightning_sink.trainer.metrics import MetricCalls, Source


@dataclass(frozen=True)
class LogCall:
    """One call of `self.log` in a step, without its value.

    Attributes:
        name: The name logged.
        hook: The hook that logged.
        options: The other arguments of the call.
        batch_size: The weight of the value in a mean over the epoch.
        source: Where the value comes from if not from the step itself: from a metric.
    """

    name: str
    hook: str
    options: tuple[tuple[str, Any], ...]
    batch_size: int
    source: Source | None = None


Logged = list[tuple[LogCall, Any]]
"""Calls and their values."""


@dataclass
class StepLog:
    """What one step logged.

    Attributes:
        calls: The calls, in order.
        values: Their values, 0-dim; of a metric, what it measured in the batch.
        metrics: What metrics were called with.
        hazards: Why these calls cannot be repeated by a program.
    """

    calls: list[LogCall] = field(default_factory=list)
    values: list[Any] = field(default_factory=list)
    metrics: MetricCalls = field(default_factory=MetricCalls)
    hazards: list[str] = field(default_factory=list)

    @property
    def computed(self) -> list[Tensor]:
        """What a program has to put out so that the step can be logged: values, then what metrics get."""
        pairs = zip(self.calls, self.values, strict=True)
        return [value for entry, value in pairs if entry.source is None] + self.metrics.tensors


def numbers_in(calls: Iterable[LogCall], values: Iterable[Any]) -> list[tuple[str, Tensor]]:
    """Returns the names and values that are one number each."""
    pairs = zip(calls, values, strict=True)
    return [(entry.name, value) for entry, value in pairs if isinstance(value, Tensor) and value.numel() == 1]


@contextmanager
def captured(trainer: Trainer, module: LightningModule, log: StepLog, tape: Tape) -> Iterator[None]:
    """Notes what `module.log` is called with; Lightning sees the calls as ever.

    Shadows the method on the instance, so that an overridden `log` is called as the user wrote it. The tape does not
    see what Lightning makes of the value: for steps that a program runs, `LogBuffer` does that.
    """
    original, own = module.log, vars(module).get("log")
    for method in ("log", "log_dict"):
        if getattr(getattr(module, method), "__func__", None) is vars(LightningModule)[method]:
            tape.goes_to(module, method)  # an overridden one may do anything with a number

    def note(name: str, value: Any, *args: Any, **options: Any) -> None:
        plain = value
        if type(value) is Number:
            plain, value = value.value, value.tensor.to(_number_type())
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

    vars(module)["log"] = note
    try:
        yield
    finally:
        del vars(module)["log"]
        if own is not None:
            vars(module)["log"] = own


@contextmanager
def told_of_logs(module: LightningModule, tell: Callable[[], None]) -> Iterator[None]:
    """Calls something before each `module.log`: rows that wait are not to have values of a later step in them."""
    held, original = vars(module), module.log
    own = held.get("log")

    def log(*args: Any, **options: Any) -> None:
        tell()
        original(*args, **options)

    held["log"] = log
    try:
        yield
    finally:
        del held["log"]
        if own is not None:
            held["log"] = own


_POSITIONAL = [*inspect.signature(LightningModule.log).parameters][3:]
"""The arguments behind the name and the value."""


def _kept(value: Any) -> Tensor:
    """A copy: what a step does to the tensor after it has logged it changes nothing."""
    if isinstance(value, Tensor):
        return value.detach().reshape(()).clone()
    return torch.tensor(value, dtype=_number_type())


def _number_type() -> torch.dtype:
    """Returns the type in which Lightning keeps numbers that are logged: no half precision."""
    default = torch.get_default_dtype()
    return default if default in (torch.float32, torch.float64) else torch.float32


def split_late(calls: tuple[LogCall, ...], values: list[Any]) -> tuple[Logged, Logged]:
    """Parts what the callbacks' `on_train_batch_end` finds logged from what the module logs after them."""
    pairs = list(zip(calls, values, strict=True))
    late = [pair for pair in pairs if pair[0].hook == "on_train_batch_end"]
    return [pair for pair in pairs if pair[0].hook != "on_train_batch_end"], late


@dataclass
class _Rows:
    """What compiled steps in a row logged, the last of them selected for the loggers or not.

    Attributes:
        calls: What each of them logged.
        steps: How many these are.
        values: The values, by call: a tensor with one element for each step, or a list of what a metric measured in
            each; of one step, that by itself.
        number: The last one's number for loggers.
        selected: Whether the last one is a row for loggers.
    """

    calls: tuple[LogCall, ...]
    steps: int
    values: list[Any]
    number: int
    selected: bool


@dataclass(frozen=True)
class LoggedTurns:
    """What some steps in a row logged, those of them that log alike.

    Attributes:
        calls: What each of them logged.
        values: The values: `[steps]` each, or lists of what a metric measured; of a single step, that by itself.
        places: Which of the steps they are that take turns: the first one where all steps are alike.
        turns: How many take turns.
    """

    calls: tuple[LogCall, ...]
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


def numbers_in_row(parts: Sequence[LoggedTurns], steps: int) -> dict[str, Tensor]:
    """Returns the values of so many steps by name, `[steps]` each; NaN for steps that log otherwise."""
    if len(parts) == 1:
        return {entry.name: values for entry, values in zip(parts[0].calls, parts[0].values, strict=True)}
    found = dict[str, Tensor]()
    for part in parts:
        for entry, values in zip(part.calls, part.values, strict=True):
            number = values.dtype if values.is_floating_point() else torch.get_default_dtype()
            every = found.get(entry.name)
            if every is None:
                every = found[entry.name] = torch.full((steps,), torch.nan, dtype=number, device=values.device)
            for which, place in enumerate(part.places):
                every[place :: part.turns] = values[which :: len(part.places)].to(every.dtype)
    return found


_MOST_ROWS = 512
"""Rows that are kept before they are delivered in the middle of a sink: memory must not grow with its length."""


class LogBuffer:
    """Values that compiled steps logged and Lightning has not seen yet.

    Args:
        trainer: The trainer.
        module: The module whose `log` was called.
    """

    def __init__(self, trainer: Trainer, module: LightningModule) -> None:
        self._trainer = trainer
        self._module = module
        self._rows: list[_Rows] = []
        self._begins_epoch = False

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def is_full(self) -> bool:
        """Whether the values are to be delivered before others are added."""
        return len(self._rows) > _MOST_ROWS

    def add(self, parts: Sequence[LoggedTurns], first: int, steps: int, every: int, stretch: int = 1) -> None:
        """Takes the values of a step, or of steps in a row.

        Args:
            parts: What they logged; every step is in one of these.
            first: The first step's number for loggers.
            steps: How many steps.
            every: `log_every_n_steps`; 0 where no logger is to get any of them.
            stretch: How many steps have one number, of which a logger gets the last.
        """
        if not self._rows:
            self._begins_epoch = self._trainer.fit_loop.batch_idx == 0
        start = 0
        while start < steps:
            number = first + start // stretch
            end = min(steps, start + (every - number % every) * stretch) if every else steps
            last = first + (end - 1) // stretch
            selected = every > 0 and end % stretch == 0 and (last + 1) % every == 0
            spans = [(part.before(start), part.before(end), part) for part in parts]
            there = [(part.step(stop - 1), begin, stop, part) for begin, stop, part in spans if begin < stop]
            # What is logged last is what a metric's last value is.
            for at, begin, stop, part in sorted(there, key=itemgetter(0)):
                is_row = selected and at == end - 1
                if part.calls or is_row:  # a row is due at its step whether that step logged or an earlier one did
                    values, count = part.values, stop - begin
                    if steps > 1:
                        values = [value[begin] if count == 1 else value[begin:stop] for value in values]
                    self._rows.append(_Rows(part.calls, count, values, last, is_row))
            start = end

    def deliver(self, keep: int = 0) -> None:
        """Hands values to Lightning; every selected step becomes a row of its own.

        Args:
            keep: How many of those that were added last are left.
        """
        end = max(0, len(self._rows) - keep)
        rows, self._rows = self._rows[:end], self._rows[end:]
        connector, alike = self._trainer._logger_connector, dict[tuple[LogCall, ...], list[_Rows]]()
        for row, following in zip_longest(rows, rows[1:]):
            alike[row.calls] = [*alike.pop(row.calls, ()), row]  # behind others: what is logged last is the last value
            if row.selected or following is None or (self._begins_epoch and following.calls != row.calls):
                if connector._first_loop_iter and not self._begins_epoch:
                    # Of an epoch's first batch what a hook logs first takes the place of what was there.
                    connector._first_loop_iter = False
                for group in alike.values():
                    self._log(group)
                alike, self._begins_epoch = {}, False
            if row.selected:
                self._write(row.number)

    def _log(self, rows: list[_Rows]) -> None:
        module = self._module
        hook = module._current_fx_name
        for index, call in enumerate(rows[0].calls):
            module._current_fx_name = call.hook
            try:
                if call.source is not None and call.source.metric is not None:
                    measured = rows[-1].values[index]
                    self._log_metric(call, call.source.metric.value, measured if rows[-1].steps == 1 else measured[-1])
                else:
                    self._log_values(call, torch.cat([row.values[index].reshape(-1) for row in rows]))
            finally:
                module._current_fx_name = hook

    def _log_values(self, call: LogCall, values: Tensor) -> None:
        options = dict(call.options)
        value, weight = _reduced(values, options.get("reduce_fx", "mean"), call.batch_size)
        self._module.log(call.name, value, batch_size=weight, **options)
        self._set_last(call, values[-1])

    def _log_metric(self, call: LogCall, metric: Metric, measured: Any) -> None:
        """Logs a metric as an object, with what it measured at the row's step; later steps may be in it by now."""
        present, metric._forward_cache = metric._forward_cache, measured
        try:
            self._module.log(call.name, metric, batch_size=call.batch_size, **dict(call.options))
        finally:
            metric._forward_cache = present

    def _set_last(self, call: LogCall, value: Tensor) -> None:
        results: Any = self._trainer._results
        metric = results.get(f"{call.hook}.{call.name}") if results is not None else None
        if metric is not None and metric.meta.on_step:
            metric._forward_cache = value.to(metric._forward_cache.dtype)
            if not metric.meta.on_epoch:
                metric.value = metric._forward_cache

    def _write(self, number: int) -> None:
        connector = self._trainer._logger_connector
        loop = self._trainer.fit_loop.epoch_loop
        present, loop._batches_that_stepped = loop._batches_that_stepped, number
        try:
            connector.log_metrics(connector.metrics["log"])
        finally:
            loop._batches_that_stepped = present


def _reduced(values: Tensor, reduction: Any, batch_size: int) -> tuple[Tensor, int]:
    """One value and weight that change an epoch's reduction as all the values, one by one, would."""
    if values.dtype not in (torch.float32, torch.float64):
        values = values.to(_number_type())
    name = (reduction if isinstance(reduction, str) else reduction.__name__).lower()
    if name in ("max", "min", "sum"):
        return getattr(values, name)(), batch_size
    return values.mean(), batch_size * len(values)
