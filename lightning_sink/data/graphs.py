"""Batches of torch_geometric's: which of them are made anew, so that what a step puts into one is gone with it.

Its `Collater` joins graphs by `torch.cat`, also a single one, and makes the objects and dictionaries around the tensors
(torch_geometric 2.0 to 2.8). What it cannot join, a list of a sample's own objects, it hands on as it is. It is known
by its names: nothing here imports it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from lightning_sink.whose import module_of

_LOADER = "torch_geometric.loader.dataloader"
_BATCHES = {"DataBatch": "torch_geometric.data.data", "HeteroDataBatch": "torch_geometric.data.hetero_data"}
"""Names of the classes that are made of `Batch` and the graphs' own class, and where that class is at home."""

_PLAIN = (str, int, float, bool, type(None))


def collates_graphs(loader: Any) -> bool:
    """Tells whether a loader is torch_geometric's own, and samples are collated by its `Collater`."""
    kinds = type(loader), type(getattr(loader, "collate_fn", None))
    names = [(module_of(kind), kind.__qualname__) for kind in kinds]
    is_whole = names == [(_LOADER, "DataLoader"), (_LOADER, "Collater")] and loader.batch_sampler is not None
    return is_whole and "_get_iterator" not in vars(loader)


def is_made_anew(batch: Any) -> bool:
    """Tells whether nothing in such a loader's batch is a sample's own; False where graphs are of a user's class."""
    _, *kinds = type(batch).__mro__
    home = _BATCHES.get(type(batch).__name__)
    is_known = [module_of(kind) for kind in kinds[:2]] == ["torch_geometric.data.batch", home]
    return is_known and _is_anew(batch.to_dict())


def _is_anew(value: Any) -> bool:
    if type(value) is dict:
        return all(map(_is_anew, value.values()))
    if type(value) is list:  # of tensors, each joined of as many; or of what samples hold that is no tensor
        return all(map(_is_tensor, value)) or all(type(item) in _PLAIN for item in value)
    return _is_tensor(value) or type(value) in _PLAIN


def _is_tensor(value: Any) -> bool:
    return type(value) is Tensor and value.layout is torch.strided
