"""One training loader as it is traversed: by the fast road where there is one, and from the middle after a resume.

A `Road` stands in front of a loader while an iterator is made of it and changes nothing that the user can see of it.
`Draws` keeps the generators that an order of batches may come from, so that the same order can be had again.
"""

from __future__ import annotations

import random
import sys
from array import array
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import Any, cast

import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)
from torch.utils.data.distributed import DistributedSampler

_REPEATABLE = (SequentialSampler, RandomSampler, SubsetRandomSampler, WeightedRandomSampler, DistributedSampler)
"""Samplers whose order depends on torch's generators and on `set_epoch`, and on nothing else."""

Saved = dict[str, Any]
"""States of generators as strings and numbers, fit for a checkpoint."""


class Road:
    """A loader, iterated on the trainer's thread.

    Args:
        loader: The loader.
        fast: Gives the same batches faster; None where there is no such thing.
    """

    def __init__(self, loader: Any, fast: Any | None = None) -> None:
        self.loader = loader
        self.fast = fast
        self._skip = 0
        self._sampler_begins: Saved = {}
        self._rows: _Rows | None = None

    def __repr__(self) -> str:
        return f"Road({type(self.loader).__name__}, {'gathered' if self.fast is not None else 'as it is'})"

    def __len__(self) -> int:
        return len(self.loader)

    @property
    def name(self) -> str:
        """What gives the order: the sampler, or the loader itself."""
        return type(getattr(self.loader, "sampler", None) or self.loader).__name__

    @property
    def is_sequential(self) -> bool:
        """Whether its order is always the same."""
        batches = getattr(self.loader, "batch_sampler", None)
        plain = batches is None or type(batches) is BatchSampler
        return plain and type(getattr(self.loader, "sampler", None)) is SequentialSampler

    @property
    def is_repeatable(self) -> bool:
        """Whether its order can be had again from the state of torch's generators."""
        sampler = getattr(self.loader, "sampler", None)
        batches = getattr(self.loader, "batch_sampler", None)
        if batches is not None and type(batches) is not BatchSampler:
            return False
        return type(getattr(batches, "sampler", sampler)) in _REPEATABLE

    @property
    def restarts_workers(self) -> bool:
        """Whether each traversal starts processes."""
        loader = self.loader
        return self.fast is None and bool(getattr(loader, "num_workers", 0)) and not loader.persistent_workers

    @property
    def skips(self) -> bool:
        """Whether batches can be passed over without being fetched."""
        loader = self.loader
        return isinstance(loader, DataLoader) and not isinstance(loader.dataset, IterableDataset)

    def resume(self, skip: int, first: Saved, *, begin: Saved | None = None, follows: bool = False) -> None:
        """Lets the next traversal begin behind `skip` batches.

        Args:
            skip: Batches to pass over, at least one.
            first: The generators as they were before the first batch of the traversal was fetched.
            begin: The generators as they were when the traversal's iterator was made.
            follows: Whether the traversal was not the first of its training.
        """
        self._skip = skip
        # Without workers the sampler begins with the first batch. With workers it begins with the iterator, behind the
        # draw of a seed for them, which those that persist are given only once.
        persist = getattr(self.loader, "persistent_workers", False) and follows
        self._sampler_begins = first
        if getattr(self.loader, "num_workers", 0):
            self._sampler_begins = (begin or {}) if persist else {}
        if self.fast is not None:
            self.fast.resumed = persist

    def __iter__(self) -> Iterator[Any]:
        skip, self._skip = self._skip, 0
        self._rows = None
        if not skip and (self.fast is not None or not self.skips or hasattr(self.loader, "state_dict")):
            return cast(Iterator[Any], iter(self.loader if self.fast is None else self.fast))
        if self.fast is not None:
            iterator = iter(self.fast)
            with drawing_from(self._sampler_begins, [self]):
                iterator.skip(skip)
            return cast(Iterator[Any], iterator)
        if self.skips:
            return self._iterate(skip)
        iterator = iter(self.loader)
        pass_over(iterator, skip)
        return cast(Iterator[Any], iterator)

    def _iterate(self, skip: int) -> Iterator[Any]:
        """Makes an iterator of a DataLoader out of a sampler that begins further on and can give rows again."""
        # DataLoader forbids to set these by assignment, and reads them once for each iterator.
        attributes = vars(self.loader)
        name = "sampler" if self.loader.batch_sampler is None else "batch_sampler"
        sampler, rows = attributes[name], _Rows(self, attributes[name], skip, self._sampler_begins)
        attributes[name] = rows
        try:
            iterator = iter(self.loader)
        finally:
            attributes[name], rows.skip = sampler, 0
        self._rows = rows if not self.loader.num_workers else None
        return cast(Iterator[Any], iterator)

    def retry(self) -> bool:
        """Lets the next batch have the rows of the last one, whose fetch failed; tells whether that can be done."""
        return self._rows is not None and self._rows.give_again()


class _Rows:
    """A loader's sampler whose traversals leave out their beginning, until `skip` is 0, and can give rows again.

    A loader with workers begins two of them for one iterator, and uses the second.
    """

    def __init__(self, road: Road, sampler: Any, skip: int, begins: Saved) -> None:
        self.skip = skip
        self._road, self._sampler, self._begins = road, sampler, begins
        self._last: Any = None
        self._again = False

    def __len__(self) -> int:
        return len(self._sampler)

    def __iter__(self) -> Iterator[Any]:
        # At once: some samplers draw when they are begun.
        return self._give(iter(self._sampler), self.skip)

    def _give(self, iterator: Iterator[Any], skip: int) -> Iterator[Any]:
        if skip:
            with drawing_from(self._begins, [self._road]):
                pass_over(iterator, skip)
        for rows in iterator:
            self._last, self._again = rows, True
            while self._again:
                self._again = False
                yield rows

    def give_again(self) -> bool:
        """Gives the last rows once more."""
        self._again = self._last is not None
        return self._again


def pass_over(iterator: Iterator[Any], batches: int) -> None:
    """Takes so many items, or all that there are: what follows will show that there are no more."""
    for _ in islice(iterator, batches):
        pass


def set_epoch(loader: Any, epoch: int) -> None:
    """Tells the samplers of a loader which traversal begins."""
    sampler = getattr(loader, "sampler", None)
    inner = getattr(getattr(loader, "batch_sampler", None), "sampler", None)
    for item in [sampler] if inner is sampler else [sampler, inner]:
        tell = getattr(item, "set_epoch", None)
        if callable(tell):
            tell(epoch)


class Draws:
    """The generators that an order may come from, as they are now.

    Args:
        roads: The loaders: their own generators are kept too, and those of numpy and Python where a sampler is not one
            of torch's.
    """

    def __init__(self, roads: list[Road]) -> None:
        self._torch = torch.get_rng_state()
        self._own = [generator.get_state() for generator in _own_generators(roads)]
        others = not all(road.is_repeatable for road in roads)
        self._python = random.getstate() if others else None
        self._numpy = _numpy_state() if others else None

    def saved(self) -> Saved:
        """Returns the states as strings and numbers."""
        saved: Saved = {"torch": _text(self._torch.tolist()), "own": [_text(state.tolist()) for state in self._own]}
        if self._python is not None:
            version, numbers, gauss = self._python
            saved["python"] = [version, _text(numbers), gauss]
        if isinstance(self._numpy, tuple):  # another kind of generator than the usual one has a dictionary
            name, keys, *rest = self._numpy
            saved["numpy"] = [name, _text(keys.tolist()), *rest]
        return saved


@contextmanager
def drawing_from(saved: Saved, roads: list[Road]) -> Iterator[None]:
    """Puts the process's generators where they stood, for a while; loaders' own generators stay there."""
    if not saved:
        yield
        return
    present = torch.get_rng_state(), random.getstate(), _numpy_state()
    torch.set_rng_state(_tensor(saved["torch"]))
    for generator, state in zip(_own_generators(roads), saved["own"], strict=False):
        generator.set_state(_tensor(state))
    if "python" in saved:
        version, numbers, gauss = saved["python"]
        random.setstate((version, tuple(_numbers(numbers)), gauss))
    if "numpy" in saved and "numpy" in sys.modules:
        name, keys, *rest = saved["numpy"]
        sys.modules["numpy"].random.set_state((name, _numbers(keys), *rest))
    try:
        yield
    finally:
        torch.set_rng_state(present[0])
        random.setstate(present[1])
        if present[2] is not None:
            sys.modules["numpy"].random.set_state(present[2])


def _own_generators(roads: list[Road]) -> list[torch.Generator]:
    found: list[torch.Generator] = []
    for road in roads:
        batches = getattr(road.loader, "batch_sampler", None)
        for owner in (road.loader, getattr(road.loader, "sampler", None), batches, getattr(batches, "sampler", None)):
            generator = getattr(owner, "generator", None)
            if isinstance(generator, torch.Generator) and not any(generator is other for other in found):
                found.append(generator)
    return found


def _numpy_state() -> Any:
    numpy = sys.modules.get("numpy")
    return numpy.random.get_state() if numpy is not None else None


def _text(numbers: Sequence[int]) -> str:
    return array("I", numbers).tobytes().hex()


def _numbers(text: str) -> list[int]:
    numbers = array("I")
    numbers.frombytes(bytes.fromhex(text))
    return numbers.tolist()


def _tensor(text: str) -> torch.Tensor:
    return torch.tensor(_numbers(text), dtype=torch.uint8)
