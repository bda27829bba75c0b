"""Runs the kernels that Inductor writes for a GPU by Triton's interpreter, each when its stream comes to it.

By itself the interpreter runs a kernel where it is launched, on copies of its tensors. Here memory is the host's, so a
kernel works on the tensors themselves; and a graph that was captured runs it again with each replay.
"""

import ctypes
import inspect
import itertools
import math
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
import triton.language as tl
from triton.language.extra import libdevice
from triton.runtime import interpreter

RUNTIME = ctypes.CDLL("libruntime.so")
NUMBERS = itertools.count(1)
KERNELS: dict[int, Callable[[], None]] = {}
"""What was launched and has not run, and what graphs may run again, by number."""

FUNCTIONS: dict[str, Callable[..., Any]] = {
    **{name: getattr(np, name) for name in ("abs", "ceil", "cos", "exp", "exp2", "expm1", "floor", "fmod", "isinf")},
    **{name: getattr(np, name) for name in ("isnan", "log", "log1p", "log2", "sin", "sqrt", "tanh", "trunc")},
    "add_rn": np.add,
    "erf": np.vectorize(math.erf),
    "mul_rn": np.multiply,
    "nearbyint": np.rint,
    "pow": np.power,
    "rsqrt": lambda x: 1 / np.sqrt(x),
}
"""Those of CUDA's library for a device, which the interpreter has none of."""


def launch(self: interpreter.GridExecutor, *given: Any, **options: Any) -> None:
    """Has the current stream run a kernel."""
    names = inspect.getfullargspec(self.fn).args
    called = inspect.getcallargs(self.fn, *given, **{name: value for name, value in options.items() if name in names})
    arguments = {n: v if n in self.constexprs else interpreter._implicit_cvt(v) for n, v in called.items()}
    grid = self.grid(arguments) if callable(self.grid) else self.grid
    grid = (*grid, 1, 1)[:3]

    def run() -> None:
        interpreter.interpreter_builder.set_grid_dim(*grid)
        for place in itertools.product(*map(range, grid)):
            interpreter.interpreter_builder.set_grid_idx(*place)
            self.fn(**arguments)

    number = next(NUMBERS)
    again = torch.cuda.is_current_stream_capturing()
    KERNELS[number] = run if again else lambda: (KERNELS.pop(number), run())
    error = RUNTIME.cudaLaunchHostFunc(ctypes.c_void_p(torch.cuda.current_stream().cuda_stream), RUN, number)
    if error:
        raise RuntimeError(f"CUDA error {error} in {self.fn.__name__}")


@ctypes.CFUNCTYPE(None, ctypes.c_size_t)
def RUN(number: int) -> None:
    try:
        with np.errstate(all="ignore"):
            KERNELS[number]()
    except Exception as error:  # of any kind: whoever waits for the device is told
        print(f"[fake] a kernel of Triton's: {error!r}", file=sys.stderr)
        RUNTIME.fake_fail()


def of_library(name: str) -> Callable[..., tl.tensor]:
    """Returns a function of CUDA's library."""

    def call(*given: Any) -> tl.tensor:
        function = FUNCTIONS.get(name)
        if function is None:
            raise NotImplementedError(f"`libdevice.{name}` is not in `interpreted.FUNCTIONS`")
        tensors = [interpreter.interpreter_semantic.to_tensor(value) for value in given]
        first = tensors[0]
        data = function(*(tensor.handle.data for tensor in tensors)).astype(first.handle.data.dtype)
        return tl.tensor(interpreter.TensorHandle(data, first.handle.dtype), first.type)

    return call


def install() -> None:
    interpreter._patch_lang(SimpleNamespace(__globals__={"tl": tl, "core": tl.core}))
    interpreter._patch_lang = lambda fn: None  # at each call of each function, and back, it takes longer than the call
    interpreter.GridExecutor.__call__ = launch
    for name, found in inspect.getmembers(libdevice, inspect.isfunction):
        if found.__module__ == libdevice.__name__:
            setattr(libdevice, name, of_library(name))
