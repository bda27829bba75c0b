"""What Python asks of the batch in a recorded step, and is asked of every other batch before its step.

Models of Hugging Face's ask whether a batch has padding, `one_hot` asks for the largest class. What depends on the
batch alone can be known before the step: a `Question` holds the operations that lead from the batch to the value, a
handful, and does them for each batch that is about to be trained on. A program is for those that give the same answer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch._ops import OpOverload
from torch.fx.node import map_arg

from lightning_sink.engine.private import is_mutable, written_arguments
from lightning_sink.engine.state.slots import share_memory
from lightning_sink.engine.tracing.draws import owner_of

OF_BATCH = "a value of a tensor of the batch"
"""What users read of one."""

MOST_ANSWERS = 8
"""Programs that are made of one kind of step for what its batches hold; others of its steps run eagerly."""

_MOST_OPERATIONS = 32
"""Operations that lead to a value at most. They are done beside the step's, one by one."""

Input = Tensor | tuple[int, torch.device]
"""What an input of the operations is: a tensor that stays as it is, or the number of one of the batch's and where it
is in the step."""


class Question:
    """A value that Python took out of the batch.

    Args:
        name: What was asked; equal for the same question in another step.
        graph: The operations; returns the value.
        inputs: What its placeholders stand for.
    """

    def __init__(self, name: str, value: int, where: str, graph: fx.Graph, inputs: Sequence[Input]) -> None:
        self.name, self.value, self.where = name, value, where
        self._graph, self._inputs = graph, inputs
        self._function: Callable[..., Any] | None = None

    def holds(self, leaves: Sequence[Tensor]) -> bool:
        """Tells whether a batch with these tensors gives the same answer."""
        if self._function is None:
            self._function = fx.GraphModule(nn.Module(), self._graph)
        given = [item if isinstance(item, Tensor) else leaves[item[0]].to(item[1]) for item in self._inputs]
        try:
            with torch.no_grad():
                return bool(self._function(*given) == self.value)
        except (RuntimeError, IndexError):  # the step, run by itself, will say so
            return False


def question(
    func: Any, args: Any, kwargs: Any, value: int, where: str, inputs: Sequence[Tensor], leaves: Sequence[Tensor]
) -> Question | None:
    """Returns what gives a value of the batch's; None where it is not to be asked of each batch.

    Args:
        func: The operation that gives it. What it depends on may have been written to, but no input.
        args: Its arguments, nodes of the step's graph in the place of tensors.
        kwargs: The same, by name.
        value: The value.
        where: The user's line.
        inputs: The inputs of the step.
        leaves: The batch's tensors.
    """
    numbers = {id(leaf): number for number, leaf in enumerate(leaves)}
    graph, found, copies = fx.Graph(), list[Input](), dict[fx.Node, fx.Node]()
    leading, writing = _leading_with_writes(args, kwargs)
    if any(owner.op == "placeholder" for node in writing for owner in _written_by(node)):
        return None  # it would be written to once more
    for node in leading:
        copies[node] = graph.node_copy(node, copies.__getitem__)
        if node.op == "placeholder":
            tensor = inputs[node.meta["input"]]
            number = numbers.get(id(tensor))
            if number is None and share_memory([tensor, *leaves], frozenset([0])):
                return None  # what it holds is the batch's, and where in later batches is not known
            found.append(tensor if number is None else (number, tensor.device))
    if len(graph.nodes) - len(found) > _MOST_OPERATIONS:
        return None
    graph.output(graph.call_function(func, map_arg(args, copies.__getitem__), map_arg(kwargs, copies.__getitem__)))
    return Question(f"{func.name()}{(args, kwargs)!r} behind {len(writing)} writes", value, where, graph, found)


def leading_to(*arguments: Any) -> list[fx.Node]:
    """Returns the nodes that some arguments depend on, each behind those that it depends on."""
    found, waiting = set[fx.Node](), list[fx.Node]()
    map_arg(arguments, waiting.append)
    while waiting:
        node = waiting.pop()
        if node not in found:
            found.add(node)
            waiting += node.all_input_nodes
    graph = next(iter(found)).graph
    return [node for node in graph.nodes if node in found]


def _leading_with_writes(*arguments: Any) -> tuple[list[fx.Node], list[fx.Node]]:
    """Returns what `leading_to` does, with what writes to such nodes' memory and leads to that; and what writes."""
    leading, writing = leading_to(*arguments), list[fx.Node]()
    while True:
        owners = {owner_of(node) for node in leading}
        found = [node for node in leading[0].graph.nodes if not owners.isdisjoint(_written_by(node))]
        if len(found) == len(writing):
            return leading, writing
        leading, writing = leading_to(arguments, found), found


def _written_by(node: fx.Node) -> set[fx.Node]:
    """Returns the nodes whose memory an operation writes to."""
    if not isinstance(node.target, OpOverload) or not is_mutable(node.target):
        return set()
    return {owner_of(given) for given in written_arguments(node.target, node.args, node.kwargs, fx.Node)}
