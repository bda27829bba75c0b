"""Whether loaders hold the training itself: then a fetch may look at weights that the steps before it change.

Datasets that play with the present policy, or mine the present model's errors, are such. Batches for them are fetched
when they are due and no earlier. What a loader reaches through global variables is not seen. A dataset may be given the
model while the training is under way, so what is near a loader is looked at before each sink.
"""

from __future__ import annotations

import gc
import types
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from lightning_sink.held import held_by, slots_of
from lightning_sink.names import names_in
from lightning_sink.whose import is_users, module_of

_MOST = 10_000
"""Objects that are looked at: what belongs to a dataset and not to its data is a few."""

_LARGE = 256
"""Items of a container from which on it is data."""

_NEAR, _MOST_NEAR, _FEW = 4, 256, 32
"""How many levels below a loader something is near, how many objects at most, and of a container of how many items. A
`ConcatDataset`'s data sets are three levels below, and what they have as attributes four."""

_NO_HOLDERS = (type, types.ModuleType, types.CodeType, types.BuiltinFunctionType, str, bytes, int, float)
_HOLD_ITEMS: tuple[Any, ...] = (dict, list, tuple, set, frozenset, deque)
_NOT_INTO = (*_NO_HOLDERS, Tensor)


class Holding:
    """Whether loaders hold the training: looked for again where others are near them than before.

    Attributes:
        found: Whether they do.
    """

    def __init__(self) -> None:
        self.found = False
        self._near: list[int] = []

    def look(
        self,
        loaders: Iterable[Any],
        module: nn.Module,
        others: Iterable[Any] = (),
        hidden: Callable[[Any], Iterable[str]] = lambda item: (),
    ) -> bool:
        """Tells whether loaders have come to hold it since this was asked. Arguments as `holds_training`.

        Workers have copies of their own, which no step changes.
        """
        own = [loader for loader in loaders if not getattr(loader, "num_workers", 0)]
        near = [id(module), *_near(own, hidden)]
        if near == self._near:
            return False
        self._near, before = near, self.found
        self.found = holds_training(own, module, others, hidden)
        return self.found and not before


def _near(loaders: list[Any], hidden: Callable[[Any], Iterable[str]]) -> list[int]:
    """Returns the identities of objects that are near loaders."""
    found, level = list[int](), loaders
    for _ in range(_NEAR + 1):
        level = [item for item in level[:_MOST_NEAR] if item is not None and not issubclass(type(item), _NO_HOLDERS)]
        found += map(id, level)
        into = (item for item in level if not issubclass(type(item), (nn.Module, Tensor)))
        level = [value for item in into for value in _parts(item, hidden)]
    return found


def _parts(item: Any, hidden: Callable[[Any], Iterable[str]]) -> Iterable[Any]:
    own: Iterable[Any] = ()
    base = next((base for base in _HOLD_ITEMS if issubclass(type(item), base)), None)
    if base is not None and base.__len__(item) <= _FEW:
        own = base.values(item) if issubclass(base, dict) else base.__iter__(item)
    elif type(item) in (types.FunctionType, types.MethodType, partial):
        own = _held(item)
    left_out = {*hidden(item)}
    return [*own, *(value for name, value in {**held_by(item), **slots_of(item)}.items() if name not in left_out)]


def holds_training(
    loaders: list[Any], module: nn.Module, others: Iterable[Any], hidden: Callable[[Any], Iterable[str]]
) -> bool:
    """Tells whether objects reach the module, or what belongs to its training, other than through global variables.

    A deque that it has is such: steps remember in it what datasets replay. Lists and arrays may be data that stay.

    `hidden` gives the attributes of an object through which it reaches that and need not; it does where code of the
    user's that is reached names them.
    """
    targets = {*map(id, others), *map(id, module.modules()), *map(id, module.parameters()), *map(id, _deques(module))}
    memory = {_address(tensor) for tensor in (*module.parameters(), *module.buffers())} - {0}
    waiting, seen, hides, named = deque(loaders), set[int](), set[str](), set[str]()
    methods = dict[str, types.FunctionType]()  # of those that hide something, which may be called by their names
    while waiting and len(seen) < _MOST:
        item = waiting.popleft()
        if id(item) in targets or (issubclass(type(item), Tensor) and _address(item) in memory):
            return True
        if id(item) in seen:
            continue
        seen.add(id(item))
        if out := {*hidden(item)}:  # of an object with attributes
            hides |= out
            waiting += (value for name, value in vars(item).items() if name not in out)
            for kind in type(item).__mro__:
                methods |= functions_of(kind)
            seen |= {*map(id, type(item).__mro__)}
            continue
        functions = [item] if type(item) is types.FunctionType else [*functions_of(item).values()]
        named = named.union(*(names_in(function.__code__) for function in functions))
        waiting += (function for function in functions if function.__closure__)
        waiting += _held(item)
    while called := methods.keys() & named:  # a set of its own
        named = named.union(*(names_in(methods.pop(name).__code__) for name in called))
    return not hides.isdisjoint(named)


def functions_of(kind: Any) -> dict[str, types.FunctionType]:
    """Returns the methods of a class of the user's."""
    if not issubclass(type(kind), type) or not is_users(module_of(kind)):
        return {}
    inner = {name: _inside(value) for name, value in vars(kind).items()}
    return {name: value for name, value in inner.items() if type(value) is types.FunctionType}


def enclosed_by(function: Any) -> list[Any]:
    """Returns what is in a function's closure."""
    return [cell.cell_contents for cell in function.__closure__ or () if cell != types.CellType()]


def _inside(value: Any) -> Any:
    """Returns the function of a method or a property; asks nothing of other values, which may fail."""
    if issubclass(type(value), (classmethod, staticmethod)):
        return value.__func__
    return value.fget if issubclass(type(value), property) else value


def _deques(module: nn.Module) -> list[deque[Any]]:
    """Returns the deques that are attributes of a module's parts, or of objects that are."""
    held = [value for part in module.modules() for value in held_by(part).values()]
    inside = [value for item in held if not issubclass(type(item), _NOT_INTO) for value in held_by(item).values()]
    return [item for item in (*held, *inside) if issubclass(type(item), deque)]


def _address(tensor: Tensor) -> int:
    """Where a tensor's memory begins, views and aliases alike; 0 for none, as a lazy layer's have."""
    if is_lazy(tensor) or tensor.layout is not torch.strided:
        return 0
    return tensor.untyped_storage().data_ptr()


def _held(item: Any) -> list[Any]:
    if issubclass(type(item), type):
        return [*item.__bases__] if is_users(module_of(item)) else []
    if type(item) is types.FunctionType:
        return [*enclosed_by(item), *(item.__defaults__ or ())]
    if issubclass(type(item), nn.Module):
        return [*item.parameters(), *item.buffers()]  # another model, which may share weights
    if issubclass(type(item), _NOT_INTO) or (issubclass(type(item), (list, tuple, dict, set)) and len(item) > _LARGE):
        return []
    return gc.get_referents(item)
