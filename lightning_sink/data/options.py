"""How batches are fetched ahead of the training: the options of the queue, and their checks."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Literal

from lightning_sink.checks import boolean, choice, integer, seconds


@dataclass(frozen=True, kw_only=True)
class QueueOptions:
    """Options of the queue between a loader and the training.

    Attributes:
        buffer_size: Most batches that are fetched and not yet taken; those that are being trained, as many again where
            steps run in a row, have been taken. None is 16; for those that the trainer's thread fetches beside its
            steps it is 64 where they are gathered of a dataset of tensors, or of at most 64 KiB, and 1024 where they
            are sent to a GPU: small steps are over sooner than 16 have come. 0 fetches nothing
            ahead: each batch is fetched on the trainer's thread when it is due.
        buffer_bytes: Most bytes of tensors that are fetched and not yet taken, each batch reckoned as large as the one
            before it; a single larger batch still passes.
        early_preload: Whether the queue goes on filling between two sinks, while callbacks run. What a callback changes
            in the dataset then shows up to `buffer_size` batches late.
        timeout: Seconds to wait for a batch before the training ends with `DataTimeoutError`; None waits for ever. With
            a timeout every batch is fetched on the queue's thread, so that the trainer's can stop waiting.
        transfer_ahead: Whether the batch-transfer hooks may run on the queue's thread. They must not look at the
            trainer's state then.
        cache: "device" keeps a dataset of tensors on the device and gathers batches there; None does not.
        cache_bytes: Most bytes of a dataset that `cache="device"` puts on the device.

    Raises:
        TypeError: For a value of another type.
        ValueError: For a value that is not among the accepted ones.
    """

    buffer_size: int | None = None
    buffer_bytes: int = 1 << 30
    early_preload: bool = False
    timeout: float | None = None
    transfer_ahead: bool = False
    cache: Literal["device"] | None = None
    cache_bytes: int = 1 << 30

    def __post_init__(self) -> None:
        if self.buffer_size is not None:
            integer("buffer_size", self.buffer_size, "a number of batches, 0 to fetch nothing ahead, or None", least=0)
        integer("buffer_bytes", self.buffer_bytes, _BYTES, least=1)
        integer("cache_bytes", self.cache_bytes, _BYTES, least=1)
        if self.timeout is not None:
            seconds("timeout", self.timeout, "seconds above 0, or None to wait for ever")
        boolean("early_preload", self.early_preload)
        boolean("transfer_ahead", self.transfer_ahead)
        choice("cache", self.cache, ("device", None))

    @property
    def batches(self) -> int:
        """`buffer_size` as a number."""
        return _BATCHES if self.buffer_size is None else self.buffer_size

    def in_a_row(self, sent: bool, many: bool) -> int:
        """Returns how many batches may be fetched in one go beside the steps before them.

        They may be `sent` to a device; or `many` of them may lie on the host, where they are copies, or small.
        """
        if self.buffer_size is not None:
            return self.buffer_size
        return _BATCHES_SENT if sent else _BATCHES_MANY if many else _BATCHES

    def changed(self) -> str:
        """Returns what differs from the defaults, written as arguments."""
        return ", ".join(
            f"{field.name}={value!r}" for field in fields(self) if (value := getattr(self, field.name)) != field.default
        )


_BYTES = "a number of bytes from 1 up"

# An MLP's step takes 14.8 us of a CPU's thread in rows of 16 gathered batches, 10.6 in rows of 64 and 10.5 of 160.
_BATCHES, _BATCHES_MANY, _BATCHES_SENT = 16, 64, 1024
"""`buffer_size` where it is None: for any batches, those that are gathered or small, and those that are sent."""
