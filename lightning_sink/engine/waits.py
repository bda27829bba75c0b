"""Waiting for a GPU where the engine itself has to, between sinks' rows: while it compiles a step, or compares one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def may_wait() -> Iterator[None]:
    """Lets this process wait for a while, whatever `torch.cuda.set_sync_debug_mode` says of the user's steps."""
    mode = torch.cuda.get_sync_debug_mode() if torch.cuda.is_initialized() else 0
    if not mode:
        yield
        return
    torch.cuda.set_sync_debug_mode(0)
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode(mode)
