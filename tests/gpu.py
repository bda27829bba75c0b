"""What tests that need a GPU share: the one decorator, which skips them where there is none."""

import contextlib
import warnings

import pytest
import torch

from lightning_sink.data.cuda import CudaStreams
from lightning_sink.data.device import Device


def needs_gpu(test):
    """Marks a test, and skips it without a CUDA device."""
    return pytest.mark.gpu(pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")(test))


@contextlib.contextmanager
def no_synchronisation():
    """Has everything that waits for the device be an error."""
    torch.cuda.synchronize()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # PyTorch says, once in a process, that the mode is a prototype
        torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def memory_of_batches():
    """Returns the bytes that are reserved once a training's batches, ten megabytes of them, have come and gone."""
    device = Device(CudaStreams(torch.device("cuda", 0)))
    kept = [device.send([torch.ones(1 << 16)]).take() for _ in range(40)]
    del kept
    torch.cuda.synchronize()  # the allocator asks whether both streams are done with them when it is asked next
    return torch.cuda.memory_reserved()
