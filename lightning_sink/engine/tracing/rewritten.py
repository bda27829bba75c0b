"""Operations that a recording has in another way than the step, so that a program gives the same.

Indexing by a mask. How many elements it picks depends on what is in it, so no program can have the operation as it is.
Where nothing that changes went into the mask (`logits[~torch.eye(n, dtype=torch.bool)]`), it picks the same ones each
time, and these can be picked by their places. Where the batch alone did (`out[graph.train_mask]`), they can be picked
by places that the program looks up, as many as each batch is asked for (`Values.ones`).

`torch.unique` of whole numbers that the batch alone gives is such a case: sorted, the first one of each kind is a mask.

`torch.zeros_like(out)` and its like. Nothing but the shape of `out` goes into them, which is the same in each step of a
program, so they are recorded as `torch.full` of that shape: a mask that is made so, and filled from the batch, comes
from the batch alone.

`torch.multinomial` of one sample, or without replacement. On the host torch draws numbers that depend on the shape of
the weights alone, and divides the weights by them (2.11 to 2.15): in parts, its draws are those that can be made before
the step, in order with others.

Operations on lists, and those of a `GradScaler`, are recorded as what they are made of. Inductor does badly with the
first: the norms of a list it calls through Python, at each step (an MLP that clips its gradients took 141 microseconds
a step so, and takes 27), and a graph with a transformer and lists it may not compile at all (an `AssertionError` in
`FusedSchedulerNode.reorder_loops_by_dep_pair`, torch 2.11). The others it does not know.

Operations whose result has torch's default type. A training in `bf16-true` or `64-true` has another default type in its
step than around it, where programs are compiled and run: a quotient of whole numbers, `torch.full((), 0.1)` or
`torch.linspace(0, 1, 3)` would be of that.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, fx
from torch.fx.node import map_aggregate

from lightning_sink.engine.operands import members
from lightning_sink.engine.private import assert_async, is_on_lists, one_by_one, schema_name, takes_dtype

_INDEXES = frozenset(["aten::index", "aten::index_put", "aten::index_put_", "aten::_index_put_impl_"])
_ATEN = torch.ops.aten

WHOLE = frozenset([torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8])
"""Types of whole numbers that can be sorted and searched."""

_USUAL = torch.float32
_ONE_VALUE: dict[str, Callable[..., Any]] = {
    "aten::zeros_like": lambda like: 0,
    "aten::ones_like": lambda like: 1,
    "aten::full_like": lambda like, value: value,
    "aten::new_zeros": lambda like, size: 0,
    "aten::new_ones": lambda like, size: 1,
    "aten::new_full": lambda like, size, value: value,
}
"""Operations that give a tensor of one value, and what that is by their arguments."""
_COMPARISONS = frozenset(f"aten::{name}" for name in ("eq", "ne", "lt", "le", "gt", "ge"))


def by_places(
    func: Any, args: tuple[Any, ...], places_of: Callable[[Tensor, bool], list[Tensor] | None], run: Callable[..., Any]
) -> tuple[Any, tuple[Any, ...]]:
    """Returns an operation with its arguments, with the places of what masks pick instead of the masks.

    `places_of` returns the places of a mask's ones, by dimension; None where their number may be another in other
    steps. It is told whether the operation has no program then. `run` runs an operation that comes before.
    """
    if schema_name(func) in _INDEXES and any(_is_mask(index) for index in args[1]) and _are_of_its_size(*args[:2]):
        # One value for all that a mask picks can be put there without knowing how many they are.
        asks = len(args) == 2 or any(_is_mask(index) and _is_one_each(args[2], args[0], index) for index in args[1])
        found = [places_of(index, asks) if _is_mask(index) else [index] for index in args[1]]
        if all(places is not None for places in found):
            indices = [index for places in found if places is not None for index in places]
            return func, (args[0], indices, *args[2:])
    elif func is _ATEN.masked_select.default and args[0].shape == args[1].shape:  # not where one is spread for it
        if _is_mask(args[1]) and (places := places_of(args[1], True)):
            return _ATEN.index.Tensor, (args[0], places)
    elif func is _ATEN.nonzero.default and _is_mask(args[0]) and (places := places_of(args[0], True)):
        return _ATEN.t.default, (run(_ATEN.stack.default, (places,), {}),)  # which lies as it does there
    return func, args


def sorted_with_firsts(values: Tensor) -> tuple[Tensor, Tensor]:
    """Returns some values in order, and a mask of those that are others than the one before."""
    ordered = values.reshape(-1).sort().values
    first = torch.ones(1, dtype=torch.bool, device=values.device)
    return ordered, torch.cat([first, ordered[1:] != ordered[:-1]])


def distinct(values: Tensor, ordered: Tensor, places: Tensor, inverse: bool, counts: bool) -> tuple[Tensor, ...]:
    """Returns what `torch.unique` does of whole numbers, of which `places` are those of the mask's ones."""
    found, none = ordered[places], places[:0]
    which = torch.searchsorted(found, values.contiguous()) if inverse else none
    many = torch.searchsorted(ordered, found, right=True) - places if counts else none
    return found, which, many


def _are_of_its_size(tensor: Tensor, indices: Sequence[Tensor | None]) -> bool:
    """Tells whether masks have the size of the dimensions that they stand for; others are an error of torch's."""
    dim = 0
    for index in indices:
        of_mask = index.shape if index is not None and _is_mask(index) else None
        if of_mask is not None and of_mask != tensor.shape[dim : dim + len(of_mask)]:
            return False
        dim += 1 if of_mask is None else len(of_mask)
    return True


def _is_mask(index: Any) -> bool:
    return isinstance(index, Tensor) and index.dtype is torch.bool and index.dim() > 0


def _is_one_each(values: Tensor, of: Tensor, mask: Tensor) -> bool:
    """Tells whether there is a value for each element that a mask picks."""
    return values.numel() > 1 and values.dim() == of.dim() - mask.dim() + 1


def of_one_value(func: Any, args: tuple[Any, ...], out: Any) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
    """Returns arguments with which `torch.full` gives what an operation gave; None if it gave more than one value."""
    value = _ONE_VALUE.get(schema_name(func))
    if value is None or out.layout is not torch.strided:
        return None
    usual = torch.empty(out.shape, device="meta").stride()
    return (
        ((list(out.shape), value(*args)), {"dtype": out.dtype, "device": out.device}) if out.stride() == usual else None
    )


def in_parts(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Callable[[], Any] | None:
    """Returns what runs an operation in parts; None where it is recorded as it is."""
    if func is _ATEN._amp_foreach_non_finite_check_and_unscale_.default:
        return lambda: _unscale(*args)
    if func is _ATEN._amp_update_scale_.default:
        return lambda: _update(*args)
    if func is _ATEN.multinomial.default and _divides(*args, **kwargs):
        return lambda: _multinomial(*args[:2])
    return (lambda: one_by_one(func, args, kwargs)) if is_on_lists(func) else None


def _divides(weights: Tensor, samples: int, replacement: bool = False, generator: Any = None) -> bool:
    """Tells whether samples are drawn by dividing the weights; in half precision a compiler may round otherwise."""
    is_usual = weights.device.type == "cpu" and weights.dtype in (torch.float32, torch.float64) and generator is None
    is_right = weights.dim() in (1, 2) and weights.numel() > 0 and 0 < samples <= weights.shape[-1]
    return is_usual and is_right and (samples == 1 or not replacement)


def _multinomial(weights: Tensor, samples: int) -> Tensor:
    are_valid = (weights.max() < math.inf) & (weights.min() >= 0)
    assert_async(are_valid, "probability tensor contains either `inf`, `nan` or element < 0")
    assert_async((weights.sum(-1) != 0).all(), "invalid multinomial distribution (sum of probabilities <= 0)")
    divided = weights / torch.empty_like(weights).exponential_()
    return divided.argmax(-1, keepdim=True) if samples == 1 else divided.topk(samples).indices


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


def with_types(
    func: Any, args: Any, kwargs: dict[str, Any], out: Any, cast: Callable[[fx.Node, torch.dtype], fx.Node]
) -> tuple[Any, dict[str, Any]]:
    """Returns an operation's arguments, nodes in the place of tensors, so that it no longer asks for the default type.

    It gave `out`; `cast` returns a node of another type.
    """
    default = torch.get_default_dtype()
    if default is _USUAL or not isinstance(out, Tensor) or members(torch.dtype, args):
        return args, kwargs
    types = [node.meta["layout"][2] for node in members(fx.Node, (*args, *kwargs.values())) if node.meta["layout"]]
    if takes_dtype(func):
        is_given = kwargs.get("dtype") is not None or any(dtype.is_complex for dtype in types)
        return args, kwargs if is_given else {**kwargs, "dtype": out.dtype}
    are_whole = bool(types) and not any(dtype.is_floating_point or dtype.is_complex for dtype in types)
    compares = schema_name(func) in _COMPARISONS and bool(members(float, args))
    if not are_whole or not (compares or out.dtype is default):
        return args, kwargs

    def converted(value: Any) -> Any:
        return cast(value, default) if isinstance(value, fx.Node) else value

    new_args, new_kwargs = map_aggregate((args, kwargs), converted)
    return new_args, new_kwargs
