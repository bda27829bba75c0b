"""Small products of matrices and small gradients of weights on a GPU, written as the sums that they are.

A GPU's libraries are made for large ones. Of the 144 us that LeNet-5's kernels took on an H200 theirs were 110:
products of matrices are 3 to 10 us each, half of them and 2 more for a second kernel that sums, and a gradient of a
weight is 16. Some have the GPU set memory to zero, and wait 6 us for that. As sums they are kernels that Inductor
generates, fused with what stands before and behind, down to an optimizer's update of a weight behind its gradient.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import torch
from torch import fx

from lightning_sink.engine.compiler.copies import is_in_one_piece

_aten = torch.ops.aten

_PRODUCT = 1 << 22
"""Multiplications of a product of matrices up to which it is written as a sum. One of 256 x 256 x 64 is 6 us as a sum
on an H200, and 8 to 10 us by cuBLAS."""

_GRADIENT = 1 << 23
"""The same of a convolution's gradient of its weight."""

_EXACT = ("none", "ieee")
"""Settings by which float32 is rounded to nothing less. PyTorch's default is "none" for products of matrices, and for
convolutions "tf32"."""

_TF32 = 1e-2
"""What TF32 may round, of a gradient's largest number: 2^-11 of each factor, and sums are smaller than their parts."""

_PLACES = 1 << 31
"""Numbers from which on a tensor's are not counted in 32 bits."""

_NUMBERS = 1 << 21
"""Numbers of a weight for one output from which on a grid has no room for them."""


def write_sums(graph: fx.Graph) -> frozenset[Any]:
    """Replaces small products of matrices, and small gradients of convolutions' weights, of float32.

    Products stay where the user lets them be rounded to TF32, which matrix units take. Of convolutions that is
    PyTorch's default: there a sum is as exact as float32, and the library's gradient may be less so.

    Returns:
        The operations that were replaced.
    """
    found = set()
    for node in list(graph.nodes):
        write = _WRITTEN.get(node.target)
        if write is not None and _are_single(node):
            target = node.target
            with graph.inserting_before(node):
                if write(graph, node):
                    found.add(target)
    return frozenset(found)


def rounding(replaced: frozenset[Any]) -> float:
    """Returns by how much of a gradient's largest number such sums may be more exact than the library."""
    may_differ = torch.backends.cudnn.conv.fp32_precision not in _EXACT  # type: ignore[attr-defined]
    return _TF32 if may_differ and _aten.convolution_backward.default in replaced else 0.0


def _are_single(node: fx.Node) -> bool:
    """Tells whether all tensors are of float32, have numbers, and the shapes that they were made with."""
    for item in node.args:
        if isinstance(item, fx.Node):
            layout = item.meta.get("layout")
            if layout is None or layout[2] is not torch.float32 or 0 in layout[0]:
                return False
            if any(torch.Tag.inplace_view in getattr(user.target, "tags", ()) for user in item.users):
                return False
    return True


def _shape(node: Any) -> tuple[int, ...]:
    shape: tuple[int, ...] = node.meta["layout"][0]
    return shape


def _product(graph: fx.Graph, node: fx.Node) -> bool:
    """A product of matrices, or of as many of them on both sides; `addmm` has a third tensor before them."""
    left, right = node.args[-2:]
    batch = int(node.target is _aten.bmm.default)
    if {len(_shape(left)), len(_shape(right))} != {batch + 2}:  # `out=` may have changed one
        return False
    if torch.backends.cuda.matmul.fp32_precision not in _EXACT:
        return False
    if node.kwargs or prod(_shape(left)) * _shape(right)[-1] > _PRODUCT:
        return False
    rows = graph.call_function(_aten.unsqueeze.default, (left, batch + 2))
    columns = graph.call_function(_aten.unsqueeze.default, (right, batch))
    every = graph.call_function(_aten.mul.Tensor, (rows, columns))
    found = graph.call_function(_aten.sum.dim_IntList, (every, [batch + 1]))
    if len(node.args) == 3:
        found = graph.call_function(_aten.add.Tensor, (found, node.args[0]))
    _replace(node, found)
    return True


def _gradient(graph: fx.Graph, node: fx.Node) -> bool:
    """The gradients of a convolution's weight and bias; that of its images stays cuDNN's."""
    from lightning_sink.engine.device.weight_gradient import share_of, weight_gradient

    gradient, images, weight, _, stride, padding, dilation, transposed, _, groups, mask = node.args
    parts = {user.args[1]: user for user in node.users}
    shapes: Any = _shape(gradient), _shape(weight)
    is_plain = len(shapes[0]) == 4 and not transposed and groups == 1 and {*dilation} == {1}  # type: ignore[misc]
    numbers = prod(shapes[1][1:])
    is_small = prod(shapes[0]) * numbers <= _GRADIENT and prod(_shape(images)) < _PLACES and numbers < _NUMBERS
    if not mask[1] or 1 not in parts or not is_plain or not is_small:  # type: ignore[index]
        return False
    # Whoever reads these takes them to lie as they did.
    layouts = [parts[number].meta.get("layout") for number in parts.keys() - {0}]
    if any(layout is None or not is_in_one_piece(*layout[:2]) for layout in layouts):
        return False
    steps = ([*each] * (2 // len(each)) for each in (stride, padding))  # type: ignore[misc,arg-type]
    share = share_of(*shapes)
    each = graph.call_function(weight_gradient, (gradient, images, [*shapes[1][2:]], *steps, share))
    _replace(parts[1], graph.call_function(_aten.sum.dim_IntList, (each, [0])))
    if 2 in parts:
        _replace(parts[2], graph.call_function(_aten.sum.dim_IntList, (gradient, [0, 2, 3])))
    if 0 in parts:
        node.args = (*node.args[:-1], [True, False, False])
    else:
        graph.erase_node(node)
    return True


def _replace(node: fx.Node, instead: fx.Node) -> None:
    instead.meta.update(node.meta)
    node.replace_all_uses_with(instead)
    node.graph.erase_node(node)


_WRITTEN: dict[Any, Callable[[fx.Graph, fx.Node], bool]] = {
    _aten.mm.default: _product,
    _aten.addmm.default: _product,
    _aten.bmm.default: _product,
    _aten.convolution_backward.default: _gradient,
}
