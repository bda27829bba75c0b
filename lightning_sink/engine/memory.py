"""Memory that a step gives back and the next one asks for again."""

from __future__ import annotations

import torch

_LARGEST = (1 << 25) - (1 << 16)
"""Bytes of a block that glibc takes as the largest that is given back and asked for again: it stops at 32 MiB."""


def keep_freed_memory() -> None:
    """Has the C library keep what steps give back, where it would hand it to the system each time.

    glibc has large blocks from the system one by one, and hands the end of a heap back, beyond thresholds that rise
    with the largest block of the first kind that was ever freed, to 32 and 64 MiB (`M_MMAP_THRESHOLD` in mallopt(3)).
    The blocks of a small ResNet are a megabyte at most: a quarter of its steps' time was the system's, which took their
    pages and gave them again. Freeing one larger block raises the thresholds as any program does that frees such a
    tensor; it costs no memory, and with it blocks below 32 MiB lie in the heap, where one in use keeps those below it.
    Another C library takes no notice.
    """
    torch.empty(_LARGEST, dtype=torch.uint8, device="cpu")
