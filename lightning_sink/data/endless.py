"""One endless traversal of a loader, cut into epochs of a fixed number of batches.

`EndlessLoader` owns the position in the traversal and nothing else: fetching, workers and shuffling stay with the
loader it wraps. Every `iter()` goes on where the last one stopped, so each epoch's first batch follows the last batch
of the epoch before; a traversal that ends is followed by the next within the same epoch.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from lightning_sink.errors import EmptyDatasetError


class EndlessLoader:
    """Gives epochs of `epoch_batches` batches out of one endless traversal of `loader`.

    Args:
        loader: Any iterable that can be iterated again and again. Its iterator is made when the first epoch is asked
            for and once for each traversal after that.
        epoch_batches: Batches in an epoch.
        traversal_batches: Batches after which a traversal ends even if the loader has more; None for all.

    Raises:
        EmptyDatasetError: When a traversal begins and gives no batch.
    """

    def __init__(self, loader: Any, epoch_batches: int, traversal_batches: int | None = None) -> None:
        self.loader = loader
        self.epoch_batches = epoch_batches
        self.traversal_batches = traversal_batches
        self.traversal = 0
        self.position = 0
        self._iterator: Iterator[Any] | None = None
        self._resumed: tuple[int, int] | None = None

    def __repr__(self) -> str:
        return (
            f"EndlessLoader({type(self.loader).__name__}, epoch_batches={self.epoch_batches},"
            f" traversal={self.traversal}, position={self.position})"
        )

    def __getattr__(self, name: str) -> Any:
        # `sampler` and `batch_sampler` stay hidden: who finds them sets their epoch once per Lightning epoch, and a
        # sampler's epoch is the traversal here. A loader without a state must not seem to have one.
        if name in ("sampler", "batch_sampler", "loader", "__setstate__"):
            raise AttributeError(name)
        return getattr(self.loader, name)

    def __len__(self) -> int:
        return self.epoch_batches

    def __iter__(self) -> Iterator[Any]:
        if self._iterator is None:
            self._begin()
        return self._epoch()

    def _epoch(self) -> Iterator[Any]:
        for _ in range(self.epoch_batches):
            yield self._next()

    def _begin(self) -> None:
        _set_epoch(self.loader, self.traversal)
        self._iterator = iter(self.loader)
        self.position, skip = self._resumed or (0, 0)
        self._resumed = None
        for _ in range(skip):
            next(self._iterator)

    def _next(self) -> Any:
        if self.position == self.traversal_batches:
            self._restart()
        try:
            batch = self._fetch()
        except StopIteration:
            if self.position == 0:
                raise EmptyDatasetError(_EMPTY) from None
            self._restart()
            try:
                batch = self._fetch()
            except StopIteration:
                raise EmptyDatasetError(_EMPTY) from None
        return batch

    def _fetch(self) -> Any:
        if self._iterator is None:
            self._begin()
        batch = next(self._iterator)  # type: ignore[arg-type]
        self.position += 1
        return batch

    def _restart(self) -> None:
        self.traversal += 1
        self._begin()

    def resume_at(self, traversal: int, position: int) -> None:
        """Goes on from a saved position.

        The traversal is begun again. A loader with a `load_state_dict` finds its place by itself; with any other,
        `position` batches are passed over.
        """
        stateful = hasattr(self.loader, "load_state_dict")
        self.traversal, self._iterator = traversal, None
        self.position = position
        self._resumed = position, 0 if stateful else position


def _set_epoch(loader: Any, epoch: int) -> None:
    sampler = getattr(loader, "sampler", None)
    inner = getattr(getattr(loader, "batch_sampler", None), "sampler", None)
    for item in [sampler] if inner is sampler else [sampler, inner]:
        set_epoch = getattr(item, "set_epoch", None)
        if callable(set_epoch):
            set_epoch(epoch)


_EMPTY = (
    "The training data gave no batch: a traversal of the loader ended before its first one. Sinks need at least one"
    " batch; check the dataset's length, `batch_size` with `drop_last=True`, and that the loader can be iterated again."
)
