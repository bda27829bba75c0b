"""What is entered of Inductor: its names that are not public, each with the reason; checked against torch 2.11 to 2.15.

A graph is compiled here with C++ of our own beside what Inductor generates, a part with each step and a part once for
all of them (`interface.cpp`). `tests/engine/compiler/test_generated.py` fails with the name when an upgrade removes
one.
"""

from __future__ import annotations

import ctypes
import gc
import re
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, fx

from lightning_sink.engine.compiler.combined import combined_where_small
from lightning_sink.engine.compiler.copies import copy_of
from lightning_sink.engine.compiler.kernels import hand_out_errors
from lightning_sink.engine.compiler.native import NativeLoop
from lightning_sink.engine.compiler.toolchain import Beside, compiled_for_this_processor, toolchain
from lightning_sink.engine.failures import AssumptionFailedError, with_type
from lightning_sink.engine.state.default_generators import Generators

_OBJECTS = 20_000
"""New objects behind which garbage is looked for while a program is compiled."""

_ONE_AT_A_TIME = threading.RLock()
"""Inductor compiles for one thread of a process at a time, and what it is given here replaces parts of it meanwhile."""


def compile_graph(
    graph: fx.GraphModule, inputs: list[Any], options: dict[str, Any], beside: Beside | None = None
) -> tuple[Callable[..., Any], NativeLoop | None]:
    """Compiles a graph of ATen operations with Inductor, for inference: its writes to inputs happen in place.

    `torch._inductor.standalone_compile` takes a graph as it is; public entry points trace Python again. What it returns
    wraps the compiled code in several layers of Python that a graph without autograd does not need: a quarter of a
    small step. Where the code itself gives the same on the same inputs, it is called without them.

    Args:
        graph: The graph.
        inputs: Its inputs; they are copied.
        options: Inductor's options.
        beside: C++ of ours, None for what is not to run on a CPU.

    Returns:
        The function, and the loop around it, None where there is none.
    """
    with _ONE_AT_A_TIME:
        compile_it = partial(_compile, graph, inputs, options, beside)
        code, artifact, library = compile_it() if beside is None else compiled_for_this_processor(compile_it)
    if code is None:
        return artifact, None
    loop = None if library is None else _find_loop(code, library)
    direct: Callable[..., Any] = lambda *arguments: code(list(arguments))  # noqa: E731
    if torch.is_grad_enabled():  # the layers switch that off, which the kernels of recurrent layers look at
        if not _same(graph, direct, inputs):
            raise RuntimeError("machine code gives other results than the operations that it was made of")
    elif not _same(artifact, direct, inputs):
        return artifact, None
    return direct, loop


def _compile(
    graph: fx.GraphModule, inputs: list[Any], options: dict[str, Any], beside: Beside | None
) -> tuple[Callable[..., Any] | None, Callable[..., Any], ctypes.PyDLL | None]:
    """Returns the code itself, what Inductor wraps it in, and the library of what is compiled once for all steps."""
    import torch._functorch.config as functorch_config
    from torch._inductor import standalone_compile

    inner: list[Any] = []

    def keep(*args: Any, **kwargs: Any) -> Any:
        from torch._inductor.compile_fx import compile_fx_inner

        inner.append(compile_fx_inner(*args, **kwargs))
        return inner[-1]

    settings = {"config_patches": options, "inner_compile": keep}
    # The compiler begins first: the others import most of Inductor meanwhile. The cache of autograd's would give back
    # the layers without calling `keep`; the cache below it, of compiled code, stays.
    with (
        _seldom_collected(),
        warnings.catch_warnings(),
        nullcontext() if beside is None else toolchain(beside) as runtime,
        nullcontext() if beside is None else _called_as_they_are(),
        combined_where_small() if beside is None else _with_source(beside),
        functorch_config.patch(enable_autograd_cache=False),
    ):
        # Inductor's advice for GPUs; what is computed in is the user's choice.
        warnings.filterwarnings("ignore", "TensorFloat32 tensor cores", UserWarning)
        # Inductor of torch 2.13 itself calls this for `diagonal`.
        warnings.filterwarnings("ignore", ".*_prims_common.check` is deprecated", FutureWarning)
        artifact = standalone_compile(
            graph, [copy_of(tensor) for tensor in inputs], dynamic_shapes="from_example_inputs", options=settings
        )
        library = None if runtime is None else runtime()
    code = getattr(inner[0], "current_callable", None) if len(inner) == 1 else None
    return code, artifact, library


@contextmanager
def _seldom_collected() -> Iterator[None]:
    """Has garbage looked for behind more new objects than the hundreds that Python waits for.

    Inductor makes millions, and its libraries have as many: that takes a sixth of the 1.5 s in which an MLP's program
    is made of code from the cache. The memory at the most does not grow.
    """
    every, *others = gc.get_threshold()
    try:
        gc.set_threshold(max(every, _OBJECTS) if every else 0, *others)
        yield
    finally:
        gc.set_threshold(every, *others)


@contextmanager
def _called_as_they_are() -> Iterator[None]:
    """Has some operations called that Inductor would make something else of.

    Its own call of oneDNN's recurrent layers drops what their backward pass needs, and its loops for the backward pass
    of max-pooling look at every window for every element: 1.05 times LeNet-5's step. Its loops for the forward pass
    take half as long again as the library's, and `pooling.cpp` takes the place of that.
    `torch._inductor.lowering.lowerings` says what becomes of an operation; `fallback_handler` makes a plain call of it.
    `decomposition.decompositions` has others made of it before that, so it is taken out there.
    """
    from torch._inductor import decomposition, lowering

    aten = torch.ops.aten
    pooling = aten.max_pool2d_with_indices.default
    operations = (aten.mkldnn_rnn_layer.default, pooling, aten.max_pool2d_with_indices_backward.default)
    calls = {operation: lowering.fallback_handler(operation, add_to_fallback_set=False) for operation in operations}
    with patch.dict(lowering.lowerings, calls), patch.dict(decomposition.decompositions):
        decomposition.decompositions.pop(pooling, None)
        yield


_ENTRY = "void inductor_entry_impl("
_END = "} // inductor_entry_impl"
_UNLOCKS = re.compile(r"py::gil_scoped_release(_simple)? release;")
_TAKES = re.compile(r"steal_from_raw_handles_to_raii_handles\(input_handles, (\d+)\)")
_UNCHECKED = re.compile(r"^(\s*)(aoti_torch_cpu_\w+\(.*\));$", re.MULTILINE)
"""A call of an operation whose error is dropped: those of scattering (torch 2.13)."""

_CALLED = re.compile(r"([\w:]+)\(")


@contextmanager
def _with_source(beside: Beside) -> Iterator[None]:
    """Has C++ compiled with what Inductor generates, where that looks as expected.

    `CppWrapperCodeCache.load_pybinding` is where the C++ wrapper's text becomes a library, whether it was generated now
    or found in Inductor's cache; the library's own cache goes by the text. The wrapper lets go of the interpreter's
    lock for each step, which inside the loop would let a busy thread stop it for milliseconds.
    """
    from torch._inductor.codecache import CppWrapperCodeCache

    original = CppWrapperCodeCache.load_pybinding

    def load(*args: Any, main_code: str = "", num_outputs: int = -1, **kwargs: Any) -> Any:
        takes = _TAKES.findall(main_code)
        if main_code.count(_ENTRY) == main_code.count(_END) == len(_UNLOCKS.findall(main_code)) == len(takes) == 1:
            main_code = _UNLOCKS.sub("lightning_sink::Unlocked release;", main_code)
            main_code = _UNCHECKED.sub(r"\1AOTI_TORCH_ERROR_CODE_CHECK(\2);", main_code)
            for name in beside.calls:
                main_code = main_code.replace(f"aoti_torch_cpu_{name}(", f"lightning_sink::{name}(")
            bare = _bare_step(main_code, [name for name, takes_bare in beside.calls.items() if takes_bare])
            filled = beside.step.replace("@INPUTS@", takes[0]).replace("@OUTPUTS@", str(num_outputs))
            filled = filled.replace("@BARE@", "true" if bare else "false")
            main_code = hand_out_errors(main_code).replace(_ENTRY, f"{filled}\n{bare}\n{_LINE_OF_CALLS} {_ENTRY}")
        return original(*args, main_code=main_code, num_outputs=num_outputs, **kwargs)

    with patch.object(CppWrapperCodeCache, "load_pybinding", load):
        yield


_LINE_OF_CALLS = "LIGHTNING_SINK_LINE_OF_CALLS"
_AGAIN = re.compile(r"= (output_handles\[\d+\]);")
"""An output that is another one too."""

_BARE_TYPES = {"RAIIAtenTensorHandle": "Tensor", "AtenTensorHandle": "Handle"}
_BARE_CALLS = (
    "aoti_torch_empty_strided",
    "aoti_torch_new_tensor_handle",
    "reinterpret_tensor_wrapper",
    "steal_from_raw_handles_to_raii_handles",
    "wrap_with_raii_handle_if_needed",
)


def _bare_step(code: str, calls: Iterable[str]) -> str:
    """Returns the generated step on the tensors of `bare.cpp`; nothing where it calls what these do not stand for.

    The step is a straight line of calls, so what is called is all that there is to know. Its kernels (`cpp_fused_...`)
    take pointers.
    """
    _, _, step = code.partition(_ENTRY)
    step = step.partition("{")[2].partition(_END)[0]
    step = re.sub(r"//.*", "", step)
    known = {*_BARE_CALLS, *(f"lightning_sink::{name}" for name in calls), "AOTI_TORCH_ERROR_CODE_CHECK", "std::move"}
    known |= {"data_ptr", "reset", "release", "RAIIAtenTensorHandle"}
    declared = set(re.findall(r"RAIIAtenTensorHandle (\w+)\(", step))
    called = {name for name in _CALLED.findall(step) if not name.startswith("cpp_fused_")}
    if called - known - declared:
        return ""
    step = _AGAIN.sub(r"= \1.share();", step)
    for name, bare in _BARE_TYPES.items():
        step = re.sub(rf"\b{name}\b", f"lightning_sink::bare::{bare}", step)
    for name in _BARE_CALLS:
        step = step.replace(f"{name}(", f"lightning_sink::bare::{name.removeprefix('aoti_torch_')}(")
    head = "void lightning_sink::bare_step(bare::Tensor* input_handles, bare::Tensor* output_handles)"
    return f"{_LINE_OF_CALLS} {head} {{{step}}}\n"


def _find_loop(callable_code: Any, runtime: ctypes.PyDLL) -> NativeLoop | None:
    """Finds the library behind what Inductor generated: the wrapper's function holds the library's in its closure."""
    held = [cell.cell_contents for cell in getattr(callable_code, "__closure__", None) or ()]
    files = [getattr(getattr(item, "__self__", None), "__file__", None) for item in held]
    for file in files:
        if file is not None:
            library = ctypes.PyDLL(file)
            # Without the name it was compiled without what is beside it.
            return NativeLoop(library, runtime) if hasattr(library, "lightning_sink_bind") else None
    return None


def _same(first: Callable[..., Any], second: Callable[..., Any], inputs: list[Tensor]) -> bool:
    """Tells whether two functions return and write the same but for rounding, in which threads that sum differ."""
    devices = {tensor.device for tensor in inputs if not tensor.is_cpu}
    generators = Generators(next(iter(devices), torch.device("cpu")))
    generated = generators.state()

    def results_of(function: Callable[..., Any]) -> list[Tensor]:
        """Returns them on the host: a device may have memory for these copies, and not for others beside them."""
        copies = [copy_of(tensor) for tensor in inputs]
        generators.restore(generated)
        try:
            return [tensor.cpu() for tensor in (*function(*copies), *copies)]
        except Exception as error:
            if not isinstance(with_type(error), AssumptionFailedError):
                raise
            return []  # these inputs, as the recorded step has left them, lead another way

    results = results_of(first), results_of(second)
    # A gradient that is zero by mathematics is the rounding of terms as large as the largest of all.
    returned = results[0][: -len(inputs) or None]
    largest = max((_norm(tensor) for tensor in returned if tensor.is_floating_point()), default=0.0)
    agree = partial(_agree, rounding=1e-4 * largest)
    return len(results[0]) == len(results[1]) and all(map(agree, *results))


def _norm(tensor: Tensor) -> float:
    return float(tensor.nan_to_num(posinf=0.0, neginf=0.0).double().norm())


def _agree(a: Tensor, b: Tensor, rounding: float) -> bool:
    if a.shape != b.shape or a.stride() != b.stride() or a.dtype != b.dtype:
        return False
    a, b = a.nan_to_num(), b.nan_to_num()
    if not a.is_floating_point():
        return torch.equal(a, b)
    return bool((a - b).double().norm() <= 1e-3 * b.double().norm() + 1e-6 + rounding)
