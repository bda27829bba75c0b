"""Random draws keep their order and their values when a graph is compiled."""

import pytest
import torch
from loop import record
from torch import nn

from fake_device import DEVICE
from lightning_sink.engine.compiler.inductor import graph_module
from lightning_sink.engine.failures import RefusedError
from lightning_sink.engine.tracing.draws import hoist_draws


def many(x):
    x = nn.functional.dropout(x, 0.3)
    x = x + torch.rand_like(x) + torch.randn(3)
    x = x * torch.empty_like(x).uniform_(0.5, 1.0)
    return nn.functional.dropout(x.sin(), 0.5)


def run(function, *inputs):
    torch.manual_seed(4)
    return function(*inputs)


def test_hoisted_draws_are_those_of_the_step():
    x = torch.randn(2, 3)
    recording = record(many, x)
    expected = run(many, x)
    draws = hoist_draws(recording.graph)
    function = graph_module(recording).forward
    assert len(draws) == 5
    assert not any(torch.Tag.nondeterministic_seeded in getattr(n.target, "tags", ()) for n in recording.graph.nodes)
    assert torch.equal(run(lambda *inputs: function(*inputs, *[draw() for draw in draws])[0], x), expected)
    # The control: in another order the values are others.
    swapped = run(lambda *inputs: function(*inputs, *reversed([draw() for draw in reversed(draws)]))[0], x)
    assert not torch.equal(swapped, expected)


def test_a_single_draw_that_depends_on_data_stays_in_the_graph():
    x = torch.rand(2, 3)
    recording = record(torch.bernoulli, x)
    assert hoist_draws(recording.graph) == []


def test_a_draw_for_which_the_compiler_draws_other_numbers_is_refused(monkeypatch):
    monkeypatch.setattr(
        "lightning_sink.engine.tracing.draws.draws_otherwise", lambda operation, dtype: "rrelu" in str(operation)
    )
    recording = record(lambda x: nn.functional.rrelu(x, training=True), torch.randn(2, 3))
    with pytest.raises(RefusedError, match="`aten::rrelu_with_noise` draws other numbers"):
        hoist_draws(recording.graph)
    assert hoist_draws(record(torch.bernoulli, torch.rand(2, 3)).graph) == []


def test_draws_by_doubles_are_refused_which_the_compiler_makes_of_floats():
    with pytest.raises(RefusedError, match="`aten::bernoulli` draws other numbers"):
        hoist_draws(record(torch.bernoulli, torch.rand(2, 3, dtype=torch.float64)).graph)


def test_two_draws_of_which_one_depends_on_data_are_refused():
    def step(x):
        noise = torch.rand(3)
        return torch.bernoulli(x) + noise

    with pytest.raises(RefusedError, match="`aten::bernoulli` draws by values of a tensor, beside") as caught:
        hoist_draws(record(step, torch.rand(2, 3)).graph)
    assert caught.value.hazard.where == f"{__file__}:{step.__code__.co_firstlineno + 2}"
    assert "torch.rand_like(p) < p" in caught.value.hazard.way_out


def test_a_graph_whose_draws_are_hoisted_is_whole_from_both_ends():
    """What is inserted before the first operation, a check of a drawn index, keeps the inputs before it."""

    def step(table):
        return table[torch.randint(0, 5, (3,))] + torch.randn(3)

    graph = record(step, torch.randn(5)).graph
    assert len(hoist_draws(graph)) == 2
    assert list(graph.nodes) == list(reversed(graph.nodes))[::-1]
    assert [node.name for node in graph.nodes if node.op == "placeholder"][-2:] == ["draw_0", "draw_1"]


def test_the_dropout_of_a_gpu_draws_its_mask_alone(fake):
    def twice(x):
        return nn.functional.dropout(nn.functional.dropout(x, 0.3).cos(), 0.5)

    x = torch.randn(4, 5, device=DEVICE)
    recording = record(twice, x)
    assert {node.target for node in recording.graph.nodes if node.meta.get("draws")} == {
        torch.ops.aten.native_dropout.default
    }
    expected = run(twice, x).cpu()
    draws = hoist_draws(recording.graph)
    function = graph_module(recording).forward
    drawn = run(lambda: [draw() for draw in draws])
    assert [mask.dtype for mask in drawn] == [torch.bool, torch.bool]
    torch.testing.assert_close(function(x, *drawn)[0].cpu(), expected)
    assert not torch.allclose(function(x, *drawn[::-1])[0].cpu(), expected)  # the control


def test_the_backward_pass_of_a_dropout_has_the_same_mask(fake):
    def gradient(x):
        weight = torch.ones_like(x).requires_grad_()
        nn.functional.dropout(x * weight, 0.4).sum().backward()
        return weight.grad

    x = torch.randn(6, device=DEVICE)
    recording = record(gradient, x)
    expected = run(gradient, x).cpu()
    draws = hoist_draws(recording.graph)
    assert len(draws) == 1
    function = graph_module(recording).forward
    torch.testing.assert_close(run(lambda: function(x, *[draw() for draw in draws]))[0].cpu(), expected)


def test_a_dropout_of_nothing_draws_nothing(fake):
    x = torch.randn(6, device=DEVICE)
    recording = record(lambda x: nn.functional.dropout(x, 0.0), x)
    assert hoist_draws(recording.graph) == []
    assert torch.equal(graph_module(recording).forward(x)[0].cpu(), x.cpu())


def test_a_dropout_of_everything_gives_zeros():
    def step(x):
        return torch.native_dropout(x, 1.0, True)[0] + torch.native_dropout(x, 0.5, True)[0]

    x = torch.randn(6)
    recording = record(step, x)
    expected = run(step, x)
    draws = hoist_draws(recording.graph)
    function = graph_module(recording).forward
    torch.testing.assert_close(run(lambda: function(x, *[draw() for draw in draws]))[0], expected)


def by_numbers(x):
    share = torch.distributions.Beta(0.4, 0.4).sample()
    order = torch.randperm(2)
    noise = torch.normal(torch.tensor([0.0, 1.0, 2.0]), torch.tensor(0.5).expand(3))
    picked = torch.multinomial(torch.tensor([0.1, 0.2, 0.7]), 3, replacement=True)
    return share * x[order] + (1 - share) * noise + picked


def test_draws_by_numbers_are_hoisted_too():
    x = torch.randn(2, 3)
    recording, expected = record(by_numbers, x), run(by_numbers, x)
    draws = hoist_draws(recording.graph)
    assert len(draws) == 4
    found = run(lambda: graph_module(recording).forward(*recording.inputs, *[draw() for draw in draws]))
    assert torch.equal(found[0], expected)


def written(x):
    weights = torch.tensor([0.5, 0.5])
    weights[1] = x[0, 0].abs()
    return torch.multinomial(weights, 3, True) + torch.rand(3)


def written_behind(x):
    weights = torch.tensor([0.5, 0.5])
    drawn = torch.multinomial(weights, 3, True) + torch.rand(3)
    weights.mul_(2)
    return drawn + weights.sum()


@pytest.mark.parametrize("step", [written, written_behind])
def test_a_draw_by_numbers_that_are_written_to_depends_on_data(step):
    with pytest.raises(RefusedError, match="could change places"):
        hoist_draws(record(step, torch.rand(2, 3)).graph)


def test_steps_that_draw_by_other_numbers_are_told_apart():
    def step(concentration):
        return lambda x: x * torch.distributions.Beta(concentration, 1.0).sample() * torch.rand(1)

    texts = [record(step(number), torch.ones(2)).text for number in (0.4, 0.4, 0.5)]
    assert texts[0] == texts[1] != texts[2]
