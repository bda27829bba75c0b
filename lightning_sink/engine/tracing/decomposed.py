"""Operations that are recorded as what they are made of, which a compiler joins with others.

Inductor does badly with operations on lists: the norms of one it calls through Python, at each step (an MLP that clips
its gradients took 141 microseconds a step so, and takes 27), and a graph with a transformer and lists it may not
compile at all (an `AssertionError` in `FusedSchedulerNode.reorder_loops_by_dep_pair`, torch 2.11). Those of a
`GradScaler` it does not know.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from lightning_sink.engine.private import is_on_lists, one_by_one

_ATEN = torch.ops.aten


def in_parts(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Callable[[], Any] | None:
    """Returns what runs an operation in parts; None where it is recorded as it is."""
    if func is _ATEN._amp_foreach_non_finite_check_and_unscale_.default:
        return lambda: _unscale(*args)
    if func is _ATEN._amp_update_scale_.default:
        return lambda: _update(*args)
    return (lambda: one_by_one(func, args, kwargs)) if is_on_lists(func) else None


def _unscale(gradients: list[Tensor], found_infinite: Tensor, inverse_scale: Tensor) -> None:
    are_finite = torch.stack([gradient.isfinite().all() for gradient in gradients]).all()
    found_infinite.copy_(torch.where(are_finite, found_infinite, 1.0))
    for gradient in gradients:
        gradient.mul_(inverse_scale)


def _update(
    scale: Tensor, tracker: Tensor, found_infinite: Tensor, growth: float, backoff: float, interval: int
) -> Tensor:
    """As torch does it: products of a float and a double, and no growth beyond what is finite."""
    is_infinite, tracked = found_infinite != 0, tracker + 1
    is_due = tracked == interval
    grown, reduced = ((scale.double() * factor).to(scale.dtype) for factor in (growth, backoff))
    present = torch.where(is_due & grown.isfinite(), grown, scale)
    tracker.copy_(torch.where(is_infinite | is_due, 0, tracked))
    return scale.copy_(torch.where(is_infinite, reduced, present))
