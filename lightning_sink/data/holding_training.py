"""Whether loaders hold the training itself: then a fetch may look at weights that the steps before it change.

Datasets that play with the present policy, or mine the present model's errors, are such. Batches for them are fetched
when they are due and no earlier. What a loader reaches through global variables is not seen.
"""

from __future__ import annotations

import gc
import types
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

_MOST = 10_000
"""Objects that are looked at: what belongs to a dataset and not to its data is a few."""

_LARGE = 256
"""Items of a container from which on it is data."""

_NOT_INTO = (type, types.ModuleType, types.CodeType, types.BuiltinFunctionType, str, bytes, int, float, Tensor)


def holds_training(
    loaders: Iterable[Any],
    module: nn.Module,
    others: Iterable[Any] = (),
    hidden: Callable[[Any], Iterable[str]] = lambda item: (),
) -> bool:
    """Tells whether objects reach the module, or what belongs to its training, other than through global variables.

    `hidden` gives the attributes of an object through which it may reach that all the same.
    """
    targets = {*map(id, others), *map(id, module.modules()), *map(id, module.parameters())}
    memory = {_address(tensor) for tensor in (*module.parameters(), *module.buffers())} - {0}
    waiting, seen = deque(loaders), set[int]()
    while waiting and len(seen) < _MOST:
        item = waiting.popleft()
        if id(item) in targets or (isinstance(item, Tensor) and _address(item) in memory):
            return True
        if id(item) not in seen:
            seen.add(id(item))
            waiting.extend(_held(item, set(hidden(item))))
    return False


def _address(tensor: Tensor) -> int:
    """Where a tensor's memory begins, views and aliases alike; 0 for none, as a lazy layer's have."""
    if is_lazy(tensor) or tensor.layout is not torch.strided:
        return 0
    return tensor.untyped_storage().data_ptr()


def _held(item: Any, hidden: set[str]) -> list[Any]:
    if hidden:  # of an object with attributes
        return [value for name, value in vars(item).items() if name not in hidden]
    if isinstance(item, types.FunctionType):
        cells = [cell for cell in item.__closure__ or () if cell != types.CellType()]
        return [*(cell.cell_contents for cell in cells), *(item.__defaults__ or ())]
    if isinstance(item, nn.Module):
        return [*item.parameters(), *item.buffers()]  # another model, which may share weights
    if isinstance(item, _NOT_INTO) or (isinstance(item, (list, tuple, dict, set)) and len(item) > _LARGE):
        return []
    return gc.get_referents(item)
