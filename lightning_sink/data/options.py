"""How batches are fetched ahead of the training: the options of the queue, and their checks."""

from __future__ import annotations

import numbers
from dataclasses import dataclass, fields
from typing import Any, Literal


@dataclass(frozen=True, kw_only=True)
class QueueOptions:
    """Options of the queue between a loader and the training.

    Attributes:
        buffer_size: Most batches that are fetched and not yet taken; those that are being trained, as many again where
            steps run in a row, have been taken. 0 fetches nothing ahead: each batch is fetched on
            the trainer's thread when it is due.
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

    buffer_size: int = 16
    buffer_bytes: int = 1 << 30
    early_preload: bool = False
    timeout: float | None = None
    transfer_ahead: bool = False
    cache: Literal["device"] | None = None
    cache_bytes: int = 1 << 30

    def __post_init__(self) -> None:
        self._check("buffer_size", numbers.Integral, "a number of batches, 0 to fetch nothing ahead", 0)
        self._check("buffer_bytes", numbers.Integral, "a number of bytes from 1 up", 1)
        self._check("cache_bytes", numbers.Integral, "a number of bytes from 1 up", 1)
        if self.timeout is not None:
            self._check("timeout", numbers.Real, "seconds above 0, or None to wait for ever")
            if not 0.0 < float(self.timeout) < float("inf"):
                raise ValueError(_wrong("timeout", self.timeout, "seconds above 0, or None to wait for ever"))
        for name in ("early_preload", "transfer_ahead"):
            if not isinstance(getattr(self, name), bool):
                raise TypeError(_wrong(name, getattr(self, name), "True or False"))
        if self.cache is not None and not isinstance(self.cache, str):
            raise TypeError(_wrong("cache", self.cache, "'device' or None"))
        if self.cache not in (None, "device"):
            raise ValueError(_wrong("cache", self.cache, "'device' or None"))

    def _check(self, name: str, kind: Any, accepted: str, least: int | None = None) -> None:
        value: Any = getattr(self, name)
        if isinstance(value, bool) or not isinstance(value, kind):
            raise TypeError(_wrong(name, value, accepted))
        if least is not None and value < least:
            raise ValueError(_wrong(name, value, accepted))

    def changed(self) -> str:
        """Returns what differs from the defaults, written as arguments."""
        return ", ".join(
            f"{field.name}={value!r}" for field in fields(self) if (value := getattr(self, field.name)) != field.default
        )


def _wrong(name: str, value: object, accepted: str) -> str:
    return f"`{name}` takes {accepted}; got {value!r}."
