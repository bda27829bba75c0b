"""Batches of data that is already in memory, gathered many at a time: what a DataLoader gives, without its cost.

A `DataLoader` indexes a `TensorDataset` row by row and stacks the rows, 0.1 to 0.3 ms for a batch of 32. Here one
indexing operation for each column gathers a run of batches, which are handed out as parts of it. `order.py` owns which
rows and when generators draw; this module owns which loaders this is right for, the gathering, and noticing that the
data changed since. Whatever it cannot be sure of it leaves to the dataset and the collate function themselves.

Writes that torch does not count (through NumPy, `.data`, or into the list of a `Subset`) are seen from the next run on,
and in a copy on another device never. A batch shares its memory with the others of its run: it keeps them alive, and
must not be grown in place by `resize_`.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Callable
from itertools import chain
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, StackDataset, Subset, TensorDataset, default_collate

from lightning_sink.data.order import Order
from lightning_sink.errors import UnsupportedError

# Microseconds for a shuffled batch of 32 by the batches in a run: 7.8 at 16, 6.1 at 64, 5.8 at 128 and at 256. For rows
# of 3 KiB by the bytes in a run: 31 at 256 KiB, about 20 from 1 MiB on.
_RUN_BATCHES = 128
_RUN_BYTES = 2 << 20
# The loader's tensors begin at such multiples. Vector code may sum in another order, or copy, where others do not.
_ALIGNMENT = 64
_METHODS = ("__getitem__", "__getitems__")
# What gathering raises where the loader may do something else, or raise its own error.
_UNGATHERABLE = (LookupError, TypeError, NotImplementedError, struct.error)


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
    row_bytes = sum(tensor.nbytes // len(tensor) for tensor in _look(loader.dataset).tensors)
    cache = _Cache(device, cache_bytes, row_bytes)
    cache.renew(loader.dataset)  # now, so that it fails now
    return GatherLoader(loader, ahead, cache)


def _is_plain(loader: Any) -> bool:
    """Whether a loader does nothing but to index its dataset and to collate by default, in the order of its sampler."""
    if type(loader) is not DataLoader or "_get_iterator" in vars(loader):
        return False
    if loader.collate_fn is not default_collate or loader.batch_sampler is None:
        return False
    if loader.pin_memory and torch.accelerator.is_available():
        return False
    if loader.num_workers:
        # Workers would only index and stack, too. But what begins them may do anything.
        return bool(loader.worker_init_fn is None and loader.in_order and loader.prefetch_factor)
    return not loader.timeout


def _gathers_alike(loader: DataLoader[Any]) -> bool:
    """Whether the dataset is of a known kind, and its first and last row gathered are what the loader makes of them.

    The rows are compared because datasets' methods and the table of collate functions may have been replaced.
    """
    try:
        if loader.num_workers and any(not tensor.is_cpu for tensor in _look(loader.dataset).tensors):
            return False  # a worker may not use an accelerator
        rows = [0, len(loader.dataset) - 1]  # type: ignore[arg-type]
        found, _ = _gather(loader.dataset, _Rows(rows), [2], _Cache())
        return _same(found[0], _fetch(loader.dataset, rows))
    except (*_UNGATHERABLE, RuntimeError, ValueError):
        return False  # the loader itself will say what is wrong


def _same(one: Any, other: Any) -> bool:
    if type(one) is not type(other):
        return False
    if isinstance(one, Tensor):
        alike = (one.dtype, one.shape, one.stride(), one.device) == (
            other.dtype,
            other.shape,
            other.stride(),
            other.device,
        )
        return alike and (one.is_meta or torch.equal(one.view(torch.uint8), other.view(torch.uint8)))  # NaN is NaN
    if isinstance(one, dict):
        return list(one) == list(other) and all(_same(one[key], other[key]) for key in one)
    return len(one) == len(other) and all(map(_same, one, other))


class GatherLoader:
    """Gives the batches of `loader` by gathering; each `iter()` is one traversal. Made by `gathered`."""

    def __init__(self, loader: DataLoader[Any], ahead: Callable[[], int], cache: _Cache) -> None:
        self.loader = loader
        self.ahead = ahead
        self.cache = cache
        self._workers_saw: _Seen | None = None

    def __len__(self) -> int:
        return len(self.loader)

    def __iter__(self) -> GatherIterator:
        loader = self.loader
        resumes = loader.persistent_workers and (self._workers_saw is not None or loader._iterator is not None)
        order = Order(loader, resumes=resumes)
        if loader.num_workers and not (resumes and self._workers_saw is not None):
            self._workers_saw = _look(loader.dataset)
        return GatherIterator(self, order, self._workers_saw)


class GatherIterator:
    """One traversal of a `GatherLoader`.

    Args:
        owner: What to traverse, and how.
        order: The rows of the batches to come.
        workers_saw: The data that the loader's workers would have got a copy of; None where it has no workers.
    """

    def __init__(self, owner: GatherLoader, order: Order, workers_saw: _Seen | None) -> None:
        self._dataset: Any = owner.loader.dataset
        self._ahead = owner.ahead
        self._cache = owner.cache
        self._order = order
        self._workers_saw = workers_saw
        self._rows: deque[Any] = deque()  # of the batches that are due: read, and not yet handed out
        self._run: list[Any] = []  # the same batches gathered, the next one last; or none
        self._seen = _Seen()
        self._inference = False  # whether the run was gathered in inference mode, whose tensors are of no use elsewhere

    def __iter__(self) -> GatherIterator:
        return self

    def __next__(self) -> Any:
        """Returns the next batch, as the data is now."""
        if not self._rows:
            self._rows.extend(self._order.take(min(self._run_batches(), max(1, self._ahead()))))
            if not self._rows:
                raise StopIteration
        if not self._run or not self._seen.unchanged() or torch.is_inference_mode_enabled() is not self._inference:
            self._gather_rows()
        rows = self._rows.popleft()
        return self._run.pop() if self._run else self._cache.moved(_fetch(self._dataset, rows))

    def skip(self, batches: int) -> None:
        """Passes over batches, or to the end: draws for them and does not gather them, so that none of them fails."""
        while batches > 0:
            if not self._rows:
                self._rows.extend(self._order.take(min(batches, _RUN_BATCHES)))
                if not self._rows:
                    return
            passed = min(batches, len(self._rows))
            for _ in range(passed):
                self._rows.popleft()
            del self._run[len(self._rows) :]
            batches -= passed

    def _run_batches(self) -> int:
        batch_bytes = self._cache.row_bytes * self._order.batch_size
        return max(1, min(_RUN_BATCHES, _RUN_BYTES // max(1, batch_bytes)))

    def _gather_rows(self) -> None:
        """Gathers the batches that are due; none if that is impossible, such as for an index out of range."""
        if self._workers_saw is not None and not self._workers_saw.unchanged():
            raise UnsupportedError(
                "the data was changed after the traversal of its DataLoader began, and its workers may have had a copy "
                "of it as it was before; use num_workers=0, which is no slower for data in memory"
            )
        self._run, self._inference = [], torch.is_inference_mode_enabled()
        try:
            self._cache.renew(self._dataset)
            if any(type(rows) is not list or not rows for rows in self._rows):
                return
            every = _Rows([*chain.from_iterable(self._rows)], sure=self._order.gives_ints)
            sizes = [len(rows) for rows in self._rows]
            self._run, self._seen = _gather(self._dataset, every, sizes, self._cache)
        except _UNGATHERABLE:
            return  # the next batch is fetched as the loader does it, which raises what the loader raises
        self._run.reverse()


def _fetch(dataset: Any, rows: Any) -> Any:
    """Returns a batch as a loader makes it."""
    many = getattr(dataset, "__getitems__", None)
    return default_collate(many(rows) if many else [dataset[row] for row in rows])


def _look(dataset: Any) -> _Seen:
    """Returns what gathering from a dataset goes by."""
    return _gather(dataset, _Rows([]), [], _Cache())[1]


def _gather(dataset: Any, rows: _Rows, sizes: list[int], cache: _Cache) -> tuple[list[Any], _Seen]:
    """Returns batches of these sizes from these rows, one after another, and what they were gathered from."""
    seen = _Seen()
    with torch.no_grad():
        return _batches(dataset, rows, sizes, cache, seen), seen


def _batches(dataset: Any, rows: _Rows, sizes: list[int], cache: _Cache, seen: _Seen) -> list[Any]:
    kind = type(dataset)
    if kind not in (TensorDataset, Subset, StackDataset) or not vars(dataset).keys().isdisjoint(_METHODS):
        raise TypeError(f"{kind.__name__} may do anything")
    if kind is Subset:
        inner = rows.through(seen.held(vars(dataset), "indices"), seen)
        return _batches(seen.held(vars(dataset), "dataset"), inner, sizes, cache, seen)
    children = seen.held(vars(dataset), "tensors" if kind is TensorDataset else "datasets")
    if type(children) not in (tuple, list, dict) or not children:
        raise TypeError("no columns")
    items = seen.items(children)
    if kind is TensorDataset:
        parts = [_parts(tensor, rows, sizes, cache, seen) for tensor in items]
    else:
        parts = [_batches(item, rows, sizes, cache, seen) for item in items]
    if kind is StackDataset and type(children) is dict:
        return [dict(zip(children, batch, strict=True)) for batch in zip(*parts, strict=True)]
    return list(map(list, zip(*parts, strict=True)))  # lists, as default_collate makes of tuples


def _parts(tensor: Tensor, rows: _Rows, sizes: list[int], cache: _Cache, seen: _Seen) -> list[Tensor]:
    """Returns the rows of a column, a tensor for each batch."""
    if not _is_column(tensor):
        raise TypeError("a tensor of which rows cannot be gathered alike")
    seen.tensor(tensor)
    if not sizes:
        return []
    column = cache.of(tensor)
    run = column.index_select(0, rows.index(len(tensor), column.device))
    if len(sizes) == 1:
        return [run]
    # Not `split`: its parts are views of the run, with one count of writes for all, so that a write to one batch would
    # fail the backward pass of another, and to a part that requires a gradient none could be written at all. These
    # are no views, and cheapest: 0.27 us each, `split` 0.48, `unbind` 0.42, `narrow` 1.5, `.data` on top 0.3.
    parts = list(torch.unsafe_split_with_sizes(run, sizes))
    row_bytes = run.nbytes // max(1, len(run))
    return [part.clone() for part in parts] if any(row_bytes * size % _ALIGNMENT for size in set(sizes[:-1])) else parts


def _is_column(tensor: Any) -> bool:
    return (
        type(tensor) is Tensor
        and tensor.layout is torch.strided
        and tensor.dim() > 0
        and not (tensor.requires_grad or tensor.is_inference() or tensor.is_quantized or tensor.is_nested)
        and not (tensor.is_conj() or tensor.is_neg())
        # Rows of four or five dimensions that are channels-last are stacked to a batch that is neither.
        and (tensor.dim() < 5 or tensor[:1].is_contiguous())
    )


class _Rows:
    """Row numbers: as Python ints, and as the tensors that index columns.

    Args:
        rows: The numbers.
        sure: Whether they are known to be ints; a bool or a tensor would index in another way.
    """

    def __init__(self, rows: list[Any], *, sure: bool = True) -> None:
        if not sure and not all(kind is int or _is_numpy_int(kind) for kind in set(map(type, rows))):
            raise TypeError("row numbers that are no ints")
        self.rows = rows
        self._indices: dict[tuple[int, torch.device], Tensor] = {}

    def through(self, indices: Any, seen: _Seen) -> _Rows:
        """Returns the rows that these are in what a `Subset` with these indices is a part of."""
        if type(indices) is Tensor:
            if not (_is_column(indices) and indices.dtype == torch.int64 and indices.dim() == 1 and indices.is_cpu):
                raise TypeError("indices that may stand for more than one row")
            seen.tensor(indices)
            return _Rows(indices.index_select(0, self.index(len(indices), indices.device)).tolist())
        if type(indices) not in (list, tuple, range) and not _is_numpy_vector(indices):
            raise TypeError("indices that may stand for anything")
        return _Rows([indices[row] for row in self.rows], sure=type(indices) is range)

    def index(self, length: int, device: torch.device) -> Tensor:
        """Returns the rows of a column of this length as an index on its device.

        Raises:
            IndexError: One is out of range; looked at here because some devices would only crash.
        """
        key = length, device
        if key not in self._indices:
            self._indices[key] = self._index(length).to(device)
        return self._indices[key]

    def _index(self, length: int) -> Tensor:
        if not self.rows:
            return torch.empty(0, dtype=torch.int64, device="cpu")
        # 0.2 us for a batch of 32 where `torch.tensor(rows)` takes 3.6, and by way of `array.array` 0.5.
        index = torch.frombuffer(bytearray(struct.pack(f"{len(self.rows)}q", *self.rows)), dtype=torch.int64)
        low, high = (int(bound) for bound in torch.aminmax(index))
        if low < -length or high >= length:
            raise IndexError("a row out of range")
        return index if low >= 0 else torch.where(index < 0, index + length, index)


def _is_numpy_int(kind: type[Any]) -> bool:
    return kind.__module__ == "numpy" and kind.__name__ in ("int32", "int64")


def _is_numpy_vector(indices: Any) -> bool:
    kind = type(indices)
    return kind.__module__ == "numpy" and kind.__name__ == "ndarray" and indices.ndim == 1


class _Seen:
    """What a run was gathered from, to notice that it has changed since."""

    def __init__(self) -> None:
        self.tensors: list[Tensor] = []
        self._versions: list[int] = []
        self._held: list[tuple[Any, Any, Any]] = []
        self._lengths: list[tuple[Any, int]] = []

    def tensor(self, tensor: Tensor) -> None:
        """Notes a tensor as it is now."""
        self.tensors.append(tensor)
        self._versions += _versions([tensor])

    def held(self, holder: Any, key: Any) -> Any:
        """Returns `holder[key]`, and notes that it was this object."""
        self._held.append((holder, key, holder[key]))
        return holder[key]

    def items(self, holder: Any) -> list[Any]:
        """Returns the items of a tuple, list or dict, and notes that they were these objects."""
        if type(holder) is tuple:
            return list(holder)
        self._lengths.append((holder, len(holder)))
        return [self.held(holder, key) for key in (holder if type(holder) is dict else range(len(holder)))]

    def unchanged(self) -> bool:
        """Whether all of it is still the same, and has not been written to."""
        for holder, length in self._lengths:
            if len(holder) != length:
                return False
        for holder, key, value in self._held:
            if holder[key] is not value:
                return False
        return _versions(self.tensors) == self._versions


def _versions(tensors: list[Tensor]) -> list[int]:
    """Returns how often each was written to. Private to torch, where nothing public counts writes."""
    return [tensor._version for tensor in tensors]


class _Cache:
    """The columns where they are gathered: as they are, or copies of them on another device.

    Args:
        device: Where the copies are; None for no copies.
        allowed: The most bytes that they may take.
        row_bytes: Of all columns together, for whom a run is measured.
    """

    def __init__(self, device: torch.device | None = None, allowed: int = 0, row_bytes: int = 0) -> None:
        # "cuda" is no tensor's device, "cuda:0" is.
        self._device = None if device is None else torch.empty(0, device=device).device
        self._allowed = allowed
        self.row_bytes = row_bytes
        self._copies: dict[int, tuple[Tensor, list[int], Tensor]] = {}

    def renew(self, dataset: Any) -> None:
        """Makes the copies anew that a dataset has no use for or that it has written to since."""
        if self._device is None:
            return
        moved = {id(tensor): tensor for tensor in _look(dataset).tensors if tensor.device != self._device}
        needed = sum(tensor.nbytes for tensor in moved.values())
        if needed > self._allowed:
            raise ValueError(
                f"the data takes {needed} bytes on {self._device}, and {self._allowed} are allowed: allow more, or "
                "leave the data where it is (cache=None)"
            )
        current = {
            key: copy for key, copy in self._copies.items() if key in moved and copy[1] == _versions([moved[key]])
        }
        self._copies = current  # before the new ones are made, so that the old ones' memory is free for them
        for key, tensor in moved.items():
            if key not in current:
                current[key] = tensor, _versions([tensor]), tensor.to(self._device)

    def of(self, tensor: Tensor) -> Tensor:
        """Returns the column that stands for a tensor of the dataset."""
        return self._copies[id(tensor)][2] if id(tensor) in self._copies else tensor

    def moved(self, batch: Any) -> Any:
        """Returns a batch that was fetched where one that was gathered would be."""
        if self._device is None:
            return batch
        if isinstance(batch, Tensor):
            return batch.to(self._device)
        if isinstance(batch, dict):
            return {key: self.moved(value) for key, value in batch.items()}
        return [self.moved(value) for value in batch] if isinstance(batch, list) else batch
