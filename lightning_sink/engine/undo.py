"""Keeps what a recorded step overwrites, so that a recording that fails costs the training nothing.

Only memory that was there before the step is kept, once for each storage, at the moment it is about to be written to.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor


class Undo:
    """The contents of storages before the step wrote to them."""

    def __init__(self) -> None:
        self._outside: set[int] = set()
        self._saved: dict[int, tuple[torch.UntypedStorage, torch.UntypedStorage]] = {}

    def watch(self, tensor: Tensor) -> None:
        """Takes note of a tensor that the step did not make."""
        self._outside.add(tensor.untyped_storage().data_ptr())

    def keep(self, written: Iterable[Tensor]) -> set[int]:
        """Keeps what is about to be overwritten; returns the storages that are kept from now on."""
        kept = set()
        for tensor in written:
            if tensor.layout is torch.strided:
                storage = tensor.untyped_storage()
                key = storage.data_ptr()
                if key in self._outside and key not in self._saved:
                    self._saved[key] = (storage, storage.clone())
                    kept.add(key)
        return kept

    def before(self, tensor: Tensor) -> Tensor | None:
        """Returns what a tensor held before the step wrote to it; None where it did not."""
        storage, saved = self._saved.get(tensor.untyped_storage().data_ptr(), (None, None))
        if storage is None or saved is None:
            return None
        place = tensor.storage_offset(), tensor.shape, tensor.stride()
        return torch.empty(0, dtype=tensor.dtype, device=tensor.device).set_(saved, *place)

    def restore(self) -> None:
        """Puts everything back."""
        for storage, saved in self._saved.values():
            storage.copy_(saved)
        self._saved.clear()

    def forget(self) -> None:
        """Lets go of what was kept."""
        self._saved.clear()
