"""The C++ compiler as Inductor calls it: for which processor, with which headers, and what it compiles once for all.

A training that finds nothing in Inductor's cache waits for it, longer than for all else at its start. Private names of
Inductor's, checked against torch 2.11 to 2.15; `tests/engine/compiler/test_toolchain.py` fails with the name when an
upgrade removes one.
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar
from unittest.mock import patch

T = TypeVar("T")

_WITHOUT_HEADERS = 6
"""Programs that a process compiles with headers that are read each time: compiling headers beforehand takes as long as
it saves four, and most processes have fewer."""

_MISS = "fxgraph_cache_miss"
_compiled = Counter[str]()
"""How many programs this process has compiled that were in no cache."""


@dataclass(frozen=True)
class Beside:
    """C++ beside what Inductor generates.

    Attributes:
        headers: What generated code and this include.
        step: Is compiled with each step, before the generated function.
        runtime: Is compiled once for all steps, behind the headers.
        calls: Functions of the former that take the place of the library's, with whether they take tensors of
            `bare.cpp`.
    """

    headers: Sequence[str]
    step: str
    runtime: str
    calls: Mapping[str, bool]

    @property
    def included(self) -> str:
        """What "#include <" and ">" are put around."""
        return ">\n#include <".join(self.headers)


@contextmanager
def toolchain(beside: Beside) -> Iterator[Callable[[], ctypes.PyDLL]]:
    """Has steps compiled for this processor, and meanwhile what is the same for all of them, unless Inductor has it.

    Gives what waits for the latter.
    """
    runtimes, source = _runtimes(), f"#include <{beside.included}>\n{beside.runtime}"
    with _best_instructions_only(), _compiled_beforehand(beside):
        try:
            with ThreadPoolExecutor(1) as pool:
                yield runtimes.load_async(source, submit_fn=pool.submit)
        except BaseException:
            runtimes.cache.clear()  # it keeps what failed, be it by Ctrl-C, and would fail with that for ever
            raise


_are_tried = threading.Event()
"""Set once something failed to compile that may have asked the compiler for more than it knows."""


def compiled_for_this_processor(compile_it: Callable[[], T]) -> T:
    """Compiles with the best instructions that the processor has; if that fails, that the compiler has, too.

    Inductor tries the compiler first, with three programs, which takes 2.3 s of a first start and 0.3 of each later
    one; hardly ever is a compiler older than the processor.
    """
    try:
        return compile_it()
    except Exception:
        if _are_tried.is_set() or not _tried_are_others():
            raise
    return compile_it()


def _tried_are_others() -> bool:
    """Has the compiler tried, from now on; tells whether that leads to others than were taken."""
    taken = _flags()
    _are_tried.set()
    _forget_instructions()
    return _flags() != taken


def _flags() -> str:
    from torch._inductor import cpu_vec_isa

    with _best_instructions_only():
        return cpu_vec_isa.pick_vec_isa().build_arch_flags()


def _forget_instructions() -> None:
    """Has Inductor know nothing of the compiler: it keeps that in caches, by equality, and in attributes."""
    from torch._inductor import cpu_vec_isa

    known: list[Any] = cpu_vec_isa.supported_vec_isa_list  # of dataclasses, which their common base is not
    known[:] = map(replace, known)
    methods = [method for each in known for kind in type(each).__mro__ for method in vars(kind).values()]
    for cached in (cpu_vec_isa.valid_vec_isa_list, _best_instructions, *methods):
        if hasattr(cached, "cache_clear"):
            cached.cache_clear()


@contextmanager
def _best_instructions_only() -> Iterator[None]:
    """Has the best instructions taken that the processor has, and has the compiler tried with them where it must be.

    Inductor tries it with all of them, for which files are compiled and loaded each time, and takes the best that work
    unless it is told a width (`simdlen`, for each thread, or `ATEN_CPU_CAPABILITY`). It asks again of what it has taken
    while it writes loops.
    """
    from torch._inductor import config, cpu_vec_isa

    of_torch, trusted = cpu_vec_isa.valid_vec_isa_list, list[str]()

    def trust(instructions: Any, code: str) -> bool:
        trusted.append(code)
        return True

    def best() -> list[Any]:
        is_told = config.cpp.simdlen is not None or os.getenv("ATEN_CPU_CAPABILITY")
        return of_torch() if is_told else _best_instructions(of_torch)

    trusting = nullcontext() if _are_tried.is_set() else patch.object(cpu_vec_isa.VecISA, "check_build", trust)
    try:
        with trusting, patch.object(cpu_vec_isa, "valid_vec_isa_list", best):
            yield
    finally:
        if trusted:
            _forget_instructions()  # what is trusted here is tried elsewhere


@lru_cache
def _best_instructions(of_torch: Any) -> list[Any]:
    from torch._inductor import cpu_vec_isa

    found: list[Any] = []
    for each in cpu_vec_isa.supported_vec_isa_list:
        with patch.object(cpu_vec_isa, "supported_vec_isa_list", [each]):
            found = found or [*of_torch.__wrapped__()]
    return found


@contextmanager
def _compiled_beforehand(beside: Beside) -> Iterator[None]:
    """Has a step's headers compiled beforehand where many steps are compiled, or used where they are.

    `_get_uncompiled_header` names the header, and may name several. By itself Inductor has its own first one compiled
    at once, and leaves `cpp_prefix.h` to each step, which is a third of a small one's time.
    """
    from torch._dynamo.utils import counters
    from torch._inductor.codecache import CppWrapperCodeCache

    of_torch, before = CppWrapperCodeCache._get_uncompiled_header, counters["inductor"][_MISS]

    def header(device: str) -> str | None:
        if device != "cpu":
            return of_torch(device)
        is_wanted = _compiled[_MISS] >= _WITHOUT_HEADERS or _are_compiled(beside.included)
        return beside.included if is_wanted else None

    try:
        with patch.object(CppWrapperCodeCache, "_get_uncompiled_header", header):
            yield
    finally:
        _compiled[_MISS] += counters["inductor"][_MISS] - before


def _are_compiled(included: str) -> bool:
    """Tells whether headers have been compiled, with whatever options: Inductor sees whether they can be used."""
    from torch._inductor import codecache

    files = [path for path in Path(codecache._HEADER_DIR).glob("*.h") if Path(f"{path}.gch").exists()]
    return any(path.read_text() == f"#include <{included}>\n" for path in files)


@lru_cache
def _runtimes() -> Any:
    """Returns a cache of libraries that are compiled as Inductor compiles steps, and called by `ctypes`."""
    from torch._inductor.codecache import CppWrapperCodeCache

    class Runtimes(CppWrapperCodeCache):
        cache = {}

        @staticmethod
        def _load_library_inner(path: str, key: str) -> Any:
            return ctypes.PyDLL(path)

        @classmethod
        def _get_uncompiled_header(cls, device: str) -> str | None:
            return None  # it is compiled once, and waits for nothing

    return Runtimes


def missing_compiler() -> str | None:
    """Returns why Inductor cannot compile for a CPU on this machine, None if it can."""
    from torch._inductor.cpp_builder import get_cpp_compiler

    try:
        get_cpp_compiler()
    except Exception as error:  # Inductor raises several private types here; each of them means the same.
        return f"{type(error).__name__}: {error}".splitlines()[0]
    return None
