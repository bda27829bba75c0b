"""Rows gathered out of tensors: one indexing operation for each column of a dataset.

Owns which datasets are made of columns, what default collation makes of their rows, the copies of columns on another
device, and noticing that a dataset changed since its rows were gathered.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import StackDataset, Subset, TensorDataset, default_collate

from lightning_sink.data.containers import is_ordinary
from lightning_sink.data.cuda import brought
from lightning_sink.data.gathered import Build
from lightning_sink.data.private import versions

UNGATHERABLE = (LookupError, TypeError, NotImplementedError, struct.error)
"""What gathering raises where a loader may do something else, or raise its own error."""

_GRAIN = 32768
METHODS = ("__getitem__", "__getitems__")


def fetch(dataset: Any, rows: Any) -> Any:
    """Returns a batch as a loader makes it."""
    many = getattr(dataset, "__getitems__", None)
    return default_collate(many(rows) if many else [dataset[row] for row in rows])


def look(dataset: Any) -> Seen:
    """Returns what gathering from a dataset goes by."""
    return gather(dataset, Rows([]), Cache())[2]


def gather(dataset: Any, rows: Rows, cache: Cache) -> tuple[list[Tensor], Build, Seen]:
    """Returns these rows of each column, what makes a batch of some of them, and what they were gathered from."""
    seen, columns = Seen(), list[Tensor]()
    with torch.no_grad():
        build = _gather(dataset, rows, cache, seen, columns)
    return columns, build, seen


def _gather(dataset: Any, rows: Rows, cache: Cache, seen: Seen, columns: list[Tensor]) -> Build:
    """Adds these rows of each column to `columns`; returns what makes a batch of those."""
    kind = type(dataset)
    if kind not in (TensorDataset, Subset, StackDataset) or not vars(dataset).keys().isdisjoint(METHODS):
        raise TypeError(f"{kind.__name__} may do anything")
    if kind is Subset:
        inner = rows.through(seen.held(vars(dataset), "indices"), seen)
        return _gather(seen.held(vars(dataset), "dataset"), inner, cache, seen, columns)
    children = seen.held(vars(dataset), "tensors" if kind is TensorDataset else "datasets")
    if type(children) not in (tuple, list, dict) or not children:
        raise TypeError("no columns")
    items = seen.items(children)
    if kind is TensorDataset:
        for tensor in items:
            columns += _column(tensor, rows, cache, seen)
        return list  # as default_collate makes of tuples
    parts, first = list[tuple[Build, slice]](), len(columns)
    for item in items:
        begin = len(columns) - first
        build = _gather(item, rows, cache, seen, columns)
        parts.append((build, slice(begin, len(columns) - first)))
    names = [*children] if type(children) is dict else None

    def build_all(leaves: Sequence[Tensor]) -> Any:
        built = [build(leaves[part]) for build, part in parts]
        return built if names is None else dict(zip(names, built, strict=True))

    return build_all


def _column(tensor: Tensor, rows: Rows, cache: Cache, seen: Seen) -> list[Tensor]:
    """Returns these rows of a column; nothing for no rows."""
    if not _is_column(tensor):
        raise TypeError("a tensor of which rows cannot be gathered alike")
    seen.tensor(tensor)
    if not rows.rows:
        return []
    column = cache.of(tensor)
    return [_select(column, rows.index(len(tensor), column.device), cache.pins and column.is_cpu)]


def _select(column: Tensor, index: Tensor, pins: bool) -> Tensor:
    """Returns rows of a column, in pinned memory if asked for, read by this thread alone.

    From 32,768 numbers on (`at::internal::GRAIN_SIZE`) torch lets several threads read them, which saves microseconds,
    and OpenMP's threads then look for more work for milliseconds, on the core that steps run on meanwhile: an MLP's
    sink of 1,000 steps took 48-58 ms, and takes 35.
    """
    rows = max(1, _GRAIN * len(column) // max(1, column.numel()))
    if not column.is_cpu or (len(index) <= rows and not pins):
        return column.index_select(0, index)
    run = column.new_empty((len(index), *column.shape[1:]), pin_memory=pins)
    for part, place in zip(index.split(rows), run.split(rows), strict=True):
        torch.index_select(column, 0, part, out=place)
    return run


def _is_column(tensor: Any) -> bool:
    return (
        is_ordinary(tensor)
        and tensor.dim() > 0
        and not tensor.is_inference()
        # Rows of four or five dimensions that are channels-last are stacked to a batch that is neither.
        and (tensor.dim() < 5 or tensor[:1].is_contiguous())
    )


class Rows:
    """Row numbers: as Python ints, and as the tensors that index columns.

    Unless they are `sure` to be ints they are looked at: a bool or a tensor would index in another way.
    """

    def __init__(self, rows: list[Any], *, sure: bool = True) -> None:
        if not sure and not {*map(type, rows)} <= {int, np.int32, np.int64}:
            raise TypeError("row numbers that are no ints")
        self.rows = rows
        self._indices: dict[tuple[int, torch.device], Tensor] = {}

    def through(self, indices: Any, seen: Seen) -> Rows:
        """Returns the rows that these are in what a `Subset` with these indices is a part of."""
        if type(indices) is Tensor:
            if not (_is_column(indices) and indices.dtype == torch.int64 and indices.dim() == 1 and indices.is_cpu):
                raise TypeError("indices that may stand for more than one row")
            seen.tensor(indices)
            return Rows(indices.index_select(0, self.index(len(indices), indices.device)).tolist())
        if type(indices) not in (list, tuple, range) and not (type(indices) is np.ndarray and indices.ndim == 1):
            raise TypeError("indices that may stand for anything")
        return Rows([indices[row] for row in self.rows], sure=type(indices) is range)

    def index(self, length: int, device: torch.device) -> Tensor:
        """Returns the rows of a column of this length as an index on its device.

        Raises:
            IndexError: One is out of range; looked at here because some devices would only crash.
        """
        key = length, device
        if key not in self._indices:
            self._indices[key] = brought(self._index(length), device)
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


class Seen:
    """What a run was gathered from, to notice that it has changed since."""

    def __init__(self) -> None:
        self.tensors: list[Tensor] = []
        self._versions: list[int] = []
        self._held: list[tuple[Any, Any, Any]] = []
        self._lengths: list[tuple[Any, int]] = []

    def tensor(self, tensor: Tensor) -> None:
        """Notes a tensor as it is now."""
        self.tensors.append(tensor)
        self._versions += versions([tensor])

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
        return versions(self.tensors) == self._versions


class Cache:
    """The columns where they are gathered: as they are, or copies of them on another device.

    Args:
        device: Where the copies are; None for no copies.
        allowed: The most bytes that they may take.
        pins: Whether what is gathered on the host is to lie in pinned memory.
    """

    def __init__(self, device: torch.device | None = None, allowed: int = 0, *, pins: bool = False) -> None:
        # "cuda" is no tensor's device, "cuda:0" is.
        self._device = None if device is None else torch.empty(0, device=device).device
        self._allowed = allowed
        self.pins = pins
        self._copies: dict[int, tuple[Tensor, list[int], Tensor]] = {}

    def renew(self, dataset: Any) -> None:
        """Makes the copies anew that a dataset has no use for or that it has written to since."""
        if self._device is None:
            return
        moved = {id(tensor): tensor for tensor in look(dataset).tensors if tensor.device != self._device}
        needed = sum(tensor.nbytes for tensor in moved.values())
        if needed > self._allowed:
            raise ValueError(
                f"the data takes {needed} bytes on {self._device}, and {self._allowed} are allowed: allow more, or "
                "leave the data where it is (cache=None)"
            )
        current = {
            key: copy for key, copy in self._copies.items() if key in moved and copy[1] == versions([moved[key]])
        }
        self._copies = current  # before the new ones are made, so that the old ones' memory is free for them
        for key, tensor in moved.items():
            if key not in current:
                current[key] = tensor, versions([tensor]), tensor.to(self._device)

    def of(self, tensor: Tensor) -> Tensor:
        """Returns the column that stands for a tensor of the dataset."""
        return self._copies[id(tensor)][2] if id(tensor) in self._copies else tensor

    def moved(self, batch: Any) -> Any:
        """Returns a batch that was fetched where one that was gathered would be."""
        if self._device is None and not self.pins:
            return batch
        if isinstance(batch, Tensor):
            return batch.pin_memory() if self._device is None else brought(batch, self._device)
        if isinstance(batch, dict):
            return {key: self.moved(value) for key, value in batch.items()}
        return [self.moved(value) for value in batch] if isinstance(batch, list) else batch
