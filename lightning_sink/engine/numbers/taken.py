"""All numbers of a tensor at once, where steps only collect or return them: `self.seen.extend(found.tolist())`.

`Taken` stands for the array or list that `numpy()` or `tolist()` gives, until it is where it goes. To whoever asks it
for more it is what it stands for, and the recording then stands for no other step.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lightning_sink.engine.numbers.guards import Uses
from lightning_sink.engine.numbers.value import Value


def as_array(tensor: Tensor) -> Any:
    """Returns the numbers of a tensor that nobody else has as an array of numpy's."""
    return tensor.cpu().numpy()


def as_list(tensor: Tensor) -> Any:
    """Returns them as a list."""
    return tensor.tolist()


class Several(NamedTuple):
    """What a list is extended with at once."""

    items: Any


KINDS: dict[Any, Callable[[Tensor], Any]] = {torch.Tensor.numpy: as_array, torch.Tensor.tolist: as_list}
"""What makes the like of what these give."""


class Taken(Value):
    """Stands for the numbers of a tensor.

    Args:
        of: The tensor.
        value: What stands for all of its numbers in Python.
        kind: Makes the like of that.
        uses: Told of what is done with it.
        name: What users call it, and what tells it from others.
    """

    def __init__(self, of: Tensor, value: Any, kind: Callable[[Tensor], Any], uses: Uses, name: Any) -> None:
        super().__init__(of, value, uses, name)
        self.of, self.kind = of, kind

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        return type(self.value)

    def freeze(self) -> Any:
        """Returns what it stands for, which is needed by more than where it goes."""
        if not self.uses.closed:
            self.uses.leak(f"{self.words} is needed by more than a list, or what the step returns")
        return self.value

    def __getattr__(self, name: str) -> Any:
        return getattr(self.freeze(), name)


def _asking(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda self, *rest: function(self.freeze(), *rest)


def _asking_second(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda self, other: function(other, self.freeze())


_ASK: list[Callable[..., Any]] = [iter, len, bool, repr, str, format, hash, float, int, abs, operator.neg]
_ASK += [operator.getitem, operator.setitem, operator.contains, operator.eq, operator.ne]
_ASK += [operator.lt, operator.le, operator.gt, operator.ge]
for _function in _ASK:
    setattr(Taken, f"__{_function.__name__.strip('_')}__", _asking(_function))
for _name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul", "and_", "or_", "xor"):
    setattr(Taken, f"__{_name.strip('_')}__", _asking(getattr(operator, _name)))
    setattr(Taken, f"__r{_name.strip('_')}__", _asking_second(getattr(operator, _name)))
