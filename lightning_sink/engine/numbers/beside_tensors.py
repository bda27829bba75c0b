"""Numbers that change from step to step, beside tensors: what an operation of torch's is given in their place."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from lightning_sink.engine.numbers.released import released
from lightning_sink.engine.numbers.result_types import (
    COMPARE,
    DIVIDE,
    REMAINDERS,
    are_whole,
    as_with_python_number,
    as_wrapped,
    result_type_is_known,
)
from lightning_sink.engine.numbers.value import Value, is_value


def call(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Lets a tensor operation take numbers as the tensors they stand for.

    The few operations of optimizers that take a scalar only (`alpha=`, `value=`, the weight of `lerp`) are rewritten.
    Anything else that refuses a tensor gets the plain number.
    """
    kwargs = dict(kwargs)
    given = [*args, *kwargs.values()]
    numbers = [item for item in given if is_value(item)]
    if all(number.uses.closed for number in numbers) or any(number.is_needed_plainly for number in numbers):
        return func(*released(args), **released(kwargs))
    name = getattr(func, "__name__", "")
    if (
        name.startswith("_foreach_")
        and not is_value(args[0])
        and (one := getattr(Tensor, name.removeprefix("_foreach_"), None)) is not None
    ):
        return _one_by_one(one, args, kwargs)
    tensors = [item for item in given if isinstance(item, Tensor)]
    values = [number.value for number in numbers]
    whole = are_whole(tensors, values)
    if whole and {"alpha", "value"} & kwargs.keys():  # what does not fit their type is an error
        return func(*released(args), **released(kwargs))
    if is_value(kwargs.get("alpha")) and len(args) == 2 and isinstance(args[1], Tensor):
        wide = args[1].to(torch.promote_types(args[0].dtype, args[1].dtype))
        scaled = wide * kwargs.pop("alpha").tensor
        return func(args[0], scaled.to(wide.dtype), **kwargs)
    if is_value(kwargs.get("value")) and name in ("addcdiv", "addcdiv_", "addcmul", "addcmul_"):
        number = kwargs.pop("value")
        scaled = args[1] * number.tensor
        return func(args[0], scaled.to(torch.result_type(args[1], number.value)), args[2], **kwargs)
    if name in ("lerp", "lerp_") and len(args) == 3 and is_value(args[2]):
        return func(args[0], args[1], args[2].tensor.to(args[0].dtype), **kwargs)
    divisor = args[1] if len(args) > 1 else kwargs.get("other")
    leaves_rest = name in REMAINDERS or kwargs.get("rounding_mode") is not None
    may_fail = whole and leaves_rest and is_value(divisor) and not divisor.is_divisor(tensors)
    if result_type_is_known(name, tensors, values) and not may_fail:
        divides = name in DIVIDE and not kwargs.get("rounding_mode")
        try:
            plain = partial(as_tensor, beside=tensors, compared=name in COMPARE, divides=divides)
            out = func(*map(plain, args), **{key: plain(item) for key, item in kwargs.items()})
        except (TypeError, RuntimeError):  # an argument that has to be a number; a real error comes again below
            pass
        else:
            return as_with_python_number(out, tensors, values, divides) if isinstance(out, Tensor) else out
    return func(*released(args), **released(kwargs))


def _one_by_one(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Does with the tensors in lists, one after the other, what an operation on the lists does with all of them."""
    made = []
    for index in range(len(args[0])):
        given = [arg[index] if isinstance(arg, (tuple, list)) else arg for arg in args]
        # The lists' `addcdiv` and `addcmul` take their number by its place, too.
        by_name = {"value": given.pop()} if func.__name__.startswith("addc") and len(given) > 3 else {}
        made.append(func(*given, **kwargs, **by_name))
    return None if func.__name__.endswith("_") else tuple(made)


def as_tensor(value: Any, beside: Sequence[Tensor] = (), compared: bool = False, divides: bool = False) -> Any:
    """Returns the tensor for a stand-in, in the type in which a number is computed or compared with what is beside."""
    if not is_value(value):
        return value
    if compared and beside:
        return value.tensor.to(torch.result_type(beside[0], value.value))
    return as_wrapped(value.tensor, value.value, [*beside], divides) if beside else value.tensor


def tensor_of(number: Value, dtype: torch.dtype | None) -> Tensor:
    """Returns what `torch.tensor` makes of a number."""
    default = torch.int64 if isinstance(number.value, int) else torch.get_default_dtype()
    if type(number.value) not in (int, float, bool):  # one of numpy's, which keeps its type
        default = torch.float64
    return number.tensor.to(dtype or default, copy=True)
