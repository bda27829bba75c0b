"""A stand-in for torch_geometric: classes of its names, which make batches of graphs as those do."""

from functools import cache

import torch
from torch.utils.data import DataLoader


def of(module, qualname=None):
    """Has a class say that it is of another module."""

    def rename(kind):
        kind.__module__, kind.__qualname__ = module, qualname or kind.__name__
        return kind

    return rename


@of("torch_geometric.data.data")
class Data:
    """A graph; stays the same object where it is moved."""

    def __init__(self, **held):
        vars(self).update(held)

    def to(self, device):
        return self

    def to_dict(self):
        return dict(vars(self))


@of("torch_geometric.data.batch")
class Batch:
    pass


@cache
def joined_kind(kind):
    return type(f"{kind.__name__}Batch", (Batch, kind), {"__module__": "abc"})


def batch_of(graphs):
    """Joins graphs to one of `Batch` and of their own class."""
    joined = joined_kind(type(graphs[0]))()
    for name, value in vars(graphs[0]).items():
        values = [vars(graph)[name] for graph in graphs]
        setattr(joined, name, torch.cat(values) if type(value) is torch.Tensor else values)
    return joined


@of("torch_geometric.loader.dataloader")
class Collater:
    def __call__(self, graphs):
        return batch_of(graphs)


@of("torch_geometric.loader.dataloader", "DataLoader")
class GraphLoader(DataLoader):
    def __init__(self, dataset, batch_size=1, collate_fn=None, **options):
        super().__init__(dataset, batch_size, collate_fn=Collater(), **options)


class Mine(Data):
    """A user's own kind of graph."""
