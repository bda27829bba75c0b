"""Operations whose result has torch's default type, written down so that they give the same under another one.

A training in `bf16-true` or `64-true` has another default type in its step than around it, where programs are compiled
and run: a quotient of whole numbers, `torch.full((), 0.1)` or `torch.linspace(0, 1, 3)` would be of that.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, fx
from torch.fx.node import map_aggregate

from lightning_sink.engine.operands import members
from lightning_sink.engine.private import schema_name, takes_dtype

_USUAL = torch.float32
_COMPARISONS = frozenset(f"aten::{name}" for name in ("eq", "ne", "lt", "le", "gt", "ge"))


def with_types(
    func: Any, args: Any, kwargs: dict[str, Any], out: Any, cast: Callable[[fx.Node, torch.dtype], fx.Node]
) -> tuple[Any, dict[str, Any]]:
    """Returns an operation's arguments, nodes in the place of tensors, so that it no longer asks for the default type.

    It gave `out`; `cast` returns a node of another type.
    """
    default = torch.get_default_dtype()
    if default is _USUAL or not isinstance(out, Tensor) or members(torch.dtype, args):
        return args, kwargs
    if takes_dtype(func):
        return args, {**kwargs, "dtype": out.dtype} if kwargs.get("dtype") is None else kwargs
    types = [node.meta["layout"][2] for node in members(fx.Node, (*args, *kwargs.values())) if node.meta["layout"]]
    are_whole = bool(types) and not any(dtype.is_floating_point or dtype.is_complex for dtype in types)
    compares = schema_name(func) in _COMPARISONS and bool(members(float, args))
    if not are_whole or not (compares or out.dtype is default):
        return args, kwargs

    def converted(value: Any) -> Any:
        return cast(value, default) if isinstance(value, fx.Node) else value

    new_args, new_kwargs = map_aggregate((args, kwargs), converted)
    return new_args, new_kwargs
