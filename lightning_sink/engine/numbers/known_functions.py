"""Functions of one number, of `math` and numpy, which a program computes by functions of torch's."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

_MOST_OF_EXP = 709.0
"""Up to which `math.exp` does not overflow, within one."""

DOMAINS: dict[str, Callable[[Tensor], Tensor] | None] = {
    **dict.fromkeys(("tanh", "atan", "fabs"), None),
    **dict.fromkeys(("cos", "sin", "tan"), torch.isfinite),
    **dict.fromkeys(("log", "log2", "log10"), lambda x: x > 0),
    "log1p": lambda x: x > -1,
    "sqrt": lambda x: x >= 0,
    "exp": lambda x: x < _MOST_OF_EXP,
    **dict.fromkeys(("cosh", "sinh"), lambda x: x.abs() < _MOST_OF_EXP),
}
"""Where Python raises no error (`math.sqrt(-1)`), and torch gives no NaN or infinity in its place; None: anywhere."""

FUNCTIONS = {name: getattr(torch, "abs" if name == "fabs" else name) for name in DOMAINS}
"""The same of tensors."""

TRUTHS = {name: getattr(torch, name) for name in ("isnan", "isinf", "isfinite")}
"""What `math` and numpy tell of a number."""
