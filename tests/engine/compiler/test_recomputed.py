"""What is computed again to save memory is computed late, and is what it was."""

import pytest
import torch
from loop import record
from torch import nn
from torch.profiler import ProfilerActivity, profile
from torch.utils.checkpoint import checkpoint

from lightning_sink.engine import private
from lightning_sink.engine.compiler import prepared
from lightning_sink.engine.compiler.inductor import compile_inductor, graph_module
from lightning_sink.engine.compiler.recomputed import compute_late
from lightning_sink.engine.compiler.toolchain import missing_compiler

ROWS, COLUMNS = 2048, 32


def parts():
    torch.manual_seed(2)
    layers = [nn.Sequential(nn.Linear(COLUMNS, COLUMNS), nn.GELU(), nn.Linear(COLUMNS, COLUMNS)) for _ in range(4)]
    return nn.ModuleList(nn.Sequential(*layer, nn.GELU(), nn.Linear(COLUMNS, COLUMNS)) for layer in layers)


def gradients(model, reentrant=False):
    """Returns a step that gives the gradients of all weights; the parts are computed a second time."""

    def step(x):
        hidden = x.detach().requires_grad_()
        for part in model:
            hidden = checkpoint(part, hidden, use_reentrant=reentrant)
        hidden.square().mean().backward()
        given = [parameter.grad.flatten() for parameter in model.parameters()]
        model.zero_grad()
        return torch.cat(given)

    return step


def peak(function, *inputs):
    """Returns what was held at once of the memory that a call asked for, in bytes."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True, acc_events=True) as seen:
        function(*inputs)
    events = [event for event in seen.profiler.kineto_results.events() if event.name() == "[memory]"]
    held = most = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        held += event.nbytes()
        most = max(most, held)
    return most


@pytest.mark.narrow
@pytest.mark.skipif(missing_compiler() is not None, reason="no C++ compiler")
def test_a_program_holds_about_as_much_as_the_step(monkeypatch):
    step, x = gradients(parts()), torch.randn(ROWS, COLUMNS)
    one = x.nbytes
    plain = peak(step, x)

    def compiled():
        recording = record(step, x)
        function = compile_inductor(recording)
        torch.testing.assert_close(function(*recording.inputs)[0], step(x))
        return peak(function, *recording.inputs)

    late = compiled()
    monkeypatch.setattr(prepared, "compute_late", lambda recording: None)
    early = compiled()
    assert late < plain + 2 * one
    assert early > late + 6 * one  # the control: without it the program holds nearly all


@pytest.mark.parametrize("reentrant", [False, True])
def test_what_is_computed_again_waits_for_a_gradient(reentrant):
    model = parts()
    recording = record(gradients(model, reentrant), torch.randn(4, COLUMNS))
    again = [node for node in recording.graph.nodes if "again" in node.meta]
    assert len({node.meta["again"] for node in again}) == len(model), (
        "`torch.autograd.graph._engine_run_backward`, `torch._C._current_graph_task_id` or the module of"
        " `torch.utils.checkpoint` has moved"
    )
    backward = torch.ops.aten.gelu_backward.default
    first = next(place for place, node in enumerate(recording.graph.nodes) if node.target is backward)
    before = {node for node in list(recording.graph.nodes)[:first] if "again" not in node.meta}
    expected = graph_module(recording).forward(*recording.inputs)[0]
    compute_late(recording)
    recording.graph.lint()
    assert torch.equal(graph_module(recording).forward(*recording.inputs)[0], expected)
    products = [node for node in again if node.target is torch.ops.aten.addmm.default]
    for node in products[3:]:  # nothing but the loss's own gradient comes before the first part
        assert waits_for(node, backward, before), node


def waits_for(node, target, known):
    """Tells whether a node depends on an operation of a kind."""
    waiting, seen = [node], set(known)
    while waiting:
        node = waiting.pop()
        if node.target is target:
            return True
        waiting += [given for given in node.all_input_nodes if given not in seen]
        seen.update(waiting)
    return False


def test_what_is_written_to_meanwhile_does_not_wait():
    """Statistics of a normalization, and a kept tensor that the second run writes to as the first one did."""
    norm, weight = nn.BatchNorm1d(3), torch.ones(3, requires_grad=True)

    def step(x):
        kept = x.new_zeros(3)

        def half(x):
            return norm(x * weight) + kept.add_(x.mean(0)).exp()

        (checkpoint(half, x * 2, use_reentrant=False) * x).sum().backward()
        gradient, weight.grad = weight.grad, None
        return gradient + norm.running_mean + kept

    x = torch.randn(5, 3)
    recording = record(step, x)
    norm.reset_running_stats()
    expected = graph_module(recording).forward(*recording.inputs)[0]
    compute_late(recording)
    norm.reset_running_stats()
    assert torch.equal(graph_module(recording).forward(*recording.inputs)[0], expected)


@pytest.mark.parametrize("by_hook", [False, True])
def test_what_is_kept_is_seen_by_all_who_see_it(by_hook):
    """A view that the second run makes, and that is written to afterwards: it is of the very tensor that was kept."""
    weight = torch.ones(3, requires_grad=True)

    def step(x):
        seen = []

        def half(x):
            seen.append(x.detach()[:, :2])
            return (x * weight).tanh()

        kept = x * weight

        def hook(gradient):
            seen[-1].mul_(0.5)
            return gradient * kept.detach()

        if by_hook:
            kept.register_hook(hook)
        checkpoint(half, kept, use_reentrant=False).square().sum().backward()
        if not by_hook:
            seen[-1].mul_(0.5)
        gradient, weight.grad = weight.grad, None
        return gradient + kept.detach()

    x = torch.randn(5, 3)
    recording = record(step, x)
    expected = step(x)
    assert torch.equal(graph_module(recording).forward(*recording.inputs)[0], expected)
    compute_late(recording)
    assert torch.equal(graph_module(recording).forward(*recording.inputs)[0], expected)


def test_weights_that_are_not_trained_are_not_copied():
    frozen, weight = torch.randn(3, 3), torch.ones(3, requires_grad=True)

    def step(x):
        checkpoint(lambda x: x @ frozen * weight, x * 2, use_reentrant=False).square().sum().backward()
        gradient, weight.grad = weight.grad, None
        return gradient

    recording = record(step, torch.randn(5, 3))
    compute_late(recording)
    (held,) = [node for node in recording.graph.nodes if node.op == "placeholder" and is_of(node, recording, frozen)]
    assert [user.target for user in held.users].count(torch.ops.aten.mm.default) >= 2
    assert not [user for user in held.users if user.target is torch.ops.aten.where.ScalarSelf]
    assert recording.graph.find_nodes(op="call_function", target=torch.ops.aten.where.ScalarSelf)


def test_numbers_of_eight_bits_do_not_wait():
    weight = torch.ones(3, requires_grad=True)

    def step(x):
        kept = x.to(torch.float8_e4m3fn)
        checkpoint(lambda kept: kept.float() * weight, kept, use_reentrant=False).square().sum().backward()
        gradient, weight.grad = weight.grad, None
        return gradient

    recording = record(step, torch.randn(5, 3))
    compute_late(recording)
    assert torch.equal(graph_module(recording).forward(*recording.inputs)[0], step(recording.inputs[0]))


def is_of(node, recording, tensor):
    return recording.inputs[node.meta["input"]] is tensor


def test_nothing_is_computed_again_elsewhere():
    assert not private.is_computed_again()
    recording = record(lambda x: (x * torch.ones(3, requires_grad=True)).sum(), torch.randn(3))
    text = str(recording.graph)
    compute_late(recording)
    assert str(recording.graph) == text
