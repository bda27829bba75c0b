"""What torch keeps for each thread: as it is on one, for another to compute as that would."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch

_CASTS = ("cpu", "cuda", "mps")
"""Kinds of devices whose autocast is a thread's."""


class ThreadState:
    """Whether gradients are on, the default device, autocast, the GPU and its stream, as they are on this thread."""

    def __init__(self) -> None:
        self._grad, self._device = torch.is_grad_enabled(), torch.get_default_device()
        enabled = [kind for kind in _CASTS if torch.is_autocast_enabled(kind)]
        self._casts = [(kind, torch.get_autocast_dtype(kind)) for kind in enabled]
        self._stream = torch.cuda.current_stream() if torch.cuda.is_initialized() else None

    @contextmanager
    def here(self) -> Iterator[None]:
        """Has this thread compute so for a while."""
        with ExitStack() as stack:
            stack.enter_context(torch.set_grad_enabled(self._grad))
            if self._device.type != "cpu":
                stack.enter_context(self._device)
            if self._stream is not None:  # and the GPU that it is of
                stack.enter_context(torch.cuda.stream(self._stream))
            for kind, dtype in self._casts:
                stack.enter_context(_casting(kind, dtype))
            yield


@contextmanager
def _casting(kind: str, dtype: torch.dtype) -> Iterator[None]:
    """Casts for a while. To leave `torch.autocast` would forget what is kept of other casts, for all threads."""
    before = torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)
    torch.set_autocast_enabled(kind, True)
    torch.set_autocast_dtype(kind, dtype)
    try:
        yield
    finally:
        torch.set_autocast_enabled(kind, before[0])
        torch.set_autocast_dtype(kind, before[1])
