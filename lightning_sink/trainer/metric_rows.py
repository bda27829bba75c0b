"""Calls of metrics for steps in a row: they come to what they come to one after another, step by step.

A call takes a fraction of a millisecond of Python, a compiled step a hundredth of that. Calls that have nothing to do
with each other are made one for all steps, then the next; and each for many steps at once where `metric_vmap.py` can.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise
from typing import Any, NamedTuple
from weakref import WeakValueDictionary

import torch
from torch import Tensor
from torchmetrics import Metric

from lightning_sink.data.generators import watch_states
from lightning_sink.engine.watch import first_line
from lightning_sink.errors import warn_at
from lightning_sink.trainer.decisions import Decisions
from lightning_sink.trainer.metric_vmap import add, addable, made_at_once, unvalidated
from lightning_sink.trainer.metrics import MetricCall, Source, is_metric, repeat

_FEW = 4
"""Steps below which calls are made one by one."""

Column = Tensor | list[Any]
"""What steps in a row gave: a tensor `[steps, ...]` where all gave tensors that are alike, a list otherwise."""


_DRAWS = (
    "A metric ({}) draws random numbers, and drew none in the steps that were recorded. It measures many steps at once,"
    " behind them: if the steps draw too, these numbers come in another order than in plain Lightning. Let it draw from"
    ' a generator of its own, or train with `SinkStrategy(engine="eager")`.'
)
_TOLD: WeakValueDictionary[int, Metric] = WeakValueDictionary()
"""Metrics of which that has been said, by identity: their hash is that of what they hold."""


class Repeated(NamedTuple):
    """What the calls of steps in a row came to.

    Attributes:
        values: For each source the values of steps: of a number, a tensor `[steps]`. None for what the steps computed.
        done: Of how many steps; fewer than there are where the one behind them raised an error.
    """

    values: list[Column | None]
    done: int
    error: BaseException | None


def repeat_in_row(
    calls: Sequence[MetricCall], columns: Sequence[Tensor], sources: Sequence[Source | None], steps: int
) -> Repeated:
    """Makes the calls of steps in a row again, with `[steps, ...]` of each tensor, for what is logged of them.

    Behind an error, calls of metrics that have nothing to do with the one that raised it may have been made for the
    steps behind that, too.
    """
    own = [call.metric.value for call in calls if not type(call.metric.value).__module__.startswith("torchmetrics.")]
    have_drawn = watch_states() if own and steps > 1 else bool
    repeated = _repeat_in_row(calls, columns, sources, steps)
    if have_drawn() and not any(_TOLD.get(id(metric)) is metric for metric in own):
        _TOLD.update({id(metric): metric for metric in own})
        warn_at(
            _DRAWS.format(" or ".join({type(metric).__name__: 0 for metric in own})), first_line(type(own[0]).update)
        )
    return repeated


def _repeat_in_row(
    calls: Sequence[MetricCall], columns: Sequence[Tensor], sources: Sequence[Source | None], steps: int
) -> Repeated:
    if not _are_apart(calls, sources):
        made, error = _one_by_one(0, steps, lambda i: repeat(calls, [column[i] for column in columns], sources))
        by_source = zip(sources, _columns(made, len(sources)), strict=True)
        return Repeated([None if source is None else found for source, found in by_source], len(made), error)
    values, done, error = dict[int, Column](), steps, None
    ends = [*accumulate((call.count for call in calls), initial=0)]
    for number, (call, (begin, end)) in enumerate(zip(calls, pairwise(ends), strict=True), start=1):
        own = {
            place: source for place, source in enumerate(sources) if source is not None and source.is_of(number, call)
        }
        parts = [column[:done] for column in columns[begin:end]]
        found, done, raised = _make(call, parts, done, [*own.values()])
        values |= zip(own, found, strict=True)
        error = raised or error
    for place, source in enumerate(sources):
        if source is not None and place not in values:  # logged, and called by none
            values[place] = [source.value([])] * done
    return Repeated([values[place][:done] if place in values else None for place in range(len(sources))], done, error)


def _one_by_one(begin: int, end: int, make: Callable[[int], Any]) -> tuple[list[Any], BaseException | None]:
    found = []
    for number in range(begin, end):
        try:
            found.append(make(number))
        except BaseException as error:  # raised by whoever is told, when what was made before it has been seen to
            return found, error
    return found, None


def _columns(rows: list[list[Any]], count: int) -> list[Column]:
    """Returns each of so many values of each step, side by side."""
    return [_column([row[place] for row in rows]) for place in range(count)]


def _column(values: list[Any]) -> Column:
    alike = all(isinstance(value, Tensor) and value.shape == values[0].shape for value in values)
    return torch.stack(values) if values and alike else values


def _are_apart(calls: Sequence[MetricCall], sources: Sequence[Source | None]) -> bool:
    """Tells whether no call of a step finds what another of the same step, or a value that is logged, has part in."""
    touched = dict[int, int]()
    for number, call in enumerate(calls, start=1):
        metrics = [item for item in call.metric.value.modules() if is_metric(item)]
        own = {id(item) for item in metrics}
        is_known = all(type(item).__module__.startswith("torchmetrics.") for item in metrics)  # others may read any
        if not is_known or call.method not in ("update", "forward") or own & touched.keys():
            return False
        touched |= dict.fromkeys(own, number)
    logged = [source for source in sources if source is not None and source.metric is not None]
    return all(touched.get(id(source.metric and source.metric.value), 0) <= source.calls for source in logged)


def _make(
    call: MetricCall, columns: Sequence[Tensor], steps: int, sources: Sequence[Source]
) -> tuple[list[Column], int, BaseException | None]:
    """Makes a call for all steps: for the first, and for the others at once where that may be.

    Returns:
        The values of such sources, for how many steps, and what the one behind them raised.
    """

    def one(number: int) -> list[Any]:
        leaves = call.repeat([column[number] for column in columns])
        return [source.value(leaves) for source in sources]

    rows, error = list[list[Any]](), None
    changed = addable(call, columns) if steps >= _FEW else []
    if changed:
        with unvalidated(changed):
            with Decisions() as first:
                rows, error = _one_by_one(0, 1, one)
            rest = [column[1:] for column in columns]
            others = None if error else made_at_once(call, changed, rest, steps - 1, first.taken)
        if others is not None and others.are_like(changed):
            add(call, changed, others, steps - 1)
            return (
                [_joined(*pair, others.measured, changed, steps) for pair in zip(sources, rows[0], strict=True)],
                steps,
                None,
            )
    if error is None:
        further, error = _one_by_one(len(rows), steps, one)
        rows += further
    return _columns(rows, len(sources)), len(rows), error


def _joined(source: Source, first: Any, measured: list[Tensor], metrics: Sequence[Metric], steps: int) -> Column:
    """Returns the first step's value with those behind it, which were made at once."""
    if not measured:
        return [first] * steps  # `update` leaves it as it is
    which = source.leaf or 0
    if source.metric is not None:
        which = next(number for number, metric in enumerate(metrics) if metric is source.metric.value)
    return torch.cat([first[None], measured[which].reshape(steps - 1, *first.shape)])
