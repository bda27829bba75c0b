"""Which engine runs the steps of a training, and what it says where it cannot."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from lightning_sink.engine.compiled import CompiledEngine
from lightning_sink.engine.compiler.inductor import compile_inductor, compile_traced, timed
from lightning_sink.engine.compiler.loop import Compiler
from lightning_sink.engine.compiler.toolchain import missing_compiler
from lightning_sink.engine.device.cuda import CudaGraphs
from lightning_sink.engine.device.graphs import Graphs
from lightning_sink.engine.device.on_device import compile_on_device
from lightning_sink.engine.eager import EagerEngine
from lightning_sink.engine.failures import in_short
from lightning_sink.engine.state.slots import Parts
from lightning_sink.engine.step import Engine
from lightning_sink.engine.watch import Hazard, first_line
from lightning_sink.errors import CompileError, warn_at

ENGINES = ("auto", "eager", "traced", "inductor", "cudagraph")
FALLBACKS = ("warn", "error")

GRAPHS: dict[str, Callable[[torch.device], Graphs]] = {"cuda": CudaGraphs}
"""What runs steps on a device, by its type."""

_GET_A_COMPILER = "install one (`apt install g++`, `xcode-select --install`) or name it in the variable `CXX`"


@dataclass(frozen=True)
class Asked:
    """What a user asked of the engine, and where.

    Attributes:
        engine: One of `ENGINES`.
        fallback: One of `FALLBACKS`.
        verify: Steps of each new program that are also run eagerly.
        api: What takes the option `engine`, as users write it: "SinkStrategy".
        speed: Whose speed eager steps have: "plain Lightning's".
    """

    engine: str
    fallback: str
    verify: int
    api: str
    speed: str
    step: Callable[..., Any]
    say: Callable[[str], None]


def make_engine(asked: Asked, parts: Parts) -> Engine:
    """Returns the engine of a training.

    Raises:
        CompileError: There is no compiler, one is needed, and `fallback` is "error".
    """

    def fall_back(hazard: Hazard, partly: bool = False) -> None:
        begins = first_line(asked.step)
        where = hazard.where or f"no line is known; the step begins at {begins}"
        text = (
            f"The training step runs eagerly{' in some steps (others are compiled)' if partly else ''}, at"
            f" {asked.speed} speed: {hazard.what} ({where}). To compile it, "
            f'{hazard.way_out}; to run eagerly without this warning, use `{asked.api}(engine="eager")`.'
        )
        if asked.fallback == "error":
            raise CompileError(text)
        warn_at(text, hazard.where or begins)

    name, device = asked.engine, parts.device
    on_device = device.type in GRAPHS
    if name == "cudagraph" and not on_device:
        what = f'`engine="cudagraph"` needs a GPU, and the step computes on `{device}`'
        fall_back(Hazard(what, way_out='use `engine="auto"`'))
        name = "eager"
    if name == "auto":
        name = "cudagraph" if on_device else "inductor"
    if name == "inductor" and not on_device and (missing := missing_compiler()) is not None:
        fall_back(Hazard(f"no working C++ compiler was found ({missing})", way_out=_GET_A_COMPILER))
        name = "eager"
    if name == "eager":
        return EagerEngine()
    traced = name == "traced"
    compiler: Compiler = compile_traced if traced else compile_inductor
    if on_device:
        compiler = _device_compiler(asked, device, name)
    return CompiledEngine(
        name,
        parts,
        compiler if traced else timed(compiler, asked.say),
        costly=not traced,
        verify=asked.verify,
        fallback=fall_back,
    )


def _device_compiler(asked: Asked, device: torch.device, name: str) -> Compiler:
    """Returns what compiles for a device that runs steps by itself, and says where it does less than was asked for."""

    def say_why(what: str, instead: str) -> Callable[[Exception], None]:
        def say(error: Exception) -> None:
            text = f"{what} ({in_short(error)}), so {instead}."
            if asked.fallback == "error":
                raise CompileError(text) from error
            warn_at(text, first_line(asked.step))

        return say

    uncompiled = say_why("Inductor cannot compile the training step", "its operations are run as they were recorded")
    refuse = say_why("The training step cannot be captured in a CUDA graph", "its operations are launched each time")

    def unroll(why: str) -> None:
        asked.say(f"the GPU cannot repeat the training step in a loop ({why}); graphs of a few steps take its place.")

    return partial(
        compile_on_device,
        device=device,
        graphs=GRAPHS[device.type](device),
        refuse=refuse if name == "cudagraph" else None,
        unroll=unroll,
        uncompiled=None if name == "traced" else uncompiled,
    )
