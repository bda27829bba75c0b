"""What Inductor would get wrong is what it is in eager code.

A multiple that is added, joining a single tensor, and filling by a mask what was filled by places.
"""

import pytest
import torch
from loop import record
from torch import nn

from lightning_sink.engine.compiler.generated import compile_graph
from lightning_sink.engine.compiler.inductor import compile_inductor, graph_module
from lightning_sink.engine.compiler.prepared import add_up_single_rows, copy_joins_of_one, fill_by_masks, keep_factors
from lightning_sink.engine.compiler.toolchain import missing_compiler

missing = pytest.mark.skipif(missing_compiler() is not None, reason="no C++ compiler")

SUMS = {
    "product first": lambda a, b, p: torch.add(a @ b, p, alpha=0.01),
    "product second": lambda a, b, p: torch.add(p, a @ b, alpha=0.01),
    "in place": lambda a, b, p: (a @ b).add_(p, alpha=0.01),
    "two products": lambda a, b, p: torch.add(a @ b, b.t() @ a.t(), alpha=3),
    "a row": lambda a, b, p: torch.add(a @ b, p[0], alpha=-2),
    "a bias, too": lambda a, b, p: torch.add(torch.addmm(p[0], a, b), p, alpha=0.3),
    "a number": lambda a, b, p: torch.add(a @ b, 2.0, alpha=0.25),
    "a difference": lambda a, b, p: torch.sub(a @ b, p, alpha=0.01),
    "lists": lambda a, b, p: torch._foreach_add([a @ b, p], [p, a @ b], alpha=0.5)[0],
    "bytes": lambda a, b, p: torch.add(a @ b, (p > 0).to(torch.uint8) * 100, alpha=3),
    "flags": lambda a, b, p: torch.add((a @ b).double(), p > 0, alpha=0.1).float(),
    "integers": lambda a, b, p: torch.add(a.int(), b.t().int(), alpha=3) + 0.0,
}


def step(a, b, p):
    return torch.cat([total(a, b, p).reshape(-1) for total in SUMS.values()])


def given():
    torch.manual_seed(3)
    return torch.randn(5, 5), torch.randn(5, 5), torch.randn(5, 5)


@missing
def test_factors_are_kept():
    recording = record(step, *given())
    found = compile_inductor(recording)(*recording.inputs)[0]
    torch.testing.assert_close(found, step(*given()))


@missing
def test_control_inductor_loses_factors():
    recording = record(SUMS["product first"], *given())
    with torch.no_grad():  # as for each step without a recurrent layer
        function, _ = compile_graph(graph_module(recording), recording.inputs, {"fallback_random": True})
    found = function(*recording.inputs)[0]
    expected = SUMS["product first"](*given())
    if torch.allclose(found, expected):
        pytest.skip("this Inductor keeps factors")


def test_no_factor_is_left_to_inductor():
    recording = record(step, *given())
    keep_factors(recording.graph)
    sums = [node for node in recording.graph.nodes if node.target is torch.ops.aten.add.Tensor]
    assert len(sums) > 5
    assert sum("alpha" in node.kwargs for node in sums) == 3, "those of a number, and of two types"
    recording.graph.lint()
    torch.testing.assert_close(graph_module(recording).forward(*recording.inputs)[0], step(*given()))


def joined(*parts):
    """Joins, and looks at the result in a way that needs its numbers side by side."""
    return torch.cat(parts, -2).transpose(-1, -2).view(6, 2, 4) * 1.0


EMPTY = {"nothing": [], "an old-fashioned one": [torch.empty(0)], "an empty one": [torch.empty(2, 3, 0, 2)]}


@missing
@pytest.mark.parametrize("name", EMPTY)
def test_joining_one_tensor_gives_one_piece(name):
    across = torch.randn(2, 4, 3, 2).transpose(1, 2)
    recording = record(joined, *EMPTY[name], across)
    expected = joined(across)
    assert torch.equal(compile_inductor(recording)(*recording.inputs)[0], expected)


@missing
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


def normalized(x, weight):
    """Normalizes over channels that stand last, as transformers do, and looks at the result in one piece."""
    x = x.detach().requires_grad_()
    found = torch.nn.functional.batch_norm(x.transpose(1, 2), None, None, weight, training=True).view(8, -1)
    (gradient,) = torch.autograd.grad(found.pow(3).sum(), x)
    return torch.cat([found.reshape(-1), gradient.reshape(-1)])


@missing
def test_batch_normalization_of_a_transposed_tensor_gives_one_piece():
    given = torch.randn(8, 6, 4), torch.rand(4)
    recording = record(normalized, *given)
    expected = normalized(*given)
    found = compile_inductor(recording)(*recording.inputs)[0]
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)


PLACES = torch.tensor([0, 2, 5])

FILLS = {
    "a number": lambda t, x: t.index_put((x[:, 0] > 0,), torch.tensor(0.5)),
    "in place": lambda t, x: t.index_put_((x[:, 0] > 0,), torch.tensor(0.5)),
    "by Python": lambda t, x: t.__setitem__(x[:, 0] > 0, 0.5),
    "a tensor of one": lambda t, x: t.index_put_((x[:, 0] > 0,), x[:1, 0]),
    "a mask of all dimensions": lambda t, x: t.__setitem__(x > 0, 0.5),
    "added": lambda t, x: t.index_put((x[:, 0] > 0,), torch.tensor(0.5), accumulate=True),
    "added in place": lambda t, x: t.index_put_((x[:, 0] > 0,), torch.tensor(0.5), accumulate=True),
    "added beside zeros": lambda t, x: torch.copysign(
        torch.ones(()), t.mul_(-0.0).index_put((x[:, 0] > 0,), torch.tensor(0.5), accumulate=True)
    ),
    "truths": lambda t, x: (t > 0).index_put_((x > 0,), torch.tensor(True), accumulate=True) * 1.0,
    "one for each": lambda t, x: t.__setitem__(x[:, 0] > 0, x[x[:, 0] > 0] * 3),
    "another dimension": lambda t, x: t.__setitem__((slice(None), x[0] > 0), 0.5),
    "numbers": lambda t, x: t.index_put_((PLACES,), torch.tensor(0.5)),
}


def filled(x, name):
    tensor = x * 1.5
    tensor[PLACES] = x[PLACES] * 2
    made = FILLS[name](tensor, x)
    return tensor if made is None else made


@pytest.mark.narrow(11)
@missing
@pytest.mark.parametrize("name", FILLS)
def test_filling_by_a_mask_comes_behind_filling_by_places(name):
    x = torch.arange(24.0).view(6, 4).sin()
    recording = record(lambda x: filled(x, name), x)
    expected = filled(x, name)
    fill_by_masks(recording.graph)
    recording.graph.lint()
    torch.testing.assert_close(graph_module(recording).forward(*recording.inputs)[0], expected)
    found = compile_inductor(recording)(*recording.inputs)[0]
    torch.testing.assert_close(found, expected)


@missing
def test_control_inductor_changes_the_order():
    x = torch.arange(24.0).view(6, 4).sin()
    recording = record(lambda x: filled(x, "in place"), x)
    with torch.no_grad():
        function, _ = compile_graph(graph_module(recording), recording.inputs, {"fallback_random": True})
    if torch.allclose(function(*recording.inputs)[0], filled(x, "in place")):
        pytest.skip("this Inductor keeps the order")


def looks_up_one_row(table, weight, bias, x, places):
    """As DeepAR has its static features: a column that is the same for all times, beside others."""
    with torch.enable_grad():
        given = [tensor.detach().requires_grad_() for tensor in (table, weight, bias)]
        found = nn.functional.embedding(places, given[0]).unsqueeze(1).expand(-1, x.shape[1], -1)
        loss = nn.functional.linear(torch.cat([x, found], -1), *given[1:]).tanh().square().mean()
    return torch.cat([gradient.reshape(-1) for gradient in torch.autograd.grad(loss, given)])


@missing
@pytest.mark.parametrize("width", [1, 3])
def test_a_table_of_one_row_has_the_sum_of_all_gradients(width):
    torch.manual_seed(3)
    tensors = torch.randn(1, width), torch.randn(3, 4 + width), torch.randn(3), torch.randn(32, 17, 4)
    recording = record(looks_up_one_row, *tensors, torch.zeros(32, dtype=torch.int64))
    found = compile_inductor(recording)(*recording.inputs)[0]
    torch.testing.assert_close(found, looks_up_one_row(*tensors, torch.zeros(32, dtype=torch.int64)))


def test_a_padded_row_and_tables_of_more_rows_are_left_alone():
    def step(gradient, places):
        backward = torch.ops.aten.embedding_dense_backward
        return backward(gradient, places, 1, 0, False) + backward(gradient, places, 2, -1, False)[:1]

    recording = record(step, torch.randn(4, 3), torch.zeros(4, dtype=torch.int64))
    text = str(recording.graph)
    add_up_single_rows(recording.graph)
    assert str(recording.graph) == text
