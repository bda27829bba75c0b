"""A fingerprint of a Python value: equal for two values that a step cannot tell from each other.

Goes through containers and the user's own objects. What holds the values of a training is in `holders.py`.
"""

from __future__ import annotations

import math
import random
from collections import OrderedDict, deque
from collections.abc import Collection, Hashable, Iterable, Mapping
from functools import partial
from operator import is_
from types import FunctionType, MethodType, ModuleType
from typing import Any, TypeGuard, TypeVar
from weakref import ProxyTypes, ref

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from lightning_sink.engine.private import names_within, own_modules, own_tensors
from lightning_sink.engine.state.insides import MOST_BYTES, insides
from lightning_sink.held import held_by, slots_of
from lightning_sink.whose import is_library, is_users, module_of

T = TypeVar("T")

MOST_VALUES = 20_000
"""Values looked at in one attribute; beyond them a container counts as the same while it is the same object."""

_FEW = 16
"""Values of a list that are looked at without going through it."""

_DEEPEST = 12

WITH_SLOTS = (tuple, list, dict)
DEEPEST_SLOTS, MOST_ABOVE_SLOTS = 3, 64
"""Containers whose tensors have slots, so many in each other; and items of one that is looked into for others: more is
data."""

# Of the standard library's objects only these, and those of `insides.py`, are looked into.
_TRANSPARENT = frozenset(["_thread", "argparse", "collections", "queue", "types"])

_BUFFERS = frozenset(["_is_buffer", "persistent"])
"""Attributes of each `nn.Buffer`."""

_DATASETS = frozenset(["cumulative_sizes", "dataset", "datasets", "indices", "tensors"])
"""Attributes of torch's own datasets: data, of which there may be millions."""

_PLAIN = frozenset([int, float, bool, complex, str, type(None), list, dict, tuple, set])

SCALARS = frozenset([int, float, bool, complex, str, type(None)])
NUMBERS = frozenset([int, float])
_IN_ORDER = frozenset([tuple, list])
CONTAINERS = frozenset([dict, OrderedDict, list, tuple, set])
_HOLD_ITEMS: tuple[Any, ...] = (OrderedDict, dict, list, tuple, set, frozenset, deque)
TENSOR_HOLDERS = frozenset(["_parameters", "_buffers", "_modules"])


def fingerprint(value: Any, in_slots: int | None = None, known: Collection[int] = ()) -> Hashable:
    """Returns something that is equal for two values that a step cannot tell from each other.

    Args:
        value: The value.
        in_slots: Containers in each other down to which tensors have slots and are left out here; None if none have.
        known: Identities of modules, optimizers, their groups and other objects that are looked at by themselves.
    """
    kind = type(value)
    if kind in SCALARS:
        return kind, _told_apart(value)
    if kind is dict and id(value) in known:
        return _itself(value), 0
    if kind in CONTAINERS and not value and not getattr(value, "__dict__", None):
        return kind, ()
    if kind in ProxyTypes:
        return Same(value), 0  # to ask one anything whose object is gone is an error
    if kind in _IN_ORDER and (few := _few_scalars(value)) is not None:
        return kind, few
    if kind is FunctionType and value.__closure__ is None and not vars(value):
        return Same(value), ()
    if in_slots is not None and isinstance(value, Tensor):
        return ("tensor", fingerprint(own, known=known)) if (own := own_attributes(value)) else "tensor"
    if in_slots and kind is list and value and all(issubclass(of_item, Tensor) for of_item in {*map(type, value)}):
        looks = len(value) <= MOST_VALUES and any(map(vars, value))
        marked = [fingerprint(item, 0, known) for item in value] if looks else ()
        return kind, "tensors", len(value), tuple(marked)
    if in_slots and kind in WITH_SLOTS:
        items = list(value.items()) if kind is dict else list(enumerate(value))
        deeper = in_slots - 1 if len(items) <= MOST_ABOVE_SLOTS else 0
        return kind, tuple((fingerprint(key), fingerprint(item, deeper, known)) for key, item in items)
    return _Walk(known).visit(value, _DEEPEST)


def _told_apart(value: Any) -> Any:
    """Returns a number or text, and a word for those that equality does not tell: -0.0 equals 0.0, and NaN no NaN."""
    return value if value and value == value else (repr(value),)  # no text is equal to a tuple


def _few_scalars(values: Collection[Any]) -> Hashable | None:
    """Returns what a walk finds in a few numbers and texts, in a quarter of its time; None for anything else."""
    if len(values) > _FEW or not SCALARS.issuperset(map(type, values)):
        return None
    return tuple([(type(value), _told_apart(value)) for value in values])


def asked_of(tensor: Tensor | None) -> tuple[Any, ...] | None:
    """Returns what Python may ask of a tensor and no operation shows: `if self.bank.numel() > 0:`."""
    if tensor is None or type(tensor) not in (Tensor, nn.Parameter, nn.Buffer) or tensor.is_nested:
        return tensor if tensor is None else (type(tensor),)  # others may say anything, or fail
    asks = tensor.is_leaf and tensor.requires_grad
    places = (tensor.stride(), tensor.storage_offset()) if tensor.layout is torch.strided else ()
    return type(tensor), tensor.shape, tensor.dtype, tensor.device, asks, tensor.layout, places


def own_attributes(value: Any) -> dict[str, Any]:
    """Returns what somebody has put on a tensor or a dataset, beside what torch itself does."""
    held: dict[str, Any] = vars(value)
    if not held:  # as of nearly all tensors
        return held
    left_out = (_BUFFERS if "_is_buffer" in held else ()) if is_a(value, Tensor) else _DATASETS
    return {name: item for name, item in held.items() if name not in left_out} if left_out else held


def is_torchs_data(value: Any) -> bool:
    """Tells whether a value is a dataset of torch's own."""
    return module_of(type(value)) == "torch.utils.data.dataset"


def sizes_of(dataset: Any) -> list[Any]:
    """Returns how much is in a dataset of torch's own."""
    held = vars(dataset)
    sized = [held.get("indices"), *(held.get("tensors") or ())]
    return [*map(_length, sized), *(held.get("cumulative_sizes") or ())]


def _length(rows: Any) -> Any:
    if type(rows) in (list, tuple, range):
        return len(rows)
    is_shaped = is_a(rows, Tensor) or module_of(type(rows)) == "numpy"
    return tuple(rows.shape) if is_shaped else None


def is_a(value: Any, *kinds: type[T]) -> TypeGuard[T]:
    """Tells whether a value is of a class, and asks it nothing: that is an error where a proxy's object is gone."""
    return issubclass(type(value), kinds)


def nested(values: Iterable[Any], most: float = math.inf, known: Collection[int] = ()) -> list[Any]:
    """Returns the containers that may change, and the attributes of the user's objects, that values lead to, once.

    Nothing where these hold more values than `most`. Objects that are `known`, by identity, are left out.
    """
    met: dict[int, Any] = {}
    count = 0
    for _ in range(_DEEPEST + 1):
        below: list[Any] = []
        for value in values:
            held = None if id(value) in known else _contents(value)
            if held is not None and id(held) not in met:
                met[id(held)] = held
                items = items_of(held)
                count += len(items)
                if count > most:
                    return []
                below += [item for item in items[:MOST_VALUES] if type(item) not in SCALARS]
        values = below
    return [held for held in met.values() if not isinstance(held, (tuple, frozenset))]


def items_of(container: Any, with_keys: bool = False) -> list[Any]:
    """Returns what a container holds, by the methods of Python's own class, which run nothing of the user's."""
    base = next(base for base in _HOLD_ITEMS if is_a(container, base))
    if not issubclass(base, dict):
        return [*base.__iter__(container)]
    return [*base.keys(container), *base.values(container)] if with_keys else [*base.values(container)]


def _contents(value: Any) -> Any:
    if is_a(value, *_HOLD_ITEMS):
        return value
    return held_by(value) if _is_users_object(value) else None


def changed_names(before: Mapping[str, Hashable], after: Mapping[str, Hashable]) -> list[str]:
    """Returns the names of values that are others now, have come, or are gone."""
    return [name for name in {**before, **after} if before.get(name) != after.get(name)]


def are_the_same(one: list[Any], other: list[Any]) -> bool:
    """Tells whether two lists hold the same objects."""
    return len(one) == len(other) and all(map(is_, one, other))


class Same:
    """An object that counts as the same while it is the same, and is alive.

    It is kept alive where that cannot be told otherwise, or is asked for (`hold`); else not, for steps may count what
    is alive: `len(self.weak_references)`.
    """

    def __init__(self, value: Any, *, hold: bool = False) -> None:
        self._identity = id(value)
        self._find = partial(_given, value) if hold or not type(value).__weakrefoffset__ else ref(value)

    @property
    def value(self) -> Any:
        """The object; None where it is gone."""
        return self._find()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Same) and self._identity == other._identity and self.value is other.value is not None

    def __hash__(self) -> int:
        return self._identity


def _given(value: Any) -> Any:
    return value


class _Walk:
    def __init__(self, known: Collection[int]) -> None:
        self._left = MOST_VALUES
        self._known = known
        self._classes: set[type] = set()  # whose own values have been looked at
        self._met: dict[int, tuple[int, int, Any]] = {}  # by identity: their numbers, how deep was looked, themselves

    def visit(self, value: Any, depth: int) -> Hashable:
        self._left -= 1
        kind = type(value)
        if kind in SCALARS:
            return kind, _told_apart(value)
        if kind in ProxyTypes:
            return Same(value), 0
        if kind in _IN_ORDER and (few := _few_scalars(value)) is not None:
            self._left -= len(value)
            return kind, few
        if is_a(value, Same):
            return value
        if is_a(value, int, float, complex, str, bytes, range, torch.device):
            return kind, _told_apart(value)
        if is_a(value, random.Random):
            return random.Random.getstate(value)  # a class's own may refuse: `SystemRandom` has no state
        if module_of(kind).startswith("numpy"):
            return self._numpy(value, depth)
        number, deepest, _ = self._met.get(id(value), (len(self._met), -1, None))
        if deepest >= depth:
            return "again", number
        self._met[id(value)] = number, depth, value
        children = self._children(value) if depth else None
        if children is None:
            return _itself(value), asked_of(value) if is_a(value, Tensor) else 0
        if len(children) > self._left:
            plain = len(children) <= MOST_BYTES and all(type(child) in SCALARS for child in children)
            return _itself(value), tuple(children) if plain else len(children)
        seen = (self.visit(child, depth - 1) for child in children)
        which = Same(value) if isinstance(value, FunctionType) else kind
        return which, frozenset(seen) if isinstance(value, (set, frozenset)) else tuple(seen)

    def _children(self, value: Any) -> Collection[Any] | None:
        """Returns what a value holds, and its class: objects that are there, so that each look finds the same ones."""
        held = self._held(value)
        of_class = [] if held is None else self._of_class_once(type(value))
        return [*held, *of_class] if held is not None and of_class else held

    def _held(self, value: Any) -> Collection[Any] | None:
        if id(value) in self._known:
            return None
        if is_a(value, *_HOLD_ITEMS):
            items = items_of(value, with_keys=True)
            return [*items, own] if (own := held_by(value)) else items
        if issubclass(type(value), Mapping) and not is_users(module_of(type(value))):
            return [*value.keys(), *value.values()]
        if is_a(value, Optimizer):
            return [*value.param_groups, value.defaults]
        if is_a(value, LRScheduler):
            return _attributes(value)
        if is_a(value, type):
            if module_of(value) == "builtins" or is_library(module_of(value)):
                return None
            return [item for base in with_bases(value) for item in (Same(base), *_plain_in(base))]
        if is_a(value, ModuleType):
            return _plain_in(value) if is_users(value.__name__) else None
        if is_a(value, nn.Module):
            return _of_module(value)
        if is_a(value, Tensor):
            return [Same(value), *(asked_of(value) or ()), own] if (own := own_attributes(value)) else None
        if is_torchs_data(value):
            return [Same(value), sizes_of(value), own_attributes(value)]
        held = insides(value)
        return [*(held or ()), *_attributes(value)] if _is_users_object(value) else held

    def _of_class_once(self, kind: type) -> list[Any]:
        """Returns what the user's classes of an object hold, methods too, for the first such object."""
        if kind in self._classes:
            return []
        self._classes.add(kind)
        return [item for base in kind.__mro__ if is_users(module_of(base)) for item in _of_own(base)]

    def _numpy(self, value: Any, depth: int) -> Hashable:
        generator = getattr(value, "bit_generator", getattr(value, "_bit_generator", None))
        if generator is not None:
            return self.visit(generator.state, depth)
        if hasattr(value, "tobytes") and value.nbytes <= MOST_BYTES and not value.dtype.hasobject:
            return str(value.dtype), value.shape, value.tobytes()
        # An array of objects, or what is made of arrays (a polynomial).
        items = value.ravel().tolist() if hasattr(value, "tobytes") and value.size <= self._left else []
        held = [*items, *_attributes(value)] if depth else []
        return _itself(value), tuple(self.visit(item, depth - 1) for item in held)


def with_bases(kind: type) -> list[type]:
    """Returns a class, and those of the user's that it inherits from."""
    return [kind, *(base for base in kind.__mro__[1:] if is_users(module_of(base)))]


def _itself(value: Any) -> Hashable:
    """Stands for a value that is not looked into: itself. Bound methods are made anew at each look."""
    return (Same(value.__func__), Same(value.__self__)) if isinstance(value, MethodType) else Same(value)


def _of_module(module: nn.Module) -> list[Any]:
    """What makes a module that another object holds: which one it is, its tensors, and what is Python about it."""
    held = {name: value for name, value in vars(module).items() if name not in TENSOR_HOLDERS}
    held |= dict(own_modules(module))
    tensors = own_tensors([module])
    return [Same(module), *map(Same, tensors), *names_within(module), *held, *held.values()]


def _of_own(kind: type) -> list[Any]:
    held = {name: value for name, value in vars(kind).items() if not name.startswith("__") or callable(value)}
    return [*held, *held.values()]


def _plain_in(holder: type | ModuleType) -> list[Any]:
    """Returns the numbers, texts, containers and tensors that a class or a module holds, behind their names."""
    held = {name: value for name, value in vars(holder).items() if not name.startswith("__")}
    plain = {name: value for name, value in held.items() if type(value) in _PLAIN or isinstance(value, Tensor)}
    return [*plain, *plain.values()]


def _is_users_object(value: Any) -> bool:
    if type(value) in ProxyTypes or is_a(value, type, nn.Module, ModuleType):
        return False
    module = module_of(type(value))
    root = module.partition(".")[0]
    if module.startswith("torch.distributions"):
        return True
    return is_users(module) or root in _TRANSPARENT


def _attributes(value: Any) -> list[Any]:
    """Returns the attributes of an object, behind their names."""
    found = {**held_by(value), **slots_of(value)}
    return [*found, *found.values()]
