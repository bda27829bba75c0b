"""What a metric's `forward` gives, where the step computes with it: a loss that is a metric, `1 - self.ssim(x, y)`.

The metric gets its call on the host, as any other (`metrics.py`). The step computes with what a copy of it without a
past measures, which is recorded as the rest of the step is. So it is with metrics that `forward` of torchmetrics' own
calls, and of which a call changes nothing but the state: not with those that hold modules, count in Python or draw.

Private names of torchmetrics (1.x): `_defaults` are a metric's states, `_to_sync` and `_enable_grad` what `forward`
measures a batch by.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from functools import lru_cache
from typing import Any

from torch import Tensor, nn
from torchmetrics import MeanMetric, MeanSquaredError, Metric

from lightning_sink.data.generators import global_states
from lightning_sink.engine.private import WeakIdKeyDictionary, version
from lightning_sink.engine.state.attributes import fingerprint
from lightning_sink.engine.step import Tape
from lightning_sink.engine.watch import unwatched

_COMPUTED_WITH = WeakIdKeyDictionary()
"""Metrics with whose values steps were seen to compute."""


def is_usual(metric: nn.Module) -> bool:
    """Tells whether a step may compute with what a metric's `forward` gives, as far as its class and its parts tell."""
    is_alone = not any(True for _ in metric.children()) and not any(True for _ in metric.parameters())
    return isinstance(metric, Metric) and type(metric).forward is Metric.forward and is_alone


def learn(metric: nn.Module) -> None:
    """Takes note of a metric with whose value a step has computed."""
    _COMPUTED_WITH[metric] = True


def called_for_a_batch(metric: Any) -> Callable[[], bool]:
    """Takes note of a metric that is about to be called; returns what tells whether a copy may be called, too."""
    if metric not in _COMPUTED_WITH:
        return lambda: False
    before = _all_that_may_not_change(metric)
    return lambda: _all_that_may_not_change(metric) == before


def value_of_batch(metric: Any, args: tuple[Any, ...], kwargs: dict[str, Any], words: str, tape: Tape) -> Any:
    """Returns what `forward` does, with gradients, and leaves the metric as it is.

    A program is for steps in which it holds the same beside its state, but for what is written into its buffers.
    """
    with unwatched():
        known = _all_but_its_state(metric, contents=False)
    same = lambda: _all_but_its_state(metric, contents=False) == known  # noqa: E731
    tape.decided(f"what {words} computes with", metric, True, same)
    fresh, buffers = copy(metric), vars(metric)["_buffers"]
    with tape.apart(words, [*buffers.values()]):
        vars(fresh)["_buffers"] = {name: buffer.detach() for name, buffer in buffers.items()}
    for name in [name for name, default in metric._defaults.items() if isinstance(default, list)]:
        setattr(fresh, name, [])  # which `reset` would empty in place, for both
    fresh.reset()
    fresh._to_sync, fresh._enable_grad = metric.dist_sync_on_step, True
    fresh.update(*args, **kwargs)
    return fresh.compute()


def _all_that_may_not_change(metric: Any) -> Any:
    with unwatched():  # it is no line of the user's that asks
        return _all_but_its_state(metric, contents=True), global_states()


def _all_but_its_state(metric: Any, contents: bool) -> list[Any]:
    """Returns what a metric holds: tensors by identity, and by what is in them where that counts."""
    left_out = _of_all_metrics() | metric._defaults.keys()
    held = [(name, value) for name, value in vars(metric).items() if name not in left_out]
    tensors = [value for _, value in (*held, *vars(metric)["_buffers"].items()) if isinstance(value, Tensor)]
    known = [(id(tensor), version(tensor) if contents else 0) for tensor in tensors]
    return [[(name, fingerprint(value)) for name, value in held], known]


@lru_cache(maxsize=1)
def _of_all_metrics() -> frozenset[str]:
    """Returns the attributes that each metric has: what torchmetrics itself keeps in it."""
    return frozenset(vars(MeanMetric())) & frozenset(vars(MeanSquaredError()))
