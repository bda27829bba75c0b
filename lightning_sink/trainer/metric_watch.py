"""Stands before the methods of a module's metrics while a step is recorded, and notes their calls.

`noted` is all that a step needs; `keep_metrics` is for going back to before a recording that failed.

Private names of torchmetrics (1.x): `update` and `compute` of a `Metric` are attributes of the instance.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from lightning.pytorch import LightningModule
from torch import Tensor, nn

from lightning_sink.engine.numbers.released import released
from lightning_sink.engine.private import pytree, version
from lightning_sink.engine.shadows import replaced, shadowed
from lightning_sink.engine.state.attributes import fingerprint
from lightning_sink.engine.state.slots import Parts
from lightning_sink.engine.step import Tape
from lightning_sink.engine.tracing.undo import Attributes
from lightning_sink.trainer.batch_values import called_for_a_batch, is_usual, learn, value_of_batch
from lightning_sink.trainer.metrics import MetricCalls, is_metric

_METHODS = ("update", "forward", "compute", "reset")

_CONSTANTS = (bool, int, float, complex, str, bytes, type(None), torch.dtype)


def noted(calls: MetricCalls, module: LightningModule, tape: Tape) -> AbstractContextManager[None]:
    """Notes the calls of the module's metrics, which are made as ever."""
    calls.metrics = [item for item in module.modules() if is_metric(item)]
    return _Watcher(calls, tape).watching()


def _words(metric: nn.Module, method: str) -> str:
    """Returns what users call a call."""
    return f"`{type(metric).__name__}.{method}()`"


class _Watcher:
    """Stands before the methods of some metrics while a step is recorded."""

    def __init__(self, calls: MetricCalls, tape: Tape) -> None:
        self._calls = calls
        self._tape = tape
        self._metrics = {id(metric): metric for metric in calls.metrics}
        self._usual = {id(metric) for metric in calls.metrics if is_usual(metric)}
        self._inside = False
        self._python: Any = None

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Watches, and looks whether the metrics are changed in another way meanwhile."""
        with ExitStack() as stack:
            for metric in self._metrics.values():
                held = {name: original for name, original in vars(metric).items() if name in _METHODS}
                others = {name: partial(self._call, metric, name, original) for name, original in held.items()}
                stack.enter_context(shadowed(metric, others))
            for kind in {type(metric) for metric in self._metrics.values()}:
                for name in [name for name in _METHODS if hasattr(kind, name)]:
                    stack.enter_context(self._before_method(kind, name))
            self._look()
            yield
            self._compare()

    def _call(self, metric: nn.Module, method: str, original: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        if self._inside:
            return original(*args, **kwargs)
        self._compare()
        given = released((args, kwargs))
        self._calls.add(metric, method, given)
        tensors = [leaf for leaf in pytree.tree_leaves(given) if isinstance(leaf, Tensor)]
        may_compute_with = called_for_a_batch(metric) if method == "forward" else lambda: False
        self._inside = True
        try:
            with self._tape.apart(_words(metric, method), tensors):
                out = self._distinct(original(*given[0], **given[1]))
        finally:
            self._inside = False
        leaves = pytree.tree_leaves(out)
        if may_compute_with():
            out = value_of_batch(metric, given[0], given[1], _words(metric, method), self._tape)
        else:
            self._calls.returned(leaves)
        self._look()
        self._check(metric, method, given, leaves)
        return out

    def _distinct(self, out: Any) -> Any:
        """Has each tensor that calls return be an object of its own: by that it is known which of them is logged.

        A `MinMaxMetric` returns one as the present value and as the largest, where it is that.
        """
        seen = set[int]()

        def own(leaf: Tensor) -> Tensor:
            is_new = id(leaf) not in seen and not self._calls.has_returned(leaf)
            seen.add(id(leaf))
            return leaf if is_new else leaf.view_as(leaf)

        tensors = [leaf for leaf in pytree.tree_leaves(out) if isinstance(leaf, Tensor)]
        is_distinct = len({*map(id, tensors)}) == len(tensors) and not any(map(self._calls.has_returned, tensors))
        return out if is_distinct else pytree.tree_map_only(Tensor, own, out)

    def _check(self, metric: nn.Module, method: str, given: Any, leaves: list[Any]) -> None:
        what, tape = _words(metric, method), self._tape
        strange = [leaf for leaf in pytree.tree_leaves(given) if not isinstance(leaf, (Tensor, *_CONSTANTS))]
        if strange:
            tape.hazard(f"{what} gets a `{type(strange[0]).__name__}`")
        writes = any(isinstance(getattr(part, "nan_strategy", None), float) for part in metric.modules())
        if writes and method in ("update", "forward"):
            tape.hazard(f"{what} with a number as its `nan_strategy` writes that into what it is given, if need be")
        if any(parameter.requires_grad for parameter in metric.parameters()):
            tape.hazard(f"{what} may depend on parameters of its own, which are trained")
        if any(leaf is not None and not isinstance(leaf, Tensor) for leaf in leaves):
            tape.hazard(f"{what} returns what is no tensor")
        tensors = (leaf for leaf in leaves if isinstance(leaf, Tensor))
        what = f"the step computes with what {what} returns"
        may_learn = method == "forward" and id(metric) in self._usual
        used = partial(learn, metric) if may_learn else lambda: None
        tape.foreign(tensors, f"{what} (what functions of `torchmetrics.functional` give is compiled)", used)

    def _before_method(self, kind: Any, name: str) -> AbstractContextManager[None]:
        original = getattr(kind, name)

        def method(metric: Any, *args: Any, **kwargs: Any) -> Any:
            if id(metric) not in self._metrics:
                return original(metric, *args, **kwargs)
            return self._call(metric, name, partial(original, metric), *args, **kwargs)

        return replaced(kind, name, method)

    def _look(self) -> None:
        """Takes note of the metrics as their own methods left them."""
        for metric in self._metrics.values():
            what = f"the step looks into the state of a `{type(metric).__name__}`"
            # What a call has returned is the metric's, too, and is known by that call.
            self._tape.foreign((own for own in _tensors(metric) if not self._calls.has_returned(own)), what)
        self._python = self._state()

    def _compare(self) -> None:
        if self._python != self._state():
            self._tape.hazard("the step changes a metric past its methods")

    def _state(self) -> Any:
        held = [(key, value) for metric in self._metrics.values() for key, value in vars(metric).items()]
        return [(key, fingerprint(value, True, self._metrics)) for key, value in held if key not in _METHODS]


def _tensors(metric: nn.Module) -> Iterator[Tensor]:
    values = [*vars(metric).values(), *vars(metric).get("_buffers", {}).values()]
    leaves = (leaf for value in values for leaf in (value if isinstance(value, list) else [value]))
    yield from (leaf for leaf in leaves if isinstance(leaf, Tensor))


def keep_metrics(module: nn.Module) -> Callable[[], None]:
    """Returns what puts the metrics of a module back to where they are now."""
    metrics = [item for item in module.modules() if is_metric(item)]
    kept = [Attributes(Parts(metric)) for metric in metrics]
    tensors = (tensor for metric in metrics for part in metric.modules() for tensor in _tensors(part))
    contents = [(tensor, version(tensor), tensor.detach().clone()) for tensor in tensors]

    def restore() -> None:
        for attributes in kept:
            attributes.restore()
        with torch.no_grad():
            for tensor, seen, content in contents:
                if version(tensor) != seen:
                    tensor.copy_(content)

    return restore
