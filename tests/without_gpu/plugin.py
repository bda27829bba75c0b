"""Puts operations on the host behind CUDA tensors; Inductor's kernels are interpreted, or recorded steps run."""

import os

import torch

torch.ops.load_library(os.environ["WITHOUT_GPU_OPERATIONS"])
torch.cuda.init()
torch.ops.without_gpu.install()

# Of convolutions and attention, the ways that the host has too.
torch.backends.cudnn.enabled = False
torch.backends.cuda.enable_flash_sdp(False)
torch.backends.cuda.enable_mem_efficient_sdp(False)
torch.backends.cuda.enable_cudnn_sdp(False)

if os.environ.get("TRITON_INTERPRET") == "1":
    import interpreted

    interpreted.install()
else:
    from lightning_sink.engine.device import on_device

    on_device.compile_graph = lambda graph, *_: (graph.forward, None)
    on_device.write_sums = lambda graph: frozenset()  # a kernel of ours is among them


def pytest_collection_modifyitems(items):
    """Leaves out what is about kernels where there are none."""
    if os.environ.get("TRITON_INTERPRET") != "1":
        items[:] = [item for item in items if "test_weight_gradient_gpu" not in item.nodeid]
