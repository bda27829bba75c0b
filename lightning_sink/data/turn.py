"""What a fetch on another thread may not do out of turn: draw from the process's random generators, or fork.

The default generators of torch, numpy and Python belong to the whole process. A fetch that draws from one of them while
a step is running would get other numbers in each run, and the step as well. `watched` stops such a fetch right before
the draw until it is its turn: until the training has used every batch before it and stands still, waiting for this one.
That is where plain training would have made the fetch, so every draw gives what it gives there. A process forked by a
fetch is forked from that same quiet moment.

Each kind of draw has one place where it can be seen for one thread only:

* torch: a dispatch mode sees every operation of its thread; those that draw carry a tag.
* Python: the interpreter's profile hook sees calls of the methods of the hidden `random.Random` (and of torch's default
  generators, for seeds).
* numpy: every draw holds the bit generator's lock. While a queue is at work the global one gets a bit generator whose
  lock knows about turns; its state is carried over, forth and back.

The profile hook sees no call that C code makes by itself: `map(random.random, ...)` goes unnoticed.
"""

from __future__ import annotations

import os
import random
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import numpy as np
import torch

from lightning_sink.data.private import TorchDispatchMode, dispatching_here, is_default_generator

_PYTHON = random.random.__self__  # type: ignore[attr-defined]
_FORKS = frozenset(
    getattr(os, name) for name in ("fork", "forkpty", "posix_spawn", "posix_spawnp", "system") if hasattr(os, name)
)
_here = threading.local()

Wait = Callable[[str], None]


@contextmanager
def watched(wait: Wait) -> Iterator[None]:
    """Calls `wait`, with the name of what is about to be touched, before anything in this thread touches it.

    That returns when it is this thread's turn; it may raise to abandon the fetch.
    """
    previous = sys.getprofile()
    _here.wait = wait
    try:
        with dispatching_here(_TorchDraws(wait)):
            sys.setprofile(_profile)
            try:
                yield
            finally:
                sys.setprofile(previous)
    finally:
        del _here.wait


class _TorchDraws(TorchDispatchMode):
    """Sees operations that draw from torch's default generator."""

    def __init__(self, wait: Wait) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._wait = wait

    def __torch_dispatch__(
        self, operation: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if torch.Tag.nondeterministic_seeded in operation.tags:
            generator = kwargs.get("generator")
            if generator is None or is_default_generator(generator):
                self._wait("torch's default generator")
        return operation(*args, **kwargs)


def _profile(frame: FrameType, event: str, function: Any) -> None:
    if event != "c_call":
        return
    owner = getattr(function, "__self__", None)
    if owner is _PYTHON:
        _here.wait("Python's `random`")
    elif isinstance(owner, torch.Generator) and is_default_generator(owner):
        _here.wait("torch's default generator")
    elif function in _FORKS or function.__name__ == "fork_exec":
        _here.wait("new processes")


class NumpyTurns:
    """Gives numpy's global generator a lock that knows about turns, from `install` to `remove`.

    Several at a time share it; the last one to be removed takes it away. `install` and `remove` swap the generator, so
    they are for a trainer's thread: a draw of another thread between the two halves of a swap would be lost.
    """

    _users = 0
    _original: Any = None
    _guard = threading.Lock()

    def __init__(self) -> None:
        self._installed = False

    def install(self) -> None:
        """Puts the lock in place, once; draws go on where they stood."""
        if self._installed:
            return
        with self._guard:
            self._installed = True
            NumpyTurns._users += 1
            present = np.random.mtrand.get_bit_generator()
            if not hasattr(present, "knows_turns"):
                NumpyTurns._original = present
                _replace(_turning(type(present))())

    def give_up(self) -> None:
        """Ends this use and swaps nothing, on whichever thread: the next `install` or `remove` of any goes by it."""
        with self._guard:
            NumpyTurns._users -= self._installed
            self._installed = False

    def remove(self) -> None:
        """Puts the generator back that was there before, where the draws stand now."""
        self.give_up()
        with self._guard:
            if NumpyTurns._users == 0 and NumpyTurns._original is not None:
                # One that the user has put there since stays.
                if hasattr(np.random.mtrand.get_bit_generator(), "knows_turns"):
                    _replace(NumpyTurns._original)
                NumpyTurns._original = None


def _replace(generator: Any) -> None:
    state = np.random.get_state(legacy=False)
    np.random.mtrand.set_bit_generator(generator)
    np.random.set_state(state)


class _TurningLock:
    """A lock that a watched thread takes in its turn only."""

    def __init__(self, lock: Any) -> None:
        self._lock = lock

    def __enter__(self) -> Any:
        _wait_for_numpy()
        return self._lock.__enter__()

    def __exit__(self, *error: Any) -> Any:
        return self._lock.__exit__(*error)


def _wait_for_numpy() -> None:
    wait: Wait | None = getattr(_here, "wait", None)
    if wait is not None:
        wait("numpy's global generator")


def _turning(kind: type[Any]) -> type[Any]:
    """Returns a class of bit generators that differs from `kind` in its lock only."""

    def lock(self: Any) -> _TurningLock:
        return _TurningLock(kind.lock.__get__(self))

    def seed(self: Any, *arguments: Any) -> Any:
        # Seeding takes the lock from inside the class, where no property is asked.
        _wait_for_numpy()
        return kind._legacy_seeding(self, *arguments)

    def state(self: Any) -> Any:
        _wait_for_numpy()
        return kind.state.__get__(self)

    def set_state(self: Any, value: Any) -> None:
        _wait_for_numpy()
        kind.state.__set__(self, value)

    def reduce(self: Any) -> Any:
        # A copy, or what another process gets, is one of the ordinary kind.
        plain = kind()
        plain.state = kind.state.__get__(self)
        return plain.__reduce__()

    members = {"lock": property(lock), "state": property(state, set_state), "knows_turns": True, "__reduce__": reduce}
    if hasattr(kind, "_legacy_seeding"):
        members["_legacy_seeding"] = seed
    return type(kind.__name__, (kind,), members)
