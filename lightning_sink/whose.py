"""Whose code something is: the user's, a library's of this stack, or Python's own."""

from __future__ import annotations

import os
import sys
from functools import lru_cache
from types import CodeType
from typing import Any

_LIBRARIES = frozenset(
    ["torch", "lightning", "pytorch_lightning", "lightning_sink", "lightning_utilities", "torchmetrics", "numpy"]
    + ["contextlib", "functools", "importlib", "threading", "abc", "typing_extensions", "packaging"]
    + ["pandas", "pyarrow"]
)

_STANDARD = os.path.dirname(os.__file__) + os.sep


def module_of(kind: type) -> str:
    """Returns the name of a class's module; "" where somebody has put there what is no name."""
    name: Any = kind.__module__
    return name if isinstance(name, str) else ""


@lru_cache(maxsize=4096)
def is_library(module: str) -> bool:
    """Tells whether a module belongs to a library of this stack."""
    return module.partition(".")[0] in _LIBRARIES and not module.startswith("lightning.pytorch.demos")


@lru_cache(maxsize=4096)
def is_users(module: str) -> bool:
    """Tells whether a module is neither of this stack's libraries nor of Python's own."""
    root = module.partition(".")[0]
    return not is_library(module) and (root == "__main__" or root not in sys.stdlib_module_names)


def is_pythons(code: CodeType) -> bool:
    """Tells whether some code is of the standard library."""
    file = code.co_filename
    inside = file[len(_STANDARD) :] if file.startswith(_STANDARD) else ""
    return file.startswith("<frozen ") or inside.partition(os.sep)[0].partition(".")[0] in sys.stdlib_module_names


def is_installed(code: CodeType) -> bool:
    """Tells whether some code is a package's that was installed beside the user's own, which may lie in Python's."""
    return any(f"{os.sep}{folder}{os.sep}" in code.co_filename for folder in ("site-packages", "dist-packages"))
