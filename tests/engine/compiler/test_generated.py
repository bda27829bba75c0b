"""Every private name of Inductor's that the engine uses is there."""

import gc
import threading
import uuid

import pytest
import torch
from torch import fx

from lightning_sink.engine.compiler import generated
from lightning_sink.engine.compiler.inductor import compile_inductor
from lightning_sink.engine.compiler.toolchain import missing_compiler
from lightning_sink.engine.tracing.recording import Recording

OPERATIONS = torch.ops.aten


def test_the_entry_into_inductor_is_there():
    import torch._inductor

    assert callable(torch._inductor.standalone_compile), "`torch._inductor.standalone_compile` is gone"
    assert isinstance(fx.Graph(), fx.Graph)


def test_where_the_c_plus_plus_is_put_in_is_there():
    from torch._inductor.codecache import CppWrapperCodeCache

    assert callable(CppWrapperCodeCache.load_pybinding), "`CppWrapperCodeCache.load_pybinding` is gone"
    for name in ("unsafe_alloc_void_ptrs_from_tensors", "alloc_tensors_by_stealing_from_void_ptrs"):
        assert hasattr(torch._C._aoti, name), f"`torch._C._aoti.{name}` is gone"


def test_operations_that_are_called_as_they_are():
    from torch._inductor import decomposition, lowering

    for name in ("mkldnn_rnn_layer", "max_pool2d_with_indices", "max_pool2d_with_indices_backward"):
        assert getattr(OPERATIONS, name).default in lowering.lowerings, f"Inductor has no lowering of `{name}` any more"
    assert callable(lowering.fallback_handler), "`torch._inductor.lowering.fallback_handler` is gone"
    taken_out = OPERATIONS.max_pool2d_with_indices.default
    assert taken_out in decomposition.decompositions, "Inductor decomposes max-pooling elsewhere than in this table"


@pytest.fixture
def graph():
    made = fx.Graph()
    left, right = made.placeholder("left"), made.placeholder("right")
    made.output((made.call_function(OPERATIONS.mm.default, (left, right)),))
    return made


@pytest.mark.skipif(missing_compiler() is not None, reason="no C++ compiler")
def test_a_step_that_is_not_bound_leaves_all_to_the_library(graph, monkeypatch):
    inputs = [torch.randn(5, 3), torch.randn(3, 13)]
    monkeypatch.setattr(generated, "_find_loop", lambda code, runtime: None)
    (found,) = compile_inductor(Recording(graph, inputs=inputs, largest=10))(*inputs)
    assert torch.allclose(found, inputs[0] @ inputs[1])


@pytest.mark.parametrize(("before", "within"), [((700, 10, 10), 20_000), ((50_000, 5, 5), 50_000), ((0, 10, 10), 0)])
def test_garbage_is_looked_for_less_often_and_as_ever_afterwards(before, within):
    present = gc.get_threshold()
    gc.set_threshold(*before)
    try:
        with generated._seldom_collected():
            assert gc.get_threshold() == (within, *before[1:])
        assert gc.get_threshold() == before
    finally:
        gc.set_threshold(*present)


@pytest.mark.narrow
@pytest.mark.skipif(missing_compiler() is not None, reason="no C++ compiler")
def test_what_could_not_be_compiled_once_is_tried_again(graph, monkeypatch, replaced):
    from torch._inductor import codecache

    replaced("// Lets go of the interpreter's lock.", f"// {uuid.uuid4()}")  # no cache has that
    inputs, compile_them = [torch.randn(5, 3), torch.randn(3, 14)], codecache._worker_compile_cpp

    def interrupted(*arguments):
        if threading.current_thread() is not threading.main_thread():
            raise RuntimeError("the compiler was ended")
        return compile_them(*arguments)

    with monkeypatch.context() as patched:
        patched.setattr(codecache, "_worker_compile_cpp", interrupted)
        with pytest.raises(RuntimeError, match="the compiler was ended"):
            compile_inductor(Recording(graph, inputs=inputs, largest=10))
    (found,) = compile_inductor(Recording(graph, inputs=inputs, largest=10))(*inputs)
    assert torch.allclose(found, inputs[0] @ inputs[1])
