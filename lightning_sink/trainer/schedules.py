"""Whether code of the user's runs when schedulers step in the middle of a sink.

Such code may look at tensors that the step before it left, and may change what programs take for granted. Schedulers of
torch's that only compute do neither, and a function of the step's number alone (`lambda step: step / warmup`) does not
either.
"""

from __future__ import annotations

import types
from functools import partial
from typing import Any

from lightning.pytorch.utilities.model_helpers import is_overridden

_SCALARS = (bool, int, float, complex, str, type(None))
_FUNCTIONS = ("lr_lambdas", "_scale_fn_ref", "_anneal_func")
_INNER = "_schedulers"


def steps_by_users_code(trainer: Any) -> bool:
    """Tells whether any scheduler that steps between two training steps runs code that may look further."""
    if not trainer.lr_scheduler_configs:
        return False
    if is_overridden("lr_scheduler_step", trainer.lightning_module):
        return True
    inner = [config.scheduler for config in trainer.lr_scheduler_configs if config.interval == "step"]
    return not all(map(_only_computes, inner))


def _only_computes(scheduler: Any) -> bool:
    if not type(scheduler).__module__.startswith("torch.optim"):
        return False
    functions: list[Any] = []
    for name in _FUNCTIONS:
        held = vars(scheduler).get(name)
        functions += held if isinstance(held, list) else [held]
    inner = vars(scheduler).get(_INNER, [])
    return all(map(_is_pure, functions)) and all(map(_only_computes, inner))


def _is_pure(function: Any) -> bool:
    """Tells whether a function knows nothing but numbers besides its arguments."""
    if isinstance(function, partial):
        given = (*function.args, *function.keywords.values())
        return all(isinstance(item, _SCALARS) for item in given) and _is_pure(function.func)
    if not isinstance(function, types.FunctionType):
        return function is None or getattr(type(function), "__module__", "") == "builtins"
    cells = [cell.cell_contents for cell in function.__closure__ or ()]
    names = (function.__globals__.get(name) for name in function.__code__.co_names)
    known = all(isinstance(item, (*_SCALARS, types.ModuleType, types.BuiltinFunctionType, type)) for item in names)
    return known and all(isinstance(item, _SCALARS) for item in cells)
