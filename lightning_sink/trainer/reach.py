"""What a step reaches through its trainer: the datamodule, the dataset, callbacks, schedulers, Lightning's own loops.

A program has such values as constants, like attributes of the module. Everything there could be looked at before each
sink, but callbacks count and datasets are large, so only what the step's code names is: from the trainer on, attributes
whose names stand in the code that ran, in whatever way they are reached there: `self.trainer.callbacks[0].wait`, or
`stopper = trainer.early_stopping_callback` and `stopper.wait` later, or `getattr(trainer, "wait")`. A name that stands
nowhere in that code is not seen. A property of the user's is not called: the code in it names what it reads.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterator
from enum import Enum
from functools import lru_cache
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, MethodWrapperType, ModuleType
from typing import Any
from weakref import ProxyTypes

from lightning.pytorch.loggers import Logger
from torch import Tensor, nn
from torch.amp import GradScaler
from torch.optim import Optimizer

from lightning_sink.engine.source import codes_in
from lightning_sink.engine.state.attributes import Same, fingerprint, is_a, is_torchs_data, sizes_of
from lightning_sink.engine.state.holders import class_state, users_classes
from lightning_sink.engine.state.schedulers import set_by, with_inner
from lightning_sink.engine.state.slots import Outside
from lightning_sink.held import held_by
from lightning_sink.trainer.reads import TOLD
from lightning_sink.trainer.schedules import schedulers_of
from lightning_sink.whose import is_library, is_users, module_of

_MOVES = frozenset(["batch_progress", "scheduler_progress", "optim_progress", "_batches_that_stepped"])
_MOVES |= {"done", "_is_training_done"}
_OF_SCHEDULERS = frozenset(["last_epoch", "_step_count", "_last_lr", "T_cur"])
"""What is another one in each step: of Lightning's loops, and of schedulers at step interval."""

_MOST_ITEMS, _MOST_OBJECTS = 100, 1_000
"""Longer lists and dictionaries, and objects behind so many others, are compared as a whole, or by who they are."""

_WHOLE: tuple[type, ...] = (nn.Module, Tensor, Optimizer, Enum, type, ModuleType, list, tuple, dict, set, frozenset)
"""What is compared as a whole; and numbers and texts, which have no attributes."""

_WALKED: tuple[str, ...] = ("lightning.", "pytorch_lightning.", "lightning_sink.", "torchdata.", "types", "argparse")
_WALKED += ("torch.utils.data.", "torch.optim.lr_scheduler", "torch.optim.swa_utils")
"""Modules whose objects are gone through by names, beside the user's own."""

_DATA = ("dataset", "sampler", "batch_sampler")
"""Attributes of loaders: what they hold may be of any class, large, and count what it has given."""

_BY_TEXT = frozenset(
    ["getattr", "hasattr", "attrgetter", "vars", "__dict__", "__getattribute__", "setattr", "__setattr__"]
)
"""By these, code asks for attributes, or sets them, with their names in quotes."""


def reached_through(trainer: Any) -> Outside:
    """Returns what finds out what code reaches through a trainer, and returns what looks at all of that."""

    def find(codes: Collection[CodeType]) -> Callable[[], dict[str, Hashable]]:
        names = frozenset[str]().union(*map(_names_in, codes))

        def look() -> dict[str, Hashable]:
            walk = _Walk(trainer, names)
            for path, value in _roots(trainer, names):
                walk.visit(path, value)
            found = walk.found
            for kind in users_classes([trainer.strategy]):
                found |= class_state(kind)
            if (scaler := _scaler(trainer.strategy)) is not None:
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
    return getattr(strategy.precision_plugin, "scaler", None)  # of `MixedPrecision`


@lru_cache(maxsize=4096)
def _names_in(code: CodeType) -> frozenset[str]:
    """Returns what some code may ask objects for, and `trainer` where a variable has that name."""
    names: set[str] = set()
    for each in codes_in(code):
        names |= {*each.co_names, *({"trainer", "_trainer"} & {*each.co_varnames, *each.co_freevars})}
        if each.co_name.startswith("on_") and each.co_argcount > 2:  # a callback's hook: its trainer has any name
            names.add("trainer")
        texts = [item for constant in each.co_consts if isinstance(constant, tuple) for item in constant]  # of `match`
        texts += each.co_consts if _BY_TEXT & {*each.co_names} else ()
        names |= {text for text in texts if isinstance(text, str)}
    return frozenset(names)


def _roots(trainer: Any, names: frozenset[str]) -> Iterator[tuple[str, Any]]:
    """Yields where code that has these names may begin."""
    if names & {"trainer", "_trainer"}:
        yield "trainer", trainer
    if trainer.lightning_module is not None:  # by whatever name they are reached: an object's, a variable's
        yield "scheduler", schedulers_of(trainer)
    if "optimizers" in names:  # all else that Lightning's wrappers have is the optimizers'
        for index, wrapper in enumerate(getattr(trainer.strategy, "_lightning_optimizers", ())):
            own = names.intersection(vars(wrapper)).difference(vars(wrapper.optimizer))
            yield from ((f"optimizers[{index}].{name}", vars(wrapper)[name]) for name in sorted(own))
    if users_classes([trainer.strategy]):  # Lightning calls it in each step
        yield "strategy", trainer.strategy
    held = vars(trainer.lightning_module) if trainer.lightning_module is not None else {}
    for name in sorted(names.intersection(held) - {"_trainer"}):
        if _is_object(held[name]) and is_library(module_of(type(held[name]))):
            yield name, held[name]


class _Walk:
    """Goes from object to object, along attributes that are named.

    Attributes:
        found: What was found, by the path to it.
    """

    def __init__(self, trainer: Any, names: frozenset[str]) -> None:
        self.found: dict[str, Hashable] = {}
        self._names = names
        module, configs = trainer.lightning_module, trainer.lr_scheduler_configs
        self._known = {id(part) for part in module.modules()} if module is not None else set[int]()
        self._known |= {id(optimizer) for optimizer in trainer.optimizers}
        automatic = module is not None and module.automatic_optimization
        by_epoch = [config.scheduler for config in configs if automatic and config.interval == "epoch"]
        by_step = [config.scheduler for config in configs if automatic and config.interval == "step"]
        known = schedulers_of(trainer) if module is not None else []
        self._by_step = {id(each) for scheduler in by_step for each in with_inner(scheduler)}
        self._by_hand = {id(each) for scheduler in known for each in with_inner(scheduler)} - self._by_step
        self._by_hand -= {id(each) for scheduler in by_epoch for each in with_inner(scheduler)}
        self._met: dict[int, Any] = {}

    def visit(self, path: str, value: Any) -> None:
        """Finds what is named of a value, of what that leads to, and so on."""
        left = [(path, value)]
        while left:
            path, value = left.pop()
            items = [*value.values()] if is_a(value, dict) else value if is_a(value, list, tuple) else ()
            if _is_object(value):
                left += self._object(path, value)
            elif 0 < len(items) <= _MOST_ITEMS and any(map(_is_object, items)):
                self.found[path] = fingerprint([*value] if items is not value else len(items))
                left += [(f"{path}[{index}]", item) for index, item in enumerate(items)][::-1]
            else:
                self.found[path] = fingerprint(value, known=self._known)

    def _object(self, path: str, value: Any) -> list[tuple[str, Any]]:
        """Finds what an object is, and returns what is named of it."""
        kind, held = type(value), held_by(value)
        asks_server = issubclass(kind, Logger)
        if asks_server or id(value) in self._met or len(self._met) >= _MOST_OBJECTS:
            self.found[path] = Same(value)
            return []
        self._met[id(value)] = value
        named = {name: held[name] for name in self._names.intersection(held)}
        for name, base in _of_classes(kind, self._names).items():
            if name not in named and (name not in TOLD or not is_library(module_of(base))):
                self._of_class(f"{path}.{name}", value, name, base, named)
        if is_torchs_data(value):
            self.found[f"{path} sizes"] = tuple(sizes_of(value))
        moves = _MOVES if is_library(module_of(kind)) else frozenset[str]()
        if id(value) in self._by_step:
            moves = _OF_SCHEDULERS | set_by(kind)  # type: ignore[arg-type]
        elif id(value) in self._by_hand:  # what is another one in each step shows in the recorded ones
            moves = set_by(kind) - _OF_SCHEDULERS  # type: ignore[arg-type]
        moving = named.keys() & moves
        for name in moving:
            del named[name]
            self.found[f"{path}.{name}"] = object()  # another one at each look
        is_large = _is_of_library(kind) or path.rpartition(".")[2] in _DATA  # type: ignore[arg-type]
        if hasattr(kind, "__getattr__") and not is_large:
            self.found[path] = fingerprint(value, known=self._known)
        elif named or moving:
            self.found[path] = Same(kind)
        else:
            self.found[path] = (Same(value), Same(kind)) if is_large else fingerprint(value, known=self._known)
        return [(f"{path}.{name}", named[name]) for name in sorted(named, reverse=True)]

    def _of_class(self, path: str, value: Any, name: str, base: type, named: dict[str, Any]) -> None:
        """Finds what stands on a class; or reads it, where that runs no code of the user's."""
        stands = vars(base)[name]
        if not is_library(module_of(base)) and hasattr(type(stands), "__get__"):
            self.found[path] = fingerprint(stands, known=self._known)
            return
        try:
            read = getattr(value, name, None)
        except Exception as error:  # of a property that is not to be asked at present
            read = type(error)
        if not _is_routine(read):
            named[name] = read


def _is_object(value: Any) -> bool:
    if type(value) in ProxyTypes or is_a(value, *_WHOLE) or _is_routine(value):
        return False
    module = module_of(type(value))
    # Not `hasattr`: where there is none, it would run the `__getattr__` of the user's, which may raise anything.
    return type(value).__dictoffset__ != 0 and (is_users(module) or module.startswith(_WALKED))


def _is_routine(value: Any) -> bool:
    kind = type(value)
    is_descriptor = hasattr(kind, "__get__") and not hasattr(kind, "__set__")
    return is_descriptor or is_a(value, FunctionType, BuiltinFunctionType, MethodType, MethodWrapperType)


@lru_cache(maxsize=1024)
def _is_of_library(kind: type) -> bool:
    return any(is_library(module_of(base)) for base in kind.__mro__)


def _of_classes(kind: type, names: frozenset[str]) -> dict[str, type]:
    """Returns the names of what classes have that an object is of, each with the first one that has it."""
    found: dict[str, type] = {}
    for base in kind.__mro__[:-1]:
        of_library = is_library(module_of(base))
        named = _named_by(base, names) if of_library else names.intersection(vars(base))
        found |= {name: base for name in named if name not in found and not name.startswith("__")}
    return found


@lru_cache(maxsize=512)
def _named_by(base: type, names: frozenset[str]) -> frozenset[str]:
    """Returns those of the names that a library's class has; what is ours is nothing that a step reads."""
    return frozenset() if module_of(base).startswith("lightning_sink.") else names.intersection(vars(base))
