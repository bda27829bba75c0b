"""What is found among an operation's arguments."""

import pytest
import torch
from torch import Tensor, fx

from lightning_sink.engine.operands import members

A, B, C = torch.zeros(1), torch.ones(2), torch.nn.Parameter(torch.ones(3))


@pytest.mark.parametrize(
    ("values", "found"),
    [
        ((), []),
        ((1, None, "mean", torch.float32), []),
        ((A, 1, B), [A, B]),
        (([A, None, C], (B,), [1, 2]), [A, C, B]),
        ((torch.topk(torch.arange(3.0), 2),), [torch.tensor([2.0, 1.0]), torch.tensor([2, 1])]),
        ({"out": A, "dim": 0}.values(), [A]),
    ],
)
def test_members_are_found_in_their_order(values, found):
    got = members(Tensor, values)
    assert len(got) == len(found)
    assert all(torch.equal(one, other) for one, other in zip(got, found, strict=True))


def test_nodes_are_found_in_what_a_graph_makes_of_lists():
    graph = fx.Graph()
    one, other = graph.placeholder("one"), graph.placeholder("other")
    node = graph.call_function(torch.cat, ([one, other],), {"dim": 0})
    assert members(fx.Node, (*node.args, *node.kwargs.values())) == [one, other]
