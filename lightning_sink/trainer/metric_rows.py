"""Calls of metrics for steps in a row: they come to what they come to one after another, step by step.

A call takes a fraction of a millisecond of Python, a compiled step a hundredth of that. Calls that have nothing to do
with each other are made one for all steps, then the next; and each for many steps at once where `metric_vmap.py` can.

Private names of torchmetrics (1.x): `Metric._forward_cache`, the value that Lightning logs for a metric at a step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torchmetrics import Metric

from lightning_sink.trainer.metric_vmap import Decisions, add, addable, made_at_once, unvalidated
from lightning_sink.trainer.metrics import MetricCall, Source, is_metric, repeat

_FEW = 4
"""Steps below which calls are made one by one."""

Column = Tensor | list[Any]
"""What steps in a row gave: a tensor `[steps, ...]` where all gave tensors that are alike, a list otherwise."""

Failed = Callable[[Exception, int], None]


class _Made(NamedTuple):
    """What the same call gave in each of the steps.

    Attributes:
        leaves: What it returned, leaf by leaf.
        caches: What each metric holds as measured last, by its identity.
    """

    leaves: list[Column]
    caches: dict[int, Column]


def repeat_in_row(
    calls: Sequence[MetricCall],
    columns: Sequence[Tensor],
    sources: Sequence[Source | None],
    steps: int,
    failed: Failed,
) -> list[Column | None]:
    """Makes the calls of steps in a row again.

    Args:
        calls: The calls of each step.
        columns: The tensors that they get, `[steps, ...]` each.
        sources: Where logged values come from.
        steps: How many steps.
        failed: Told of an error, and in which of the steps it was raised, before that is raised here.

    Returns:
        For each source the values of all steps: of a number, a tensor `[steps]`. None for what the steps computed.
    """
    if not _are_apart(calls, sources):
        rows = _one_by_one(
            range(steps), lambda number: repeat(calls, [column[number] for column in columns], sources), failed
        )
        pairs = zip(sources, zip(*rows, strict=True), strict=True)
        return [None if source is None else _column([*values]) for source, values in pairs]
    ends = [*accumulate((call.count for call in calls), initial=0)]
    parts = [columns[begin:end] for begin, end in pairwise(ends)]
    made = [_make(call, own, steps, failed) for call, own in zip(calls, parts, strict=True)]
    return [None if source is None else _value_of(source, calls, made, steps) for source in sources]


def _one_by_one(numbers: Sequence[int], make: Callable[[int], Any], failed: Failed) -> list[Any]:
    found = []
    for number in numbers:
        try:
            found.append(make(number))
        except Exception as error:
            failed(error, number)
            raise
    return found


def _column(values: list[Any]) -> Column:
    alike = all(isinstance(value, Tensor) and value.shape == values[0].shape for value in values)
    return torch.stack(values) if values and alike else values


def _are_apart(calls: Sequence[MetricCall], sources: Sequence[Source | None]) -> bool:
    """Tells whether no call of a step finds what another of the same step, or a value that is logged, has part in."""
    touched = dict[int, int]()
    for number, call in enumerate(calls, start=1):
        own = {id(item) for item in call.metric.value.modules() if is_metric(item)}
        if call.method not in ("update", "forward") or own & touched.keys():
            return False
        touched |= dict.fromkeys(own, number)
    logged = (source for source in sources if source is not None and source.metric is not None)
    return all(touched.get(id(source.metric.value), 0) <= source.calls for source in logged if source.metric)


def _value_of(source: Source, calls: Sequence[MetricCall], made: list[_Made], steps: int) -> Column:
    if source.metric is None:
        return _numbers(made[source.calls - 1].leaves[source.leaf or 0], steps)
    metric = source.metric.value
    found = [own.caches[id(metric)] for own in made if id(metric) in own.caches]
    return found[0] if found else [metric._forward_cache] * steps  # which calls of `update` leave as it is


def _numbers(values: Column, steps: int) -> Tensor:
    found = values if isinstance(values, Tensor) else torch.stack([value.reshape(()) for value in values])
    return found.detach().reshape(steps)


def _make(call: MetricCall, columns: Sequence[Tensor], steps: int, failed: Failed) -> _Made:
    """Makes a call for all steps: for the first, and for the others at once where that may be."""
    metrics = [item for item in call.metric.value.modules() if isinstance(item, Metric)]

    def one(number: int) -> tuple[list[Any], list[Any]]:
        leaves = call.repeat([column[number] for column in columns])
        return leaves, [metric._forward_cache for metric in metrics]

    changed = addable(call, columns) if steps >= _FEW else []
    rows = list[tuple[list[Any], list[Any]]]()
    if changed:
        with unvalidated(changed):
            with Decisions() as first:
                rows = _one_by_one([0], one, failed)
            others = made_at_once(call, changed, [column[1:] for column in columns], steps - 1, first.taken)
        if others is not None and others.are_like(rows[0][0]):
            add(call, changed, others, steps - 1)
            pairs = zip(rows[0][0], others.measured, strict=True) if others.measured else ()
            leaves: list[Column] = [torch.cat([value[None], values]) for value, values in pairs]
            return _Made(leaves, dict(zip(map(id, changed), leaves, strict=True)) if leaves else {})
    rows += _one_by_one(range(len(rows), steps), one, failed)
    returned, caches = zip(*rows, strict=True)
    of_calls, of_metrics = ([_column([*values]) for values in zip(*all_, strict=True)] for all_ in (returned, caches))
    return _Made(of_calls, dict(zip(map(id, metrics), of_metrics, strict=True)))
