"""What stands under every table: the machine, the versions, the command."""

from __future__ import annotations

import os
import platform
import re
import sys
from collections.abc import Iterable
from pathlib import Path


def machine() -> str:
    """The machine in words, with its load: on a busy one, threads wait for each other and no figure means anything."""
    name = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        names = [line.partition(":")[2].strip() for line in cpuinfo.read_text().splitlines() if "model name" in line]
        name = names[0] if names else name
    load = f", load {os.getloadavg()[0]:.1f} before the first run" if hasattr(os, "getloadavg") else ""
    return f"{name}, {os.cpu_count()} cores, {platform.system()}{load}"


def command(script: str) -> str:
    """The command line of this process, with what it was told about threads and without folders of this machine."""
    threading = [f"{key}={value} " for key, value in sorted(os.environ.items()) if key.startswith(("OMP_", "GOMP_"))]
    told = [re.sub(r"(^|=)/\S*/", r"\1", argument) for argument in sys.argv[1:]]
    return f"{''.join(threading)}python examples/benchmarks/{script} {' '.join(told)}".rstrip()


def versions(found: Iterable[dict[str, str]]) -> str:
    """Each package once; more than one version of it, where sides run in several environments."""
    packages: dict[str, list[str]] = {}
    for one in found:
        for name, version in one.items():
            if version not in packages.setdefault(name, []):
                packages[name].append(version)
    return ", ".join(f"{name} {' and '.join(numbers)}" for name, numbers in packages.items())
