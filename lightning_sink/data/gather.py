"""Batches of data that is already in memory, gathered many at a time: what a DataLoader gives, without its cost.

A `DataLoader` indexes a `TensorDataset` row by row and stacks the rows, 0.1 to 0.3 ms for a batch of 32. Here one
indexing operation for each column gathers a run of batches, which are handed out side by side or one by one
(`gathered.py`). `order.py` owns which rows and when generators draw, `columns.py` the gathering and noticing that the
data changed since; this module owns which loaders this is right for, and the runs. Whatever it cannot be sure of it
leaves to the dataset and the collate function themselves: so a dataset with a `__getitems__` of its own, which may pad
or draw for each call.

Writes that torch does not count (through NumPy, `.data`, or into the list of a `Subset`) are seen from the next run on,
and in a copy on another device never. A batch that is handed out by itself shares its memory with the others of its
run: it keeps them alive, and must not be grown in place by `resize_`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from itertools import chain
from typing import Any

import torch
from torch.utils.data import DataLoader, StackDataset, Subset, TensorDataset

from lightning_sink.data.batch import flatten
from lightning_sink.data.columns import METHODS, UNGATHERABLE, Cache, Rows, Seen, fetch, gather, look
from lightning_sink.data.gathered import GatheredRows
from lightning_sink.data.order import Order
from lightning_sink.data.private import default_collate_fn_map, has_workers, is_default
from lightning_sink.errors import UnsupportedError

# Microseconds for a shuffled batch of 32 by the batches in a run: 7.8 at 16, 6.1 at 64, 5.8 at 128 and at 256. For rows
# of 3 KiB by the bytes in a run: 31 at 256 KiB, about 20 from 1 MiB on.
# A run that takes longer than the row of steps that it is gathered beside leaves these waiting: an MLP's sink of 1,000
# takes 28.5 ms at 16, 32.5 at 32, 36.5 at 128. A row may have several runs (`QueueOptions.in_a_row`).
_RUN_BATCHES, _RUN_BYTES = 16, 2 << 20

_CHANGED = (
    "the data was changed after the workers of its DataLoader began, and they may have had a copy of it as it was"
    " before; use num_workers=0, which is no slower for data in memory"
)

# A device gathers beside the host, and a row of steps is fed by one copy where all of its batches are of one run.
_RUN_BATCHES_THERE, _RUN_BYTES_THERE = 1024, 16 << 20


def gathered(
    loader: Any, ahead: Callable[[], int], *, device: torch.device | None = None, cache_bytes: int = 1 << 30
) -> GatherLoader | None:
    """Returns a loader that gives the same batches by gathering, or None where only the loader itself can.

    Args:
        loader: What gives the batches now.
        ahead: Returns how many batches, the next included, will be taken before anybody may change the data.
        device: Where to keep a copy of the data and to gather; None for where the data is.
        cache_bytes: The most that such a copy may take.

    Raises:
        ValueError: The copy would take more than `cache_bytes`.
    """
    if not (_is_plain(loader) and _gathers_alike(loader)):
        return None
    cache = Cache(device, cache_bytes, pins=_pins(loader))
    cache.renew(loader.dataset)  # now, so that it fails now
    return GatherLoader(loader, ahead, cache)


def _is_plain(loader: Any) -> bool:
    """Whether a loader does nothing but to index its dataset and to collate by default, in the order of its sampler."""
    if not is_default(loader):
        return False
    if _pins(loader) and torch.accelerator.current_accelerator() == torch.device("mps"):
        return False  # where it says that it does not
    if loader.num_workers:
        # Workers would only index and stack, too. But what begins them may do anything.
        return bool(loader.worker_init_fn is None and loader.in_order and loader.prefetch_factor)
    return not loader.timeout


def _pins(loader: DataLoader[Any]) -> bool:
    """Whether a loader gives its batches in memory that a device copies from by itself."""
    return bool(loader.pin_memory and torch.accelerator.is_available())


def _gathers_alike(loader: DataLoader[Any]) -> bool:
    """Whether the dataset is of a known kind, and its first and last row gathered are what the loader makes of them.

    The rows are compared because datasets' methods and the table of collate functions may have been replaced.
    """
    try:
        if not _can_be_gathered(loader):
            return False
        rows = [0, len(loader.dataset) - 1]  # type: ignore[arg-type]
        found, build, _ = gather(loader.dataset, Rows(rows), Cache())
        return _same(build(found), fetch(loader.dataset, rows))
    except (*UNGATHERABLE, RuntimeError, ValueError):
        return False  # the loader itself will say what is wrong


def _methods() -> list[Any]:
    """Returns what all datasets and collate functions of torch's have, and anybody may replace."""
    kinds = TensorDataset, Subset, StackDataset
    return [*(vars(kind).get(name) for kind in kinds for name in METHODS), *default_collate_fn_map.values()]


def _can_be_gathered(loader: DataLoader[Any]) -> bool:
    """Whether the dataset is of a known kind, and where its loader can read it."""
    try:
        tensors = look(loader.dataset).tensors
    except UNGATHERABLE:
        return False
    # A worker may not use an accelerator, nor is its memory pinned.
    return not (loader.num_workers or _pins(loader)) or all(tensor.is_cpu for tensor in tensors)


def _same(one: Any, other: Any) -> bool:
    (leaves, look), (others, other_look) = flatten(one), flatten(other)
    return look == other_look and all(
        type(leaf) is type(twin) and (leaf.is_meta or torch.equal(leaf.view(torch.uint8), twin.view(torch.uint8)))
        for leaf, twin in zip(leaves, others, strict=True)  # as bytes: NaN is NaN
    )


class GatherLoader:
    """Gives the batches of `loader` by gathering; each `iter()` is one traversal. Made by `gathered`."""

    def __init__(self, loader: DataLoader[Any], ahead: Callable[[], int], cache: Cache) -> None:
        self.loader, self.ahead, self.cache = loader, ahead, cache
        self.resumed = False  # whether the next traversal stands for one of workers that had been there before
        self._workers_saw: Seen | None = None
        self._methods = _methods()
        columns = [cache.of(tensor) for tensor in look(loader.dataset).tensors]
        self._row_bytes = sum(column.nbytes // len(column) for column in columns)
        self._is_on_host = any(column.is_cpu for column in columns)

    def go_on(self, other: GatherLoader) -> None:
        """Goes on with the workers that another one of the same loader stood for; these persist."""
        self._workers_saw = other._workers_saw

    def is_right(self) -> bool:
        """Tells whether the loader would still give the same: one whose workers are there goes on as it began."""
        if self._stands_for_workers:
            return True
        alike = self._methods == _methods() and _can_be_gathered(self.loader)
        return _is_plain(self.loader) and (alike or _gathers_alike(self.loader))

    @property
    def _stands_for_workers(self) -> bool:
        begun = self.resumed or self._workers_saw is not None or has_workers(self.loader)
        return bool(self.loader.persistent_workers and begun)

    def run_batches(self, batch_size: int, *, in_row: bool) -> int:
        """Returns how many batches of so many rows are gathered at once, at most; `in_row` for a row of steps."""
        there = in_row and not self._is_on_host
        most, room = (_RUN_BATCHES_THERE, _RUN_BYTES_THERE) if there else (_RUN_BATCHES, _RUN_BYTES)
        fit = max(1, room // max(1, self._row_bytes * batch_size))
        return min(most, 1 << (fit.bit_length() - 1))  # a power of two: rows of steps are

    def __iter__(self) -> GatherIterator:
        loader = self.loader
        resumes, self.resumed = self._stands_for_workers, False
        order = Order(loader, resumes=resumes)
        if loader.num_workers and not (resumes and self._workers_saw is not None):
            self._workers_saw = look(loader.dataset)
        return GatherIterator(self, order, self._workers_saw)


class GatherIterator:
    """One traversal of a `GatherLoader`.

    `workers_saw` is the data that the loader's workers would have got a copy of; None where it has no workers.
    """

    def __init__(self, owner: GatherLoader, order: Order, workers_saw: Seen | None) -> None:
        self._loader, self._dataset = owner.loader, owner.loader.dataset
        self._ahead = owner.ahead
        self._cache = owner.cache
        self._order = order
        self._run_batches = owner.run_batches(order.batch_size, in_row=False)
        self._row_batches = owner.run_batches(order.batch_size, in_row=True)
        self._workers_saw = workers_saw
        self._rows: deque[Any] = deque()  # of the batches that are due: read, and not yet handed out
        self._run: GatheredRows | None = None  # the same batches gathered, if they are
        self._seen = Seen()

    def __iter__(self) -> GatherIterator:
        return self

    def __next__(self) -> Any:
        """Returns the next batch, as the data is now."""
        if not self._have_rows(self._run_batches):
            raise StopIteration
        rows, run = self._rows.popleft(), self._run
        return self._cache.moved(fetch(self._dataset, rows)) if run is None else run.next()

    def row(self, most: int) -> Iterator[tuple[Any, int]]:
        """Gives the next batches, at most so many, with their number: as `Gathered` ones or one by itself."""
        while most > 0 and self._have_rows(min(most, self._row_batches)):
            found = None if self._run is None else self._run.together(min(most, len(self._rows)))
            if found is None:
                yield next(self), 1
                most -= 1
                continue
            for _ in range(len(found)):
                self._rows.popleft()
            most -= len(found)
            yield found, len(found)

    def skip(self, batches: int) -> None:
        """Passes over the first batches, or all: draws for them and gathers none, so that none of them fails."""
        while batches > 0 and (rows := self._order.take(min(batches, _RUN_BATCHES))):
            batches -= len(rows)

    def _have_rows(self, most: int) -> bool:
        """Reads the rows of batches that are due, if need be, and gathers them as the data is now; False at the end."""
        if not self._rows:
            self._run = None
            self._rows.extend(self._order.take(min(most, max(1, self._ahead()))))
            if not self._rows:
                return False
        run = self._run
        if run is None or not self._seen.unchanged() or torch.is_inference_mode_enabled() is not run.is_inference:
            self._gather_rows()
        return True

    def _gather_rows(self) -> None:
        """Gathers the batches that are due; none if that is impossible, such as for an index out of range."""
        if self._workers_saw is not None and not self._workers_saw.unchanged():
            raise UnsupportedError(_CHANGED)
        self._run = None
        try:
            self._cache.renew(self._dataset)
            if any(type(rows) is not list or not rows for rows in self._rows):
                return
            every = Rows([*chain.from_iterable(self._rows)], sure=self._order.gives_ints)
            sizes = [len(rows) for rows in self._rows]
            columns, build, self._seen = gather(self._dataset, every, self._cache)
            self._run = GatheredRows(columns, build, sizes, pins=self._cache.pins)
        except UNGATHERABLE:
            if self._workers_saw is not None and not _gathers_alike(self._loader):
                raise UnsupportedError(_CHANGED) from None
            return  # the next batch is fetched as the loader does it, which raises what the loader raises
