"""Every private name of Inductor's that the engine uses is there."""

import inspect

import torch
from torch import fx

OPERATIONS = torch.ops.aten


def test_the_entry_into_inductor_is_there():
    import torch._inductor

    assert callable(torch._inductor.standalone_compile), "`torch._inductor.standalone_compile` is gone"
    assert isinstance(fx.Graph(), fx.Graph)
    from torch._inductor.cpp_builder import get_cpp_compiler

    assert callable(get_cpp_compiler), "`torch._inductor.cpp_builder.get_cpp_compiler` is gone"


def test_where_the_c_plus_plus_is_put_in_is_there():
    from torch._inductor.codecache import CppWrapperCodeCache

    for name in ("load_pybinding", "load_async", "_load_library_inner"):
        assert callable(getattr(CppWrapperCodeCache, name, None)), f"`CppWrapperCodeCache.{name}` is gone"
    assert "submit_fn" in inspect.signature(CppWrapperCodeCache.load_async).parameters
    for name in ("unsafe_alloc_void_ptrs_from_tensors", "alloc_tensors_by_stealing_from_void_ptrs"):
        assert hasattr(torch._C._aoti, name), f"`torch._C._aoti.{name}` is gone"


def test_operations_that_are_called_as_they_are():
    from torch._inductor import decomposition, lowering

    for name in ("mkldnn_rnn_layer", "max_pool2d_with_indices", "max_pool2d_with_indices_backward"):
        assert getattr(OPERATIONS, name).default in lowering.lowerings, f"Inductor has no lowering of `{name}` any more"
    assert callable(lowering.fallback_handler), "`torch._inductor.lowering.fallback_handler` is gone"
    taken_out = OPERATIONS.max_pool2d_with_indices.default
    assert taken_out in decomposition.decompositions, "Inductor decomposes max-pooling elsewhere than in this table"
