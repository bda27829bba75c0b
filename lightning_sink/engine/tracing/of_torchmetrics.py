"""What functions of torchmetrics do that no program can repeat, called in a way that one can.

Before `accuracy(logits.argmax(1), y, ...)` counts, it looks at the values that it is given and raises an error or does
nothing; how many distinct ones there are, and how far a count goes, are shapes that depend on them. The checks stay in
the program, and counts go as far as there are classes.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import FrameType
from typing import Any

import torch
from torch import Tensor

from lightning_sink.engine.private import (
    TORCHMETRICS_CHECKS,
    TORCHMETRICS_COUNTS,
    TORCHMETRICS_NORMALIZES,
    assert_async,
)
from lightning_sink.engine.tracing.recording import Paused

_DEVICE = Tensor.device.__get__

CALLED = frozenset([torch.unique, torch.bincount, Tensor.__bool__, Tensor.any, _DEVICE])
"""The functions of torch's by which they do it."""


def other_way(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], frame: FrameType, paused: Paused) -> Any:
    """Returns what a function of torch's gives in another way, where one of torchmetrics' calls it by way of a frame.

    `NotImplemented` for any other call; in what is `paused` nothing is recorded.
    """
    caller: FrameType | None = frame
    while caller is not None and _module(caller).startswith("torch."):
        caller = caller.f_back
    if caller is None or not _module(caller).startswith("torchmetrics."):
        return NotImplemented
    name, held = caller.f_code.co_name, caller.f_locals
    if name == TORCHMETRICS_COUNTS and func is torch.bincount:
        return _counts(paused, *args, **kwargs)
    if name == TORCHMETRICS_NORMALIZES and func in (_DEVICE, Tensor.any) and held["tensor"].device.type == "cpu":
        return torch.device("meta") if func == _DEVICE else _are_logits(held["tensor"])
    if name.endswith(TORCHMETRICS_CHECKS) and func in (torch.unique, Tensor.__bool__):
        return _distinct(paused, args[0], held, name) if func is torch.unique else _is_refused(paused, args[0], name)
    return NotImplemented


def _distinct(paused: Paused, values: Tensor, held: Mapping[str, Any], name: str) -> Tensor:
    """Returns what tells a check as much as the distinct ones of some values.

    One that has the number of classes asks how many these are, any other what they are.
    """
    classes = held.get("num_classes")
    if classes is None:
        return values.flatten()
    most = classes + (held.get("ignore_index") is not None)
    with paused():
        distinct: Tensor = values.unique()
    if len(distinct) <= most:
        ordered = values.flatten().sort().values
        others = (ordered[1:] != ordered[:-1]).sum()
        assert_async(others < most, f"Detected more unique values than expected. Expected only {most} ({name})")
    return distinct


def _is_refused(paused: Paused, is_wrong: Tensor, name: str) -> bool:
    with paused():
        if is_wrong.item():
            return True
    assert_async(is_wrong.logical_not(), f"Detected other values than expected ({name})")
    return False


def _counts(paused: Paused, values: Tensor, minlength: int = 0, **kwargs: Any) -> Any:
    with paused():
        goes_further = not values.numel() or bool(values.max() >= minlength)
    if goes_further or kwargs:
        return NotImplemented
    zeros = torch.zeros(minlength, dtype=torch.int64, device=values.device)
    return zeros.scatter_add(0, values, torch.ones_like(values))


def _module(frame: FrameType) -> str:
    name: str = frame.f_globals.get("__name__", "")
    return name


def _are_logits(values: Tensor) -> Tensor:
    """Tells whether some values are no probabilities, as torchmetrics asks on a CPU: a NaN is none."""
    are_probabilities: Tensor = torch.all((values >= 0) * (values <= 1))
    return are_probabilities.logical_not()
