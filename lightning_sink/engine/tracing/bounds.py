"""How large the whole numbers in a step's tensors are at most, as far as the operations tell that gave them."""

from __future__ import annotations

import math

import torch
from torch import fx

_aten = torch.ops.aten

_SAME = frozenset([_aten._to_copy.default, _aten.view.default, _aten.squeeze.default, _aten.detach.default])
"""Operations that give the numbers that they get, where these are whole."""

_COUNTS = frozenset([_aten.sum.default, _aten.sum.dim_IntList, _aten.count_nonzero.default])
_PLACES = frozenset([_aten.argmax.default, _aten.argmin.default])


def largest_in(node: fx.Node) -> int | None:
    """Returns the size of the largest whole number that a tensor may hold; None where that is not known."""
    layout = node.meta.get("layout")
    dtype = None if layout is None else layout[2]
    if dtype is None or dtype.is_floating_point or dtype.is_complex:
        return None
    if dtype is torch.bool:
        return 1
    if dtype.itemsize < 8:
        return torch.iinfo(dtype).max + 1
    given = node.args[0] if node.args else None
    if not isinstance(given, fx.Node):
        return None
    if node.target in _SAME:
        return largest_in(given)
    if node.target in _COUNTS or node.target in _PLACES:
        each = 1 if node.target in _PLACES else largest_in(given)
        shape = (given.meta.get("layout") or [()])[0]
        return None if each is None else each * math.prod(shape)
    return None
