"""Operations that no program can repeat, whatever their arguments are in a recorded step."""

from __future__ import annotations

from typing import Any

import torch

from lightning_sink.engine.private import schema_name

# They turn lengths held in a tensor into Python numbers in C++, where no dispatch mode sees it.
_READS_LENGTHS = {"aten::_pack_padded_sequence", "aten::_ctc_loss", "aten::tensor_split"}


def why_unrepeatable(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str | None:
    """Returns why an operation cannot be part of a program, as a clause; None where it can."""
    if torch.Tag.dynamic_output_shape in func.tags and not _is_plain_indexing(func, args):
        return f"`{func.name()}` gives a shape that depends on the data"
    if schema_name(func) in _READS_LENGTHS:
        return f"`{func.name()}` reads lengths on the host"
    if any(isinstance(leaf, torch.Generator) for leaf in (*args, *kwargs.values())):
        return f"`{func.name()}` draws from a generator of its own"
    return None


def _is_plain_indexing(func: Any, args: tuple[Any, ...]) -> bool:
    """Tells whether an operation indexes with numbers only: a mask gives as many rows as it has ones."""
    masks = (torch.bool, torch.uint8)
    return schema_name(func) == "aten::index" and all(index is None or index.dtype not in masks for index in args[1])
