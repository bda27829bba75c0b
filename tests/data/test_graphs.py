"""Of torch_geometric's batches it is known which are made anew, and of any others it is not."""

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from graphs import Collater, Data, GraphLoader, Mine, batch_of
from lightning_sink.data.graphs import collates_graphs, is_made_anew
from lightning_sink.data.road import Road

ONES = torch.ones(2)


class Derived(GraphLoader):
    pass


def test_the_loader_is_known_by_its_names():
    graphs = [Data(x=ONES)] * 4
    assert all(map(collates_graphs, [GraphLoader(graphs), GraphLoader(graphs, num_workers=1)]))
    assert Road(GraphLoader(graphs)).makes_graphs
    assert not Road(GraphLoader(graphs)).makes_own
    replaced = GraphLoader(graphs)
    replaced.collate_fn = batch_of
    others = [Derived(graphs), DataLoader(graphs, collate_fn=Collater()), DataLoader([ONES]), replaced, graphs]
    assert not any(map(collates_graphs, others))


HELD = {
    "tensors": ({"x": ONES, "y": torch.zeros(1)}, True),
    "texts and numbers": ({"x": ONES, "name": "a", "nodes": 3, "nothing": None}, True),
    "a sample's own list": ({"x": ONES, "tags": ["a"]}, False),
    "a sample's own tensor, in a tuple": ({"x": ONES, "pair": ("a", ONES)}, False),
    "a sample's own array": ({"x": ONES, "array": np.ones(2)}, False),
    "a tensor of a subclass": ({"x": ONES, "weight": torch.nn.Parameter(ONES)}, False),
}


@pytest.mark.parametrize("name", HELD)
def test_a_batch_is_made_anew_if_nothing_in_it_is_a_samples_own(name):
    held, is_anew = HELD[name]
    assert is_made_anew(batch_of([Data(**held)])) == is_anew


def test_lists_and_dictionaries_of_tensors_were_joined_item_by_item():
    batch = batch_of([Data(x=ONES)])
    batch.parts = {"a": [ONES, ONES], "b": {"c": ONES}}
    assert is_made_anew(batch)
    batch.parts = {"a": [ONES, "b"]}
    assert not is_made_anew(batch)


def test_of_other_objects_nothing_is_known():
    assert not any(map(is_made_anew, [Data(x=ONES), batch_of([Mine(x=ONES)]), {"x": ONES}, ONES]))


def test_it_is_as_the_library_has_it():
    data, loaders = pytest.importorskip("torch_geometric.data"), pytest.importorskip("torch_geometric.loader")
    for graph in [data.Data(x=ONES[:, None], pair=("a", ONES)), data.HeteroData(node={"x": ONES[:, None]})]:
        loader = loaders.DataLoader([graph])
        assert collates_graphs(loader)
        assert is_made_anew(next(iter(loader))) == ("pair" not in graph)
