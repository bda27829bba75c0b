"""What a step reaches through its trainer: the datamodule, the dataset, callbacks, and what users put on the trainer.

A program has such values as constants, like attributes of the module. Everything there could be looked at before each
sink, but callbacks count and datasets are large, so only what the step's code names is: `self.trainer.callbacks`,
`trainer.datamodule.difficulty`. A name that is made up while the step runs (`getattr`) is not seen.
"""

from __future__ import annotations

import dis
from collections.abc import Callable, Collection, Hashable, Iterator
from functools import lru_cache
from types import CodeType
from typing import Any

from lightning_sink.engine.attributes import fingerprint

_BEGINS = ("LOAD_FAST", "LOAD_DEREF", "LOAD_ATTR")
_GOES_ON = ("LOAD_ATTR", "LOAD_METHOD", "STORE_ATTR")
_PROPERTIES = frozenset(["datamodule", "train_dataloader", "lightning_module"])
"""Properties of Lightning's Trainer that hold what users made and are read without doing anything."""


def reached_through(trainer: Any) -> Callable[[Collection[CodeType]], dict[str, Hashable]]:
    """Returns what looks at everything that code reaches through a trainer."""

    def look(codes: Collection[CodeType]) -> dict[str, Hashable]:
        paths = {path for code in codes for path in _paths(code)}
        return {f"trainer.{'.'.join(path)}": _value(trainer, path) for path in paths}

    return look


@lru_cache(maxsize=1024)
def _paths(code: CodeType) -> frozenset[tuple[str, ...]]:
    """Returns the names behind each `trainer` in some code."""
    names = (*code.co_names, *code.co_varnames, *code.co_freevars)
    return frozenset(_chains(code)) if "trainer" in names else frozenset()


def _chains(code: CodeType) -> Iterator[tuple[str, ...]]:
    path: list[str] | None = None
    for instruction in dis.get_instructions(code):
        name = str(instruction.argval)
        if path is not None and instruction.opname.startswith(_GOES_ON):
            path.append(name)
            continue
        if path:
            yield tuple(path)
        begins = instruction.opname.startswith(_BEGINS) and name == "trainer"
        path = [] if begins else None
    if path:
        yield tuple(path)


def _value(trainer: Any, path: tuple[str, ...]) -> Hashable:
    value: Any = trainer
    for number, name in enumerate(path):
        held = getattr(value, "__dict__", {})
        if name in held:
            value = held[name]
            continue
        runs_code = isinstance(getattr(type(value), name, None), property)
        if not hasattr(value, name) or (name not in _PROPERTIES if number == 0 else runs_code):
            return None
        value = getattr(value, name)
    return fingerprint(value)
