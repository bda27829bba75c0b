"""Truths that Python takes out of what a step has computed: `if torch.isnan(loss):`, `assert out.isfinite().all()`.

No program can know them before its step. But most of them come out the same nearly always, so a program is made for
steps in which they come out as in the recorded ones, and finds out by itself: where one does not, it puts back whatever
it has written to, fails, and the step is run the plain way in its place.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from lightning_sink.engine.failures import ASSUMED
from lightning_sink.engine.tracing.graph_writer import GraphWriter
from lightning_sink.engine.tracing.questions import leading_to
from lightning_sink.engine.tracing.recording import Assumed, Recording

_aten = torch.ops.aten

_DRAWN = "a number that the step draws from torch's generator decides what Python does (`if torch.rand([]) < 0.5:`)"
_DRAW_OTHERS = "decide by a number of Python's (`random.random()`), for which each way has a program"


class Assumptions:
    """The truths of one recording."""

    def __init__(self, recording: Recording, writer: GraphWriter) -> None:
        self._recording, self._writer = recording, writer
        self._hold: list[fx.Node] = []

    def takes(self, func: Any, args: tuple[Any, ...], outcome: Any, what: str, where: str) -> bool:
        """Takes a value that an operation has given to Python; tells whether a program can find out by itself."""
        if func is not _aten._local_scalar_dense.default or type(outcome) is not bool:
            return False
        truth = self._write(_aten.all.default, args[0])  # of one: as it is now, whatever is written to it later
        self._hold.append(truth if outcome else self._write(_aten.logical_not.default, truth))
        said = (_DRAWN, where, outcome, _DRAW_OTHERS) if _is_drawn(args[0]) else (what, where, outcome)
        self._recording.assumed.append(Assumed(*said))
        return True

    def finish(self) -> None:
        """Has the program find out, and put back what was there before."""
        if not self._hold:
            return
        holds, *others = self._hold
        for other in others:
            holds = self._write(_aten.logical_and.default, holds, other)
        for place in sorted(self._recording.written_inputs):
            given = self._writer.node(self._recording.inputs[place])
            with self._writer.at_the_start():
                before = self._write(_aten.clone.default, given)
            kept = self._write(_aten.where.self, holds, given, before, like=given)
            self._write(_aten.copy_.default, given, kept)
        self._writer.derive(_aten._assert_async.msg, (holds, ASSUMED), None)

    def _write(self, func: Any, *args: fx.Node, like: fx.Node | None = None) -> fx.Node:
        shape, stride, dtype, device = (like or args[0]).meta["layout"]
        if func is _aten.all.default:
            shape, stride = (), ()
        return self._writer.derive(func, args, (shape, stride, dtype, device))


def _is_drawn(node: fx.Node) -> bool:
    """Tells whether a value comes of random numbers alone."""
    leading = leading_to(node)
    is_used = any(each.op == "placeholder" for each in leading)
    return not is_used and any(each.meta.get("draws") for each in leading)
