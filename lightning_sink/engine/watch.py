"""What a recording cannot show: reads and writes of Python state in the user's code, and where they are.

`Hazard` is one reason why a recorded step may not stand for later steps. `watch_reads` finds reads that depend on the
step (`global_step`, the clock, the data of a tensor as numpy sees it). What a step leaves changed in Python is found by
`attributes.py`.
"""

from __future__ import annotations

import copy
import dis
import gc
import importlib
import inspect
import io
import random
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import CodeType, FrameType
from typing import Any, cast

import torch
from torch import Tensor

from lightning_sink.errors import BY_WAY
from lightning_sink.whose import is_installed, is_library, is_users

_ENGINE = "lightning_sink.engine.compiled"


@dataclass(frozen=True)
class Hazard:
    """Why a recorded step may not stand for later ones.

    Attributes:
        what: The reason, as a clause: "`batch_idx` is read".
        where: File and line of the user's code, as `user_line` gives them, "" where there is none.
        way_out: What has the step compiled, "" where nothing does, and nothing is to be said.
        lasts: Whether nothing that is learned of the steps has them do without it.
    """

    what: str
    where: str = ""
    way_out: str = "move that out of the step"
    lasts: bool = False

    def __str__(self) -> str:
        return f"{self.what} ({self.where})" if self.where else self.what


def is_user_frame(frame: FrameType) -> bool:
    """Tells whether a frame belongs to neither a library of this stack nor to generated code."""
    return not is_library(frame.f_globals.get("__name__", ""))


def callers_in_step(frame: FrameType) -> Iterator[FrameType]:
    """Yields the user's frames in the step that lead to one: none where whoever trains calls it."""
    here = frame.f_back
    while here is not None and here.f_globals.get("__name__") != _ENGINE:
        if is_user_frame(here):
            yield here
        here = here.f_back


def user_line(error: BaseException | None = None) -> str:
    """Returns file and line of the innermost frame of the user's on the stack, "" if there is none in the step.

    With an error, the frames that it came through are looked at in place of the stack. Behind the user's line stands
    that of a library which it led to, none of this stack's, since what is looked for may be there alone: "train.py:12,
    by way of memory_bank.py:164". The script that trains stands below the engine on the stack, and is no part of the
    step.
    """
    if error is not None:
        through = [(frame, line) for frame, line in traceback.walk_tb(error.__traceback__) if _is_users(frame)][::-1]
    else:
        through, here = [], cast(FrameType | None, sys._getframe(1))
        while here is not None and here.f_globals.get("__name__") != _ENGINE:
            through += [(here, here.f_lineno)] * _is_users(here)
            here = here.f_back
    own = [item for item in through if not is_installed(item[0].f_code)]
    lines = [f"{frame.f_code.co_filename}:{line}" for frame, line in (*own[:1], *through[:1])]
    return BY_WAY.join(dict.fromkeys(lines))


def innermost_line() -> str:
    """Returns file and line of the innermost frame on the way from a step to here: an optimizer's of torch, say."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_globals.get("__name__", "").startswith(("lightning_sink.", "torch._")):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}" if frame is not None else ""


def _is_users(frame: FrameType) -> bool:
    """Tells whether a line is one that a user would look for the cause in, and not in the standard library."""
    return is_users(frame.f_globals.get("__name__", ""))


def _is_own(frame: FrameType) -> bool:
    """Tells whether a line is one of the user's own code, and of no package that was installed beside it."""
    return _is_users(frame) and not is_installed(frame.f_code)


def _reads_modules(code: CodeType) -> bool:
    """Tells whether some code names `sys.modules`."""
    if not {"sys", "modules"} <= {*code.co_names}:
        return False
    named = [instruction.argval for instruction in dis.get_instructions(code)]
    return ("sys", "modules") in zip(named, named[1:], strict=False)


def first_line(function: Callable[..., Any]) -> str:
    """Returns file and first line of a Python function, or of what calling an object calls; "" for anything else."""
    function = inspect.unwrap(getattr(function, "__func__", function))  # not a line of `torch.no_grad`'s
    called = inspect.getattr_static(type(function), "__call__", None)
    code = getattr(function, "__code__", getattr(called, "__code__", None))
    return f"{code.co_filename}:{code.co_firstlineno}" if code is not None else ""


DRAWN = "Python's or numpy's global random generator is drawn from"
CHANGES = "the step changes Python state"

_PYTHONS_GENERATOR = getattr(random.random, "__self__", None)
_STATE = {"getstate", "setstate"}
_CLOCKS = {f"{name}{unit}" for name in ("time", "monotonic", "perf_counter", "process_time") for unit in ("", "_ns")}
_CALENDARS = {"now", "utcnow", "today"}
_OF_WARNINGS = ("warnings", "_py_warnings")  # the latter from Python 3.14 on
_BOARD = "torch.utils.tensorboard.writer"
_OUTER_WORLD = (print, input, open, sys.setprofile, sys.settrace)
_WRITES = {"write", "writelines"}
_GENERATOR_CALLS = {"manual_seed", "seed", "get_state", "set_state", "clone_state", "get_offset", "set_offset"}
_GENERATOR_CALLS |= {"graphsafe_get_state", "graphsafe_set_state"}
_SEED = "initial_seed"  # of any generator, since nothing of it shows in what is drawn
# What writes to files, or asks for them, without `print` or `open`.
_WRITERS = {
    "_csv": {"writerow", "writerows"},
    "_pickle": {"dump"},
    **dict.fromkeys(["posix", "nt"], {"write", "open", "stat", "listdir", "scandir", "putenv", "unsetenv"}),
}
# Objects of the standard library's in C that do more than compute, where nothing shows it; by their class's module.
_KEEPERS = {
    "_queue": {"put", "put_nowait", "get", "get_nowait"},
    "socket": {"send", "sendall", "sendto", "recv", "recv_into"},
    "sqlite3": {"execute", "executemany", "executescript", "commit"},
    "mmap": {"write", "write_byte", "resize"},
    "_lsprof": {"enable", "disable"},
    **dict.fromkeys(["zlib", "_bz2", "_lzma"], {"compress", "decompress", "flush"}),
    **dict.fromkeys(["_hashlib", "_md5", "_sha1", "_sha2", "_sha3", "_blake2"], {"update"}),
}
# By these, code reaches globals whose names it does not say, and these may be any: asked of the user's own lines alone.
_BY_ANY_NAME = (globals, __import__, eval, exec)
_IMPORTS = id(importlib.import_module.__code__)
_SYSTEM_RANDOM = {"urandom", "getrandom"}
_ALL_NUMBERS = {"numpy", "tolist"}
_TENSOR_ESCAPES = {"numpy", "tolist", "data_ptr", "__array__", "__dlpack__", "untyped_storage", "as_subclass"}
# By name, all functions in C that are told, but for those of Python's generator: most calls are of none of these.
_TOLD = {_SEED, *_TENSOR_ESCAPES, *_CLOCKS, *_CALENDARS, *_WRITES, *_GENERATOR_CALLS, *_SYSTEM_RANDOM}
_TOLD |= {function.__name__ for function in _OUTER_WORLD}.union(*_WRITERS.values(), *_KEEPERS.values())
_GENERATOR = ("manual_seed", "seed", _SEED, "set_rng_state", "get_rng_state")
_SET_BACK = {"torch.random", "torch.utils.checkpoint"}
_WATCHED: list[tuple[str, Any, Sequence[str]]] = [
    ("torch", torch, ("save", "load")),
    ("torch", torch.random, _GENERATOR),
    ("torch.cuda", torch.cuda.random, (*_GENERATOR, "manual_seed_all", "seed_all")),
    # Every other question about memory asks one of these; the answer may be the same one for some steps.
    ("torch.cuda", torch.cuda.memory, ("memory_stats", "mem_get_info", "host_memory_stats")),
    ("torch.accelerator", torch.accelerator, ("memory_stats", "get_memory_info")),
    ("torch.cuda.CUDAGraph", torch.cuda.CUDAGraph, ("replay",)),  # what it does, no recording sees
]
_TORCH_CODES = {getattr(of, name).__code__: f"{path}.{name}()" for path, of, names in _WATCHED for name in names}
_LOOK_AT_ALL = {id(function.__code__) for function in (copy.copy, copy.deepcopy, inspect.getmembers)}
# What numpy and `print` call, from their own code, on a tensor that they are given.
_ESCAPE_CODES = [getattr(Tensor, name).__code__ for name in ("__array__", "__dlpack__", "__repr__")]


@contextmanager
def watch_reads(
    report: Callable[[str], None],
    codes: Mapping[CodeType, str],
    ran: dict[int, CodeType],
    past: list[Any],
    called: Callable[[FrameType], None] | None = None,
    set_back: Callable[[FrameType, bool], None] = lambda frame, is_set: None,
    is_known: Callable[[Any, FrameType], bool] = lambda method, frame: False,
) -> Iterator[Any]:
    """Reports what the user's Python reads in this thread that a recording would freeze.

    Uses the interpreter's profile hook, the one place that sees calls of C functions and property getters alike
    without patching any class. A profiler that is already installed is put back afterwards.

    Args:
        report: Called with a description; `user_line()` then names the place.
        codes: Code objects of getters to watch beside the clock, generators and data of tensors, with their names, and
            after a comma why.
        ran: Takes the code of every function that is called and is of no library of this stack, by identity.
        past: Takes functions that look at all attributes at once, by whatever name the user's code calls them.
        called: Called with the frame of each function of Python's that is about to run.
        set_back: Called with a frame of torch's that asks for a random generator's state, or, if so, sets it.
        is_known: Tells of a method by which a frame asks for all numbers of a tensor whether that may be.

    Yields:
        The hook. Who runs no code of the user's may take it out for a while: it is called at each call of a function.
    """
    # By identity: code is equal to code of the same text elsewhere, and hashing it takes as long as the rest of a call.
    names = {id(code): name for code, name in (*_TORCH_CODES.items(), *codes.items())}
    told = {id(code): f"`Tensor.{code.co_name}()` takes values out of the step" for code in _ESCAPE_CODES}
    users: dict[int, bool] = {}
    met: list[CodeType] = []  # identities are theirs as long as they are there

    def meet(frame: FrameType) -> bool:
        code, is_users = frame.f_code, is_user_frame(frame)
        if frame.f_globals.get("__name__") in _OF_WARNINGS:  # that Python writes one down is nothing of the step's
            is_users = False
        met.append(code)
        if is_users:
            ran[id(code)] = code
        if code.co_name.startswith("add_") and frame.f_globals.get("__name__", "").startswith(_BOARD):
            told[id(code)] = f"`SummaryWriter.{code.co_name}()` is called"
        users[id(code)] = is_users
        if is_users and _is_own(frame) and _reads_modules(code):
            report("`sys.modules` is read")
        return is_users

    def hook(frame: FrameType, event: str, arg: Any) -> None:
        if event == "return" or event == "c_return":
            return
        key = id(frame.f_code)
        is_users = users.get(key)
        if is_users is None:
            is_users = meet(frame)
        if event == "call":
            if called is not None:
                called(frame)
            if key in told:
                report(told[key])
            if key in _LOOK_AT_ALL and frame.f_back is not None and _is_users(frame.f_back):
                past.append(frame.f_code)
            if key == _IMPORTS and frame.f_back is not None and _is_own(frame.f_back):
                report("`importlib.import_module()` is called")
            name = names.get(key)
            # Lightning reads its own counters in every step; a read counts where the user's line asks for it.
            if name is not None and frame.f_back is not None and _sets_back(frame.f_back, name):
                set_back(frame.f_back, ".set_rng" in name)
            elif name is not None and frame.f_back is not None and _asked_by_user(frame.f_back, name):
                name, comma, why = name.partition(",")
                report(f"`{name}` is {'called' if name.endswith('()') else 'read'}{comma}{why}")
        elif event == "c_call" and is_users:
            if arg is vars or arg is dir:
                past.append(arg)
            if arg in _BY_ANY_NAME and _is_own(frame):
                report(f"`{arg.__name__}()` is called")
            name = _read_by(arg)
            if name is None or (arg.__name__ in _STATE and _is_asked_by_machine_code(frame)):
                return
            if arg.__name__ not in _ALL_NUMBERS or not is_known(arg, frame):
                report(name)

    previous, collects = sys.getprofile(), gc.isenabled()
    gc.disable()  # a collection calls back into whatever has asked for it, and that is no part of the step
    sys.setprofile(hook)
    try:
        yield hook
    finally:
        sys.setprofile(None)  # first: a collection that is due begins as soon as there may be one
        if collects:
            gc.enable()
        _put_back(previous)


@contextmanager
def unwatched() -> Iterator[None]:
    """For what no line of the user's asks for, in the midst of what is watched."""
    hook = sys.getprofile()
    sys.setprofile(None)
    try:
        yield
    finally:
        _put_back(hook)


def _put_back(profiler: Any) -> None:
    # A profiler written in C (`cProfile`) is its own hook and has to be switched on again by its own method.
    enable = getattr(profiler, "enable", None)
    if enable is not None:
        enable()
    elif profiler is not None:
        sys.setprofile(profiler)


def _read_by(function: Any) -> str | None:
    name, owner = function.__name__, getattr(function, "__self__", None)
    if owner is _PYTHONS_GENERATOR:
        return DRAWN
    if name not in _TOLD:
        return None
    if name in _TENSOR_ESCAPES and isinstance(owner, Tensor):
        return f"`Tensor.{name}()` takes values out of the step"
    module = getattr(owner, "__name__", "")
    if (module == "time" and name in _CLOCKS) or (name in _CALENDARS and module in ("datetime", "date")):
        return f"`{module}.{name}()` is read"
    if name in _WRITES and isinstance(owner, io.IOBase):
        return f"`{type(owner).__name__}.{name}()` is called"
    if isinstance(owner, torch.Generator) and (name == _SEED or (name in _GENERATOR_CALLS and is_default(owner))):
        return f"`{'torch.default_generator' if is_default(owner) else 'Generator'}.{name}()` is called"
    of_class = type(owner).__module__
    if name in _WRITERS.get(of_class if module == "" else module, ()):
        return f"`{name}()` writes or reads outside of the step"
    if name in _KEEPERS.get(of_class, ()):
        return f"`{type(owner).__name__}.{name}()` is called"
    if function in _OUTER_WORLD:
        return f"`{name}()` is called"
    if name in _SYSTEM_RANDOM and module in ("posix", "nt"):
        return f"`os.{name}()` is read"
    return None


def is_default(generator: torch.Generator) -> bool:
    """Tells whether a generator is one that torch draws from where it is given none."""
    return generator is torch.default_generator or generator in torch.cuda.default_generators


def _is_asked_by_machine_code(frame: FrameType) -> bool:
    """Tells whether nobody's line names the function that a frame is of.

    Dynamo keeps the state of Python's generator while it compiles a frame, and puts it back; with torch 2.14 this hook
    sees that. Whether the state is another behind the step is looked at for itself.
    """
    caller = frame.f_back
    return caller is not None and frame.f_code.co_name not in caller.f_code.co_names


def _asked_by_user(frame: FrameType, name: str) -> bool:
    # Generators are set and read by torch itself on the user's behalf.
    return is_user_frame(frame) or (name.startswith("torch.") and "inductor" not in frame.f_code.co_filename)


def _sets_back(frame: FrameType, name: str) -> bool:
    """Tells whether activation checkpointing, or `fork_rng`, asks for a generator's state or sets it."""
    return name.endswith("_rng_state()") and frame.f_globals.get("__name__", "") in _SET_BACK
