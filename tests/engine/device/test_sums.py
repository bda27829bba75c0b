"""Graphs in which small products and gradients are sums give what they gave before."""

import contextlib
import operator
import sys
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import fx, nn

from lightning_sink.engine.device import sums

aten = torch.ops.aten


def windows(images, size, stride, padding):
    """What a convolution looks at: `[images, channels, rows, columns, *size]`."""
    padded = nn.functional.pad(images, (padding[1], padding[1], padding[0], padding[0]))
    return padded.unfold(2, size[0], stride[0]).unfold(3, size[1], stride[1])


@pytest.fixture(autouse=True)
def kernel(monkeypatch):
    """Stands for the kernel, which needs Triton and a GPU: a share is an image."""

    def weight_gradient(gradient, images, size, stride, padding, share):
        assert share == 7
        return torch.einsum("norc,nircyx->noiyx", gradient, windows(images, size, stride, padding))

    module = SimpleNamespace(weight_gradient=weight_gradient, share_of=lambda gradient, weight: 7)
    monkeypatch.setitem(sys.modules, "lightning_sink.engine.device.weight_gradient", module)


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
    """Returns what was written as a sum, having compared what it gives."""
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


@contextlib.contextmanager
def precision(of, name):
    """Sets what float32 may be rounded to; what holds the setting is no ordinary attribute."""
    before = of.fp32_precision
    of.fp32_precision = name
    try:
        yield
    finally:
        of.fp32_precision = before


def test_products_that_may_be_rounded_stay():
    with precision(torch.backends.cuda.matmul, "tf32"):
        assert not written(aten.mm.default, torch.randn(3, 4), torch.randn(4, 5))
    with precision(torch.backends.cuda.matmul, "ieee"):
        assert written(aten.mm.default, torch.randn(3, 4), torch.randn(4, 5))


@pytest.mark.parametrize("name", ["tf32", "ieee"])
def test_gradients_may_differ_from_those_that_are_rounded(name):
    with precision(torch.backends.cudnn.conv, name):
        assert (sums.rounding(gradients([1, 1], [0, 0], [True, True, True])) > 1e-4) == (name == "tf32")
        assert sums.rounding(written(aten.mm.default, torch.randn(3, 4), torch.randn(4, 5))) == 0.0


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


def test_only_the_images_gradient_is_left_to_the_library():
    x, weight, gradient = torch.randn(2, 4, 9, 8), torch.randn(6, 4, 3, 3), torch.randn(2, 6, 7, 6)
    graph = fx.Graph()
    nodes, _ = placed(graph, [gradient, x, weight])
    options = [6], [1, 1], [0, 0], [1, 1], False, [0, 0], 1, [True, True, True]
    node = graph.call_function(aten.convolution_backward.default, (*nodes, *options))
    shapes = [x, weight, torch.randn(6)]
    parts = [graph.call_function(operator.getitem, (node, number)) for number in range(3)]
    for part, tensor in zip(parts, shapes, strict=True):
        part.meta["layout"] = layout(tensor)
    graph.output(tuple(parts))
    assert sums.write_sums(graph)
    assert node.args[-1] == [True, False, False]
    assert [user.args[1] for user in node.users] == [0]


def test_images_whose_places_32_bits_do_not_count_stay(monkeypatch):
    monkeypatch.setattr(sums, "_PLACES", 2 * 4 * 9 * 8)
    assert not gradients([1, 1], [0, 0], [True, True, True])
    assert gradients([1, 1], [0, 0], [True, True, True], images=1)


def test_one_number_stands_for_both_sides():
    assert gradients([2], [1], [True, True, True])


@pytest.mark.parametrize("change", [aten.unsqueeze_.default, aten.squeeze_.dim])
def test_what_changes_its_shape_stays(change):
    """A graph knows the shape that a tensor was made with."""
    graph = fx.Graph()
    made = torch.randn(1, 5, 1) if change is aten.squeeze_.dim else torch.randn(5)
    (left, right), _ = placed(graph, [made, torch.randn(5, 4)])
    graph.call_function(change, (left, 2 if change is aten.squeeze_.dim else 0))
    graph.output((graph.call_function(aten.mm.default, (left, right)),))
    assert not sums.write_sums(graph)


def test_control_another_sum_is_noticed(monkeypatch):
    def product(graph, node):
        sums._replace(node, node.args[0])
        return True

    monkeypatch.setitem(sums._WRITTEN, aten.mm.default, product)
    with pytest.raises(AssertionError):
        written(aten.mm.default, torch.randn(4, 4), torch.randn(4, 4))
