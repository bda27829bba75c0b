"""What a recording cannot show: reads and writes of Python state in the user's code, and where they are.

`Hazard` is one reason why a recorded step may not stand for later steps. `watch_reads` finds reads that depend on the
step (`global_step`, the clock, the data of a tensor as numpy sees it); `python_state` and `random_state` are compared
before and after a step and between steps.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from types import CodeType, FrameType
from typing import Any

import torch
from torch import Tensor, nn

_LIBRARIES = frozenset(
    ["torch", "lightning", "pytorch_lightning", "lightning_sink", "lightning_utilities", "torchmetrics", "numpy"]
    + ["contextlib", "functools", "importlib", "threading", "abc"]
)

Report = Callable[[str], None]


@dataclass(frozen=True)
class Hazard:
    """Why a recorded step may not stand for later ones.

    Attributes:
        what: The reason, as a clause: "`batch_idx` is read".
        where: File and line of the user's code, "" where there is none.
    """

    what: str
    where: str = ""

    def __str__(self) -> str:
        return f"{self.what} ({self.where})" if self.where else self.what


def is_user_frame(frame: FrameType) -> bool:
    """Tells whether a frame belongs to neither a library of this stack nor to generated code."""
    module = frame.f_globals.get("__name__", "")
    return module.partition(".")[0] not in _LIBRARIES or module.startswith("lightning.pytorch.demos")


def user_line() -> str:
    """Returns file and line of the innermost frame of the user's on the stack, "" if there is none."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and not is_user_frame(frame):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}" if frame is not None else ""


def first_line(function: Callable[..., Any]) -> str:
    """Returns file and first line of a Python function, "" for anything else."""
    code = getattr(getattr(function, "__func__", function), "__code__", None)
    return f"{code.co_filename}:{code.co_firstlineno}" if code is not None else ""


_CLOCKS = {"time", "time_ns", "monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns", "process_time"}
_TENSOR_ESCAPES = {"numpy", "tolist", "data_ptr", "__array__", "__dlpack__", "untyped_storage"}
_GENERATOR_CODES = {
    function.__code__: f"torch.{function.__name__}()"
    for function in (torch.random.manual_seed, torch.random.set_rng_state, torch.random.get_rng_state)
}


@contextmanager
def watch_reads(report: Report, codes: Mapping[CodeType, str]) -> Iterator[None]:
    """Reports what the user's Python reads in this thread that a recording would freeze.

    Uses the interpreter's profile hook, the one place that sees calls of C functions and property getters alike
    without patching any class. A profiler that is already installed is put back afterwards.

    Args:
        report: Called with a description; `user_line()` then names the place.
        codes: Code objects of getters to watch beside the clock, generators and data of tensors, with their names.
    """
    names = {**_GENERATOR_CODES, **codes}

    def hook(frame: FrameType, event: str, arg: Any) -> None:
        if event == "call":
            name = names.get(frame.f_code)
            # Lightning reads its own counters in every step; a read counts where the user's line asks for it.
            if name is not None and frame.f_back is not None and _asked_by_user(frame.f_back, name):
                report(f"`{name}` is read")
        elif event == "c_call":
            owner = getattr(arg, "__self__", None)
            if arg.__name__ in _TENSOR_ESCAPES and isinstance(owner, Tensor) and is_user_frame(frame):
                report(f"`Tensor.{arg.__name__}()` takes values out of the step")
            elif arg.__name__ in _CLOCKS and getattr(owner, "__name__", "") == "time" and is_user_frame(frame):
                report(f"`time.{arg.__name__}()` is read")

    previous = sys.getprofile()
    sys.setprofile(hook)
    try:
        yield
    finally:
        # A profiler written in C (`cProfile`) is its own hook and has to be switched on again by its own method.
        enable = getattr(previous, "enable", None)
        sys.setprofile(None)
        if enable is not None:
            enable()
        elif previous is not None:
            sys.setprofile(previous)


def _asked_by_user(frame: FrameType, name: str) -> bool:
    # Generators are set and read by torch itself on the user's behalf (activation checkpointing, `fork_rng`).
    return is_user_frame(frame) or (name.startswith("torch.") and "inductor" not in frame.f_code.co_filename)


def random_state() -> Hashable:
    """Returns the state of Python's and, where it is loaded, numpy's global generator."""
    numpy = sys.modules.get("numpy")
    state = numpy.random.get_state() if numpy is not None else None
    return random.getstate(), state and (state[1].tobytes(), *state[2:])


_MODULE_MACHINERY = frozenset(vars(nn.Module())) - {"training"}


def python_state(module: nn.Module, ignore: frozenset[str] = frozenset()) -> dict[str, Hashable]:
    """Returns a fingerprint of every attribute of a module and its submodules that is no tensor.

    Args:
        module: The root.
        ignore: Names of the root's attributes to leave out.
    """
    state: dict[str, Hashable] = {}
    for path, submodule in module.named_modules():
        prefix = f"{path}." if path else ""
        for name, value in vars(submodule).items():
            if name not in _MODULE_MACHINERY and not (submodule is module and name in ignore):
                state[prefix + name] = _fingerprint(value, depth=3)
    return state


def _fingerprint(value: Any, depth: int) -> Hashable:
    if value is None or isinstance(value, (int, float, complex, str, bytes)):
        return value
    if isinstance(value, Tensor):
        return "tensor"
    if depth and isinstance(value, (list, tuple, set, frozenset)):
        return type(value), len(value), tuple(_fingerprint(item, depth - 1) for item in list(value)[:64])
    if depth and isinstance(value, Mapping):
        items = list(value.items())[:64]
        return type(value), len(value), tuple((str(key), _fingerprint(item, depth - 1)) for key, item in items)
    return id(value)
