"""What a step leaves on its batch's tensors, and what it puts into the batch.

On a tensor: `x.requires_grad_()`, its gradient, hooks on it. Into a batch: `batch["pred"] = out`,
`graph.x = graph.x * 0.9`, `batch.append(loss)`. There it is when the batch comes again, as it does from a list of
batches, and autograd adds to gradients that are there; callbacks that are shown the batch, and code outside of the
step, find it there, too. A program leaves none of it. So a step that leaves something is one for programs only where
the batch is known to be nobody else's. One that is run again finds its batch as the first run did.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from types import FunctionType, MethodType, ModuleType
from typing import Any, NamedTuple

from torch import Tensor, nn

from lightning_sink.engine.private import tensor_hooks, version
from lightning_sink.engine.state.attributes import are_the_same, items_of

_DEEPEST = 4
"""Objects inside of objects that are looked into, as for a batch's signature."""

_NO_RECORDS = (type, nn.Module, ModuleType, FunctionType, MethodType)


class _OnTensor(NamedTuple):
    """What is on a tensor.

    Attributes:
        version: Of the gradient, which counts what is added to it.
        hooks: Of each kind, by their numbers.
    """

    requires_grad: bool
    gradient: Tensor | None
    version: int
    hooks: list[dict[int, Any]]

    @classmethod
    def at(cls, tensor: Tensor) -> _OnTensor:
        gradient = tensor.grad if tensor.is_leaf else None
        hooks = [dict(held or {}) for held in tensor_hooks(tensor)]
        return cls(tensor.requires_grad, gradient, 0 if gradient is None else version(gradient), hooks)

    def is_as(self, other: _OnTensor) -> bool:
        return self.gradient is other.gradient and self._replace(gradient=None) == other._replace(gradient=None)


class BatchGradients:
    """What is on a batch's tensors before a step."""

    def __init__(self, leaves: Sequence[Tensor]) -> None:
        self._before = [(leaf, _OnTensor.at(leaf)) for leaf in leaves if leaf.is_leaf]

    def are_left(self) -> bool:
        """Tells whether the step has left something there."""
        return not all(_OnTensor.at(leaf).is_as(look) for leaf, look in self._before)

    def restore(self) -> None:
        """Puts back what was there; what a gradient holds is put back with other memory."""
        for leaf, look in self._before:
            if _OnTensor.at(leaf).is_as(look):
                continue
            if not leaf.is_leaf and leaf._base is None:  # what asks for a gradient was written into it
                leaf.detach_()
            for held, before in zip(tensor_hooks(leaf), look.hooks, strict=True):
                for number in (held or {}).keys() - before.keys():
                    del held[number]
            if leaf.is_leaf:
                leaf.requires_grad_(look.requires_grad)
                leaf.grad = look.gradient


class _Look(NamedTuple):
    """What something holds that may be given others; names are there for dictionaries, and attributes."""

    holder: Any
    names: list[Any]
    held: list[Any]

    @classmethod
    def at(cls, holder: Any) -> _Look:
        if isinstance(holder, dict):
            return cls(holder, [*dict.keys(holder)], [*dict.values(holder)])
        if dataclasses.is_dataclass(holder):  # one with slots
            names = [field.name for field in dataclasses.fields(holder)]
            return cls(holder, names, [_attribute(holder, name) for name in names])
        return cls(holder, [], items_of(holder))

    def now(self) -> _Look:
        """Returns what the same holder holds by now."""
        return self.at(self.holder)

    def is_as(self, other: _Look) -> bool:
        is_alike = are_the_same(self.names, other.names) and are_the_same(self.held, other.held)
        return self.holder is other.holder and is_alike


class BatchContents:
    """What a batch holds before a step; `yielded` is what it was made of, or the batch itself, and may come again."""

    def __init__(self, batch: Any = None, yielded: Any = None) -> None:
        self._batch = batch
        self._before = [*_looks(batch, _DEEPEST)]
        self._kept = {id(look.holder) for look in _looks(yielded, _DEEPEST)}

    def are_changed(self) -> bool:
        """Tells whether the step has put something else into the batch, or taken something out."""
        present = [*_looks(self._batch, _DEEPEST)]
        return len(present) != len(self._before) or not all(map(_Look.is_as, present, self._before))

    def are_left(self) -> bool:
        """Tells whether some of that is in what the loader has yielded, and not in a copy of it."""
        return any(not look.is_as(look.now()) for look in self._before if id(look.holder) in self._kept)

    def restore(self) -> None:
        """Puts back what was there."""
        for look in self._before:
            if look.is_as(look.now()):
                continue
            if type(look.holder) is list:
                look.holder[:] = look.held
            elif isinstance(look.holder, dict):
                dict.clear(look.holder)
                dict.update(look.holder, zip(look.names, look.held, strict=True))
            elif dataclasses.is_dataclass(look.holder):
                for name, held in zip(look.names, look.held, strict=True):
                    object.__setattr__(look.holder, name, held)


def _looks(item: Any, depth: int) -> Iterator[_Look]:
    """Yields what an item holds, and what is held by that. Runs no code of the user's."""
    if isinstance(item, _NO_RECORDS):
        return
    holder = item
    if not isinstance(item, (list, tuple, dict)):
        holder, depth = _attributes(item) if depth else None, depth - 1
        if holder is None:
            return
    look = _Look.at(holder)
    if not isinstance(holder, tuple):
        yield look
    for each in look.held:
        yield from _looks(each, 0 if isinstance(item, Tensor) else depth)


def _attributes(item: Any) -> Any:
    """Returns what holds an object's attributes: its dictionary, itself for a dataclass with slots, None for others."""
    held = _attribute(item, "__dict__")
    return held if type(held) is dict else item if dataclasses.is_dataclass(item) else None


def _attribute(item: Any, name: str) -> Any:
    """Returns an attribute without asking `__getattr__`, which may know any name, or fail; None where there is none."""
    try:
        return object.__getattribute__(item, name)
    except AttributeError:
        return None
