"""One call of a metric's, made for many steps at once.

torchmetrics says of those of its metrics without `full_state_update` that the state of a batch, begun anew, may be
added to that of the batches before: their `forward` does so. A call of such a metric is made by `torch.vmap`, with a
state for each step, and the states are added up. What Python decides by values there is decided as in the first of the
steps, and looked at behind: where it differs, as where `vmap` refuses (a shape that depends on values, `.item()`), the
call is to be made step by step.

Private names of torchmetrics (1.x), where it keeps what it does not hand out: `_defaults`, `_reductions`,
`_update_count`, `_computed`, `_forward_cache`, `_is_synced`, `_filter_kwargs` of `Metric`; of `MetricCollection`, which
tell what metrics are updated for others, `_groups`, `_groups_checked`, `_enable_compute_groups`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple
from weakref import WeakValueDictionary

import torch
from torch import Tensor
from torchmetrics import Metric, MetricCollection
from torchmetrics.utilities.data import dim_zero_max, dim_zero_min, dim_zero_sum

from lightning_sink.engine.private import without_fallback
from lightning_sink.trainer.decisions import Decisions, Differs, as_decided
from lightning_sink.trainer.metrics import MetricCall

_LARGEST = 1 << 16
"""Bytes of what a call gets and changes in a step, up to which it is made for many at once: else that is no faster."""

_CHUNK = 1 << 22
"""Bytes of these in all that are made at once: what metrics make of them may be ten times as much."""

_REFUSED: WeakValueDictionary[int, Metric] = WeakValueDictionary()
"""Metrics whose calls `vmap` does not make, by identity: their hash is that of what they hold."""


def _in_order(state: Tensor, others: Tensor) -> Tensor:
    """Adds as calls one after another do: in another order, floats round otherwise."""
    if not state.is_floating_point():
        return state + others.sum(0, dtype=others.dtype)
    for other in others.unbind():
        state = state + other
    return state


_ADDED: dict[Any, Callable[[Tensor, Tensor], Tensor]] = {
    dim_zero_sum: _in_order,
    dim_zero_max: lambda state, others: torch.maximum(state, others.amax(0)),
    dim_zero_min: lambda state, others: torch.minimum(state, others.amin(0)),
}
"""What a state becomes with those of further steps, by the reduction that its metric names."""

_TYPES = (torch.int64, torch.int32, torch.float32, torch.float64)
"""Types of states that are added up."""


class Together(NamedTuple):
    """What a call for several steps at once came to.

    Attributes:
        states: Of each metric, in the order of its defaults; `[steps, ...]` each.
        measured: What each metric measured, `[steps, ...]` each; nothing for `update`.
    """

    states: list[list[Tensor]]
    measured: list[Tensor]

    def are_like(self, metrics: Sequence[Metric]) -> bool:
        """Tells whether the step that was made last measured what these did: a tensor of the same shape each."""
        shapes = [getattr(metric._forward_cache, "shape", None) for metric in metrics]
        return not self.measured or shapes == [values.shape[1:] for values in self.measured]


def addable(call: MetricCall, columns: Sequence[Tensor]) -> list[Metric]:
    """Returns the metrics whose states a call changes, if it may be made for many steps at once; none if it may not."""
    members = _members(call)
    if not members or not all(map(_may_be_added, members)) or _bytes(members, columns) > _LARGEST:
        return []
    return members if _are_valid(members, call, columns) else []


def _bytes(metrics: Sequence[Metric], columns: Sequence[Tensor]) -> int:
    states = (getattr(metric, name) for metric in metrics for name in metric._defaults)
    total: int = sum(state.nbytes for state in states) + sum(column[0].nbytes for column in columns)
    return total


def add(call: MetricCall, metrics: Sequence[Metric], others: Together, steps: int) -> None:
    """Adds to the states of metrics those of so many further steps, which a call made."""
    for metric, states in zip(metrics, others.states, strict=True):
        for name, further in zip(metric._defaults, states, strict=True):
            setattr(metric, name, _ADDED[metric._reductions[name]](getattr(metric, name), further))
        metric._update_count += steps
        metric._computed = None
    for metric, values in zip(metrics, others.measured, strict=True) if others.measured else ():
        vars(metric)["_forward_cache"] = values[-1].clone()
    call.hand_out()


def _members(call: MetricCall) -> list[Metric]:
    """Returns the metrics whose states a call changes; nothing where that is not known yet."""
    metric = call.metric.value
    members = [metric] if isinstance(metric, Metric) else []
    if type(metric) is MetricCollection:
        leaders = [getattr(metric, names[0]) for names in metric._groups.values()]
        in_groups = call.method == "update" and metric._enable_compute_groups
        members = leaders if in_groups else [*metric.values(copy_state=False)]
        if in_groups and not metric._groups_checked:
            return []
    return members


def _may_be_added(metric: Metric) -> bool:
    """Tells whether torchmetrics itself would add the state of a batch to that of those before it."""
    package = type(metric).__module__
    if not package.startswith("torchmetrics.") or next(metric.children(), None) is not None:
        return False
    if metric.full_state_update is not False or type(metric).forward is not Metric.forward:
        return False
    wrapped = getattr(vars(metric).get("update"), "__wrapped__", None)
    if _REFUSED.get(id(metric)) is metric or getattr(wrapped, "__func__", None) is not type(metric).update:
        return False
    if metric.dist_sync_on_step or metric.compute_on_cpu or metric._is_synced:
        return False
    if getattr(metric, "validate_args", False) and not package.startswith("torchmetrics.classification."):
        return False
    states = [(getattr(metric, name), metric._reductions[name]) for name in metric._defaults]
    return all(isinstance(state, Tensor) and state.dtype in _TYPES and how in _ADDED for state, how in states)


def _begin_anew(metric: Metric, states: Sequence[Tensor]) -> None:
    for name, state in zip(metric._defaults, states, strict=True):
        setattr(metric, name, state)
    metric._update_count, metric._computed = 0, None


def _defaults(metric: Metric) -> list[Tensor]:
    defaults = [(name, value) for name, value in metric._defaults.items() if isinstance(value, Tensor)]
    return [value.detach().clone().to(getattr(metric, name).device) for name, value in defaults]


@contextmanager
def _put_back(metrics: Sequence[Metric]) -> Iterator[None]:
    """Puts metrics back, behind, to where they were."""
    kept = [dict(vars(metric)) for metric in metrics]
    try:
        yield
    finally:
        for metric, attributes in zip(metrics, kept, strict=True):
            vars(metric).clear()
            vars(metric).update(attributes)


@contextmanager
def unvalidated(metrics: Sequence[Metric]) -> Iterator[None]:
    """Has metrics not look at what they are given, which was looked at."""
    validate = [metric for metric in metrics if getattr(metric, "validate_args", False)]
    for metric in validate:
        metric.validate_args = False
    try:
        yield
    finally:
        for metric in validate:
            metric.validate_args = True


def _update(metric: Metric, call: MetricCall, tensors: Sequence[Tensor]) -> None:
    args, kwargs = call.given(tensors)
    if metric is not call.metric.value:
        kwargs = metric._filter_kwargs(**kwargs)  # as a collection does
    metric.update(*args, **kwargs)


def _are_valid(metrics: Sequence[Metric], call: MetricCall, columns: Sequence[Tensor]) -> bool:
    """Tells whether metrics take what they are given, that of all steps together, as if it were one batch.

    `vmap` does not look at values, such as labels that are no class. What metrics take together, they take one by one:
    a wrong value is one among more of them, too, and there are no more different values in a part than in the whole.
    Single numbers are no batch; those that torchmetrics aggregates may have any value.
    """
    if any(column.ndim < 2 for column in columns):
        return all(type(metric).__module__ == "torchmetrics.aggregation" for metric in metrics)
    with _put_back(metrics), call.as_then(), torch.no_grad():
        try:
            for metric in metrics:
                _begin_anew(metric, _defaults(metric))
                _update(metric, call, [column.flatten(0, 1) for column in columns])
        except Exception:  # of a metric: whose it is, and whether it is one, is found out step by step
            return False
    return True


def made_at_once(
    call: MetricCall, metrics: Sequence[Metric], columns: Sequence[Tensor], steps: int, decided: Sequence[bool]
) -> Together | None:
    """Makes a call for several steps at once, and leaves the metrics, which `addable` returned, as they are.

    None where it cannot be done so, or would come to something else. `decided` is what Python decided by values in a
    step before.
    """

    def step(states: list[list[Tensor]], given: list[Tensor]) -> Any:
        measured = []
        with Decisions(decided) as decisions:
            for metric, own in zip(metrics, states, strict=True):
                _begin_anew(metric, own)
                _update(metric, call, given)
                if call.method == "forward":
                    measured.append(metric.compute())
        if len(decisions.asked) != len(decided):
            raise Differs
        left = [[getattr(metric, name) for name in metric._defaults] for metric in metrics]
        return left, measured, decisions.asked

    # States of a step's own: metrics add to them in place.
    begun = [[state.expand(steps, *state.shape).clone() for state in _defaults(metric)] for metric in metrics]
    chunk = max(1, _CHUNK // max(1, _bytes(metrics, columns)))
    with _put_back(metrics), call.as_then(), torch.no_grad(), without_fallback():
        try:
            left, measured, asked = torch.vmap(step, chunk_size=chunk)(begun, [*columns])
        except Differs:
            return None
        except Exception:  # of vmap, which refuses, or of a metric: it comes again, step by step
            _REFUSED.update({id(metric): metric for metric in metrics})
            return None
    if not all(isinstance(value, Tensor) for value in measured):
        return None
    return Together(left, measured) if as_decided(asked, decided) else None
