"""One training loader as it is traversed: by the fast road where there is one, and from the middle after a resume.

A `Road` stands in front of a loader while an iterator is made of it and changes nothing that the user can see of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any, cast
from weakref import ref

from torch.utils.data import DataLoader, IterableDataset

from lightning_sink.data.generators import Saved, drawing_from
from lightning_sink.data.graphs import collates_graphs
from lightning_sink.data.order import draws
from lightning_sink.data.private import is_default, stacks


class Road:
    """A loader, iterated on the trainer's thread; by what gives the same batches faster, if there is such a thing."""

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
    def draws_nothing(self) -> bool:
        """Whether a batch is known to be had without a draw from the process's generators, but for the first."""
        return self.fast is not None and draws(self.loader)[1] is None

    @property
    def stacks(self) -> bool:
        """Whether torch's own code makes each batch of samples, in whichever process: it allocates it."""
        return self.fast is not None or (is_default(self.loader) and stacks())

    @property
    def makes_own(self) -> bool:
        """Whether each batch is made for who takes it: of samples by torch, or of what another process has sent."""
        return self.stacks or (type(self.loader) is DataLoader and self.loader.num_workers > 0)

    @property
    def makes_graphs(self) -> bool:
        """Whether torch_geometric makes each batch, of which `is_made_anew` tells whether it is nobody else's."""
        return collates_graphs(self.loader)

    @property
    def restarts_workers(self) -> bool:
        """Whether each traversal starts processes."""
        loader = self.loader
        has_workers = self.fast is None and bool(getattr(loader, "num_workers", 0))
        return has_workers and not getattr(loader, "persistent_workers", False)

    @property
    def skips(self) -> bool:
        """Whether batches can be passed over without being fetched."""
        loader = self.loader
        return isinstance(loader, DataLoader) and not isinstance(loader.dataset, IterableDataset)

    @property
    def finds_its_place(self) -> bool:
        """Whether the loader keeps its own place."""
        return hasattr(self.loader, "load_state_dict")

    def look_again(self) -> bool:
        """Leaves the fast road where the loader would not give the same any more; tells whether it has left it.

        To be asked between two traversals: a loader takes another `collate_fn`, and a dataset other methods.
        """
        leaves = self.fast is not None and not self.fast.is_right()
        self.fast = None if leaves else self.fast
        return leaves

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
            with drawing_from(self._sampler_begins, [self.loader]):
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
        sampler, rows = attributes[name], _Rows(self.loader, attributes[name], skip, self._sampler_begins)
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

    def __init__(self, loader: Any, sampler: Any, skip: int, begins: Saved) -> None:
        self.skip = skip
        # The loader may hold the iterator that this is part of: workers end when the last of them is let go of.
        self._loader, self._sampler, self._begins = ref(loader), sampler, begins
        self._last: Any = None
        self._again = False

    def __len__(self) -> int:
        return len(self._sampler)

    def __iter__(self) -> Iterator[Any]:
        # At once: some samplers draw when they are begun.
        return self._give(iter(self._sampler), self.skip)

    def _give(self, iterator: Iterator[Any], skip: int) -> Iterator[Any]:
        if skip:
            with drawing_from(self._begins, [loader for loader in [self._loader()] if loader is not None]):
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
