"""Checks of values that ATen's kernels make and generated code does not, written into a graph before it is compiled.

Inductor writes many operations anew, and some of the loops that it writes take any value: a target of 1.7 in a binary
cross-entropy is trained on, an index of -1 counts from the end or is passed over, and a whole number divided by zero
ends the process (torch 2.13). Those loops that check an index do so for what they compute: not at all where nobody
looks at the result, as at a loss that a step does not return, and the backward passes check nothing.
`tests/engine/compiler/test_value_checks.py` compares what eager and compiled operations refuse.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from operator import attrgetter
from typing import Any

import torch
from torch import fx

from lightning_sink.engine.failures import ASSUMED, OUT_OF_BOUNDS

_aten = torch.ops.aten
_NOT_TRUE = "Expected Tensor with single nonzero value, but got zero"


def keep_value_checks(graph: fx.Graph, on_host: bool) -> None:
    """Puts the checks before the operations that make them in eager code.

    On the host, whole numbers are not divided by zero; a GPU's are.
    """
    for node in list(graph.nodes):
        check = _CHECKS.get(node.target)
        if check is not None and (on_host or check is not _division):
            with graph.inserting_before(node):
                check(graph, node)
    _gather_checks(graph)


def is_checked(node: fx.Node) -> bool:
    """Tells whether an operation takes not all values, or fails by what it takes."""
    check = _CHECKS.get(node.target)
    return (check is not None and check is not _division) or node.target in _ASSERTED


def check_of_assumptions(graph: fx.Graph) -> fx.Node | None:
    """Returns the check of what a program assumes; None where that is nothing."""
    checks = graph.find_nodes(op="call_function", target=_aten._assert_async.msg)
    return next((check for check in checks if check.args[1] == ASSUMED), None)


def _gather_checks(graph: fx.Graph) -> None:
    """Has a program with assumptions fail by them alone, having changed nothing.

    A step that goes another way may well break what is checked on this one; one that breaks it on this one is run the
    plain way, and says so itself.
    """
    last = check_of_assumptions(graph)
    if last is None:
        return
    assumed: Any = last.args[0]
    first = next(node for node in graph.nodes if node in assumed.users)  # behind all that the step does
    with graph.inserting_before(first):
        holds = graph.call_function(_aten.logical_and.default, (assumed, assumed))
    assumed.replace_all_uses_with(holds, delete_user_cb=lambda user: user is not holds)
    for check in graph.find_nodes(op="call_function", target=_aten._assert_async.msg):
        if check is not last:
            with graph.inserting_before(holds):
                holds.update_arg(1, graph.call_function(_aten.logical_and.default, (holds.args[1], check.args[0])))
            graph.erase_node(check)


def _check(graph: fx.Graph, holds: fx.Node, message: str) -> None:
    """Inserts a check of a tensor of booleans; all of them must be true."""
    every = graph.call_function(_aten.all.default, (holds,))
    graph.call_function(_aten._assert_async.msg, (every, _in_a_literal(message)))


def _check_range(graph: fx.Graph, values: Any, message: str) -> None:
    """Inserts a check that values are from 0 to 1."""
    low = graph.call_function(_aten.ge.Scalar, (values, 0))
    high = graph.call_function(_aten.le.Scalar, (values, 1))
    _check(graph, graph.call_function(_aten.logical_and.default, (low, high)), message)


def _cross_entropy(graph: fx.Graph, node: fx.Node) -> None:
    for name, values in zip(("input", "target"), node.args[:2], strict=True):
        _check_range(graph, values, f"all elements of {name} should be between 0 and 1")


def _probability(graph: fx.Graph, node: fx.Node) -> None:
    _check_range(graph, node.args[0], "Expected p_in >= 0 && p_in <= 1 to be true, but got false")


def _shape(tensor: Any) -> tuple[int, ...]:
    shape: tuple[int, ...] = tensor.meta["layout"][0]
    return shape


def _check_index(graph: fx.Graph, index: Any, size: int, least: int = 0, ignored: Any = None) -> None:
    """Inserts a check that indices are from `least` up and below `size`, but for one that is ignored."""
    low = graph.call_function(_aten.ge.Scalar, (index, least))
    high = graph.call_function(_aten.lt.Scalar, (index, size))
    holds = graph.call_function(_aten.logical_and.default, (low, high))
    if ignored is not None:
        passed_over = graph.call_function(_aten.eq.Scalar, (index, ignored))
        holds = graph.call_function(_aten.logical_or.default, (holds, passed_over))
    _check(graph, holds, f"{OUT_OF_BOUNDS}: {least} <= index < {size}")


def _index(graph: fx.Graph, node: fx.Node) -> None:
    whole, dim, index = node.args[:3]
    shape = _shape(whole)
    size = shape[dim] if shape else 1  # type: ignore[index]
    _check_index(graph, index, size, least=-size if node.target in _FILLED else 0)


def _embedded(graph: fx.Graph, node: fx.Node) -> None:
    weight, index = node.args[:2]
    _check_index(graph, index, _shape(weight)[0])


def _indexed(graph: fx.Graph, node: fx.Node) -> None:
    whole, dim = node.args[0], 0
    indices: Any = node.args[1]
    for index in indices:
        if index is not None and index.meta["layout"][2] in (torch.bool, torch.uint8):
            dim += len(_shape(index))  # a mask, whose shape has been compared
            continue
        if index is not None:
            size = _shape(whole)[dim]
            _check_index(graph, index, size, least=-size)
        dim += 1


def _taken(graph: fx.Graph, node: fx.Node) -> None:
    whole, index = node.args[:2]
    size = math.prod(_shape(whole))
    _check_index(graph, index, size, least=-size)


def _classes(graph: fx.Graph, node: fx.Node) -> None:
    """What is compared with class numbers; a negative log-likelihood may ignore one of them."""
    scores, target, *rest = node.args
    shape, is_nll = _shape(scores), node.target in _LIKELIHOODS
    ignored = rest[2] if is_nll else None
    least = -1 if node.target is _aten.multilabel_margin_loss_forward.default else 0
    _check_index(graph, target, shape[1] if len(shape) > 1 else shape[0], least, ignored)


def _unpooled(graph: fx.Graph, node: fx.Node) -> None:
    _, index, sizes = node.args[:3]
    _check_index(graph, index, math.prod(sizes))  # type: ignore[arg-type]


def _division(graph: fx.Graph, node: fx.Node) -> None:
    """The machine's instruction for whole numbers ends the process, whoever has checked; so it is given no zero."""
    divisor = node.args[1]
    dtypes = [operand.meta["layout"][2] for operand in node.args[:2] if isinstance(operand, fx.Node)]
    whole = not any(dtype.is_floating_point or dtype.is_complex for dtype in dtypes)
    numbers = [operand for operand in node.args[:2] if not isinstance(operand, fx.Node)]
    if not isinstance(divisor, fx.Node) or not whole or any(isinstance(number, float) for number in numbers):
        return
    _check(graph, graph.call_function(_aten.ne.Scalar, (divisor, 0)), "ZeroDivisionError")
    zero = graph.call_function(_aten.eq.Scalar, (divisor, 0))
    node.update_arg(1, graph.call_function(_aten.masked_fill.Scalar, (divisor, zero, 1)))


def _assertion(graph: fx.Graph, node: fx.Node) -> None:
    """Inductor drops the form without a message, and writes a message into its code as it is."""
    condition, *rest = node.args
    message = rest[0] if rest else _NOT_TRUE
    graph.call_function(_aten._assert_async.msg, (condition, _in_a_literal(str(message))))
    graph.erase_node(node)


def _in_a_literal(message: str) -> str:
    """Returns a text with all that means something in C++, or to what reads it, as numbers."""
    plain = " ,.:<>=&_-"
    return "".join(c if c.isascii() and (c.isalnum() or c in plain) else _as_numbers(c) for c in message)


def _as_numbers(character: str) -> str:
    return "".join(f"\\{byte:03o}" for byte in character.encode())


def _named(*names: str) -> list[Any]:
    """Returns operations of ATen by their names."""
    return [attrgetter(name)(_aten) for name in names]


_LIKELIHOODS = _named("nll_loss_forward.default", "nll_loss2d_forward.default")
_COMPARED = _named("multi_margin_loss.default", "multilabel_margin_loss_forward.default")
_INDEXED = _named(
    *("gather.default", "index_select.default", "scatter_reduce.two", "scatter_reduce_.two"),
    *("index_add.default", "index_add_.default", "index_copy.default", "index_copy_.default"),
    *("scatter_add.default", "scatter_add_.default"),
    *(f"{name}.{form}" for name in ("scatter", "scatter_") for form in ("src", "value", "reduce", "value_reduce")),
)
_FILLED = _named(*(f"{name}.int_{kind}" for name in ("index_fill", "index_fill_") for kind in ("Scalar", "Tensor")))
_DIVISIONS = _named(
    *("div.Tensor_mode", "div_.Tensor_mode", "floor_divide.default", "floor_divide_.Tensor", "fmod.Tensor"),
    *("fmod_.Tensor", "remainder.Tensor", "remainder_.Tensor", "remainder.Scalar_Tensor"),
)

_CHECKS: dict[Any, Callable[[fx.Graph, fx.Node], None]] = {
    _aten.binary_cross_entropy.default: _cross_entropy,
    _aten.bernoulli.default: _probability,
    _aten.embedding.default: _embedded,
    **dict.fromkeys(_named("_assert_async.default", "_assert_async.msg"), _assertion),
    **dict.fromkeys(_named("max_unpool2d.default", "max_unpool3d.default"), _unpooled),
    **dict.fromkeys(_named("index.Tensor", "index_put.default", "index_put_.default"), _indexed),
    **dict.fromkeys(_named("take.default", "put.default", "put_.default"), _taken),
    **dict.fromkeys((*_LIKELIHOODS, *_COMPARED), _classes),
    **dict.fromkeys((*_INDEXED, *_FILLED), _index),
    **dict.fromkeys(_DIVISIONS, _division),
}

_ASSERTED = frozenset(
    _named(
        *("bernoulli.Tensor", "bernoulli_.Tensor", "multinomial.default", "binomial.default"),
        *("index_reduce.default", "index_reduce_.default"),
        *("_embedding_bag.default", "_embedding_bag_forward_only.default", "_ctc_loss.Tensor", "_ctc_loss.default"),
    )
)
"""Operations whose kernels end the use of a device by some values, and which generated code does not write anew."""
