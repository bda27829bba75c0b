"""`DatasetHelper`: sinks in a loop that is written by hand, under MindSpore's names.

In sink mode the helper yields empty inputs, one for each sink, and the function that it was connected with takes its
batches from the queue; off, it yields the batches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sized
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from lightning_sink.checks import boolean, integer
from lightning_sink.data.generators import Draws, drawing_from, keep_states
from lightning_sink.data.private import apart
from lightning_sink.errors import EmptyDatasetError, UnsupportedError
from lightning_sink.functional.batches import as_arguments
from lightning_sink.functional.data_sink import DataSink, data_sink


@dataclass(frozen=True)
class SendInfo:
    """What the data of one epoch took; every time in seconds.

    Attributes:
        epoch: Number of the epoch, from 1.
        batches: Batches that were fetched.
        fetching: Spent in the dataset, on whichever thread.
        waiting: Waited for by the training.
    """

    epoch: int
    batches: int
    fetching: float
    waiting: float


class DatasetHelper:
    """A dataset as a loop written by hand meets it.

    Args:
        dataset: Any iterable of batches that can be traversed again.
        dataset_sink_mode: Whether the connected function takes its batches from the queue. Otherwise the helper yields
            them, an epoch is a traversal, and the other options have no effect.
        sink_size: Batches of a sink, which is an epoch: a number from 1 up, or -1 for a traversal of the dataset, whose
            length must be known.
        epoch_num: How many epochs there will be; one more is an error.

    Raises:
        TypeError: For a value of another type.
        ValueError: For a value that is not among the accepted ones, and for `sink_size=-1` of data without a length.
    """

    def __init__(self, dataset: Any, dataset_sink_mode: bool = True, sink_size: int = -1, epoch_num: int = 1) -> None:
        self._dataset = dataset
        self._sinks = boolean(_named("dataset_sink_mode"), dataset_sink_mode)
        self._epochs = integer(_named("epoch_num"), epoch_num, "a number of epochs from 1 up", least=1)
        size = integer(_named("sink_size"), sink_size, "-1 for the whole dataset, or batches from 1 up", 1, besides=-1)
        self._size = _length(dataset) if size == -1 and self._sinks else size
        self._sink: DataSink | None = None
        self._epoch = 0
        self._sent: list[SendInfo] = []

    def __repr__(self) -> str:
        if not self._sinks:
            return "<DatasetHelper: batches one by one>"
        place = f"epoch {self._epoch} of {self._epochs}"
        return f"<DatasetHelper: sink_size={self._size}, {place}, {self._sink or 'not connected'}>"

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        """Yields the inputs of an epoch: none, once, in sink mode; else each batch's parts.

        Raises:
            UnsupportedError: In sink mode, where no function is connected, and behind the last epoch.
        """
        if not self._sinks:
            yield from map(as_arguments, self._dataset)
            return
        if self._epoch == self._epochs:
            raise UnsupportedError(
                f"The epochs of this `DatasetHelper` are over: it was made for {self._epochs}. Say how many there will"
                " be: `DatasetHelper(..., epoch_num=n)`."
            )
        if self._sink is None:
            raise UnsupportedError(
                "In sink mode the batches go to a connected function:"
                " `net = connect_network_with_dataset(net, helper)` before the loop."
            )
        self._epoch += 1
        before = self._sink.queue_report()
        yield ()
        after = self._sink.queue_report()
        self._sent.append(
            SendInfo(
                self._epoch,
                after.batches_produced - before.batches_produced,
                after.fetch_seconds - before.fetch_seconds,
                after.consumer_wait_seconds - before.consumer_wait_seconds,
            )
        )

    def connect(self, fn: Callable[..., Any], **options: Any) -> DataSink:
        """Does what `connect_network_with_dataset` says."""
        if not self._sinks:
            raise UnsupportedError(
                "`connect_network_with_dataset` takes a helper in sink mode; with `dataset_sink_mode=False` the helper"
                " yields the batches, to call the function with."
            )
        if self._sink is not None:
            raise UnsupportedError("This `DatasetHelper` is connected with another function; make one for each.")
        self._sink = data_sink(fn, self._dataset, self._size, **options)
        return self._sink

    def sink_size(self) -> int:
        """Returns how many batches a sink has; 1 where sinks are off."""
        return self._size if self._sinks else 1

    def types_shapes(self) -> tuple[list[Any], list[Any]]:
        """Returns the dtypes and the shapes of a batch's parts; a part's type and None for what is no tensor.

        The first batch of a traversal is fetched for it, and the process's generators are put back.

        Raises:
            UnsupportedError: The dataset is an iterator, which would lose the batch.
            EmptyDatasetError: It has no batch.
        """
        if isinstance(self._dataset, Iterator):
            raise UnsupportedError("`types_shapes()` would take a batch from an iterator; give data that begins anew.")
        restore, before = keep_states(), Draws([self._dataset]).saved()
        try:
            batch = next(iter(apart(self._dataset)), None)
        finally:
            with drawing_from(before, [self._dataset]):
                pass  # leaves the loader's own generators there
            restore()
        if batch is None:
            raise EmptyDatasetError("The dataset has no batch.")
        parts = as_arguments(batch)
        types = [part.dtype if isinstance(part, Tensor) else type(part) for part in parts]
        return types, [tuple(part.shape) if isinstance(part, Tensor) else None for part in parts]

    def get_data_info(self) -> tuple[list[Any], list[Any]]:
        """Returns what `types_shapes` does: batches of other shapes train too, so there is no one answer."""
        return self.types_shapes()

    def get_send_info(self) -> list[SendInfo]:
        """Returns what the data of each epoch took so far; empty where sinks are off."""
        return list(self._sent)

    def stop_send(self) -> None:
        """Lets nothing be fetched before the next sink; so it is anyway, but while one runs on another thread."""
        if self._sink is not None:
            self._sink.pause()

    def continue_send(self) -> None:
        """Does nothing: each sink fetches what it needs."""

    def release(self) -> None:
        """Ends the queue's thread and the dataset's workers."""
        if self._sink is not None:
            self._sink.close()


def connect_network_with_dataset(fn: Callable[..., Any], helper: DatasetHelper, **options: Any) -> DataSink:
    """Returns a function without arguments in the place of `fn`, which runs a sink of the helper's batches.

    Args:
        fn: A training step, as for `data_sink`.
        helper: The data, in sink mode.
        options: Further options of `data_sink`.

    Raises:
        UnsupportedError: The helper is not in sink mode, or is connected.
    """
    return helper.connect(fn, **options)


def _length(dataset: Any) -> int:
    try:
        length = len(dataset) if isinstance(dataset, Sized) else None
    except (TypeError, NotImplementedError):  # a DataLoader over data without a length
        length = None
    if not length:
        raise ValueError(
            "`DatasetHelper(sink_size=-1)` takes data with a length, whose traversal is a sink; got"
            f" {type(dataset).__name__} {'without one' if length is None else 'of no batches'}. Give the batches of a"
            " sink: `sink_size=n`."
        )
    return length


def _named(option: str) -> str:
    return f"DatasetHelper({option}=...)"
