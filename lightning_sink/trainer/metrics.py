"""torchmetrics in a step: noted as calls, and made again on the host after each step that a program ran.

A metric checks its arguments, counts, keeps lists: much of that no program can do, and none of it goes into the
training. So while a step is recorded, a call of `update`, `forward`, `compute` or `reset` of a metric that belongs to
the module is made as ever and noted with the tensors it got; those become outputs of the program, and for a step that
the program runs, the same calls are made with what it put out. What such a call returns may be logged; a step that
computes with it makes no program.

Private names of torchmetrics (1.x): `Metric._forward_cache`, the value that Lightning logs for a metric at a step;
`update` and `compute` of a `Metric` are attributes of the instance.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from copy import copy
from dataclasses import dataclass, field
from typing import Any

import torch
from lightning.pytorch import LightningModule
from torch import Tensor, nn
from torchmetrics import Metric, MetricCollection

from lightning_sink.engine.attributes import Same, fingerprint
from lightning_sink.engine.numbers import released
from lightning_sink.engine.private import pytree, version
from lightning_sink.engine.step import Tape

_METHODS = ("update", "forward", "compute", "reset")

_TENSOR = "a tensor of the step"

_CONSTANTS = (bool, int, float, complex, str, bytes, type(None), torch.dtype)


def is_metric(module: nn.Module) -> bool:
    """Tells whether a module is one whose calls are made on the host."""
    return isinstance(module, (Metric, MetricCollection))


@dataclass(frozen=True)
class MetricCall:
    """One call in a step, without its tensors.

    Attributes:
        metric: The metric.
        method: The method.
        arguments: What it was called with, `_TENSOR` in the place of each tensor.
        spec: How to rebuild them.
        grad: Whether gradients were on.
        autocast: The type that autocast computed in; None where it was off.
    """

    metric: Same
    method: str
    arguments: tuple[Any, ...]
    spec: Any
    grad: bool
    autocast: torch.dtype | None

    def repeat(self, tensors: Iterator[Tensor]) -> list[Any]:
        """Makes the call again with other tensors; returns the leaves of what it returns."""
        leaves = [next(tensors) if leaf is _TENSOR else leaf for leaf in self.arguments]
        args, kwargs = pytree.tree_unflatten(leaves, self.spec)
        metric = self.metric.value
        enabled = self.autocast is not None
        with torch.set_grad_enabled(self.grad), torch.autocast("cpu", self.autocast, enabled=enabled):
            out = getattr(metric, self.method)(*args, **kwargs)
        if isinstance(metric, MetricCollection):
            # Its metrics share states, which are handed out when somebody asks for them, such as `log_dict`.
            list(metric.values(copy_state=False))
        return list(pytree.tree_leaves(out))


@dataclass(frozen=True)
class Source:
    """Where on the host the value of a logged name comes from.

    Attributes:
        calls: How many of the step's calls had been made when it was logged.
        leaf: Which leaf of what the last of them returned; None for a metric, logged as an object.
        metric: That metric.
    """

    calls: int
    leaf: int | None = None
    metric: Same | None = None

    def value(self, out: list[Any]) -> Any:
        """Returns the value, given the leaves of what the last call returned."""
        if self.metric is not None:
            return self.metric.value._forward_cache
        return out[self.leaf or 0].detach().reshape(()).clone()


@dataclass
class MetricCalls:
    """The calls of one step.

    Attributes:
        calls: The calls, in order.
        tensors: The tensors that they got, all in one list.
    """

    calls: list[MetricCall] = field(default_factory=list)
    tensors: list[Tensor] = field(default_factory=list)
    _returned: dict[int, tuple[Tensor, Source]] = field(default_factory=dict)
    _metrics: list[nn.Module] = field(default_factory=list)

    def copy(self) -> MetricCalls:
        """Returns the calls so far."""
        return MetricCalls(list(self.calls), list(self.tensors), dict(self._returned))

    def source(self, value: Any) -> Source | None:
        """Returns where a logged value comes from; None for one that the step computed."""
        if isinstance(value, Metric):
            known = any(value is metric for metric in self._metrics)
            return Source(len(self.calls), metric=Same(value)) if known else None
        held, source = self._returned.get(id(value), (None, None))
        return source if held is value else None

    def add(self, metric: nn.Module, method: str, given: Any) -> None:
        """Notes a call that is about to be made."""
        leaves, spec = pytree.tree_flatten(given)
        tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
        arguments = tuple(_TENSOR if isinstance(leaf, Tensor) else leaf for leaf in leaves)
        # What the step does to a tensor after the call changes nothing.
        self.tensors += [tensor.detach().clone() for tensor in tensors]
        autocast = torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else None
        self.calls.append(MetricCall(Same(metric), method, arguments, spec, torch.is_grad_enabled(), autocast))

    def returned(self, leaves: list[Any]) -> None:
        """Notes what the last call returned."""
        for index, leaf in enumerate(leaves):
            if isinstance(leaf, Tensor):
                self._returned[id(leaf)] = leaf, Source(len(self.calls), leaf=index)

    @contextmanager
    def noted(self, module: LightningModule, tape: Tape) -> Iterator[None]:
        """Notes the calls of the module's metrics, which are made as ever."""
        self._metrics = [item for item in module.modules() if is_metric(item)]
        if not self._metrics:
            yield
            return
        with _Watcher(self, tape, self._metrics).watching():
            yield


def repeat(calls: Iterable[MetricCall], tensors: Iterable[Tensor], sources: Iterable[Source | None]) -> list[Any]:
    """Makes a step's calls again.

    Args:
        calls: The calls.
        tensors: The tensors that they get.
        sources: Where logged values come from.

    Returns:
        The value of each source: a 0-dim tensor, or what a metric measured in the batch. None for what the step
        computed itself.
    """
    remaining, wanted = iter(tensors), list(sources)
    values: list[Any] = [None] * len(wanted)

    def collect(made: int, out: list[Any]) -> None:
        for index, source in enumerate(wanted):
            if source is not None and source.calls == made:
                values[index] = source.value(out)

    collect(0, [])
    for made, item in enumerate(calls, start=1):
        collect(made, item.repeat(remaining))
    return values


def words(metric: nn.Module, method: str) -> str:
    """Returns what users call a call."""
    return f"`{type(metric).__name__}.{method}()`"


class _Watcher:
    """Stands before the methods of some metrics while a step is recorded.

    Args:
        calls: Takes the calls.
        tape: The step's tape.
        metrics: The metrics.
    """

    def __init__(self, calls: MetricCalls, tape: Tape, metrics: list[nn.Module]) -> None:
        self._calls = calls
        self._tape = tape
        self._metrics = {id(metric): metric for metric in metrics}
        self._inside = False
        self._python: Any = None

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Watches, and looks whether the metrics are changed in another way meanwhile."""
        with ExitStack() as stack:
            for metric in self._metrics.values():
                for own in [name for name in _METHODS if name in vars(metric)]:
                    stack.enter_context(self._before_attribute(metric, own))
            for kind in {type(metric) for metric in self._metrics.values()}:
                for name in [name for name in _METHODS if hasattr(kind, name)]:
                    stack.enter_context(self._before_method(kind, name))
            self._look()
            yield
            self._compare()

    def _call(self, metric: nn.Module, method: str, original: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        if self._inside:
            return original(*args, **kwargs)
        self._compare()
        given = released((args, kwargs))
        self._calls.add(metric, method, given)
        tensors = [leaf for leaf in pytree.tree_leaves(given) if isinstance(leaf, Tensor)]
        self._inside = True
        try:
            with self._tape.apart(words(metric, method), tensors):
                out = original(*given[0], **given[1])
        finally:
            self._inside = False
        leaves = pytree.tree_leaves(out)
        self._calls.returned(leaves)
        self._look()
        self._check(metric, method, given, leaves)
        return out

    def _check(self, metric: nn.Module, method: str, given: Any, leaves: list[Any]) -> None:
        what, tape = words(metric, method), self._tape
        strange = [leaf for leaf in pytree.tree_leaves(given) if not isinstance(leaf, (Tensor, *_CONSTANTS))]
        if strange:
            tape.hazard(f"{what} gets a `{type(strange[0]).__name__}`")
        if any(leaf is not None and not isinstance(leaf, Tensor) for leaf in leaves):
            tape.hazard(f"{what} returns what is no tensor")
        tensors = (leaf for leaf in leaves if isinstance(leaf, Tensor))
        tape.foreign(tensors, f"the step computes with what {what} returns")

    @contextmanager
    def _before_attribute(self, metric: nn.Module, name: str) -> Iterator[None]:
        original = vars(metric)[name]
        vars(metric)[name] = lambda *args, **kwargs: self._call(metric, name, original, args, kwargs)
        try:
            yield
        finally:
            vars(metric)[name] = original

    @contextmanager
    def _before_method(self, kind: Any, name: str) -> Iterator[None]:
        own, original = vars(kind).get(name), getattr(kind, name)

        def method(metric: Any, *args: Any, **kwargs: Any) -> Any:
            if id(metric) not in self._metrics:
                return original(metric, *args, **kwargs)
            return self._call(metric, name, lambda *a, **k: original(metric, *a, **k), args, kwargs)

        setattr(kind, name, method)
        try:
            yield
        finally:
            if own is None:
                delattr(kind, name)
            else:
                setattr(kind, name, own)

    def _look(self) -> None:
        """Takes note of the metrics as their own methods left them."""
        for metric in self._metrics.values():
            what = f"the step looks into the state of a `{type(metric).__name__}`"
            self._tape.foreign(_tensors(metric), what)
        self._python = self._state()

    def _compare(self) -> None:
        if self._python != self._state():
            self._tape.hazard("the step changes a metric past its methods")

    def _state(self) -> Any:
        held = [(key, value) for metric in self._metrics.values() for key, value in vars(metric).items()]
        return [(key, fingerprint(value, True, self._metrics)) for key, value in held if key not in _METHODS]


def _tensors(metric: nn.Module) -> Iterator[Tensor]:
    values = [*vars(metric).values(), *vars(metric).get("_buffers", {}).values()]
    yield from (leaf for value in values for leaf in (value if isinstance(value, list) else [value]) if _is(leaf))


def _is(leaf: Any) -> bool:
    return isinstance(leaf, Tensor)


class MetricStates:
    """What the metrics of a module hold at one moment, to go back to.

    Args:
        module: The module.
    """

    def __init__(self, module: nn.Module) -> None:
        within = [part for item in module.modules() if is_metric(item) for part in item.modules()]
        self._attributes = [(vars(metric), dict(vars(metric))) for metric in within]
        values = [value for _, held in self._attributes for value in held.values()]
        self._contents = [(value, copy(value)) for value in values if type(value) in (list, dict, set, deque)]
        tensors = (tensor for metric in within for tensor in _tensors(metric))
        self._tensors = [(tensor, version(tensor), tensor.detach().clone()) for tensor in tensors]

    def restore(self) -> None:
        """Puts everything back."""
        for attributes, held in self._attributes:
            attributes.clear()
            attributes.update(held)
        for container, content in self._contents:
            container.clear()
            (container.extend if isinstance(container, (list, deque)) else container.update)(content)
        with torch.no_grad():
            for tensor, seen, content in self._tensors:
                if version(tensor) != seen:
                    tensor.copy_(content)
