"""Learning-rate schedulers between steps: their state, and whether code of the user's runs in them.

Such code may look at tensors that the step before it left, and may change what programs take for granted. Schedulers of
torch's that only compute do neither, and a function of the step's number alone (`lambda step: step / warmup`) does not
either.
"""

from __future__ import annotations

import math
import types
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

_SCALARS = (bool, int, float, complex, str, type(None))
_FUNCTIONS = ("lr_lambdas", "_scale_fn_ref", "_anneal_func")
_INNER = "_schedulers"


def keep_schedulers(schedulers: Iterable[Any], optimizers: Iterable[Optimizer]) -> Callable[[], None]:
    """Returns what puts schedulers, and the optimizers' options, back to where they are now."""
    states = [(scheduler, dict(scheduler.state_dict())) for scheduler in schedulers]
    groups = [(group, dict(group)) for optimizer in optimizers for group in optimizer.param_groups]
    held = (value for _, options in groups for value in options.values() if isinstance(value, Tensor))
    filled = [(tensor, tensor.detach().clone()) for tensor in held]  # schedulers fill a rate that is a tensor

    def restore() -> None:
        for scheduler, state in states:
            scheduler.load_state_dict(state)
        for group, options in groups:
            group.update(options)
        for tensor, value in filled:
            tensor.detach().copy_(value)

    return restore


def only_computes(scheduler: Any) -> bool:
    """Tells whether stepping a scheduler is arithmetic, and runs no code of the user's that may look further."""
    if not type(scheduler).__module__.startswith("torch.optim") or "step" in vars(scheduler):
        return False
    functions: list[Any] = []
    for name in _FUNCTIONS:
        held = vars(scheduler).get(name)
        functions += held if isinstance(held, list) else [held]
    inner = vars(scheduler).get(_INNER, [])
    return all(map(_is_pure, functions)) and all(map(only_computes, inner))


def _only_computes_numbers(item: Any) -> bool:
    """Tells whether a function is one of C's that draws and reads nothing."""
    return isinstance(item, types.BuiltinFunctionType) and item.__module__ in ("builtins", "math")


def _is_pure(function: Any) -> bool:
    """Tells whether a function knows nothing but numbers besides its arguments."""
    if isinstance(function, partial):
        given = (*function.args, *function.keywords.values())
        return all(isinstance(item, _SCALARS) for item in given) and _is_pure(function.func)
    if not isinstance(function, types.FunctionType):
        return function is None or type(function) in (int, float, str) or _only_computes_numbers(function)
    cells = [cell.cell_contents for cell in function.__closure__ or ()]
    names = (function.__globals__.get(name) for name in function.__code__.co_names)
    known = all(isinstance(item, (*_SCALARS, type)) or item is math or _only_computes_numbers(item) for item in names)
    defaults = (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values())
    return known and all(isinstance(item, _SCALARS) for item in (*cells, *defaults))
