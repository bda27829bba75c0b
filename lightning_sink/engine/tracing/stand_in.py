"""Functions that look at values, called in a way that a program can repeat.

Owns the mode that sees every function of torch's which a recorded step calls, before it becomes operations. Where one
takes a value out of a tensor only to log it or compute with it, or only to refuse a wrong one, there is another way to
the same: a stand-in for the number, a check that stays in the program, an operation on the tensors themselves.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from lightning_sink.engine.failures import INVALID_VALUES
from lightning_sink.engine.numbers.beside_tensors import tensor_of
from lightning_sink.engine.numbers.math_functions import CONVERTING, CONVERTS
from lightning_sink.engine.numbers.number import Number
from lightning_sink.engine.numbers.released import released
from lightning_sink.engine.numbers.taken import KINDS
from lightning_sink.engine.private import assert_async, is_all_true
from lightning_sink.engine.tracing.moved import puts_data
from lightning_sink.engine.tracing.of_torchmetrics import CALLED, other_way
from lightning_sink.engine.tracing.recording import Paused


class StandInMode(TorchFunctionMode):
    """Calls such functions in another way.

    `number` returns the stand-in for a tensor's value, which a frame asks for; None where there is none. `taking` is
    called in the place of what gives Python's numbers of a tensor otherwise, with that, its arguments and the frame;
    `put_data` in the place of what gives a tensor other memory, with that and its arguments. `meets` is told of all.
    """

    def __init__(
        self,
        number: Callable[[Tensor, FrameType], Number | None],
        put_data: Callable[..., None],
        paused: Paused,
        meets: Callable[[Any, tuple[Any, ...]], None] = lambda func, args: None,
        taking: Callable[..., Any] = lambda func, args, kwargs, caller: func(*args, **kwargs),
    ) -> None:
        super().__init__()
        self._number, self._put_data, self._paused, self._meets, self._taking = number, put_data, paused, meets, taking

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Calls a function with stand-ins in the place of numbers, where it can."""
        kwargs = kwargs or {}
        self._meets(func, args)
        if func is torch.Tensor.item:
            caller = sys._getframe(1)
            number = self._number(args[0], cast(FrameType, caller.f_back) if caller.f_code is CONVERTS else caller)
            if number is not None:
                return number
        elif func in KINDS or func in CONVERTING:
            return self._taking(func, args, kwargs, sys._getframe(1))
        elif func in (torch.tensor, torch.as_tensor):  # ask for none of a stand-in's methods
            if len(args) == 1 and type(args[0]) is Number and kwargs.keys() <= {"dtype"}:
                return tensor_of(args[0], kwargs.get("dtype"))
            if len(args) == 1 and not kwargs and _are_numbers_alike(args[0]):
                return torch.stack(list(args[0])).to(torch.get_default_device())
            args = released(args)
        elif func is F.one_hot and len(args) + len(kwargs) == 2 and kwargs.keys() <= {"num_classes"}:
            classes = args[1] if len(args) == 2 else kwargs["num_classes"]
            if _has_classes(args[0], classes):
                return _one_hot(args[0], classes)
        elif puts_data(func):
            return self._put_data(func, *args)
        elif func is is_all_true:
            return self._is_all_true(args[0], sys._getframe(1))
        elif func in CALLED:
            out = other_way(func, args, kwargs, sys._getframe(1), self._paused)
            if out is not NotImplemented:
                return out
        return func(*args, **kwargs)

    def _is_all_true(self, valid: Tensor, caller: FrameType) -> Any:
        """Lets the checks of `torch.distributions`, which raise an error or do nothing, stay in the program."""
        if caller.f_globals.get("__name__") != "torch.distributions.distribution":
            return is_all_true(valid)
        with self._paused():
            if not (holds := is_all_true(valid)):
                return holds
        held = caller.f_locals
        what = f"parameter {held['param']}" if "param" in held else "value argument"
        message = f"{what} of distribution {type(held.get('self')).__name__}: expected other values, {INVALID_VALUES}"
        assert_async(torch.all(valid), message)
        return True


def _are_numbers_alike(value: Any) -> bool:
    """Tells whether a value is a list of tensors of one number each, of one type, of which none asks for gradients.

    `torch.tensor` of one, as Lightning's `grad_norm` calls it, reads their values; what it makes of them is the same
    tensors, stacked.
    """
    if type(value) not in (list, tuple) or not value or any(type(item) is not Tensor for item in value):
        return False
    first = value[0]
    return all(
        item.dim() == 0 and not item.requires_grad and (item.dtype, item.device) == (first.dtype, first.device)
        for item in value
    )


def _has_classes(tensor: Any, classes: Any) -> bool:
    known = type(classes) is int and classes > 0
    return known and type(tensor) is Tensor and tensor.dtype is torch.int64 and tensor.numel() > 0


def _one_hot(tensor: Tensor, classes: int) -> Tensor:
    """Does what `one_hot` does of a known number of classes, with its two checks as operations."""
    assert_async(torch.all(tensor >= 0), "Class values must be non-negative.")
    assert_async(torch.all(tensor < classes), "Class values must be smaller than num_classes.")
    zeros = torch.zeros((*tensor.shape, classes), dtype=torch.int64, device=tensor.device)
    return zeros.scatter_(-1, tensor.unsqueeze(-1), 1)
