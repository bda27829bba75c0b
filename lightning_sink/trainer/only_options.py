"""Tells whether a hook of the user's does nothing but set the optimizers' options, by numbers that Python knows.

Such a hook (a warmup in `optimizer_step`, a cosine in `on_train_batch_start`) may be run ahead of the steps before it:
it reads no tensor, changes nothing else, and asks nothing that a step could have changed. Told by its code, so that it
holds for each way through it; what cannot be told so counts as doing more.
"""

from __future__ import annotations

import dis
import math
import sys
from collections.abc import Collection, Iterator
from types import CodeType, FunctionType, ModuleType
from typing import Any

from lightning.pytorch import LightningModule
from torch import Tensor, nn

from lightning_sink.engine.watch import is_library

_CHANGES: tuple[str, ...] = ("STORE_ATTR", "STORE_GLOBAL", "STORE_DEREF", "STORE_NAME", "DELETE_", "IMPORT_", "YIELD_")
_CHANGES += ("RAISE_VARARGS", "SETUP_", "BEFORE_", "MAKE_FUNCTION", "SEND", "GET_AWAITABLE", "STORE_SLICE")
_CALLS = ("CALL", "CALL_KW", "CALL_FUNCTION", "CALL_FUNCTION_KW", "CALL_FUNCTION_EX", "CALL_METHOD")
_LOADS = ("LOAD_ATTR", "LOAD_METHOD", "LOAD_SUPER_ATTR")
_COPIES = ("COPY", "DUP_TOP_TWO")
_STEPS = frozenset(["step", "optimizer_step"])
_METHODS = _STEPS | {"optimizers"}
"""Methods of optimizers and of a LightningModule that such a hook may call."""

_PURE = (float, int, bool, min, max, abs, round, pow, len, sum, enumerate, zip, range, super)
_LEFT_BY_STEPS = frozenset(["callback_metrics", "logged_metrics", "progress_bar_metrics", "logger", "loggers"])
_LEFT_BY_STEPS |= {"grad", "state"}
_GENERATORS = 0x20 | 0x80 | 0x100 | 0x200  # flags of code, coroutines among them
_DEEPEST = 4


def only_sets_options(hook: Any, module: LightningModule, options: Collection[str], unread: int) -> bool:
    """Tells whether a hook sets options, steps the optimizer once at most, and does nothing else.

    Args:
        hook: The bound method.
        module: The module that it belongs to.
        options: The names of the options.
        unread: How many of its first arguments it may not read.
    """
    function = getattr(hook, "__func__", None)
    if not isinstance(function, FunctionType) or hook.__self__ is not module or -1 in function.__code__.co_consts:
        return False
    code, instructions = function.__code__, [*dis.get_instructions(function)]
    read = {name for instruction in instructions if "FAST" in instruction.opname for name in _names(instruction)}
    steps = [instruction for instruction in instructions if instruction.argval in _STEPS]
    if len(steps) > 1 or read & {*code.co_varnames[1 : 1 + unread]}:
        return False
    reader = _Reader(module, options)
    return reader.is_pure(function, _DEEPEST) and reader.sets


class _Reader:
    """Reads the code of functions.

    Args:
        module: Whose attributes and methods they may name.
        options: The names of optimizers' options.

    Attributes:
        sets: Whether one of them sets an option.
    """

    def __init__(self, module: LightningModule, options: Collection[str]) -> None:
        self._class, self._options, self.sets = type(module), options, False
        held = {name for name, value in vars(module).items() if isinstance(value, (Tensor, nn.Module))}
        self._unknown = _LEFT_BY_STEPS.union(held, module._parameters, module._buffers, module._modules)

    def is_pure(self, function: Any, depth: int) -> bool:
        """Tells whether a function of the user's computes with numbers, and sets options."""
        if not isinstance(function, FunctionType) or not depth:
            return False
        code = function.__code__
        if code.co_flags & _GENERATORS or self._unknown & {*code.co_names} or {*code.co_freevars} - {"__class__"}:
            return False
        of_class = (getattr(self._class, name, None) for name in code.co_names)
        getters = (value.fget for value in of_class if isinstance(value, property))
        if not all(is_library(get.__module__) or self.is_pure(get, depth - 1) for get in getters):
            return False
        called, copied = 0, ""
        for before, instruction in _pairs(code):
            name, constant = instruction.opname, before.argval if before and before.opname == "LOAD_CONST" else ""
            if name.startswith(_CHANGES) or _passes_a_global(before, instruction):
                return False
            if name in _COPIES:  # `group["lr"] *= 2`
                copied = constant or copied
            elif name == "STORE_SUBSCR":
                if (constant or copied) not in self._options:
                    return False
                self.sets = True
            elif name in _CALLS:
                called += 1
            elif (name == "LOAD_GLOBAL" or name.startswith(_LOADS)) and not _takes_super(instruction):
                value = self._loaded(function, before, instruction)
                if not self._is_pure_value(value, instruction, depth):
                    return False
                called -= callable(value)
        return called == 0

    def _is_pure_value(self, value: Any, instruction: dis.Instruction, depth: int) -> bool:
        if callable(value):
            return not _is_argument(instruction) and (self._is_known(value) or self.is_pure(value, depth - 1))
        if isinstance(value, ModuleType):
            return value in (math, sys.modules.get("numpy"))
        return not isinstance(value, Tensor) and not (_is_methods(instruction) and value is None)

    def _loaded(self, function: FunctionType, before: dis.Instruction | None, instruction: dis.Instruction) -> Any:
        """Returns what is loaded: a global variable, or a function that an attribute is; None for others."""
        name = str(instruction.argval)
        if instruction.opname == "LOAD_GLOBAL":
            return _variable(function, name)
        if name in _STEPS or (name in _METHODS and _is_methods(instruction)):
            return float  # any function that only computes
        if before is not None and before.opname == "LOAD_GLOBAL":
            owner = _variable(function, str(before.argval))
            return getattr(owner, name, None) if isinstance(owner, ModuleType) else None
        own = getattr(self._class, name, None)
        is_own = before is not None and before.opname.startswith("LOAD_FAST") and _names(before)[-1] == "self"
        return own if is_own and isinstance(own, FunctionType) else None

    def _is_known(self, value: Any) -> bool:
        """Tells whether a function is one of Python's or numpy's that only computes with numbers."""
        if any(value is known for known in _PURE) or getattr(value, "__module__", "") == "math":
            return True
        numpy = sys.modules.get("numpy")
        return numpy is not None and (isinstance(value, numpy.ufunc) or value in (numpy.clip, numpy.interp))


def _pairs(code: CodeType) -> Iterator[tuple[dis.Instruction | None, dis.Instruction]]:
    before = None
    for instruction in dis.get_instructions(code):
        yield before, instruction
        before = instruction


def _names(instruction: dis.Instruction) -> tuple[str, ...]:
    """Returns the local variables that an instruction names: some have two."""
    held = instruction.argval
    return held if isinstance(held, tuple) else (str(held),)


def _is_methods(instruction: dis.Instruction) -> bool:
    """Tells whether what is loaded is about to be called."""
    attribute = instruction.opname in ("LOAD_ATTR", "LOAD_SUPER_ATTR") and sys.version_info >= (3, 12)
    return instruction.opname == "LOAD_METHOD" or (attribute and bool((instruction.arg or 0) & 1))


def _takes_super(instruction: dis.Instruction) -> bool:
    """Tells whether `super` is loaded for an instruction that calls it by itself, as since Python 3.12."""
    is_super = instruction.opname == "LOAD_GLOBAL" and instruction.argval == "super"
    return is_super and _is_argument(instruction)


def _passes_a_global(before: dis.Instruction | None, instruction: dis.Instruction) -> bool:
    """Tells whether a call's last argument is a global: Python 3.10 does not say whether a function is one."""
    is_call = instruction.opname in _CALLS and bool(instruction.arg)
    return is_call and before is not None and before.opname == "LOAD_GLOBAL"


def _is_argument(instruction: dis.Instruction) -> bool:
    """Tells whether a global function is loaded for something else than to be called; not known before Python 3.11."""
    told = instruction.opname == "LOAD_GLOBAL" and sys.version_info >= (3, 11)
    return told and not (instruction.arg or 0) & 1


def _variable(function: FunctionType, name: str) -> Any:
    builtins = function.__globals__.get("__builtins__", {})
    held = builtins if isinstance(builtins, dict) else vars(builtins)
    return function.__globals__.get(name, held.get(name))
