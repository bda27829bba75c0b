"""What is known of a loader's samplers: where they are, what they give, and when they draw from which generators.

Torch's own are known by their making; a class derived from one of them, and any other, may do anything.
"""

from __future__ import annotations

from typing import Any

from torch.utils.data import BatchSampler, RandomSampler, SequentialSampler, SubsetRandomSampler, WeightedRandomSampler
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
