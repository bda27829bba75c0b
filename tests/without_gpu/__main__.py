"""Runs the tests that need a GPU without one, with pytest's options: `python tests/without_gpu -x -n 2`.

Or a script, last on the line: `FAKE_IDLE=1 python tests/without_gpu --run examples/benchmarks/gpu.py --models MLP` says
what the host does for each step where a graph takes no time.

`gallery_captured.py` beside this, given by its path, holds captured steps to plain Lightning in the whole gallery.

Needs a CUDA build of torch for Linux, g++ and CUDA's headers (`CUDA_HOME`, by default /usr/local/cuda). What it shows:
that streams, events, memory, captures, graphs and generators are used by CUDA's rules, and what trainings come to then.
In the place of what Inductor compiles, recorded steps run; with `--interpreted` Inductor's own kernels do, which takes
ten times as long (`interpreted.py`). What it cannot show: anything of time. CI does not run it, since it has torch for
CPUs.
"""

import os
import subprocess
import sys
from pathlib import Path

import torch

HERE = Path(__file__).resolve().parent
INTERPRETED, RUN = "--interpreted", "--run"
RUNTIME = [HERE / f"{name}.cpp" for name in ("device", "memory", "streams", "capture", "graphs", "kernels")]


def build(folder: Path) -> None:
    """Compiles what is older than its source."""
    site = Path(torch.__file__).parent
    toolkit = Path(os.environ.get("CUDA_HOME", "/usr/local/cuda"))
    wheel = site.parent / "nvidia" / "cu13" / "include"  # the headers of libraries, some of which a toolkit may lack
    headers = ["-I", str(toolkit / "include"), "-isystem", str(wheel)]
    of_torch = [
        f"-I{site}/include",
        f"-I{site}/include/torch/csrc/api/include",
        f"-L{site}/lib",
        f"-Wl,-rpath,{site}/lib",
    ]
    libraries = ["-ltorch", "-ltorch_cpu", "-ltorch_cuda", "-lc10", "-lc10_cuda"]
    shared, runtime = ["-shared", "-fPIC", "-O1"], ["-L.", "-l:libruntime.so", f"-Wl,-rpath,{folder}"]
    commands = {
        "answers.o": ["gcc", "-c", "-fPIC", "-DRUNTIME", HERE / "answers.c"],
        "libruntime.so": ["g++", "-std=c++20", *shared, *headers, *RUNTIME, "answers.o", "-ldl"],
        "libcuda.so.1": ["gcc", *shared, *headers, HERE / "driver.c", HERE / "answers.c", *runtime],
        "operations.so": [
            "g++",
            "-std=c++20",
            *shared,
            *headers,
            *of_torch,
            HERE / "operations.cpp",
            *libraries,
            *runtime,
        ],
    }
    newest = max(path.stat().st_mtime for path in HERE.iterdir() if path.is_file())
    for name, command in commands.items():
        if not (folder / name).exists() or (folder / name).stat().st_mtime < newest:
            print(f"building {name} ...", flush=True)
            subprocess.run([*map(str, command), "-o", name], cwd=folder, check=True)


def main() -> None:
    folder = HERE.parents[1] / ".pytest_cache" / "without_gpu" / torch.__version__
    folder.mkdir(parents=True, exist_ok=True)
    build(folder)
    environment = {
        **os.environ,
        "LD_LIBRARY_PATH": str(folder),
        "LD_PRELOAD": str(folder / "libruntime.so"),
        "WITHOUT_GPU_DRIVER": str(folder / "libcuda.so.1"),
        "WITHOUT_GPU_OPERATIONS": str(folder / "operations.so"),
        "PYTHONPATH": os.pathsep.join([str(HERE.parents[1]), str(HERE), os.environ.get("PYTHONPATH", "")]),
    }
    options, script = sys.argv[1:], list[str]()
    if RUN in options:
        script = options[options.index(RUN) + 1 :]
        options = options[: options.index(RUN)]
        if not script or set(options) - {INTERPRETED}:
            sys.exit(
                f"expected {RUN} SCRIPT and its options, with nothing but {INTERPRETED} before, got {sys.argv[1:]}"
            )
    if INTERPRETED in options:
        options.remove(INTERPRETED)
        environment["TRITON_INTERPRET"] = "1"
    command = [sys.executable, "-m", "pytest", "-p", "plugin", "-m", "gpu", *options]
    if script:
        command = [sys.executable, *script]
        environment["PYTHONPATH"] = os.pathsep.join([str(HERE / "startup"), environment["PYTHONPATH"]])
    os.execve(sys.executable, command, environment)


if __name__ == "__main__":
    main()
