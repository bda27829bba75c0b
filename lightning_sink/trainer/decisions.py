"""What Python decides by values of tensors in a call: seen in one, and decided alike for many that are made at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode


class Differs(Exception):
    """A call asks for more, or fewer, decisions than the first one did."""


class Decisions(TorchFunctionMode):
    """Sees what Python decides by tensors; or, with that `known`, decides the same for all steps at once, in order.

    Attributes:
        taken: What was decided.
        asked: By what, where it was known.
    """

    def __init__(self, known: Sequence[bool] | None = None) -> None:
        super().__init__()
        self._known = known
        self.taken: list[bool] = []
        self.asked: list[Tensor] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Answers what decides, and counts in a way for which there is a rule of `vmap`'s."""
        kwargs = kwargs or {}
        if func is Tensor.__bool__:
            return self._decide(args[0])
        if self._known is not None and func is torch.bincount and len(args) == 1 and [*kwargs] == ["minlength"]:
            return self._count(args[0], kwargs["minlength"])
        if self._known is not None and func is Tensor.__setitem__ and isinstance(args[2], (int, float)):
            tensor, where, value = args
            if isinstance(where, Tensor) and where.dtype is torch.bool and where.ndim:
                tensor.masked_fill_(where.reshape(*where.shape, *(1 for _ in tensor.shape[where.ndim :])), value)
                return None
        return func(*args, **kwargs)

    def _decide(self, asked: Tensor) -> bool:
        if self._known is None:
            self.taken.append(bool(asked))
            return self.taken[-1]
        if len(self.asked) == len(self._known):
            raise Differs
        self.asked.append(asked)
        return self._known[len(self.asked) - 1]

    def _count(self, values: Tensor, bins: int) -> Tensor:
        is_one = (values >= 0) & (values < bins)
        counts = torch.zeros(bins, dtype=torch.int64, device=values.device)
        return counts.scatter_add(0, torch.where(is_one, values, 0).long(), is_one.long())


def as_decided(asked: Sequence[Tensor], decided: Sequence[bool]) -> bool:
    """Tells whether values decide what was decided, in every step."""
    agree = [(one == answer).all() for one, answer in zip(asked, decided, strict=True)]
    return not agree or bool(torch.stack(agree).all())
