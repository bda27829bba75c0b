"""The order of a DataLoader's batches: which rows the next ones hold, read at the moments at which it would draw them.

`Order` owns one traversal of the loader's own batch sampler. It does no arithmetic of a sampler again; it goes by when
a sampler draws (`samplers.py`), and so how far it may be read ahead without a draw from any generator coming early.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterator
from itertools import islice
from typing import Any

import torch
from torch.utils.data import DataLoader

from lightning_sink.data.samplers import draws, gives_ints


class Order:
    """One traversal of a `DataLoader`'s batch sampler; draws now what `iter(loader)` would draw now.

    Where that `resumes`, going on with workers that persist, it draws no seed for them.
    """

    def __init__(self, loader: DataLoader[Any], *, resumes: bool = False) -> None:
        self._batches: Iterator[Any] = iter(loader.batch_sampler)  # type: ignore[arg-type]
        if not resumes:
            torch.empty((), dtype=torch.int64).random_(generator=loader.generator)  # the seed of the workers
            if loader.num_workers:  # starts its sampler twice, the first one unused
                self._batches = iter(loader.batch_sampler)  # type: ignore[arg-type]
        self.gives_ints = gives_ints(loader)
        self._read: deque[Any] = deque()
        self._samples = 0
        self._failed: Exception | None = None
        self.batch_size, self._period = draws(loader)
        # With workers a loader begins by reading this many, and is ahead by as many from then on.
        self._pull((loader.prefetch_factor or 0) * loader.num_workers)
        if self._failed is not None:
            raise self._failed

    def take(self, most: int) -> list[Any]:
        """Returns the rows of the next batches, at least one batch and at most `most`; none when there is no more."""
        count = min(most, self._before_a_draw())
        pulled = self._pull(count) if self._failed is None else 0
        if self._failed is not None:
            if not pulled:
                failed, self._failed = self._failed, None
                raise failed
            count = pulled
        return [self._read.popleft() for _ in range(min(count, len(self._read)))]

    def _before_a_draw(self) -> int:
        """Returns how many batches can be read now so that none but the first of them may draw."""
        if self._period is None:
            return sys.maxsize
        if self._period == 0:
            return 1
        return max(1, (self._period - self._samples % self._period) // self.batch_size)

    def _pull(self, count: int) -> int:
        before = len(self._read)
        try:
            self._read.extend(islice(self._batches, count))
        except Exception as error:  # raised again when the batch that it belongs to is due
            self._failed = error
        pulled = len(self._read) - before
        self._samples += pulled * self.batch_size
        return pulled
