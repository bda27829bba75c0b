"""Writes operations down as a graph, and as a text that is equal for equal graphs.

`GraphWriter` owns which node stands for which tensor while a step is recorded. Tensors that no operation gave become
the graph's inputs, whoever holds them.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, fx

from lightning_sink.engine.private import WeakIdKeyDictionary
from lightning_sink.engine.tracing.draws import insert
from lightning_sink.engine.tracing.questions import leading_to
from lightning_sink.engine.tracing.recording import Recording


class GraphWriter:
    """Fills the graph, inputs and text of a recording; `on_input` is called with each new input and its index."""

    def __init__(self, recording: Recording, on_input: Callable[[Tensor, int], None]) -> None:
        self._recording = recording
        self._on_input = on_input
        self._nodes: WeakIdKeyDictionary = WeakIdKeyDictionary()
        self._anchor = recording.graph.call_function(operator.pos, (0,))  # inputs come before it
        self._lines: list[str] = []

    def node(self, tensor: Tensor) -> fx.Node:
        """Returns what stands for a tensor; a new input for one that no operation gave."""
        node: fx.Node | None = self._nodes.get(tensor)
        if node is None:
            index, graph = len(self._recording.inputs), self._recording.graph
            with graph.inserting_before(self._anchor):
                node = graph.placeholder(f"input_{index}")
            self._nodes[tensor] = node
            node.meta["layout"], node.meta["input"] = _layout(tensor), index
            self._recording.inputs.append(tensor)
            self._on_input(tensor, index)
        return node

    def constant(self, tensor: Tensor) -> None:
        """Takes an input that is made of the same numbers in each step, or makes no program."""
        self.node(tensor).meta["value"] = tensor

    def write(self, func: Any, args: Any, kwargs: Any, out: Any, draws: bool) -> fx.Node:
        """Writes an operation down that gave `out`; nodes are in the place of tensors among its arguments."""
        node = self._recording.graph.call_function(func, args, kwargs)
        node.meta["draws"] = draws
        # A draw may be made before each step by the numbers that led to it in this one (`draws.py`).
        leading = leading_to(node) if draws else []
        values = [each.meta["value"].tolist() for each in leading if "value" in each.meta]
        self._lines.append(f"{func.name()}{(args, kwargs)!r}{values or ''}")
        self._bind(out, node)
        return node

    def repeats(self, node: fx.Node, earlier: fx.Node | None) -> None:
        """Writes down that an operation draws what an earlier one drew; None for a draw of its own."""
        if earlier is not None:
            self._lines.append(f"{node} draws what {earlier} drew")

    def cast(self, node: fx.Node, dtype: torch.dtype) -> fx.Node:
        """Returns what stands for a tensor in another type."""
        shape, stride, _, device = node.meta["layout"]
        return self.derive(torch.ops.aten._to_copy.default, (node,), (shape, stride, dtype, device), dtype=dtype)

    def derive(self, func: Any, args: tuple[Any, ...], layout: Any, **options: Any) -> fx.Node:
        """Writes an operation down that is none of the step's, and returns it; its result looks so."""
        node = insert(self._recording.graph, func, args, layout, **options)
        self._lines.append(f"{func.name()}{(args, options)!r}")
        return node

    def at_the_start(self) -> AbstractContextManager[Any]:
        """For what comes before all operations of the step."""
        insertion: AbstractContextManager[Any] = self._recording.graph.inserting_after(self._anchor)
        return insertion

    def made(self, tensor: Tensor) -> bool:
        """Tells whether an operation gave the tensor."""
        node = self._nodes.get(tensor)
        return node is not None and node.op != "placeholder"

    def rebind(self, tensor: Tensor, to: Tensor) -> None:
        """Lets what stands for another tensor stand for this one from now on."""
        self._nodes[tensor] = self.node(to)

    @property
    def operations(self) -> int:
        """How many operations have been written down."""
        return len(self._lines)

    def age(self, tensor: Tensor) -> int:
        """Returns how many had been when an operation gave a tensor; 0 for an input."""
        node = self._nodes.get(tensor)
        return 0 if node is None else node.meta.get("age", 0)

    def finish(self, outputs: list[Tensor]) -> None:
        """Ends the graph; `outputs` are the tensors that it returns."""
        recording = self._recording
        recording.graph.output(tuple(self.node(tensor) for tensor in outputs))
        recording.graph.erase_node(self._anchor)
        layouts = [f"{_layout(tensor)}{tensor.requires_grad}" for tensor in recording.inputs]
        returned = [str(self._nodes[tensor]) for tensor in outputs]
        recording.text = "\n".join([*layouts, *self._lines, ",".join(returned)])

    def _bind(self, out: Any, node: fx.Node) -> None:
        if isinstance(out, Tensor):
            if out not in self._nodes:
                self._nodes[out] = node
                node.meta["layout"], node.meta["age"] = _layout(out), self.operations
            return
        for index, item in enumerate(out or ()):
            if isinstance(item, (Tensor, tuple, list)):
                part = self._recording.graph.call_function(operator.getitem, (node, index))
                self._lines.append(f"{node}[{index}]")
                self._bind(item, part)


def _layout(tensor: Tensor) -> Any:
    if tensor.layout is not torch.strided or tensor.is_nested:
        return None
    return tuple(tensor.shape), tensor.stride(), tensor.dtype, tensor.device
