"""Operations that no program can repeat: whatever their arguments are, or since they read what none has filled.

Memory that no operation has filled was filled by something that no recording sees. Kernels that are launched past
torch's dispatcher (Triton's, those of extensions in C++) are such.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, UntypedStorage

from lightning_sink.engine.private import is_view, schema_name
from lightning_sink.engine.tracing.origins import memory_of

# They turn lengths held in a tensor into Python numbers in C++, where no dispatch mode sees it.
_READS_LENGTHS = {"aten::_pack_padded_sequence", "aten::_ctc_loss", "aten::tensor_split"}

BY_MASKS = {"aten::index", "aten::nonzero", "aten::masked_select"}
"""These may be part of one after all, for batches whose masks have as many ones."""

EMPTY = {f"aten::{name}" for name in ("empty", "empty_strided", "empty_like", "empty_permuted")}
EMPTY |= {"aten::new_empty", "aten::new_empty_strided"}
"""Operations that give memory which others are to fill."""


def why_unrepeatable(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str | None:
    """Returns why an operation cannot be part of a program, as a clause; None where it can."""
    if schema_name(func) in _READS_LENGTHS:
        return f"`{func.name()}` reads lengths on the host"
    if torch.Tag.dynamic_output_shape in func.tags and not _is_plain_indexing(func, args):
        instead = ": in a mask's place, multiply by it or use `torch.where`" if schema_name(func) in BY_MASKS else ""
        return f"`{func.name()}` gives a shape that depends on the data{instead}"
    if any(isinstance(leaf, torch.Generator) for leaf in (*args, *kwargs.values())):
        return f"`{func.name()}` draws from a generator of its own"
    if any(map(torch.is_storage, (*args, *kwargs.values()))):
        return f"`{func.name()}` is given memory, as `copy.deepcopy` of a tensor does (`.clone()` is compiled)"
    return None


def _is_plain_indexing(func: Any, args: tuple[Any, ...]) -> bool:
    """Tells whether an operation indexes with numbers only: a mask gives as many rows as it has ones."""
    masks = (torch.bool, torch.uint8)
    return schema_name(func) == "aten::index" and all(index is None or index.dtype not in masks for index in args[1])


class Unfilled:
    """What operations of a step made and none has filled yet."""

    def __init__(self) -> None:
        # Storages stay, so that no other tensor has their memory. (Tensors that are held would be given on detached.)
        self._storages: dict[int, UntypedStorage] = {}

    def operation(self, func: Any, given: Sequence[Tensor], written: Sequence[Tensor], made: Sequence[Tensor]) -> bool:
        """Takes note of an operation and of what it made; tells whether it reads what none has filled."""
        if schema_name(func) in EMPTY:
            self._storages |= {memory_of(tensor): tensor.untyped_storage() for tensor in made if tensor.numel()}
            return False
        if not self._storages:
            return False
        for tensor in written:
            self._storages.pop(memory_of(tensor), None)
        reads = [] if is_view(func) else [memory_of(tensor) for tensor in given if tensor.numel()]
        return any(self._storages.pop(memory, None) is not None for memory in reads)
