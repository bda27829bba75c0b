"""The order of a DataLoader's batches: what is known of its samplers, and which rows the next batches hold.

Torch's own samplers are known by their making; a class derived from one of them, and any other, may do anything.
`Order` owns one traversal of the loader's own batch sampler. It does no arithmetic of a sampler again; it goes by when
a sampler draws, and so how far it may be read ahead without a draw from any generator coming early.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterator
from itertools import islice
from typing import Any

import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)
from torch.utils.data.distributed import DistributedSampler

_KNOWN = (SequentialSampler, RandomSampler, SubsetRandomSampler, WeightedRandomSampler, DistributedSampler)
"""Samplers whose order depends on torch's generators and on `set_epoch`, and on nothing else."""


def of_rows(loader: Any) -> Any:
    """Returns what gives a loader its rows one by one; None where a batch sampler may choose them in any way."""
    batches = getattr(loader, "batch_sampler", None)
    if batches is None:
        return getattr(loader, "sampler", None)
    return batches.sampler if type(batches) is BatchSampler else None


def is_sequential(loader: Any) -> bool:
    """Tells whether the order is always the same."""
    return type(of_rows(loader)) is SequentialSampler


def is_repeatable(loader: Any) -> bool:
    """Tells whether the order can be had again from the state of torch's generators."""
    return type(of_rows(loader)) in _KNOWN


def gives_ints(loader: Any) -> bool:
    """Tells whether the rows are Python ints by the making of the sampler, so that nobody need look."""
    kind = type(of_rows(loader))
    return kind in _KNOWN and kind is not SubsetRandomSampler  # which gives what somebody else has made


def draws(loader: Any) -> tuple[int, int | None]:
    """Returns the batch size of a loader that batches automatically, and the samples between two draws of its sampler.

    The number is None if it draws only when it begins, and 0 if it may draw, or look at anything, at every sample.
    """
    batches, sampler = loader.batch_sampler, of_rows(loader)
    if type(batches) is not BatchSampler:
        return 1, 0
    if type(sampler) is RandomSampler and sampler.generator is not None:
        # Draws from the user's generator in blocks, the block after the last one too. (Without one it draws a seed
        # when it begins and all else from a generator of its own.)
        return batches.batch_size, 32 if sampler.replacement else len(sampler.data_source)
    if type(sampler) is SubsetRandomSampler and type(sampler.indices) not in (list, tuple, range):
        return batches.batch_size, 0
    return batches.batch_size, None if type(sampler) in _KNOWN else 0


def set_epoch(loader: Any, epoch: int) -> None:
    """Tells the samplers of a loader which traversal begins."""
    sampler = getattr(loader, "sampler", None)
    inner = getattr(getattr(loader, "batch_sampler", None), "sampler", None)
    for item in [sampler] if inner is sampler else [sampler, inner]:
        tell = getattr(item, "set_epoch", None)
        if callable(tell):
            tell(epoch)


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
