"""Which gradients of the step before a recorded step looks at, adds to, or clears before anything can.

No operation shows that there was none: autograd adds to a gradient that is there and sets one that is not, and Python
asks `parameter.grad is None`. So which ones are there is part of a step's way, but for those that it clears first.

Hooks of a backward pass, and what a function of torch's calls back, run where no mode sees what they ask for.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Iterable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from lightning_sink.engine.private import sees_functions
from lightning_sink.engine.tracing.stand_in import StandInMode
from lightning_sink.engine.watch import is_user_frame

_PACKAGE = f"{Path(__file__).parents[2]}{os.sep}"
_OF_OPTIMIZERS = inspect.unwrap(Optimizer.zero_grad).__code__
_OF_MODULES = inspect.unwrap(nn.Module.zero_grad).__code__
_BACKWARD = inspect.unwrap(torch.autograd.backward).__code__
_PROPERTY: Any = Tensor.grad
_GETTER, _SETTER, _DELETER = _PROPERTY.__get__, _PROPERTY.__set__, _PROPERTY.__delete__
_REQUIRES: Any = Tensor.requires_grad
_ASKS = (Tensor.requires_grad_, _REQUIRES.__set__)


class OldGradients:
    """What one recorded step does to them; tensors are told by their identities.

    Attributes:
        asked: The tensors that were asked for their gradients before these were cleared.
        asks_unseen: Whether code ran that may have asked any.
        cleared: Those whose gradients were set to None before somebody asked for them and before a backward pass.
        given: Those whose gradients were set, or cleared first, each with what it had before.
        switched: Those that were told to have gradients from there on, or none.
        found: The leaves that were asked, each with whether it had a gradient of the step before.
    """

    def __init__(self) -> None:
        self.asked, self.cleared, self.switched = set[int](), set[int](), set[int]()
        self.found = dict[int, tuple[Tensor, bool]]()
        self.given = dict[int, tuple[Tensor, Tensor | None]]()
        self.asks_unseen = self._may_be_added_to = False
        # Code that has nothing to do with them, by identity: most calls are of such. And whether other code names them.
        self._others = dict[int, CodeType]()
        self._names = dict[int, tuple[CodeType, bool]]()

    def called(self, frame: FrameType) -> None:
        """Takes note of a function that is about to run."""
        code = frame.f_code
        if id(code) in self._others:
            return
        if id(code) not in self._names:
            self._names[id(code)] = code, _names_gradients(code)
        names_them, clears = self._names[id(code)][1], code is _OF_OPTIMIZERS or code is _OF_MODULES
        if code is _BACKWARD:
            self._may_be_added_to = True
        elif not (names_them or is_user_frame(frame)):
            self._others[id(code)] = code
        elif not (clears or ((names_them or self._may_be_added_to) and not self.asks_unseen)):
            return  # whichever modes there are
        elif not sees_functions(StandInMode):
            # In a backward pass nothing that they would have counted as clears any more.
            self.asks_unseen = self.asks_unseen or names_them or self._may_be_added_to
        elif clears and frame.f_locals["set_to_none"]:
            self._clear(_tensors_of(frame.f_locals["self"]))

    def meets(self, func: Any, args: tuple[Any, ...]) -> None:
        """Takes note of a function of torch's that is about to be called: properties are such, by whatever name."""
        if func == _GETTER:
            if id(args[0]) not in self.cleared:
                self._ask(args[0])
            else:  # by what clears it
                self.given.setdefault(id(args[0]), (args[0], _GETTER(args[0])))
        elif func in (_SETTER, _DELETER):
            self.given.setdefault(id(args[0]), (args[0], _GETTER(args[0])))
            if func == _DELETER or args[1] is None:
                self._clear(args[:1])
        elif func in _ASKS:
            self.switched.add(id(args[0]))

    def _ask(self, tensor: Tensor) -> None:
        if tensor.is_leaf and id(tensor) not in self.asked:
            self.found[id(tensor)] = tensor, _GETTER(tensor) is not None and not self._may_be_added_to
        self.asked.add(id(tensor))

    def _clear(self, tensors: Iterable[Tensor]) -> None:
        if not (self._may_be_added_to or self.asks_unseen):
            self.cleared |= {id(tensor) for tensor in tensors} - self.asked


def _names_gradients(code: CodeType) -> bool:
    named = [code.co_names, code.co_consts, *(each for each in code.co_consts if isinstance(each, tuple))]
    return any("grad" in names for names in named) and not code.co_filename.startswith(_PACKAGE)


def _tensors_of(owner: Optimizer | nn.Module) -> Iterable[Tensor]:
    if isinstance(owner, nn.Module):
        return owner.parameters()
    return [parameter for group in owner.param_groups for parameter in group["params"]]
