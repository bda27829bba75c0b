"""Operations on lists are what they are on each tensor."""

import pytest
import torch
from loop import record

from lightning_sink.engine.compiler.generated import missing_compiler
from lightning_sink.engine.compiler.inductor import compile_inductor, graph_module
from lightning_sink.engine.compiler.lists import take_lists_apart


def tensors(shift=0.0):
    return [torch.linspace(0.5, 1.5, 4) + shift, torch.linspace(1.0, 2.0, 3) - shift]


CALLS = {
    "add": lambda a, b: torch._foreach_add(a, b, alpha=0.3),
    "add a number": lambda a, b: torch._foreach_add(a, 2.5),
    "add numbers": lambda a, b: torch._foreach_add(a, [2.5, 1.5]),
    "add in place": lambda a, b: torch._foreach_add_(a, b, alpha=-2),
    "add a tensor in place": lambda a, b: torch._foreach_add_(a, torch.tensor(2.0), alpha=3),
    "multiply": lambda a, b: torch._foreach_mul(a, b),
    "multiply by a tensor": lambda a, b: torch._foreach_mul(a, torch.tensor(0.5)),
    "multiply in place": lambda a, b: torch._foreach_mul_(a, 0.5),
    "divide": lambda a, b: torch._foreach_div(a, b),
    "subtract in place": lambda a, b: torch._foreach_sub_(a, b),
    "norms": lambda a, b: torch._foreach_norm(a),
    "norms of another order": lambda a, b: torch._foreach_norm(a, 1),
    "roots": lambda a, b: torch._foreach_sqrt(a),
    "roots in place": lambda a, b: torch._foreach_sqrt_(a),
    "negatives": lambda a, b: torch._foreach_neg(a),
    "interpolate": lambda a, b: torch._foreach_lerp_(a, b, 0.2),
    "interpolate by tensors": lambda a, b: torch._foreach_lerp(a, b, b),
    "add quotients": lambda a, b: torch._foreach_addcdiv_(a, b, b, 0.1),
    "add quotients by numbers": lambda a, b: torch._foreach_addcdiv_(a, b, b, [0.1, 0.2]),
    "add products": lambda a, b: torch._foreach_addcmul(a, b, b, value=0.1),
    "copy": lambda a, b: torch._foreach_copy_(a, b),
    "clear": lambda a, b: torch._foreach_zero_(a),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_list_is_taken_apart(name):
    def step(*given):
        made = CALLS[name]([*given[:2]], [*given[2:]])
        return torch.cat([item.reshape(-1) for item in made or given[:2]])

    leaves = [*tensors(), *tensors(0.25)]
    before = [leaf.clone() for leaf in leaves]
    recording = record(step, *leaves)
    assert any("_foreach_" in str(node.target) for node in recording.graph.nodes)
    take_lists_apart(recording.graph)
    assert not any("_foreach_" in str(node.target) for node in recording.graph.nodes)
    recording.graph.lint()
    original = {id(leaf): kept.clone() for leaf, kept in zip(leaves, before, strict=True)}
    given = [original.get(id(tensor), tensor) for tensor in recording.inputs]
    assert torch.allclose(graph_module(recording).forward(*given)[0], step(*before))


def test_what_is_not_known_stays():
    recording = record(lambda a: torch._foreach_erf([a])[0], torch.ones(2))
    take_lists_apart(recording.graph)
    assert any("_foreach_erf" in str(node.target) for node in recording.graph.nodes)


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
    take_lists_apart(recording.graph)
    assert any("cat" in str(node.target) for node in recording.graph.nodes)
