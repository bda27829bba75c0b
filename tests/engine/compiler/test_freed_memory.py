"""What steps free is not handed back to the system, to be had again page by page."""

import os
import platform
import subprocess
import sys

import pytest

STEPS = """
import resource
import torch
from lightning_sink.engine.compiler.inductor import keep_freed_memory

def step():  # 24 MiB in blocks of one, all of it written to
    held = [torch.ones(1 << 18) for _ in range(24)]

keep_freed_memory()
step()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(10):
    step()
print((resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before) * resource.getpagesize() / (10 << 20))
"""


def megabytes_a_step(**environment):
    environment = {**os.environ, **environment}
    found = subprocess.run(
        [sys.executable, "-c", STEPS], capture_output=True, text=True, check=True, timeout=120, env=environment
    )
    return float(found.stdout)


@pytest.mark.narrow
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="about glibc")
def test_freed_memory_is_kept():
    assert megabytes_a_step() < 3


@pytest.mark.narrow
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="about glibc")
def test_control_it_is_not_where_the_threshold_is_held_low():
    assert megabytes_a_step(MALLOC_MMAP_THRESHOLD_="131072") > 12
