"""What Python asks of a count that a module keeps in a tensor: `if self.steps % 10 == 0:`, `if n_averaged == 0:`.

An average of weights, a schedule of a loss, a quantizer's warm-up count their own steps so. Such a count is known ahead
(`count.py`), and the few operations that lead from it to a truth are done in Python for each step that comes.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import fx

from lightning_sink.engine.numbers.guards import Host
from lightning_sink.engine.operands import members
from lightning_sink.engine.tracing.count import Add, Count, added_to, writes_through
from lightning_sink.engine.tracing.origins import Origin
from lightning_sink.engine.tracing.questions import leading_to
from lightning_sink.engine.tracing.recording import Recording

_aten = torch.ops.aten

_LARGEST = 1 << 24
"""Whole numbers up to this are the same in every type that counts have."""

_COMPARISONS: dict[Any, Callable[..., Any]] = {
    getattr(getattr(_aten, name), overload): getattr(operator, name)
    for name in ("eq", "ne", "lt", "le", "gt", "ge")
    for overload in ("Scalar", "Tensor")
}
_TRUTHS: dict[Any, Callable[..., Any]] = {
    _aten.logical_not.default: operator.not_,
    _aten.logical_and.default: lambda one, other: bool(one) and bool(other),
    _aten.logical_or.default: lambda one, other: bool(one) or bool(other),
}
_REMAINDERS: dict[Any, Callable[..., Any]] = dict.fromkeys(
    (_aten.remainder.Scalar, _aten.remainder.Tensor), operator.mod
)
_ARITHMETIC: dict[Any, Callable[..., Any]] = {
    _aten.add.Tensor: operator.add,
    _aten.sub.Tensor: operator.sub,
    _aten.rsub.Scalar: lambda one, other: other - one,
    _aten.floor_divide.default: operator.floordiv,
}
_SYMBOLS = _COMPARISONS | _TRUTHS | _REMAINDERS | _ARITHMETIC
_OF_FEW_ANSWERS = {*_COMPARISONS, *_TRUTHS, *_REMAINDERS}


class Asked(NamedTuple):
    """A value that Python took of an operation's, where nothing of the batch's went into it.

    Attributes:
        func: The operation that gave it.
        args: Its arguments, nodes in the place of tensors, positional ones and others.
        value: The value.
        origin: What the arguments come from.
        where: The user's line.
    """

    func: Any
    args: Any
    value: Any
    origin: Origin
    where: str


def decided_by_count(asked: Asked, recording: Recording) -> tuple[Host, Count] | None:
    """Returns what gives such a value in later steps, and the count that it comes from.

    None where it comes from anything but one count, or where each step would find another value.
    """
    leading = leading_to(*asked.args)
    sources = [node for node in leading if node.op == "placeholder"]
    if len(sources) != 1 or not any(node.target in _OF_FEW_ANSWERS for node in leading):
        return None
    source = sources[0]
    tensor = recording.inputs[source.meta["input"]]
    if tensor.numel() != 1 or tensor.dtype not in (torch.int64, torch.float32, torch.float64):
        return None
    computed = [node for node in leading if node is not source]
    if any(writes_through(user, node) for node in computed for user in node.users):
        return None  # what they gave was another value later on
    before = _added_before(source, computed, recording.graph)
    if before is None:
        return None
    count = Count(tensor, source, before)
    known: dict[fx.Node, Host] = {source: count}
    for node in computed:
        symbol = _symbol(node)
        if symbol is None:
            return None
        known[node] = _applied(symbol, [known.get(item, item) for item in node.args])  # type: ignore[arg-type]
    given = members(fx.Node, asked.args)
    return (known[given[0]], count) if len(given) == 1 else None


def _added_before(source: fx.Node, computed: list[fx.Node], graph: fx.Graph) -> list[Add] | None:
    """Returns what a step has added to its count where operations read it; None where not all read the same."""
    order = {node: number for number, node in enumerate(graph.nodes)}
    readers = [order[node] for node in computed if source in node.all_input_nodes]
    found = [added_to(source, [user for user in source.users if order[user] > at]) for at in readers]
    return found[0] if all(each == found[0] for each in found) else None


def _symbol(node: fx.Node) -> Callable[..., Any] | None:
    """Returns what does in Python what an operation does, with whole numbers that are not too large."""
    numbers = [item for item in node.args if not isinstance(item, fx.Node)]
    if node.kwargs or any(type(item) is not int or abs(item) >= _LARGEST for item in numbers):
        return None
    given = [item.meta["layout"][2] for item in node.args if isinstance(item, fx.Node)]
    # Truths are added as truths, and floats by rounding.
    is_exact = all(kind is torch.int64 for kind in given) or node.target in _COMPARISONS.keys() | _TRUTHS.keys()
    return _SYMBOLS.get(node.target) if is_exact else None


def _applied(symbol: Callable[..., Any], operands: list[Any]) -> Host:
    return lambda: symbol(*[item() if callable(item) else item for item in operands])
