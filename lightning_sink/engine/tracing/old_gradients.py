"""Whether a step looks at gradients that the step before has left: which ones are there is then part of its way.

No operation shows that there was none (`parameter.grad is None`). The user's lines tell it by their names; functions of
libraries name gradients in each step, so what counts is whether one is called before the optimizer clears them.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from types import CodeType, FrameType

from torch.optim import Optimizer

_CLEARS = inspect.unwrap(Optimizer.zero_grad).__code__
_OPTIMIZERS = "torch.optim."
"""Modules whose functions begin before the closure that clears, and look at gradients behind it."""


class OldGradients:
    """What one recorded step asks for."""

    def __init__(self) -> None:
        self._are_cleared = self._asked = False

    def called(self, frame: FrameType) -> None:
        """Takes note of a function that is about to run."""
        code = frame.f_code
        if self._are_cleared or self._asked:
            return
        if code is _CLEARS:
            self._are_cleared = True
        elif _names_them(code):
            self._asked = not frame.f_globals.get("__name__", "").startswith(_OPTIMIZERS)

    def are_asked_for(self, ran: Iterable[CodeType]) -> bool:
        """Tells whether the step has looked at them; `ran` is the code of the user's that it has run."""
        return self._asked or any(map(_names_them, ran))


def _names_them(code: CodeType) -> bool:
    return "grad" in code.co_names or "grad" in code.co_consts
