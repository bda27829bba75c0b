"""The delivery of what many steps logged, at once.

Owns the values that compiled steps logged until they are delivered. A value reaches Lightning through `self.log`
itself, with the arguments that the user's call had, so defaults, checks, resets and reductions stay Lightning's; a run
of steps is delivered as one call whose value and batch size have the same sum.

Private names of Lightning (checked against 2.6), each here because no public one exists:
`LightningModule._current_fx_name` (which hook is logging), `_LoggerConnector._first_loop_iter` (whether it is the
epoch's first batch, whose values take the place of what was there), `Trainer._results` and what its metrics hold:
`value`, and `_forward_cache` (the value of the last step beside the sum of all), `_LoggerConnector.log_metrics` /
`.metrics` (rows for the loggers), `_TrainingEpochLoop._batches_that_stepped` (the step number of a row).
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from itertools import zip_longest
from operator import itemgetter
from typing import Any

import torch
from lightning.pytorch import Trainer
from torch import Tensor
from torchmetrics import Metric

from lightning_sink.engine.shadows import shadowed
from lightning_sink.trainer.by_hand import HandCall
from lightning_sink.trainer.logged_turns import LoggedTurns
from lightning_sink.trainer.logging import Entry, LogCall, number_type


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
        by_hand: Calls of loggers that are made before, each with its numbers in the step.
    """

    calls: tuple[Entry, ...]
    steps: int
    values: list[Any]
    number: int
    selected: bool
    by_hand: Sequence[tuple[HandCall, list[float]]] = ()


_MOST_ROWS = 512
"""Rows that are kept before they are delivered in the middle of a sink: memory must not grow with its length."""


class LogBuffer:
    """Values that compiled steps logged and Lightning has not seen yet."""

    def __init__(self, trainer: Trainer) -> None:
        self._trainer, self._module = trainer, trainer.lightning_module
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
        has_any_by_hand = any(isinstance(call, HandCall) for part in parts for call in part.calls)
        start = 0
        while start < steps:
            number = first + start // stretch
            end = min(steps, start + (every - number % every) * stretch) if every else steps
            last = first + (end - 1) // stretch
            selected = every > 0 and end % stretch == 0 and (last + 1) % every == 0
            spans = [(part.before(start), part.before(end), part) for part in parts]
            there = [(part.step(stop - 1), begin, stop, part) for begin, stop, part in spans if begin < stop]
            by_hand = _by_hand(spans, steps) if has_any_by_hand else []
            # What is logged last is what a metric's last value is.
            for at, begin, stop, part in sorted(there, key=itemgetter(0)):
                is_row = selected and at == end - 1
                if part.calls or is_row:  # a row is due at its step whether that step logged or an earlier one did
                    values, count = part.values, stop - begin
                    if steps > 1:
                        values = [value[begin] if count == 1 else value[begin:stop] for value in values]
                    self._rows.append(_Rows(part.calls, count, values, last, is_row, by_hand))
                    by_hand = []
            start = end

    def deliver(self, keep: int = 0) -> None:
        """Hands values to Lightning, but for the last rows to keep; every selected step becomes a row of its own."""
        end = max(0, len(self._rows) - keep)
        rows, self._rows = self._rows[:end], self._rows[end:]
        connector, alike = self._trainer._logger_connector, list[list[_Rows]]()
        for row, following in zip_longest(rows, rows[1:]):
            for by_hand, numbers in row.by_hand:
                by_hand.make(self._trainer, numbers)
            known = next((i for i, group in enumerate(alike) if group[0].calls == row.calls), None)
            alike.append([] if known is None else alike.pop(known))  # what is logged last is the last value
            alike[-1].append(row)
            if row.selected or following is None or (self._begins_epoch and following.calls != row.calls):
                if connector._first_loop_iter and not self._begins_epoch:
                    # Of an epoch's first batch what a hook logs first takes the place of what was there.
                    connector._first_loop_iter = False
                for group in alike:
                    self._log(group)
                alike, self._begins_epoch = [], False
            if row.selected:
                self._write(row.number)

    def _log(self, rows: list[_Rows]) -> None:
        module = self._module
        hook = module._current_fx_name
        for index, call in enumerate(rows[0].calls):
            if isinstance(call, HandCall):
                continue
            module._current_fx_name = call.hook
            try:
                if call.source is not None and call.source.metric is not None:
                    measured = rows[-1].values[index]
                    self._log_metric(call, call.source.metric.value, measured if rows[-1].steps == 1 else measured[-1])
                else:
                    values = [row.values[index].reshape(-1) for row in rows]
                    # Steps of one kind may log a tensor of the host's; Lightning goes by where the last value is.
                    self._log_values(call, torch.cat([value.to(values[-1].device) for value in values]))
            finally:
                module._current_fx_name = hook

    def _log_values(self, call: LogCall, values: Tensor) -> None:
        options = dict(call.options)
        value, weight = _reduced(values, options.get("reduce_fx", "mean"), call.batch_size)
        with _unmoved(self._result(call), value.device):
            self._module.log(call.name, value, batch_size=weight, **options)
        self._set_last(self._result(call), values[-1])

    def _log_metric(self, call: LogCall, metric: Metric, measured: Any) -> None:
        """Logs a metric as an object, with what it measured at the row's step; later steps may be in it by now."""
        present, metric._forward_cache = metric._forward_cache, measured
        try:
            self._module.log(call.name, metric, batch_size=call.batch_size, **dict(call.options))
        finally:
            metric._forward_cache = present

    def _result(self, call: LogCall) -> Any:
        """Returns in which metric Lightning has what was logged; None where nothing was."""
        results: Any = self._trainer._results
        return results.get(f"{call.hook}.{call.name}") if results is not None else None

    def _set_last(self, metric: Any, value: Tensor) -> None:
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


def _by_hand(spans: list[tuple[int, int, LoggedTurns]], steps: int) -> list[tuple[HandCall, list[float]]]:
    """Returns the calls by hand of some steps in a row, in the steps' order, each with its numbers."""
    found: list[tuple[int, HandCall, list[float]]] = []
    for begin, stop, part in spans:
        for call, value in zip(part.calls, part.values, strict=True):
            if isinstance(call, HandCall) and begin < stop:
                rows = (value[begin:stop] if steps > 1 else value).reshape(stop - begin, -1)
                found += [(part.step(begin + i), call, numbers) for i, numbers in enumerate(rows.tolist())]
    return [(call, numbers) for _, call, numbers in sorted(found, key=itemgetter(0))]


def _unmoved(metric: Any, device: torch.device) -> AbstractContextManager[None]:
    """Keeps Lightning from bringing a metric to where it is, as each `self.log` does: three quarters of its time."""
    value = vars(metric).get("value") if metric is not None else None
    is_there = isinstance(value, Tensor) and value.device == device
    return shadowed(metric, {"to": lambda _: metric}) if is_there else nullcontext()


def _reduced(values: Tensor, reduction: Any, batch_size: int) -> tuple[Tensor, int]:
    """One value and weight that change an epoch's reduction as all the values, one by one, would."""
    if values.dtype not in (torch.float32, torch.float64):
        values = values.to(number_type())
    name = (reduction if isinstance(reduction, str) else reduction.__name__).lower()
    if name in ("max", "min", "sum"):
        return getattr(values, name)(), batch_size
    return values.mean(), batch_size * len(values)
