"""Graphs in which small products and gradients are sums give what they gave before."""

import operator
import sys
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import fx, nn

from lightning_sink.engine import sums

aten = torch.ops.aten


def windows(images, size, stride, padding):
    """What a convolution looks at: `[images, channels, rows, columns, *size]`."""
    padded = nn.functional.pad(images, (padding[1], padding[1], padding[0], padding[0]))
    return padded.unfold(2, size[0], stride[0]).unfold(3, size[1], stride[1])


@pytest.fixture(autouse=True)
def kernel(monkeypatch):
    """Stands for the kernel, which needs Triton and a GPU: a share is an image."""

    def weight_gradient(gradient, images, size, stride, padding):
        return torch.einsum("norc,nircyx->noiyx", gradient, windows(images, size, stride, padding))

    module = SimpleNamespace(weight_gradient=weight_gradient)
    monkeypatch.setitem(sys.modules, "lightning_sink.engine.weight_gradient", module)


def layout(tensor):
    return tensor.shape, tensor.stride(), tensor.dtype, tensor.device


def placed(graph, items):
    nodes, tensors = [], []
    for item in items:
        if isinstance(item, torch.Tensor):
            node = graph.placeholder(f"tensor_{len(tensors)}")
            node.meta["layout"] = layout(item)
            tensors.append(item)
        nodes.append(node if isinstance(item, torch.Tensor) else item)
    return nodes, tensors


def written(operation, *items, **options):
    """Returns whether it was written as a sum, having compared what it gives."""
    graph, expected = fx.Graph(), operation(*items, **options)
    nodes, tensors = placed(graph, items)
    node = graph.call_function(operation, tuple(nodes), options)
    if isinstance(expected, torch.Tensor):
        node.meta["layout"], outputs, expected = layout(expected), [node], [expected]
    else:
        numbers = [number for number, part in enumerate(expected) if part is not None]
        outputs, expected = (
            [graph.call_function(operator.getitem, (node, n)) for n in numbers],
            [expected[n] for n in numbers],
        )
        for output, tensor in zip(outputs, expected, strict=True):
            output.meta["layout"] = layout(tensor)
    graph.output(tuple(outputs))
    found = sums.write_sums(graph)
    graph.lint()
    for ours, theirs in zip(fx.GraphModule(nn.Module(), graph)(*tensors), expected, strict=True):
        assert ours.shape == theirs.shape
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)
    return found


sizes = st.integers(1, 7)


@given(sizes, sizes, sizes, st.booleans(), st.booleans())
def test_products(rows, depth, columns, left_transposed, right_transposed):
    left = torch.randn(depth, rows).t() if left_transposed else torch.randn(rows, depth)
    right = torch.randn(columns, depth).t() if right_transposed else torch.randn(depth, columns)
    assert written(aten.mm.default, left, right)
    assert written(aten.addmm.default, torch.randn(columns), left, right)
    assert written(aten.bmm.default, torch.stack([left] * 3), torch.stack([right] * 3))


def test_others_stay():
    assert not written(aten.mm.default, torch.randn(300, 300), torch.randn(300, 300))
    assert not written(aten.mm.default, torch.randn(3, 4).double(), torch.randn(4, 5).double())
    assert not written(aten.mm.default, torch.randn(3, 0), torch.randn(0, 5))
    assert not written(aten.addmm.default, torch.randn(5), torch.randn(3, 4), torch.randn(4, 5), alpha=2)


def gradients(stride, padding, mask, images=2, groups=1, dilation=1, transposed=False, channels=4, form=None):
    x, weight = torch.randn(images, channels, 9, 8), torch.randn(6, channels // groups, 3, 3)
    if form is not None:
        x = x.to(memory_format=form)
    if transposed:
        weight = torch.randn(channels, 6, 3, 3)
    options = [stride, padding, [dilation, dilation], transposed, [0, 0], groups]
    result = aten.convolution.default(x, weight, None, *options)
    return written(aten.convolution_backward.default, torch.randn_like(result), x, weight, [6], *options, mask)


@pytest.mark.parametrize("mask", [(True, True, True), (False, True, True), (True, True, False), (False, True, False)])
@pytest.mark.parametrize("padding", [[0, 0], [1, 2]])
@pytest.mark.parametrize("stride", [[1, 1], [2, 1]])
def test_gradients_of_a_convolution(stride, padding, mask):
    assert gradients(stride, padding, [*mask])


def test_other_gradients_stay():
    assert not gradients([1, 1], [0, 0], [True, False, True])
    assert not gradients([1, 1], [0, 0], [True, True, True], images=4000)
    assert not gradients([1, 1], [0, 0], [True, True, True], groups=2)
    assert not gradients([1, 1], [0, 0], [True, True, True], dilation=2)
    assert not gradients([1, 1], [0, 0], [True, True, True], transposed=True)
    assert not gradients([1, 1], [1, 1], [True, True, True], form=torch.channels_last)


def test_control_another_sum_is_noticed(monkeypatch):
    def product(graph, node):
        sums._replace(node, node.args[0])
        return True

    monkeypatch.setitem(sums._WRITTEN, aten.mm.default, product)
    with pytest.raises(AssertionError):
        written(aten.mm.default, torch.randn(4, 4), torch.randn(4, 4))
