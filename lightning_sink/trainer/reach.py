"""What a step reaches through its trainer: the datamodule, the dataset, callbacks, schedulers, Lightning's own loops.

A program has such values as constants, like attributes of the module. Everything there could be looked at before each
sink, but callbacks count and datasets are large, so only what the step's code names is: from the trainer on, attributes
whose names stand in the code that ran, in whatever way they are reached there: `self.trainer.callbacks[0].wait`, or
`stopper = trainer.early_stopping_callback` and `stopper.wait` later, or `getattr(trainer, "wait")`. A name that is made
up while the step runs is not seen. A property of the user's is not called: the code in it names what it reads.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Hashable, Iterable
from enum import Enum
from functools import lru_cache
from types import CodeType, GetSetDescriptorType, MemberDescriptorType, ModuleType
from typing import Any
from weakref import ProxyTypes

from torch import Tensor, nn
from torch.amp import GradScaler
from torch.optim import Optimizer

from lightning_sink.engine.numbers.passed_on import codes_in
from lightning_sink.engine.state.attributes import Same, fingerprint, is_a
from lightning_sink.engine.state.holders import class_state, users_classes
from lightning_sink.engine.state.slots import Outside
from lightning_sink.engine.watch import is_library
from lightning_sink.trainer.reads import TOLD

_LEFT_OUT = TOLD | {"estimated_stepping_batches"}
"""What is told where it is read, and what would load data or do other work: of Lightning's own objects."""

_MOST_ITEMS = 100
"""Longer lists and dictionaries are compared as a whole."""

_WHOLE: tuple[type, ...] = (nn.Module, Tensor, Optimizer, Enum, type, ModuleType, list, tuple, dict, set, frozenset)
"""What is compared as a whole; and numbers and texts, which have no attributes."""

_DATA = ("dataset", "sampler", "batch_sampler")
"""Attributes of loaders: what they hold may be of any class, large, and count what it has given."""

_SLOTS = (MemberDescriptorType, GetSetDescriptorType)


def reached_through(trainer: Any) -> Outside:
    """Returns what finds out what code reaches through a trainer, and returns what looks at all of that."""

    def find(codes: Collection[CodeType]) -> Callable[[], dict[str, Hashable]]:
        names = frozenset[str]().union(*map(_names_in, codes))
        strategy = getattr(trainer, "strategy", None)
        kinds = () if strategy is None else users_classes([strategy])

        def look() -> dict[str, Hashable]:
            walk = _Walk(names, _known(trainer))
            if names & {"trainer", "_trainer"}:
                walk.visit("trainer", trainer)
            if "lr_schedulers" in names:
                walk.items("scheduler", [config.scheduler for config in _configs(trainer, names)])
            if "last_epoch" in names and any(config.interval == "step" for config in _configs(trainer, names)):
                walk.found["scheduler.last_epoch"] = object()  # it counts steps: another one at each look
            if "optimizers" in names:
                walk.wrappers(getattr(strategy, "_lightning_optimizers", ()))
            if kinds:
                walk.visit("strategy", strategy)
            found = walk.found
            for kind in kinds:
                found |= class_state(kind)
            if (scaler := _scaler(strategy)) is not None:
                found["precision_plugin.scaler"] = id(scaler)
            return found

        return look

    return find


def parts_of_precision(trainer: Any) -> list[Any]:
    """Returns what of a trainer's precision has state: a plugin of a class of the user's, and a `GradScaler`."""
    plugin, scaler = trainer.precision_plugin, _scaler(trainer.strategy)
    found = [plugin] if users_classes([plugin]) else []
    return [*found, scaler] if isinstance(scaler, GradScaler) else found


def _scaler(strategy: Any) -> Any:
    return getattr(getattr(strategy, "precision_plugin", None), "scaler", None)  # of `MixedPrecision`


def _configs(trainer: Any, names: Collection[str]) -> list[Any]:
    """Returns what Lightning knows of each scheduler, where some code reaches them."""
    return trainer.lr_scheduler_configs if {"lr_schedulers", "lr_scheduler_configs"}.intersection(names) else []


def _known(trainer: Any) -> set[int]:
    module = getattr(trainer, "lightning_module", None)
    known = {id(part) for part in module.modules()} if module is not None else set()
    return known | {id(optimizer) for optimizer in getattr(trainer, "optimizers", ())}


@lru_cache(maxsize=4096)
def _names_in(code: CodeType) -> frozenset[str]:
    """Returns what some code may ask objects for: the names in it, and texts that are names; and its variables'."""
    inner = [*codes_in(code)]
    texts = {text for each in inner for text in each.co_consts if isinstance(text, str) and text.isidentifier()}
    return frozenset(texts.union(*((*each.co_names, *each.co_varnames, *each.co_freevars) for each in inner)))


class _Walk:
    """Goes from object to object, along attributes that are named.

    Attributes:
        found: What was found, by the path to it.
    """

    def __init__(self, names: frozenset[str], known: Collection[int]) -> None:
        self.found: dict[str, Hashable] = {}
        self._names, self._known = names, known
        self._met: dict[int, Any] = {}

    def visit(self, path: str, value: Any) -> None:
        """Finds what is named of a value, or what it is."""
        items = [*value.values()] if is_a(value, dict) else value if is_a(value, list, tuple) else ()
        if _is_object(value):
            self._object(path, value)
        elif 0 < len(items) <= _MOST_ITEMS and any(map(_is_object, items)):
            self.found[path] = fingerprint([*value] if items is not value else len(items))
            self.items(path, items)
        else:
            self.found[path] = fingerprint(value, known=self._known)

    def items(self, path: str, values: Iterable[Any]) -> None:
        """Finds it of each item."""
        for index, value in enumerate(values):
            self.visit(f"{path}[{index}]", value)

    def wrappers(self, optimizers: Iterable[Any]) -> None:
        """Finds what somebody has put on Lightning's wrappers of optimizers: all else is the optimizers'."""
        for index, wrapper in enumerate(optimizers):
            own = vars(wrapper).keys() - vars(wrapper.optimizer).keys()
            for name in own & self._names:
                self.visit(f"optimizers[{index}].{name}", vars(wrapper)[name])

    def _object(self, path: str, value: Any) -> None:
        kind, held = type(value), vars(value)
        is_whole = not _is_of_library(kind) and path.rpartition(".")[2] not in _DATA  # type: ignore[arg-type]
        self.found[path] = fingerprint(value, known=self._known) if is_whole else Same(value)
        if id(value) in self._met:
            return
        self._met[id(value)] = value
        names = self._names.intersection(held) | _readable(kind, self._names)  # type: ignore[arg-type]
        for name in names - _LEFT_OUT if is_library(kind.__module__) else names:
            read = held[name] if name in held else getattr(value, name, None)
            if not inspect.isroutine(read):
                self.visit(f"{path}.{name}", read)


def _is_object(value: Any) -> bool:
    is_other = type(value) in ProxyTypes or is_a(value, *_WHOLE)
    return not is_other and hasattr(value, "__dict__") and not inspect.isroutine(value)


@lru_cache(maxsize=1024)
def _is_of_library(kind: type) -> bool:
    return any(is_library(base.__module__) for base in kind.__mro__)


@lru_cache(maxsize=256)
def _readable(kind: type, names: frozenset[str]) -> frozenset[str]:
    """Returns the names of what a class has, without what would run code of the user's."""
    has = {name for base in kind.__mro__ for name in vars(base) if not name.startswith("__")}
    return frozenset(name for name in names & has if _runs_no_users(inspect.getattr_static(kind, name)))


def _runs_no_users(of_class: Any) -> bool:
    if isinstance(of_class, property):
        return is_library(getattr(of_class.fget, "__module__", None) or "")
    return isinstance(of_class, _SLOTS) or not hasattr(type(of_class), "__get__")
