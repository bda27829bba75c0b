"""What Python asks of a count that a module keeps in a tensor: `if self.steps % 10 == 0:`, `if n_averaged == 0:`.

An average of weights, a schedule of a loss, a quantizer's warm-up count their own steps so. Such a count is known ahead
(`count.py`), and the few operations that lead from it to a truth are done on the host for each step that comes: in
Python where whole numbers are all that they give, and by themselves on single numbers elsewhere, which takes some
microseconds (`min(self.decay, (1 + self.steps) / (10 + self.steps))`).
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Collection
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, fx
from torch._ops import OpOverload

from lightning_sink.engine.numbers.guards import Host
from lightning_sink.engine.operands import members
from lightning_sink.engine.private import is_mutable, is_view
from lightning_sink.engine.tracing.count import EXACT, TYPES, Add, Count, added_to, writes_through
from lightning_sink.engine.tracing.origins import Origin
from lightning_sink.engine.tracing.questions import leading_to
from lightning_sink.engine.tracing.recording import Recording

_aten = torch.ops.aten

_WHOLE = (torch.int32, torch.int64)
_MOST = 16
"""Operations that are done by themselves at most."""

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

    None where it comes from anything but one count and numbers that stay, or where each step would find another value.
    """
    given = members(fx.Node, asked.args)
    way = _way_to(given[0], recording, recording.written_inputs) if len(given) == 1 else None
    if way is None or not any(node.target in _OF_FEW_ANSWERS for node in way[0]):
        return None
    computed, others, count = way
    symbols = {node: _symbol(node) for node in computed}
    if others or None in symbols.values():
        return _by_themselves(*way, recording)
    known: dict[fx.Node, Host] = {count.node: count}
    for node, symbol in symbols.items():
        operands = [known.get(item, item) for item in node.args]  # type: ignore[arg-type]
        known[node] = _applied(cast(Callable[..., Any], symbol), operands)
    return known[given[0]], count


def counts_asked(asked: Asked, recording: Recording) -> list[Tensor]:
    """Returns the count that such a value comes from, if it is one: a later step may have a stand-in for the value."""
    sources = [node for node in leading_to(asked.args) if node.op == "placeholder"]
    written = [node for node in sources if node.meta["input"] in recording.written_inputs]
    tensors = [recording.inputs[node.meta["input"]] for node in written]
    is_count = len(tensors) == 1 and tensors[0].dtype in _WHOLE and added_to(written[0]) is not None
    return tensors if is_count else []


def number_of_count(node: fx.Node, recording: Recording, known: Collection[int]) -> tuple[Host, Count] | None:
    """Returns what gives a number in later steps that comes from a count, and that; None where it comes from others.

    `known` are counts, by identity.
    """
    counts = [index for index, tensor in enumerate(recording.inputs) if id(tensor) in known]
    way = _way_to(node, recording, counts)
    if way is None:
        return None
    computed, _, count = way
    return _by_themselves(*way, recording) if computed else ((lambda: int(count())), count)


def _way_to(
    asked: fx.Node, recording: Recording, counts: Collection[int]
) -> tuple[list[fx.Node], dict[fx.Node, Tensor], Count] | None:
    """Returns how a value comes from one of some counts, which are inputs by their numbers; None where it does not.

    That is: the operations that lead to it, each behind those that it depends on, the other numbers that they begin
    with, and the count as they find it.
    """
    leading = leading_to(asked)
    inputs = {node: recording.inputs[node.meta["input"]] for node in leading if node.op == "placeholder"}
    sources = [node for node in inputs if node.meta["input"] in counts]
    if len(sources) != 1 or not all(tensor.numel() == 1 and tensor.dtype in TYPES for tensor in inputs.values()):
        return None
    source, computed = sources[0], [node for node in leading if node not in inputs]
    if any(writes_through(user, node) for node in computed for user in node.users):
        return None  # what they gave was another value later on
    before = _added_before(source, computed, recording.graph) if computed else added_to(source)
    count = None if before is None else Count(inputs.pop(source), source, before)
    return None if count is None else (computed, inputs, count)


def _by_themselves(
    computed: list[fx.Node], others: dict[fx.Node, Tensor], count: Count, recording: Recording
) -> tuple[Host, Count] | None:
    """Returns what does the operations on single numbers, as the step does them; None where there is more to them."""
    if len(computed) > _MOST or not all(map(_is_of_numbers, computed)):
        return None
    stay = {node: tensor.detach().to("cpu", copy=True) for node, tensor in others.items()}
    shape, dtype = count.present().shape, count.present().dtype
    recording.read |= {node.meta["input"] for node in others}

    def host() -> Any:
        known: dict[Any, Any] = {**stay, count.node: torch.full(shape, count(), dtype=dtype, device="cpu")}
        for node in computed:
            args = [known.get(item, item) if isinstance(item, fx.Node) else item for item in node.args]
            known[node] = node.target(*args, **node.kwargs)  # type: ignore[operator]
        return known[computed[-1]].item()

    return host, count


def _is_of_numbers(node: fx.Node) -> bool:
    """Tells whether an operation gives a number for numbers, by what they are alone."""
    layout = node.meta.get("layout")
    if not isinstance(node.target, OpOverload) or layout is None or math.prod(layout[0]) != 1:
        return False
    if is_mutable(node.target) or is_view(node.target) or node.meta["draws"]:  # a view may be read later
        return False
    return node.kwargs.keys() <= {"alpha", "dtype", "rounding_mode"}


def _added_before(source: fx.Node, computed: list[fx.Node], graph: fx.Graph) -> list[Add] | None:
    """Returns what a step has added to its count where operations read it; None where not all read the same."""
    order = {node: number for number, node in enumerate(graph.nodes)}
    readers = [order[node] for node in computed if source in node.all_input_nodes]
    found = [added_to(source, [user for user in source.users if order[user] > at]) for at in readers]
    return found[0] if all(each == found[0] for each in found) else None


def _symbol(node: fx.Node) -> Callable[..., Any] | None:
    """Returns what does in Python what an operation does, with whole numbers that are not too large."""
    numbers = [item for item in node.args if not isinstance(item, fx.Node)]
    if node.kwargs or any(type(item) is not int or abs(item) >= EXACT for item in numbers):
        return None
    given = [item.meta["layout"][2] for item in node.args if isinstance(item, fx.Node)]
    # Truths are added as truths, and floats by rounding.
    is_exact = all(kind is torch.int64 for kind in given) or node.target in _COMPARISONS.keys() | _TRUTHS.keys()
    return _SYMBOLS.get(node.target) if is_exact else None


def _applied(symbol: Callable[..., Any], operands: list[Any]) -> Host:
    return lambda: symbol(*[item() if callable(item) else item for item in operands])
