"""Steps on a device that are right as long as what they assume comes true, which each of them finds out by itself.

Nobody waits for a device at each step. So a step gives, behind its other outputs, whether its truths have come out as
recorded, and what a row has written to is kept until that is known: where one has not, all of the row is put back, and
the steps before it are run once more.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, fx

from lightning_sink.engine.compiler.copies import copy_of, memory_of
from lightning_sink.engine.compiler.row import Repeated, Turn
from lightning_sink.engine.compiler.value_checks import check_of_assumptions, is_checked
from lightning_sink.engine.device.block import Launch
from lightning_sink.engine.device.captured_row import CapturedRow
from lightning_sink.engine.failures import ASSUMED, AssumptionFailedError
from lightning_sink.engine.private import copy_all
from lightning_sink.engine.state.default_generators import Generators
from lightning_sink.engine.step import Column

if TYPE_CHECKING:
    from lightning_sink.engine.device.captured import CapturedStep

_aten = torch.ops.aten


@contextmanager
def told(graph: fx.Graph) -> Iterator[None]:
    """Has a graph give as its last output, for a while, whether its assumptions hold, and not fail by that."""
    check = check_of_assumptions(graph)
    if check is None:
        yield
        return
    holds, message = check.args
    (output,) = graph.find_nodes(op="output")
    given = output.args
    output.args = ((*given[0], holds),)
    graph.erase_node(check)
    try:
        yield
    finally:
        output.args = given
        with graph.inserting_before(output):
            graph.call_function(_aten._assert_async.msg, (holds, message))


def refuse_late_checks(graph: fx.Graph) -> None:
    """Refuses a graph that may compute, behind a truth that has not come true, with what no kernel takes.

    On a host that is an error; a device would fail for good. What was asked in the same way before the first truth is
    asked in plain training, too.

    Raises:
        ValueError: Names the operation.
    """
    check = check_of_assumptions(graph)
    if check is None:
        return
    truths, waiting = set[fx.Node](), [check.args[0]]
    while waiting:
        node = waiting.pop()
        if isinstance(node, fx.Node) and node.target in (_aten.all.default, *_OF_TRUTHS):
            truths.add(node)
            waiting += node.args if node.target is not _aten.all.default else ()
    asked, is_behind = set[tuple[Any, ...]](), False
    for node in graph.nodes:
        is_behind |= node in truths
        if node is check or not (is_checked(node) or node.meta.get("draws")):  # a draw from probabilities
            continue
        asks = _asks(node)
        if is_behind and not asked.issuperset(asks):
            raise ValueError(f"`{node.target.name()}` depends on a truth of the step, and may fail where that is none")
        asked |= asks


def _asks(node: fx.Node) -> set[tuple[Any, ...]]:
    """Returns what an operation may refuse the values of, indices or all where there are none, and by what."""
    layouts = [(each, each.meta.get("layout")) for each in node.all_input_nodes]
    indices = [each for each, layout in layouts if layout is None or not layout[2].is_floating_point]
    if not indices:
        return {(each, node.target) for each in node.all_input_nodes}
    whole = node.args[0].meta.get("layout") if isinstance(node.args[0], fx.Node) else None
    place = node.args[1:2]
    return {(each, whole and whole[0], repr(place) if each not in node.args[:2] else "") for each in indices}


_OF_TRUTHS = (_aten.logical_and.default, _aten.logical_not.default)


class Before:
    """What was in some tensors, and where a device's generator stood."""

    def __init__(self, tensors: Sequence[Tensor], generators: Generators) -> None:
        self._tensors, self._copies = tensors, [copy_of(tensor) for tensor in tensors]
        self._generators, self._state = generators, generators.state()

    def put_back(self) -> None:
        """Puts it there again."""
        for device in {tensor.device for tensor in self._tensors}:  # what is the host's is to be there at once
            pairs = [pair for pair in zip(self._tensors, self._copies, strict=True) if pair[0].device == device]
            copy_all([memory_of(tensor) for tensor, _ in pairs], [memory_of(copy) for _, copy in pairs])
        self._generators.restore(self._state)


class AssumingRow(CapturedRow):
    """Steps in a row that find out whether they are right. Arguments as `CapturedRow`."""

    def __init__(self, step: CapturedStep, turn: Turn, blocks: list[Launch], varying: list[Column], steps: int) -> None:
        super().__init__(step, turn, blocks, varying, steps)
        self._turn = turn
        self._holds = Tensor()

    def launch(self) -> None:
        """Gives them to the device, behind what it was given before; none where there is no memory for the copies."""
        try:
            self._before = self._captured.before(self._inputs)
        except torch.OutOfMemoryError as error:
            self._result.error = AssumptionFailedError(str(error))
            return
        try:
            super().launch()
        except BaseException:  # nobody has looked whether they are right
            self._before.put_back()
            raise

    def _fetch(self) -> None:
        super()._fetch()
        (self._holds,) = self._graphs.fetch([self._values.pop(self._turn.kept[-1])])

    def wait(self) -> Repeated:
        """Waits for their end; returns what became of them, up to one that goes another way."""
        if self._marks is None:
            return self._result
        self._graphs.wait(self._marks[1])
        held = self._holds.tolist()
        if all(held) and self._result.error is None:
            result = super().wait()
            return replace(result, outputs=result.outputs and result.outputs[:-1])
        self._marks = None
        self._captured.counterparts.give_up()
        self._before.put_back()
        # What the host refuses may be behind a truth that is none. The step is run plainly, and raises its own error.
        return replace(self._again([*held, False].index(False)), error=AssumptionFailedError(ASSUMED))

    def _again(self, steps: int) -> Repeated:
        """Runs the steps that are right."""
        if not steps:
            return Repeated(0)
        columns = [column[:steps] for column in self._turn.columns]
        row = self._captured.row([replace(self._turn, columns=columns, kept=self._turn.kept[:-1])], steps)
        row.launch()
        return row.wait()
