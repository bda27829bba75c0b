"""torchmetrics in a step: noted as calls, and made again on the host behind steps that a program ran.

A metric checks its arguments, counts, keeps lists: much of that no program can do, and none of it goes into the
training. So while a step is recorded, a call of `update`, `forward`, `compute` or `reset` of a metric that belongs to
the module is made as ever and noted with the tensors it got; those become outputs of the program, and for a step that
the program runs, the same calls are made with what it put out. What such a call returns may be logged; a step that
computes with it makes no program.

Private names of torchmetrics (1.x): `Metric._forward_cache`, the value that Lightning logs for a metric at a step.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn
from torchmetrics import Metric, MetricCollection

from lightning_sink.engine.private import pytree
from lightning_sink.engine.state.attributes import SCALARS, Same

_TENSOR = "a tensor of the step"


def is_metric(module: nn.Module) -> bool:
    """Tells whether a module is one whose calls are made on the host."""
    return isinstance(module, (Metric, MetricCollection))


@dataclass(frozen=True)
class MetricCall:
    """One call in a step, without its tensors.

    Attributes:
        arguments: What it was called with, `_TENSOR` in the place of each tensor.
        spec: How to rebuild them.
        device: The kind of device that the tensors were on.
        autocast: The type that autocast computed in there; None where it was off.
    """

    metric: Same
    method: str
    arguments: tuple[Any, ...]
    spec: Any
    grad: bool
    device: str
    autocast: torch.dtype | None
    shapes: tuple[tuple[int, ...], ...] = ()

    def is_like(self, other: MetricCall) -> bool:
        """Tells whether another step's call is the same but for its tensors; objects count by identity."""
        mine, theirs = self.arguments, other.arguments
        if replace(self, arguments=()) != replace(other, arguments=()) or len(mine) != len(theirs):
            return False
        pairs = zip(mine, theirs, strict=True)
        return all(a is b or (type(a) is type(b) and type(a) in SCALARS and a == b) for a, b in pairs)

    @property
    def count(self) -> int:
        """How many tensors it gets."""
        return sum(leaf is _TENSOR for leaf in self.arguments)

    def given(self, tensors: Iterable[Tensor]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Returns the arguments, by place and by name, with other tensors."""
        others = iter(tensors)
        leaves = [next(others) if leaf is _TENSOR else leaf for leaf in self.arguments]
        args, kwargs = pytree.tree_unflatten(leaves, self.spec)
        return args, kwargs

    @contextmanager
    def as_then(self) -> Iterator[None]:
        """Computes as the step did when it made the call."""
        enabled = self.autocast is not None
        with torch.set_grad_enabled(self.grad), torch.autocast(self.device, self.autocast, enabled=enabled):
            yield

    def repeat(self, tensors: Iterable[Tensor]) -> list[Any]:
        """Makes the call again with other tensors; returns the leaves of what it returns."""
        args, kwargs = self.given(tensors)
        metric = self.metric.value
        with self.as_then():
            out = getattr(metric, self.method)(*args, **kwargs)
        self.hand_out()
        return list(pytree.tree_leaves(out))

    def hand_out(self) -> None:
        """Has metrics of a collection share states, as they do when somebody asks for them, such as `log_dict`."""
        if isinstance(self.metric.value, MetricCollection):
            list(self.metric.value.values(copy_state=False))


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

    def is_of(self, number: int, call: MetricCall) -> bool:
        """Tells whether it is what a call returned, or what one of its metrics measured; the first has number 1."""
        if self.metric is None:
            return self.calls == number
        return any(part is self.metric.value for part in call.metric.value.modules())

    def value(self, out: list[Any]) -> Any:
        """Returns the value, given the leaves of what the last call returned."""
        if self.metric is not None:
            return self.metric.value._forward_cache
        return out[self.leaf or 0].detach().reshape(()).clone()


@dataclass
class MetricCalls:
    """The calls of one step.

    Attributes:
        tensors: The tensors that they got, all in one list.
    """

    calls: list[MetricCall] = field(default_factory=list)
    tensors: list[Tensor] = field(default_factory=list)
    metrics: list[nn.Module] = field(default_factory=list)
    _returned: dict[int, tuple[Tensor, Source]] = field(default_factory=dict)

    def copy(self) -> MetricCalls:
        """Returns the calls so far."""
        return MetricCalls(list(self.calls), list(self.tensors), list(self.metrics), dict(self._returned))

    def source(self, value: Any) -> Source | None:
        """Returns where a logged value comes from; None for one that the step computed."""
        if isinstance(value, Metric):
            known = any(value is metric for metric in self.metrics)
            return Source(len(self.calls), metric=Same(value, hold=True)) if known else None
        held, source = self._returned.get(id(value), (None, None))
        return source if held is value else None

    def add(self, metric: nn.Module, method: str, given: Any) -> None:
        """Notes a call that is about to be made."""
        leaves, spec = pytree.tree_flatten(given)
        tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
        arguments = tuple(_TENSOR if isinstance(leaf, Tensor) else leaf for leaf in leaves)
        # What the step does to a tensor after the call changes nothing.
        self.tensors += [tensor.detach().clone() for tensor in tensors]
        device = tensors[0].device.type if tensors else "cpu"
        autocast = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None
        shapes = tuple(tuple(tensor.shape) for tensor in tensors)
        grad = torch.is_grad_enabled()
        self.calls.append(MetricCall(Same(metric, hold=True), method, arguments, spec, grad, device, autocast, shapes))

    def has_returned(self, leaf: Tensor) -> bool:
        """Tells whether a call before has returned this very tensor."""
        return self._returned.get(id(leaf), (None,))[0] is leaf

    def returned(self, leaves: list[Any]) -> None:
        """Notes what the last call returned."""
        for index, leaf in enumerate(leaves):
            if isinstance(leaf, Tensor):
                self._returned[id(leaf)] = leaf, Source(len(self.calls), leaf=index)


def repeat(calls: Iterable[MetricCall], tensors: Iterable[Tensor], sources: Iterable[Source | None]) -> list[Any]:
    """Makes a step's calls again, with such tensors; returns the value of each source of a logged value.

    That is a 0-dim tensor, or what a metric measured in the batch. None for what the step computed itself.
    """
    remaining, wanted = iter(tensors), list(sources)
    values: list[Any] = [None] * len(wanted)

    def collect(made: int, out: list[Any]) -> None:
        for index, source in enumerate(wanted):
            if source is not None and source.calls == made:
                values[index] = source.value(out)

    collect(0, [])
    for made, item in enumerate(calls, start=1):
        collect(made, item.repeat(islice(remaining, item.count)))
    return values
