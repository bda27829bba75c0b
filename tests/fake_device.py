"""A device that is none, for what a GPU would be needed for: `torch.device("fake", 0)`.

`fake_device.cpp` gives PyTorch a device whose memory is the host's and whose operations are the CPU's, and which
refuses what CUDA refuses: a tensor of the host's among its own. Its generator is another than the host's, and it counts
how often the host waited for it. Memory comes filled with NaN.
"""

import contextlib
import hashlib
import os
import shutil
import subprocess
from pathlib import Path

import torch
from lightning.pytorch.accelerators import Accelerator
from torch.utils.cpp_extension import include_paths, library_paths

from lightning_sink.data.streams import Streams

SOURCE = Path(__file__).with_suffix(".cpp")
DEVICE = "fake:0"


def available():
    """Tells whether the device can be built here."""
    return shutil.which("g++") is not None


def load(directory):
    """Builds the device, unless it lies in the directory already, and makes it known to PyTorch."""
    if torch._C._get_privateuse1_backend_name() == "fake":
        return
    digest = hashlib.sha256(SOURCE.read_bytes() + torch.__version__.encode()).hexdigest()[:16]
    library = Path(directory) / f"fake_device_{digest}.so"
    if not library.exists():
        built = library.with_suffix(f".{os.getpid()}")
        paths = [f"-I{path}" for path in include_paths()] + [f"-L{path}" for path in library_paths()]
        options = ["-O0", "-std=c++20", "-fPIC", "-shared", "-w"]
        subprocess.run(["g++", *options, SOURCE, "-o", built, *paths, "-lc10", "-ltorch_cpu"], check=True)
        built.replace(library)
    torch.ops.load_library(str(library))
    torch.utils.rename_privateuse1_backend("fake")
    torch._register_device_module("fake", Module)


class Module:
    """What stands for `torch.cuda`."""

    is_available = is_initialized = staticmethod(lambda: True)
    _initialized = True  # what activation checkpointing asks
    _is_in_bad_fork = staticmethod(lambda: False)
    device_count = staticmethod(lambda: 1)
    current_device = staticmethod(lambda: 0)
    device = staticmethod(lambda index: contextlib.nullcontext())
    get_amp_supported_dtype = staticmethod(lambda: [torch.float32, torch.bfloat16])

    @staticmethod
    def get_rng_state(device=None):
        return Module.default_generators[0].get_state()

    @staticmethod
    def set_rng_state(state, device=None):
        Module.default_generators[0].set_state(state)

    @staticmethod
    def manual_seed_all(seed):
        Module.set_rng_state(torch.Generator().manual_seed(seed).get_state())

    class Generator:
        """What the device draws from."""

        def get_state(self):
            return torch.ops.lightning_sink_fake.rng_state()

        def set_state(self, state):
            torch.ops.lightning_sink_fake.set_rng_state(state)

    default_generators = (Generator(),)


def waits():
    """Returns how often the host has waited for the device."""
    return torch.ops.lightning_sink_fake.waits()


class FakeAccelerator(Accelerator):
    """The device, for a Trainer."""

    def setup_device(self, device): ...

    def teardown(self): ...

    @staticmethod
    def parse_devices(devices):
        return int(devices)

    @staticmethod
    def get_parallel_devices(devices):
        return [torch.device("fake", index) for index in range(devices)]

    @staticmethod
    def auto_device_count():
        return 1

    @staticmethod
    def is_available():
        return True

    @staticmethod
    def name():
        return "fake"

    def get_device_stats(self, device):
        return {}


class FakeStreams(Streams):
    """The device for the queue. It does at once what it is given; `data/test_device.py` has one that is late."""

    def __init__(self, device):
        self.device, self.copies = device, 0

    def pinned(self, like):
        return torch.empty_like(like, device="cpu")

    def send(self, tensors):
        self.copies += 1
        return [tensor.to(self.device, non_blocking=True) for tensor in tensors], self

    def arrive(self, tensors, event):
        assert event is self
