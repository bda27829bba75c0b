"""What a step draws again, with its generator set back, is what it drew first."""

import pytest
import torch
from loop import record
from torch import nn
from torch.utils.checkpoint import checkpoint

from fake_device import DEVICE
from lightning_sink.engine.compiler.inductor import graph_module
from lightning_sink.engine.tracing.draws import hoist_draws


def noisy(x):
    hidden = nn.functional.dropout(x, 0.3).cos()
    return nn.functional.dropout(hidden * torch.rand_like(hidden), 0.5)


def gradient(x):
    """A part with two dropouts and a draw between them, computed a second time by the backward pass."""
    weight = torch.ones_like(x).requires_grad_()
    again = checkpoint(noisy, x * weight, use_reentrant=False)
    (again * torch.randn_like(x)).sum().backward()
    return weight.grad


def forked(x):
    with torch.random.fork_rng(devices=[]):
        first = torch.randn(3)
    return x * first + torch.randn(3)


def run(function, *inputs):
    torch.manual_seed(4)
    return function(*inputs)


@pytest.mark.parametrize(("step", "new"), [(gradient, 4), (forked, 1)])
def test_it_is_drawn_once(step, new):
    x = torch.randn(2, 3)
    recording = record(step, x)
    assert not recording.hazards
    expected, behind = run(step, x), torch.rand(1)
    as_it_is = graph_module(recording).forward
    assert torch.equal(run(as_it_is, x)[0], expected)
    assert torch.equal(torch.rand(1), behind)
    draws = hoist_draws(recording.graph)
    assert len(draws) == new
    hoisted = graph_module(recording).forward
    assert torch.equal(run(lambda: hoisted(x, *[draw() for draw in draws]))[0], expected)
    # The control: what is drawn anew is something else.
    twice = torch.get_rng_state()
    assert not torch.equal(hoisted(x, *[draw() for draw in draws])[0], expected)
    assert not torch.equal(torch.get_rng_state(), twice)


def test_the_dropout_of_a_gpu_keeps_its_mask(fake):
    x = torch.randn(4, 5, device=DEVICE)
    step = lambda x: gradient(x)  # noqa: E731
    recording = record(step, x)
    assert not recording.hazards
    expected = run(step, x).cpu()
    draws = hoist_draws(recording.graph)
    drawn = run(lambda: [draw() for draw in draws])
    assert [mask.dtype for mask in drawn] == [torch.bool, torch.float32, torch.bool, torch.float32]
    function = graph_module(recording).forward
    torch.testing.assert_close(function(x, *drawn)[0].cpu(), expected)


def left(x):
    with torch.random.fork_rng(devices=[]):
        return x * torch.randn(3)


def other(x):
    return left(x) + torch.randn(4).sum()


def by_data(x):
    with torch.random.fork_rng(devices=[]):
        first = torch.bernoulli(x)
    return first + torch.bernoulli(x)


def by_numbers(x):
    with torch.random.fork_rng(devices=[]):
        first = torch.normal(torch.tensor([0.0, 1.0, 2.0]), 0.5)
    return x * first + torch.normal(torch.tensor([3.0, 1.0, 2.0]), 0.5)


@pytest.mark.parametrize(
    ("step", "why"),
    [
        (left, "a random generator is set back, and left there"),
        (other, "a random generator is set back, and something else is drawn than before"),
        (by_data, "a random generator is set back, and what is drawn again depends on a tensor"),
        (by_numbers, "a random generator is set back, and what is drawn again depends on a tensor"),
    ],
)
def test_what_no_program_draws_again(step, why):
    assert [hazard.what for hazard in record(step, torch.rand(2, 3)).hazards] == [why]
