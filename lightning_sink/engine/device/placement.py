"""A recorded step as a device runs it by itself: with the numbers that eager steps have on the host.

Eager steps on a GPU keep some numbers on the host: the step counts of optimizers, learning rates, the program's
counters. What they compute of these takes no time there, but the device has to be told what comes of it, at each step.
So the graph is changed to compute all of it on the device. Whoever runs it brings what the step takes from the host,
and brings back what it has there when it ends.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch.fx.node import map_aggregate

from lightning_sink.engine.private import has_kernel
from lightning_sink.engine.state.slots import share_memory
from lightning_sink.engine.tracing.recording import Recording

_MOST = 1 << 16
"""Elements of a tensor of the host's that is brought to the device for each row of steps."""


@dataclass(frozen=True)
class Placement:
    """What a step on a device has on the host.

    Attributes:
        inputs: Inputs that lie there.
        draws: Random draws that are made there.
        outputs: Outputs that eager steps have there.
        written: Inputs, wherever they lie, that the step writes to.
    """

    inputs: frozenset[int] = frozenset()
    draws: frozenset[int] = frozenset()
    outputs: frozenset[int] = frozenset()
    written: frozenset[int] = frozenset()


def place(recording: Recording, device: torch.device) -> Placement:
    """Changes a recording's graph, whose random draws have been taken out, so that it computes on a device alone.

    Raises:
        ValueError: For what is large, or written through two inputs, on the host.
    """
    count = len(recording.inputs)
    placeholders = recording.graph.find_nodes(op="placeholder")
    hosts = [number for number, node in enumerate(placeholders) if _is_on_host(node)]
    inputs = frozenset(number for number in hosts if number < count)
    written = recording.written_inputs
    _check(recording, inputs, written)
    if any(node.meta.get("draws") and _is_on_host(node) for node in recording.graph.nodes):
        raise ValueError("random numbers are drawn on the host in a way that depends on data")
    (output,) = recording.graph.find_nodes(op="output")
    outputs = frozenset(number for number, node in enumerate(output.args[0]) if _is_on_host(node))
    for node in recording.graph.nodes:
        if node.op == "call_function":
            _place_operation(node, device)
    return Placement(inputs, frozenset(number - count for number in hosts if number >= count), outputs, written)


def _place_operation(node: fx.Node, device: torch.device) -> None:
    """Has an operation compute on a device, where it may have been the host's; no memory is pinned there."""
    if isinstance(node.target, torch._ops.OpOverload) and not has_kernel(node.target, device):
        raise ValueError(f"`{node.target.name()}` computes on the host, and there is none for {device.type}")
    if node.target is torch.ops.aten._pin_memory.default:
        node.target, node.args, node.kwargs = torch.ops.aten.clone.default, node.args[:1], {}
    placed = map_aggregate((node.args, node.kwargs), lambda given: device if isinstance(given, torch.device) else given)
    node.args, node.kwargs = placed[0], {name: given for name, given in placed[1].items() if name != "pin_memory"}


def _check(recording: Recording, inputs: frozenset[int], written: frozenset[int]) -> None:
    for number in inputs:
        tensor, where = recording.inputs[number], recording.first_use[number] if recording.first_use else ""
        if tensor.numel() > _MOST:
            raise ValueError(f"a tensor of {tensor.numel():,} elements that lies on the host takes part ({where})")
    if share_memory(recording.inputs, inputs & written):
        raise ValueError("tensors on the host that share their memory are written to")


def _is_on_host(node: Any) -> bool:
    layout = node.meta.get("layout") if isinstance(node, fx.Node) else None
    return layout is not None and layout[3].type == "cpu"
