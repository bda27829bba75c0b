"""The form in which torch's optimizers compute: the plain one is recorded.

It is what a compiler fuses best, and the fused kernels cannot be taken apart.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.optim import SGD, Optimizer

PLAIN_FORM = {"foreach": False, "fused": False}
"""Asked for even where nothing is said: parameters on a GPU have another then."""


def plain_form(optimizer: Optimizer, group: dict[str, Any]) -> dict[str, bool]:
    """Returns the options that ask for it.

    SGD with Nesterov's momentum stays as it is: with lists it leaves other gradients than the plain form. So do
    optimizers that are none of torch's, whose forms need not be the same arithmetic.
    """
    if not any(kind is not Optimizer and kind.__module__.startswith("torch.") for kind in type(optimizer).__mro__):
        return {}
    if isinstance(optimizer, SGD) and group.get("nesterov") and not group.get("fused"):
        return {}
    return {key: value for key, value in PLAIN_FORM.items() if key in group}


def move_counts(optimizer: Optimizer, fused: list[dict[str, Any]]) -> None:
    """Puts step counts that the plain form made where the fused one makes them, beside their parameters."""
    for parameter in (parameter for group in fused for parameter in group["params"]):
        kept = optimizer.state.get(parameter, {})
        count = kept.get("step") if isinstance(kept, dict) else None
        if isinstance(count, Tensor) and count.device != parameter.device:
            kept["step"] = count.to(parameter.device)
