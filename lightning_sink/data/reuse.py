"""Loaders that fill the same memory again for a later batch: how far such a loader may be read ahead.

Plain training has used a batch before the next one is fetched, so a loader may keep one set of buffers, or a few in
turn. Read further ahead than that, batches would be overwritten before they are trained.
"""

from __future__ import annotations

from bisect import bisect_left
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from lightning_sink.data.batch import flatten

_SAMPLE = 1 << 14
"""Numbers of a tensor that are compared."""


class Reuse:
    """Looks at the first batches, while they are trained one by one, and at none later.

    Args:
        batches: How many to look at. They are kept until then: memory that nobody holds may well come again.
        most_bytes: Most bytes to keep; where batches are larger, fewer are looked at.

    Attributes:
        distance: How many batches in a row are known to lie in memory of their own.
        found: Whether the next one would not.
        ended: Whether all that will be looked at have been.
    """

    def __init__(self, batches: int, most_bytes: int) -> None:
        self.distance, self.found = 0, False
        self._most, self._room = batches, most_bytes
        self._kept: list[list[tuple[Tensor, Tensor]]] = []
        self.ended = False

    def note(self, batch: Any) -> None:
        """Looks at a batch that has just been fetched, and at what is left of those before."""
        if self.ended:
            return
        leaves = [leaf.detach() for leaf in flatten(batch)[0] if _has_numbers(leaf)]
        size = sum(leaf.nbytes for leaf in leaves)
        self._room -= size
        memory = _Memory(leaves)
        for distance, earlier in enumerate(reversed(self._kept), start=1):
            if any(memory.touches(leaf) and not torch.equal(_sample(leaf), then) for leaf, then in earlier):
                self.distance, self.found = distance, True
                self._end()
                return
        self._kept.append([(leaf, _sample(leaf)) for leaf in leaves])
        self.distance = len(self._kept)
        # So many bytes may lie in the queue while one batch is trained, and one is fetched.
        if self.distance >= self._most or self._room <= -2 * size:
            self._end()

    def _end(self) -> None:
        self.ended = True
        self._kept.clear()


def _has_numbers(tensor: Tensor) -> bool:
    """Tells whether a tensor has numbers in memory of its own."""
    return tensor.layout is torch.strided and not (tensor.is_quantized or tensor.is_nested)


def _sample(tensor: Tensor) -> Tensor:
    """A copy of some of a tensor's numbers, as bytes: of whatever type they are, and NaN equals NaN."""
    flat = tensor.reshape(-1)
    return flat[:: max(1, len(flat) // _SAMPLE)].clone().view(torch.uint8)


class _Memory:
    """The memory between the first and the last number of each of some tensors, views of one another or not."""

    def __init__(self, tensors: list[Tensor]) -> None:
        spans = sorted(span for tensor in tensors if (span := _span(tensor)) is not None)
        self._starts = [start for start, _ in spans]
        self._furthest = list(accumulate((end for _, end in spans), max))

    def touches(self, tensor: Tensor) -> bool:
        span = _span(tensor)
        if span is None:
            return False
        before = bisect_left(self._starts, span[1])
        return before > 0 and self._furthest[before - 1] > span[0]


def _span(tensor: Tensor) -> tuple[int, int] | None:
    """The addresses of a tensor's first number and behind its last; None where there is no memory."""
    start = tensor.data_ptr()
    if not start or not tensor.numel():
        return None
    numbers = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True)) + 1
    return start, start + numbers * tensor.element_size()
