"""Compiles a recorded step with Inductor and its C++ wrapper."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import fx, nn

from lightning_sink.engine.compiler.generated import compile_graph
from lightning_sink.engine.compiler.loop import CompiledStep, Compiler, NativeStep
from lightning_sink.engine.compiler.prepared import prepare
from lightning_sink.engine.compiler.toolchain import Beside
from lightning_sink.engine.tracing.draws import hoist_draws, refused
from lightning_sink.engine.tracing.recording import Recording

_ONE_THREAD = 1 << 15
"""Elements of the largest tensor up to which a step is compiled for, and run on, one thread.

Below that, threads that wait for each other cost more than they save: a step of the benchmarks' MLP (largest tensor
4,096 elements) takes 36 microseconds on one thread and 40 to 100 on two, on a quiet machine.
"""

_LARGEST = (1 << 25) - (1 << 16)
"""Bytes of a block that glibc takes as the largest that is given back and asked for again: it stops at 32 MiB."""

_STEP = ("caught", "bare", "interface", "step")
_RUNTIME = ("bare", "interface", "gemm", "pooling", "masks", "worker", "loop")
_HEADERS = ("torch/csrc/inductor/cpp_wrapper/cpu.h", "torch/csrc/inductor/cpp_prefix.h")
"""What generated code includes."""

_CALLS = {"mm_out": True, "addmm_out": True, "max_pool2d_with_indices": False}
"""Functions of `step.cpp` in the place of the library's; whether they take tensors of `bare.cpp`, too."""

NO_ASSERTS = {"size_asserts": False, "alignment_asserts": False, "scalar_asserts": False}
"""Shapes and strides are compared before a program is run; checking them again is a sixth of the MLP's step."""


def compile_traced(recording: Recording) -> CompiledStep:
    """Returns the graph as it is, uncompiled: for debugging and for tests."""
    function = graph_module(recording).forward
    if not recording.assumed:
        return CompiledStep(function)
    written = sorted(recording.written_inputs)

    def changing_nothing(*inputs: torch.Tensor) -> Any:
        """Runs it; an operation that fails leaves what was written before it, which is put back here."""
        before = [inputs[place].clone() for place in written]
        try:
            return function(*inputs)
        except Exception:
            for place, content in zip(written, before, strict=True):
                inputs[place].copy_(content)
            raise

    return CompiledStep(changing_nothing, assumes=True)


def compile_inductor(recording: Recording) -> CompiledStep:
    """Compiles a recording's graph; says nothing and caches nothing.

    Random draws are the ones of eager: made before the compiled code (`draws.py`), a single one also by it
    (`fallback_random`). The C++ wrapper both makes a call cheap and lets go of the interpreter lock.
    """
    options: dict[str, Any] = {"cpp_wrapper": True, "fallback_random": True, **NO_ASSERTS}
    small = recording.largest <= _ONE_THREAD
    if small:
        options["cpp.threads"] = 1
    else:
        keep_freed_memory()
    if keeps_layouts(recording.graph):
        options["layout_optimization"] = False
    inputs = [tensor.detach() for tensor in recording.inputs]
    draws, assumes = hoist_draws(recording.graph), bool(recording.assumed)
    left = [node for node in recording.graph.nodes if node.meta.get("draws")]
    if assumes and left:
        raise refused(left[0], "draws by values of a tensor, and a value decides what Python does")
    prepare(recording, on_host=True)
    with torch.set_grad_enabled(recording.grad_mode):
        drawn = [draw() for draw in draws]
        step = _text(_STEP).replace("@ONE_THREAD@", str(small).lower())
        beside = Beside(_HEADERS, step, _text(_RUNTIME), _CALLS)
        graph = graph_module(recording)
        function, loop = compile_graph(graph, [*inputs, *drawn], options, beside)
    options = {"one_thread": small, "assumes": assumes}
    made = CompiledStep(function, draws, **options) if loop is None else NativeStep(function, loop, draws, **options)
    made.graph = graph.forward
    return made


def keep_freed_memory() -> None:
    """Has the C library keep what steps give back, where it would hand it to the system each time.

    glibc has large blocks from the system one by one, and hands the end of a heap back, beyond thresholds that rise
    with the largest block of the first kind that was ever freed, to 32 and 64 MiB (`M_MMAP_THRESHOLD` in mallopt(3)).
    The blocks of a small ResNet are a megabyte at most: a quarter of its steps' time was the system's, which took their
    pages and gave them again. Freeing one larger block raises the thresholds as any program does that frees such a
    tensor; it costs no memory, and with it blocks below 32 MiB lie in the heap, where one in use keeps those below it.
    Another C library takes no notice.
    """
    torch.empty(_LARGEST, dtype=torch.uint8, device="cpu")


def _text(names: tuple[str, ...]) -> str:
    return "".join(Path(__file__).with_name(f"{name}.cpp").read_text() for name in names)


def keeps_layouts(graph: fx.Graph) -> bool:
    """Tells whether convolutions run on images as they lie, channel by channel.

    Inductor would have them all channels last. In a whole step, with what stands between convolutions and with their
    backward passes, that is slower; but for grouped ones, and transposed ones. Measured in
    examples/benchmarks/RESULTS.md.
    """
    found = [node.args for node in graph.nodes if node.target is torch.ops.aten.convolution.default]
    return all(not transposed and groups == 1 for *_, transposed, _, groups in found)


def graph_module(recording: Recording) -> fx.GraphModule:
    """Returns a recording's graph as something that can be called and compiled."""
    return fx.GraphModule(nn.Module(), recording.graph)


def timed(compiler: Compiler, report: Callable[[str], None]) -> Compiler:
    """Wraps a compiler so that it says that it is at work and how long it took."""

    def compile_and_report(recording: Recording) -> CompiledStep:
        report("compiling the training step ...")
        start = time.perf_counter()
        function = compiler(recording)
        report(f"compiled the training step in {time.perf_counter() - start:.1f} s")
        return function

    return compile_and_report
