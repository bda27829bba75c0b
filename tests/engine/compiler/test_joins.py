"""Joining a single tensor is a copy in one piece."""

import pytest
import torch
from loop import record

from lightning_sink.engine.compiler.generated import missing_compiler
from lightning_sink.engine.compiler.inductor import compile_inductor
from lightning_sink.engine.compiler.joins import copy_joins_of_one


def joined(*parts):
    """Joins, and looks at the result in a way that needs its numbers side by side."""
    return torch.cat(parts, -2).transpose(-1, -2).view(6, 2, 4) * 1.0


EMPTY = {"nothing": [], "an old-fashioned one": [torch.empty(0)], "an empty one": [torch.empty(2, 3, 0, 2)]}


@pytest.mark.skipif(missing_compiler() is not None, reason="no C++ compiler")
@pytest.mark.parametrize("name", EMPTY)
def test_joining_one_tensor_gives_one_piece(name):
    across = torch.randn(2, 4, 3, 2).transpose(1, 2)
    recording = record(joined, *EMPTY[name], across)
    expected = joined(across)
    assert torch.equal(compile_inductor(recording)(*recording.inputs)[0], expected)


@pytest.mark.skipif(missing_compiler() is not None, reason="no C++ compiler")
def test_what_was_empty_and_is_not_any_more_is_joined():
    def step(a, b):
        filled = torch.empty(0)
        torch.mul(a, 2, out=filled)
        return torch.cat([filled, b])

    recording = record(step, torch.ones(3), torch.full((2,), 5.0))
    found = compile_inductor(recording)(*recording.inputs)[0]
    assert torch.equal(found, torch.tensor([2.0, 2.0, 2.0, 5.0, 5.0]))


def test_joining_several_stays():
    recording = record(lambda a, b: torch.cat([a, b]), torch.ones(2), torch.ones(3))
    copy_joins_of_one(recording.graph)
    assert any("cat" in str(node.target) for node in recording.graph.nodes)
