"""What a step reaches through its trainer: the datamodule, the dataset, callbacks, and what users put on the trainer.

A program has such values as constants, like attributes of the module. Everything there could be looked at before each
sink, but callbacks count and datasets are large, so only what the step's code names is: `self.trainer.callbacks`,
`trainer.datamodule.difficulty`. A name that is made up while the step runs (`getattr`) is not seen. A strategy and a
precision plugin are called by Lightning itself in each step: of the user's own classes, what these hold is looked at.
"""

from __future__ import annotations

import dis
import inspect
import re
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator
from types import CodeType
from typing import Any

from torch.amp import GradScaler

from lightning_sink.engine.numbers.passed_on import codes_in
from lightning_sink.engine.state.attributes import fingerprint
from lightning_sink.engine.state.holders import class_state, users_classes
from lightning_sink.engine.state.slots import Outside
from lightning_sink.trainer.reads import TOLD

_BEGINS = ("LOAD_FAST", "LOAD_DEREF", "LOAD_ATTR", "LOAD_SUPER_ATTR")
_GOES_ON = ("LOAD_ATTR", "LOAD_METHOD", "STORE_ATTR")
_LEFT_OUT = TOLD | {"estimated_stepping_batches"}
"""What is told where it is read, and what would load data or do other work."""


def reached_through(trainer: Any) -> Outside:
    """Returns what finds out what code reaches through a trainer, and returns what looks at all of that."""

    def find(codes: Collection[CodeType]) -> Callable[[], dict[str, Hashable]]:
        paths = {f"trainer.{'.'.join(path)}": path for code in codes for path in _paths(code)}
        names_count = any(_names_a_schedulers_count(code) for code in codes)
        strategy = getattr(trainer, "strategy", None)
        kinds = () if strategy is None else users_classes([strategy])
        own = _names_of_users(kinds, type(strategy)) if kinds else frozenset[str]()

        def look() -> dict[str, Hashable]:
            module = getattr(trainer, "lightning_module", None)
            known = {id(part) for part in module.modules()} if module is not None else set()
            known |= {id(optimizer) for optimizer in getattr(trainer, "optimizers", ())}
            found = {name: _value(trainer, path, known) for name, path in paths.items()}
            for kind in kinds:
                found |= class_state(kind)
            present = vars(strategy) if kinds else {}
            found |= {f"strategy.{name}": fingerprint(present.get(name), known=known) for name in own}
            if (scaler := _scaler(strategy)) is not None:
                found["precision_plugin.scaler"] = id(scaler)
            return {**found, "scheduler.last_epoch": _counts(trainer)} if names_count else found

        return look

    return find


def parts_of_precision(trainer: Any) -> list[Any]:
    """Returns what of a trainer's precision has state: a plugin of a class of the user's, and a `GradScaler`."""
    plugin, scaler = trainer.precision_plugin, _scaler(trainer.strategy)
    found = [plugin] if users_classes([plugin]) else []
    return [*found, scaler] if isinstance(scaler, GradScaler) else found


def _scaler(strategy: Any) -> Any:
    return getattr(getattr(strategy, "precision_plugin", None), "scaler", None)  # of `MixedPrecision`


def _names_of_users(kinds: Collection[type], strategy: type) -> frozenset[str]:
    """Returns the attributes that the classes of the user's name in a strategy, and the others of it do not set."""
    others = [kind for kind in strategy.__mro__ if kind not in kinds]
    theirs = {name for code in _codes_of(kinds) for name in code.co_names}
    ours = {name for code in _codes_of(others) for operation, name in _instructions(code) if operation == "STORE_ATTR"}
    return frozenset(theirs - ours)


def _codes_of(kinds: Iterable[type]) -> Iterator[CodeType]:
    """Yields the code of what classes hold, and of the functions in it."""
    for item in (item for kind in kinds for item in vars(kind).values()):
        function = item.fget if isinstance(item, property) else getattr(item, "func", item)
        code = getattr(inspect.unwrap(function) if callable(function) else None, "__code__", None)
        if code is not None:
            yield from codes_in(code)


def _names_a_schedulers_count(code: CodeType) -> bool:
    return "last_epoch" in code.co_names and bool({"lr_schedulers", "lr_scheduler_configs"} & {*code.co_names})


def _counts(trainer: Any) -> Hashable:
    configs = trainer.lr_scheduler_configs
    by_step = any(config.interval == "step" for config in configs)
    return object() if by_step else tuple(config.scheduler.last_epoch for config in configs)


def _paths(code: CodeType) -> frozenset[tuple[str, ...]]:
    """Returns the names behind each `trainer` in some code."""
    names = (*code.co_names, *code.co_varnames, *code.co_freevars)
    return frozenset(_chains(code)) if "trainer" in names else frozenset()


def _chains(code: CodeType) -> Iterator[tuple[str, ...]]:
    path: list[str] | None = None
    aliases = {"trainer"}
    for operation, name in _instructions(code):
        if path is not None and operation.startswith(_GOES_ON):
            path.append(name)
            continue
        if path:
            yield tuple(path)
        if path == [] and operation.startswith("STORE_FAST"):
            aliases.add(name)
        begins = operation.startswith(_BEGINS) and name in aliases
        path = [] if begins else None
    if path:
        yield tuple(path)


def _instructions(code: CodeType) -> Iterator[tuple[str, str]]:
    """Yields each instruction's operation and what it names, one variable at a time."""
    for instruction in dis.get_instructions(code):
        operation, named = instruction.opname, instruction.argval
        if "_FAST_" in operation and isinstance(named, tuple):  # from Python 3.13 on, one may load or store two
            yield from zip(re.findall("LOAD_FAST|STORE_FAST", operation), named, strict=True)
        elif operation != "EXTENDED_ARG":  # a part of the next one, in code with very many names
            yield operation, str(named)


def _value(trainer: Any, path: tuple[str, ...], known: Collection[int]) -> Hashable:
    value: Any = trainer
    for name in path:
        if name in _LEFT_OUT or not hasattr(value, name):
            return None
        value = getattr(value, name)
    return None if inspect.isroutine(value) else fingerprint(value, known=known)
