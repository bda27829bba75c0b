"""Which gradients of the step before a recorded step looks at, adds to, or clears before anything can.

No operation shows that there was none: autograd adds to a gradient that is there and sets one that is not, and Python
asks `parameter.grad is None`. So which ones are there is part of a step's way, but for those that it clears first.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

_OF_OPTIMIZERS = inspect.unwrap(Optimizer.zero_grad).__code__
_OF_MODULES = inspect.unwrap(nn.Module.zero_grad).__code__
_BACKWARD = inspect.unwrap(torch.autograd.backward).__code__
_PROPERTY: Any = Tensor.grad
_GETTER, _SETTER = _PROPERTY.__get__, _PROPERTY.__set__


class OldGradients:
    """What one recorded step does to them; tensors are told by their identities.

    Attributes:
        asked: The tensors that were asked for their gradients before these were cleared.
        cleared: Those whose gradients were set to None before somebody asked for them and before a backward pass.
    """

    def __init__(self) -> None:
        self.asked, self.cleared = set[int](), set[int]()
        self._may_be_added_to = False

    def called(self, frame: FrameType) -> None:
        """Takes note of a function that is about to run."""
        code = frame.f_code
        if code is _BACKWARD:
            self._may_be_added_to = True
        elif (code is _OF_OPTIMIZERS or code is _OF_MODULES) and frame.f_locals["set_to_none"]:
            self._clear(_tensors_of(frame.f_locals["self"]))

    def meets(self, func: Any, args: tuple[Any, ...]) -> None:
        """Takes note of a function of torch's that is about to be called: properties are such, by whatever name."""
        if func == _GETTER:
            if id(args[0]) not in self.cleared:
                self.asked.add(id(args[0]))
        elif func == _SETTER and args[1] is None:
            self._clear(args[:1])

    def _clear(self, tensors: Iterable[Tensor]) -> None:
        if not self._may_be_added_to:
            self.cleared |= {id(tensor) for tensor in tensors} - self.asked


def _tensors_of(owner: Optimizer | nn.Module) -> Iterable[Tensor]:
    if isinstance(owner, nn.Module):
        return owner.parameters()
    return [parameter for group in owner.param_groups for parameter in group["params"]]
