"""Memory that no operation has filled: a step that reads it had it filled by something that no recording sees.

Kernels that are launched past torch's dispatcher (Triton's, those of extensions in C++) are such.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor, UntypedStorage

from lightning_sink.engine.private import is_view, schema_name

_EMPTY = {f"aten::{name}" for name in ("empty", "empty_strided", "empty_like", "empty_permuted")}
_EMPTY |= {"aten::new_empty", "aten::new_empty_strided"}


class Unfilled:
    """What operations of a step made and none has filled yet."""

    def __init__(self) -> None:
        # Storages stay, so that no other tensor has their memory. (Tensors that are held would be given on detached.)
        self._storages: dict[int, UntypedStorage] = {}

    def operation(self, func: Any, given: Sequence[Tensor], written: Sequence[Tensor], made: Sequence[Tensor]) -> bool:
        """Takes note of an operation and of what it made; tells whether it reads what none has filled."""
        if schema_name(func) in _EMPTY:
            self._storages |= {_memory(tensor): tensor.untyped_storage() for tensor in made if tensor.numel()}
            return False
        if not self._storages:
            return False
        for tensor in written:
            self._storages.pop(_memory(tensor), None)
        reads = [] if is_view(func) else [_memory(tensor) for tensor in given if tensor.numel()]
        return any(self._storages.pop(memory, None) is not None for memory in reads)


def _memory(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()
