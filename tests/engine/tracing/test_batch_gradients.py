"""What a step leaves on a batch's own tensors is found, and taken away again."""

import pytest
import torch

from lightning_sink.engine.tracing.left_on_batch import BatchGradients


def goes_backward(x):
    (2 * x.requires_grad_()).sum().backward()


def writes_what_has_a_graph(x):
    x.add_(torch.ones(3, requires_grad=True))


LEAVES = {
    "that it asks for one": lambda x: x.requires_grad_(),
    "a gradient": goes_backward,
    "one that was put there": lambda x: setattr(x, "grad", torch.ones(3)),
    "a hook": lambda x: x.requires_grad_().register_hook(lambda slope: 2 * slope),
    "a hook for later": lambda x: x.requires_grad_().register_post_accumulate_grad_hook(lambda x: None),
    "a graph": writes_what_has_a_graph,
}

NOTHING = {
    "nothing": lambda x: None,
    "other numbers": lambda x: x.add_(1),
    "a gradient of its own": lambda x: goes_backward(x.detach()),
    "of what is made of it": lambda x: goes_backward(2 * x),
}


@pytest.mark.parametrize("name", LEAVES)
def test_what_is_left_is_found_and_taken_away(name):
    x = torch.ones(3)
    before = BatchGradients([torch.ones(2), x])
    assert not before.are_left()
    LEAVES[name](x)
    assert before.are_left()
    before.restore()
    assert not before.are_left()
    assert x.is_leaf
    goes_backward(x)
    assert torch.equal(x.grad, torch.full((3,), 2.0))


@pytest.mark.parametrize("name", NOTHING)
def test_what_stays_as_it_is(name):
    x = torch.ones(3)
    before = BatchGradients([x])
    NOTHING[name](x)
    assert not before.are_left()


def test_what_was_there_before_stays():
    x, calls = torch.ones(3, requires_grad=True), []
    x.register_hook(calls.append)
    goes_backward(x)
    gradient, before = x.grad, BatchGradients([x])
    assert not before.are_left()
    goes_backward(x)  # adds to it
    assert before.are_left()
    x.grad, _ = None, x.register_hook(lambda slope: 2 * slope)
    before.restore()
    assert x.grad is gradient
    calls.clear()
    goes_backward(x)
    assert len(calls) == 1
