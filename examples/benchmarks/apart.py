"""The sides of a comparison, and how one measurement runs in a process of its own.

This module, like all that `suite.py` imports, stays small on purpose: the peak memory of a process begins with that of
the one that started it.
"""

from __future__ import annotations

import json
import math
import os
import re
import subprocess
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

from job import Job, Result

PEERS = Path(__file__).parent / "peers"
SHOWN = 12  # lines of what a process that failed said last


@dataclass(frozen=True)
class Side:
    """The script of a side, the packages that it needs, and whether it makes many steps in one call."""

    script: str
    packages: tuple[str, ...]
    many: bool = False


# In the order in which they take turns: what is most often compared with sinks runs next to them.
SIDES = {
    "loop": Side("torch_loop.py", ("torch",)),
    "loop-compile": Side("torch_loop.py", ("torch",)),
    "loop-reduce-overhead": Side("torch_loop.py", ("torch",)),
    "lightning-compile": Side("lightning_fit.py", ("torch", "lightning")),
    "plain": Side("lightning_fit.py", ("torch", "lightning")),
    "sink": Side("lightning_fit.py", ("torch", "lightning", "lightning_sink"), many=True),
    "jax": Side("jax_scan.py", ("jax",), many=True),
    "jax-step": Side("jax_scan.py", ("jax",)),
    "keras": Side("keras_fit.py", ("keras", "jax"), many=True),
    "mindspore": Side("mindspore_train.py", ("mindspore",)),
}


class NoFigureError(Exception):
    """A side has no figure for a row; the text says why."""


def absent(side: str, python: str) -> str | None:
    """What the side's interpreter lacks, in words, if anything."""
    names = SIDES[side].packages
    find = f"import importlib.util as u; print(*(n for n in {names!r} if u.find_spec(n) is None))"
    try:
        done = subprocess.run([python, "-c", find], capture_output=True, text=True)
    except OSError as error:
        return f"{side}: {Path(python).name} does not run ({error.strerror}); skipped"
    if done.returncode != 0:
        return f"{side}: {Path(python).name} does not run; skipped"
    if lacking := done.stdout.split():
        return f"{side}: {', '.join(lacking)} not installed in {Path(python).name}; skipped"
    return None


def reason(stderr: str) -> str:
    """The line of a traceback that names the error, without the paths of this machine."""
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    named = [line for line in lines if re.match(r"[\w.]*(Error|Exception|Interrupt|Exit)\b", line)]
    chosen = (named or lines or ["it ended without a word"])[-1]
    return re.sub(r"/[^\s:)]*/([^\s/:)]+)", r"\1", chosen)[:300]


def measure(job: Job, python: str, cache: Path, seconds: float) -> Result:
    """Runs one job in a process of its own, its output (where progress bars go) sent away.

    Raises:
        NoFigureError: The side lacks the model, it ended in what is no number, or its process failed or took longer
            than `seconds`.
    """
    environment = os.environ | {"TORCHINDUCTOR_CACHE_DIR": str(cache)}
    if job.accelerator == "cpu":
        environment["JAX_PLATFORMS"] = "cpu"
    with tempfile.TemporaryDirectory() as folder:
        told, found = Path(folder, "job.json"), Path(folder, "result.json")
        told.write_text(json.dumps(asdict(job) | {"result": str(found)}))
        command = [python, str(PEERS / SIDES[job.side].script), str(told)]
        try:
            done = subprocess.run(
                command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, timeout=seconds
            )
        except subprocess.TimeoutExpired:
            raise NoFigureError(f"took longer than {seconds:,.0f} s") from None
        if done.returncode != 0 or not found.exists():
            print(*done.stderr.splitlines()[-SHOWN:], sep="\n", flush=True)
            raise NoFigureError(f"failed: {reason(done.stderr)}")
        result = json.loads(found.read_text())
    if "lacks" in result:
        raise NoFigureError(result["lacks"])
    if not math.isfinite(result["loss"]):
        raise NoFigureError(f"ended with a loss of {result['loss']}")
    return Result(**result)
