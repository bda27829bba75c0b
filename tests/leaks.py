"""What a test may leave running: nothing. Finds the threads and child processes that were not there before."""

from __future__ import annotations

import contextlib
import gc
import multiprocessing
import os
import select
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path

LASTING_COMMANDS = (
    "torch/_inductor/compile_worker",  # Inductor's pool of compilers: one for the process, until it exits
    "multiprocessing.resource_tracker",  # the standard library's own, likewise
    "multiprocessing.forkserver",
    "orted --hnp",  # Open MPI's daemon, where mpi4py is installed: Lightning asks it whether it was started by MPI
)
LASTING_THREADS = (
    "InductorSubproc",  # reads the answers of that pool
    "InductorSubprocHealth",  # asks it now and then whether it lives (torch 2.15)
    "subproc_worker_timer",  # lets its processes go once they have had nothing to do for long
    "tqdm_monitor",  # one for the process; Inductor starts it too, by importing a progress bar
    "child-process-observer",  # of Lightning's launcher for several processes: looks every 5 seconds whether to end
)


@dataclass(frozen=True)
class Running:
    threads: frozenset[threading.Thread]
    children: frozenset[int]
    rows: frozenset[str]


def running() -> Running:
    return Running(frozenset(threading.enumerate()), frozenset(_children()), frozenset(threads_for_rows()))


def threads_for_rows() -> set[str]:
    """Returns the threads of C++ beside which rows of steps are prepared; none where nothing lists threads."""
    tasks = Path("/proc/self/task")
    found = set()
    for task in tasks.iterdir() if tasks.exists() else ():
        with contextlib.suppress(OSError):  # it has ended meanwhile
            if (task / "comm").read_text().strip() == "lightning_sink":
                found.add(task.name)
    return found


def left_behind(before: Running, seconds: float = 5.0) -> list[str]:
    """Describes what runs now, did not run before, and does not end within `seconds`."""
    if not _new_threads(before) and not _new_children(before) and threads_for_rows() <= before.rows:
        return []
    gc.collect()  # what ends with its owner, as a loader's workers do, while the owner is part of a reference cycle
    deadline = time.monotonic() + seconds
    for thread in _new_threads(before):
        thread.join(max(0.0, deadline - time.monotonic()))
    for pid in _new_children(before):
        _join_process(pid, max(0.0, deadline - time.monotonic()))
    threads = [f"thread {thread.name!r} (daemon={thread.daemon})" for thread in _new_threads(before)]
    threads += [f"thread {task} for rows" for task in threads_for_rows() - before.rows]
    return threads + [f"process {pid}: {command}" for pid, command in _new_children(before).items()]


def _new_threads(before: Running) -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread not in before.threads and not _lasts(thread)]


def _lasts(thread: threading.Thread) -> bool:
    if isinstance(thread, threading._DummyThread):  # a thread of C++, such as autograd's, that once ran Python
        return True
    if thread.name in LASTING_THREADS:
        return True
    # Inductor's pool of compiler threads: one for the process, with the names that any ThreadPoolExecutor gives.
    inductor = sys.modules.get("torch._inductor.async_compile")
    pool = inductor and inductor.AsyncCompile.pool
    return bool(pool and pool.cache_info().currsize and thread in pool()._threads)


def _new_children(before: Running) -> dict[int, str]:
    return {
        pid: command
        for pid, command in _children().items()
        if pid not in before.children and not any(name in command for name in LASTING_COMMANDS)
    }


def _children() -> dict[int, str]:
    """Returns the live child processes and their commands; where there is no /proc, those of multiprocessing only."""
    children = {child.pid: child.name for child in multiprocessing.active_children() if child.pid is not None}
    for listing in Path("/proc/self/task").glob("*/children"):
        with contextlib.suppress(OSError):  # that thread, or that child, has just ended
            for pid in map(int, listing.read_text().split()):
                # A zombie has ended and is not yet waited for. (Its command is empty too, but so is that of a process
                # that is just starting.)
                if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z":
                    command = Path(f"/proc/{pid}/cmdline").read_bytes()
                    children[pid] = command.replace(b"\0", b" ").decode(errors="replace").strip()
    return children


def _join_process(pid: int, seconds: float) -> None:
    for child in multiprocessing.active_children():
        if child.pid == pid:
            child.join(seconds)
            return
    with contextlib.suppress(ProcessLookupError):
        descriptor = os.pidfd_open(pid)
        try:
            select.select([descriptor], [], [], seconds)
        finally:
            os.close(descriptor)
