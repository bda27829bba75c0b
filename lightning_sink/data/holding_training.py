"""Whether loaders hold the training itself: then a fetch may look at weights that the steps before it change.

Datasets that play with the present policy, or mine the present model's errors, are such. Batches for them are fetched
when they are due and no earlier. What a loader reaches through global variables is not seen.
"""

from __future__ import annotations

import dis
import gc
import inspect
import types
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.utils.data import DataLoader

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


def parts_that_may_change(loader: Any) -> list[Any]:
    """Returns the parts of a loader whose code may change things, where nothing but that matters."""
    if type(loader) is DataLoader and not may_change(loader.collate_fn):
        return [loader.dataset, loader.sampler, loader.batch_sampler]
    return [loader]


def may_change(function: Any) -> bool:
    """Tells whether a method looks as if it, or others of its object that it calls, may change something.

    One that only puts a batch together changes nothing that a step takes for granted. Any other function may.
    """
    if not isinstance(function, types.MethodType) or not isinstance(function.__func__, types.FunctionType):
        return True
    owner, waiting, seen = type(function.__self__), [function.__func__], set[types.CodeType]()
    while waiting:
        method = waiting.pop()
        seen.add(method.__code__)
        # What is in its closure may be the function that it was made of, by a decorator.
        if method.__closure__ or any(map(_changes, codes := [*_codes_in(method.__code__)])):
            return True
        named = (inspect.getattr_static(owner, name, None) for code in codes for name in code.co_names)
        methods = [each for each in named if isinstance(each, types.FunctionType) and _is_users(each)]
        waiting += [each for each in methods if each.__code__ not in seen]
    return False


def _codes_in(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _codes_in(constant)


def _is_users(method: types.FunctionType) -> bool:
    """Tells whether a method is no library's: tensors have some of the same names (`float`, `to`)."""
    return method.__module__.partition(".")[0] not in ("torch", "lightning", "pytorch_lightning", "lightning_fabric")


def _changes(code: types.CodeType) -> bool:
    stores = any(each.opname in _STORES for each in dis.get_instructions(code))
    return stores or any(name in _CHANGING or (name.endswith("_") and name[0] != "_") for name in code.co_names)


_STORES = frozenset(["STORE_ATTR", "DELETE_ATTR", "STORE_SUBSCR", "DELETE_SUBSCR", "STORE_GLOBAL", "STORE_SLICE"])
_CHANGING = frozenset(
    ["append", "extend", "insert", "add", "update", "pop", "popitem", "popleft", "appendleft", "clear"]
)
_CHANGING |= {"remove", "discard", "setdefault", "sort", "reverse", "setattr", "delattr", "__setattr__", "__dict__"}
_CHANGING |= {"vars", "exec", "eval", "globals", "register_buffer", "load_state_dict", "step", "train", "put"}
_CHANGING |= {"freeze", "unfreeze", "log", "log_dict", "save_hyperparameters"}


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
