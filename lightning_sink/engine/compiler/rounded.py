"""Numbers that a step rounds on purpose: `x.bfloat16().float()`.

Inductor computes with wide numbers between what it reads and what it writes, and leaves such a rounding out. Seen as
whole numbers on the way, they have to be rounded. That is done only where wide numbers are computed of rounded ones:
steps in mixed precision use what they make narrow in products, which are made of narrow numbers anyway.
"""

from __future__ import annotations

import operator

import torch
from torch import fx

from lightning_sink.engine.private import is_view

_aten = torch.ops.aten
_NARROW = {torch.bfloat16, torch.float16}
_WIDE = {torch.float32, torch.float64}


def keep_rounding(graph: fx.Graph) -> None:
    """Has each conversion round that others undo."""
    for node in graph.find_nodes(op="call_function", target=_aten._to_copy.default):
        if _type(node) in _NARROW and _type(node.args[0]) in _WIDE and _is_widened(node):
            *lies, dtype, device = node.meta["layout"]
            bits = node
            for func, given, kind in (
                (_aten.view.dtype, torch.int16, torch.int16),
                (_aten.bitwise_and.Scalar, -1, torch.int16),  # all of them; without it nothing would be left of both
                (_aten.view.dtype, dtype, dtype),
            ):
                with graph.inserting_after(bits):
                    bits = graph.call_function(func, (bits, given))
                bits.meta |= {"draws": False, "layout": (*lies, kind, device)}
            first = next(user for user in node.users if user.target is _aten.view.dtype)
            node.replace_all_uses_with(bits, delete_user_cb=lambda user, first=first: user is not first)


def _is_widened(node: fx.Node) -> bool:
    """Tells whether wide numbers are computed of narrow ones, also of such as are computed of these one by one."""
    waiting, seen = [node], set[fx.Node]()
    while waiting:
        narrow = waiting.pop()
        if narrow in seen:
            continue
        seen.add(narrow)
        for user in narrow.users:
            is_same = user.target is operator.getitem or (user.op == "call_function" and is_view(user.target))
            if not is_same and _type(user) in _WIDE:
                return True
            if is_same or (torch.Tag.pointwise in getattr(user.target, "tags", ()) and _type(user) in _NARROW):
                waiting.append(user)
    return False


def _type(node: object) -> torch.dtype | None:
    """Returns the type of what a node gives, where it gives one tensor."""
    layout = node.meta.get("layout") if isinstance(node, fx.Node) else None
    return None if layout is None else layout[2]
