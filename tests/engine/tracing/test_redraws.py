"""What a step draws again, with its generator set back, is what it drew first."""

from contextlib import ExitStack

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


def by_equal_numbers(x):
    means = torch.tensor([0.0, 1.0, 2.0])
    with torch.random.fork_rng(devices=[]):
        first = torch.normal(means, 0.5)
    return x * first + torch.normal(torch.tensor([0.0, 1.0, 2.0]), 0.5)


def by_another_default(x):
    """As with double precision in Lightning, which is the default in the forward pass alone."""
    with torch.random.fork_rng(devices=[]):
        torch.set_default_dtype(torch.float64)
        first = torch.rand(2, 3)
        torch.set_default_dtype(torch.float32)
    return x * first + torch.rand(2, 3, dtype=torch.float64)


def run(function, *inputs):
    torch.manual_seed(4)
    return function(*inputs)


@pytest.mark.parametrize(("step", "new"), [(gradient, 4), (forked, 1), (by_equal_numbers, 1), (by_another_default, 1)])
def test_it_is_drawn_once(step, new):
    x = torch.randn(2, 3)
    recording = record(step, x)
    assert not recording.hazards
    given = recording.inputs
    expected, behind = run(step, x), torch.rand(1)
    as_it_is = graph_module(recording).forward
    assert torch.equal(run(as_it_is, *given)[0], expected)
    assert torch.equal(torch.rand(1), behind)
    draws = hoist_draws(recording.graph)
    assert len(draws) == new
    hoisted = graph_module(recording).forward
    assert torch.equal(run(lambda: hoisted(*given, *[draw() for draw in draws]))[0], expected)
    # The control: what is drawn anew is something else.
    twice = torch.get_rng_state()
    assert not torch.equal(hoisted(*given, *[draw() for draw in draws])[0], expected)
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


def opened(x):
    LEFT_OPEN.enter_context(torch.random.fork_rng(devices=[]))
    return x * torch.randn(3)


LEFT_OPEN = ExitStack()


def test_a_fork_of_another_step_is_not_left():
    with torch.random.fork_rng(devices=[]), ExitStack() as entered:
        entered.enter_context(torch.random.fork_rng(devices=[]))

        def left_in_another(x):
            entered.close()
            return x * 2

        why = "`torch.random.fork_rng()` is entered in one step and left in another"
        assert why in [hazard.what for hazard in record(left_in_another, torch.rand(2, 3)).hazards]


@pytest.mark.parametrize(
    ("step", "why"),
    [
        (left, "a random generator is set back, and left there"),
        (other, "a random generator is set back, and something else is drawn than before"),
        (by_data, "a random generator is set back, and what is drawn again depends on a tensor"),
        (by_numbers, "a random generator is set back, and something else is drawn than before"),
        (opened, "`torch.random.fork_rng()` is entered in one step and left in another"),
    ],
)
def test_what_no_program_draws_again(step, why):
    with LEFT_OPEN:
        found = record(step, torch.rand(2, 3))
    assert [hazard.what for hazard in found.hazards] == [why]
