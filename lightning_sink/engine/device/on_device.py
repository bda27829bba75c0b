"""Makes a step that a device runs by itself of a recording: compiled where Inductor can, captured where that may be."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from lightning_sink.engine.compiler.generated import compile_graph
from lightning_sink.engine.compiler.inductor import NO_ASSERTS, graph_module, keeps_layouts
from lightning_sink.engine.compiler.prepared import prepare
from lightning_sink.engine.compiler.row import Outputs
from lightning_sink.engine.device.assumed import refuse_late_checks, told
from lightning_sink.engine.device.blocks import Blocks
from lightning_sink.engine.device.captured import CapturedStep
from lightning_sink.engine.device.graphs import Graphs
from lightning_sink.engine.device.placement import place
from lightning_sink.engine.device.sums import rounding, write_sums
from lightning_sink.engine.state.default_generators import Generators
from lightning_sink.engine.tracing.draws import Draw, hoist_draws
from lightning_sink.engine.tracing.recording import Recording

_OPTIONS: dict[str, Any] = {
    # Kernels are tuned on what they are first run with. While compiling that is made up, and may fail a value check,
    # which ends the process's use of the GPU.
    "triton.autotune_at_compile_time": False,
    # Products of matrices would be timed while compiling, and the graph depend on that.
    "shape_padding": False,
    # One kernel for what does not depend on each other, such as the updates of parameters, but for larger sums
    # (`combined.py`).
    "combo_kernels": True,
    "combo_kernel_allow_mixed_sizes": 2,
}


def compile_on_device(
    recording: Recording,
    device: torch.device,
    graphs: Graphs,
    *,
    refuse: Callable[[Exception], None] | None,
    unroll: Callable[[str], None],
    uncompiled: Callable[[Exception], None] | None,
) -> CapturedStep:
    """Makes a step for a device.

    Args:
        recording: The step as it was recorded.
        device: The device.
        graphs: The same, as what captures and replays.
        refuse: Told why steps cannot be captured, which are then launched one by one; None where none are to be.
        unroll: Told why they cannot be captured as a loop.
        uncompiled: Told why Inductor cannot compile a step, whose recorded operations are then run as they are; None
            where it is not to be asked.

    Raises:
        ValueError: For what no program on a device can do.
    """
    draws, left = _hoisted(recording)
    placement = place(recording, device)
    refuse_late_checks(recording.graph)
    if recording.assumed and placement.draws:
        raise ValueError("random numbers are drawn on the host, and a value decides what Python does")
    with told(recording.graph):
        function: Callable[..., Outputs] = graph_module(recording).forward
    differs = 0.0
    if uncompiled is not None:
        try:
            if left is not None:
                raise left
            function, differs = _compile(recording, draws, device)
        except Exception as error:  # Inductor raises many types, some of them private; the recording is as good
            uncompiled(error)
    # PyTorch counts draws where a graph is launched: the turns of a loop would all draw the same.
    draws_there = left is not None or len(placement.draws) < len(draws)
    blocks = Blocks(graphs, refuse, None if draws_there else unroll)
    drawn_from = Generators(device if draws_there else torch.device("cpu"), host=False)
    generators = drawn_from if recording.assumed else None
    step = CapturedStep(function, blocks, placement, draws, generators=generators)
    step.rounding = differs
    return step


def _hoisted(recording: Recording) -> tuple[list[Draw], Exception | None]:
    """Takes random draws out of the graph; says why it must be run as it is, for the others to be eager's."""
    try:
        draws = hoist_draws(recording.graph)
    except ValueError as error:  # they are in order where the operations are
        return [], error
    left = [str(node.target) for node in recording.graph.nodes if node.meta.get("draws")]
    return draws, ValueError(f"random numbers are drawn by {left[0]}, from data") if left else None


def _compile(recording: Recording, draws: list[Draw], device: torch.device) -> tuple[Callable[..., Outputs], float]:
    """Returns the function, and by how much its gradients may differ by what was replaced in it (`rounding`)."""
    options: dict[str, Any] = {"fallback_random": True, **NO_ASSERTS, **_OPTIONS}
    if keeps_layouts(recording.graph):
        options["layout_optimization"] = False
    inputs: list[Tensor] = [*(tensor.detach() for tensor in recording.inputs), *(draw() for draw in draws)]
    prepare(recording, on_host=False)
    replaced = write_sums(recording.graph)
    if replaced:
        # What a sum takes again and again is computed once, behind what it is made of, where it is made of two tensors.
        options["realize_reads_threshold"] = 1
    with told(recording.graph), torch.set_grad_enabled(recording.grad_mode):
        there = [tensor.to(device) for tensor in inputs]
        function, _ = compile_graph(graph_module(recording), there, options)
    return function, rounding(replaced)
