"""Batches on their way to a device that runs behind its host.

`Device` sends a batch by a stream that copies beside the one that computes. The training's stream waits for the copy
where the batch is taken; nothing on the host waits. Memory, the host's pinned and the device's, is asked for anew for
each copy, and belongs to whoever holds the batch: PyTorch's caching allocators give it to nobody else before the copies
and steps that use it have ended, and ask the driver for none once they have enough. So what a user keeps of a batch
stays as it is, which a ring of memory that is filled again could not promise.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from lightning_sink.data.batch import flatten
from lightning_sink.data.containers import is_plain, taken_apart
from lightning_sink.data.gathered import Gathered
from lightning_sink.data.listed_texts import Looked
from lightning_sink.data.load import Load
from lightning_sink.data.packing import address_of, compiled
from lightning_sink.data.run import Found
from lightning_sink.data.streams import Arriving, Streams


class Device:
    """Sends batches to a device.

    A batch that holds more than tensors, numbers and texts in containers is not sent: whoever made it knows how it is
    moved.
    """

    def __init__(self, streams: Streams) -> None:
        self._streams = streams
        compiled()  # now, and not while batches are waited for

    def send(self, batch: Any) -> Any:
        """Sends a batch that the user's code may see, each tensor in memory of its own: what is kept keeps no more.

        Returns:
            An `Arriving`, and the batch's memory may be filled again from then on; the batch if it is not sent.

        Raises:
            RuntimeError: A tensor has no memory.
        """
        found = taken_apart(batch, _can_be_sent)
        if found is None:
            return batch
        tensors, rebuild = found
        for tensor in tensors:
            address_of(tensor)  # without memory to copy from
        return Arriving(self._streams, [self._streams.pinned(tensor).copy_(tensor) for tensor in tensors], rebuild)

    def load(self, found: Found, batches: int, room: int, looked: Looked) -> Load | None:
        """Returns what sends batches like this first one that programs will use at once; None if it is not sent.

        There may be so many batches, and the copy have so many bytes; a batch that is larger has one of its own. Steps
        have `looked` at some of the lists of texts in batches.
        """
        batch = found[0].batch(0) if type(found[0]) is Gathered else found[0]
        apart = taken_apart(batch, _can_be_sent)
        if apart is None:
            return None
        leaves, signature = flatten(batch, looked)
        tensors, rebuild = apart
        if list(map(id, leaves)) != list(map(id, tensors)):
            return None  # a container that one of the two ways through a batch looks into otherwise, or not at all
        return Load(self._streams, found, batch, leaves, signature, rebuild, batches, room, looked)


def _can_be_sent(item: Any) -> bool:
    return isinstance(item, Tensor) and item.is_cpu and is_plain(item)
