"""Calls of loggers that a step makes by hand: `self.logger.experiment.add_scalar("loss", loss, self.global_step)`.

What such a call writes goes into no step, so it is made again on the host for each step that a program runs, in the
steps' order, and before the row of `self.log` that belongs to the step. `logger_watch.py` finds them in recorded steps;
here is what one is called with: the program puts out all of its numbers in one tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lightning_sink.engine.numbers.given import Given
from lightning_sink.engine.private import pytree
from lightning_sink.engine.state.attributes import Same

_CONSTANTS = (str, bool, type(None))
_WHOLE = frozenset([torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64])
_MOST, _HALF = 1 << 53, 32
"""How large whole numbers are that float64 has all of; larger ones are put out in halves of so many bits."""


class _Number(NamedTuple):
    """Stands for a number among the arguments of a call.

    Attributes:
        kind: Its type: Python's, or `Tensor`.
        dtype: Of a tensor.
        shape: Of a tensor, which has one element.
        in_halves: Whether it is put out as two numbers.
    """

    kind: Callable[[Any], Any]
    dtype: torch.dtype | None = None
    shape: tuple[int, ...] = ()
    in_halves: bool = False

    def taken(self, numbers: Iterator[float]) -> Any:
        """Returns the like of it, made of the next numbers."""
        number = next(numbers)
        if self.in_halves:
            number = (int(number) << _HALF) + int(next(numbers))
        if self.kind is Tensor:
            return torch.tensor(number, dtype=self.dtype, device="cpu").reshape(self.shape)
        return self.kind(number)


@dataclass(frozen=True)
class HandCall:
    """One call in a step; its value is a tensor of float64 with all numbers that it is called with, `[numbers]`.

    Attributes:
        target: Whose method is called: which of the Trainer's loggers, or the object.
        is_of_writer: Whether it is a method of that logger's `experiment`.
        arguments: What it is called with, `_Number` in the place of numbers.
        form: How to rebuild these, in words; `spec` does it.
    """

    target: int | Same
    is_of_writer: bool
    method: str
    arguments: tuple[Any, ...]
    form: str
    spec: Any = field(compare=False, repr=False)
    name = source = None
    """It logs under no name, and what no metric gives."""

    @classmethod
    def of(cls, target: int | Same, is_of_writer: bool, method: str, leaves: list[Any], spec: Any) -> HandCall:
        """Returns that of a method with such arguments, `Given` in the place of numbers that the step computes."""
        return cls(target, is_of_writer, method, tuple(map(_argument, leaves)), repr(spec), spec)

    def make(self, trainer: Any, numbers: Sequence[float]) -> None:
        """Makes the call with a step's numbers."""
        given = iter(numbers)
        leaves = [leaf.taken(given) if type(leaf) is _Number else leaf for leaf in self.arguments]
        args, kwargs = pytree.tree_unflatten(leaves, self.spec)
        if isinstance(self.target, Same):
            target = self.target.value
        else:
            logger = trainer.loggers[self.target]
            target = logger.experiment if self.is_of_writer else logger
        getattr(target, self.method)(*args, **kwargs)


@dataclass
class DueCalls:
    """Calls that a part of a recorded step makes when it has ended: one that has to be run again has made none."""

    _calls: list[Callable[[], Any]] = field(default_factory=list)

    def add(self, function: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> None:
        """Takes a call. What the step does to a tensor behind it changes nothing."""
        args, kwargs = pytree.tree_map_only(Tensor, lambda tensor: tensor.detach().clone(), (args, kwargs))
        self._calls.append(partial(function, *args, **kwargs))

    def make(self) -> None:
        """Makes them."""
        while self._calls:
            self._calls.pop(0)()


def may_be_written(leaf: Any) -> bool:
    """Tells whether an argument is a number, or stays as it is."""
    if isinstance(leaf, Tensor):
        is_known = leaf.dtype.is_floating_point or leaf.dtype in _WHOLE
        return leaf.numel() == 1 and leaf.layout is torch.strided and is_known
    if isinstance(leaf, Given):
        return leaf.is_number
    return type(leaf) in (float, *_CONSTANTS) or (type(leaf) is int and abs(leaf) <= _MOST)


def numbers_of(leaves: list[Any]) -> Tensor:
    """Returns what a program has to put out for a call with such arguments."""
    found = list[Tensor]()
    for leaf in leaves:
        tensor = leaf.tensor if isinstance(leaf, Given) else leaf
        if type(tensor) in _CONSTANTS:
            continue
        number = tensor if isinstance(tensor, Tensor) else torch.tensor(tensor, dtype=torch.float64, device="cpu")
        number = number.detach().reshape(()).to("cpu")
        if _is_wide(leaf):
            whole = number.to(torch.int64)
            found += [whole >> _HALF, whole & ((1 << _HALF) - 1)]
        else:
            found.append(number)
    found = found or [torch.zeros((), device="cpu")]
    return torch.stack([number.to(torch.float64) for number in found])


def _argument(leaf: Any) -> Any:
    if isinstance(leaf, Given):
        return _Number(leaf.kind, in_halves=_is_wide(leaf))
    if isinstance(leaf, Tensor):
        return _Number(Tensor, leaf.dtype, tuple(leaf.shape), _is_wide(leaf))
    return leaf if type(leaf) in _CONSTANTS else _Number(type(leaf), in_halves=_is_wide(leaf))


def _is_wide(leaf: Any) -> bool:
    """Tells whether a number may be one that float64 has not; a whole number of Python's stands for any such."""
    if isinstance(leaf, Tensor):
        return leaf.dtype is torch.int64
    return (leaf.kind if isinstance(leaf, Given) else type(leaf)) is int
