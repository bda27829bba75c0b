"""Learning-rate schedulers between steps: their state, and whether code of the user's runs in them that does more.

Such code may look at tensors that the step before it left, and may change what programs take for granted. Schedulers
that only compute, torch's and those of the user's, do neither; nor does a function of the step's number alone
(`lambda step: step / warmup`).
"""

from __future__ import annotations

import dis
from collections.abc import Callable, Collection, Iterable, Iterator
from copy import copy
from functools import lru_cache
from types import FunctionType
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from lightning_sink.engine.source import codes_in
from lightning_sink.engine.state.arithmetic import does_more_at, is_arithmetic
from lightning_sink.engine.state.attributes import is_a
from lightning_sink.held import held_by

_FUNCTIONS = ("lr_lambdas", "_scale_fn_ref", "_scale_fn_custom", "_anneal_func")
_INNER = "_schedulers"

_METHODS = ("step", "get_lr", "_get_closed_form_lr", "_update_lr")
"""What runs in a step of a scheduler's."""

_NOT_OUR_OWN = ("state_dict", "load_state_dict", "__setattr__", "__getattribute__", "__getattr__", "__slots__")
"""What decides how its state is kept, and put back."""

_OPTIONS = frozenset(["lr", "initial_lr", "max_lr", "min_lr", "swa_lr", "momentum", "betas"])
_OPTIONS |= {"base_momentum", "max_momentum"}
"""What torch's own set in optimizers' groups."""

_MOST_ITEMS, _DEEPEST = 100, 3
"""Containers that are looked into for schedulers."""


def schedulers_in(value: Any, depth: int = _DEEPEST) -> Iterator[LRScheduler]:
    """Yields a scheduler, or those in a container."""
    if is_a(value, LRScheduler):
        yield value
    elif depth and type(value) in (dict, list, tuple) and len(value) <= _MOST_ITEMS:
        for item in value.values() if type(value) is dict else value:
            yield from schedulers_in(item, depth - 1)


def functions_of(scheduler: Any) -> list[Any]:
    """Returns the functions by which a scheduler of torch's computes."""
    found: list[Any] = []
    for name in _FUNCTIONS:
        given = held_by(scheduler).get(name)
        found += given if isinstance(given, list) else [given]
    return [item for item in found if item is not None and type(item) not in (int, float, str)]


def with_inner(scheduler: Any) -> list[Any]:
    """Returns a scheduler and those that it steps itself."""
    found = {id(scheduler): scheduler}
    left = [scheduler]
    while left:
        inner = held_by(left.pop()).get(_INNER)
        new = [each for each in schedulers_in(inner) if id(each) not in found]
        found |= {id(each): each for each in new}
        left += new
    return [*found.values()]


_SELDOM = frozenset(["T_cur", "T_i", "best", "num_bad_epochs", "cooldown_counter"])
"""What torch's own schedulers set in a step, besides what they set in each."""


@lru_cache(maxsize=256)
def set_by(kind: type) -> frozenset[str]:
    """Returns the names of attributes that a scheduler's steps set, now and then or in each."""
    users = [base for base in kind.__mro__[:-1] if not base.__module__.startswith("torch.optim")]
    methods = {name: item for base in users[::-1] for name, item in vars(base).items() if is_a(item, FunctionType)}
    found, left, met = {*_SELDOM}, [*_METHODS], {*_METHODS}
    while left:
        item = methods.get(left.pop())
        for code in codes_in(item.__code__) if item is not None else ():
            found |= {each.argval for each in dis.get_instructions(code) if each.opname == "STORE_ATTR"}
            left += {*code.co_names} - met
            met |= {*code.co_names}
    return frozenset(found)


def options_set_by(schedulers: Iterable[Any]) -> frozenset[str] | None:
    """Returns the names of the optimizers' options that schedulers may set; None for any."""
    inner = (each for scheduler in schedulers for each in with_inner(scheduler))
    is_known = all(is_a(each, LRScheduler) and is_torchs(each) for each in inner)
    return _OPTIONS if is_known else None


def may_set(names: Collection[str], schedulers: Iterable[Any]) -> bool:
    """Tells whether schedulers may set options of these names."""
    options = options_set_by(schedulers)
    return options is None or not options.isdisjoint(names)


def is_torchs(scheduler: Any) -> bool:
    """Tells whether a scheduler's class is one of torch's own."""
    return type(scheduler).__module__.startswith("torch.optim")


def keep_schedulers(
    schedulers: Iterable[Any], optimizers: Iterable[Optimizer], names: Collection[str] | None = None
) -> Callable[[], None]:
    """Returns what puts schedulers, and the optimizers' options of some names, or all, back to where they are now."""
    states = [(scheduler, _state(scheduler.state_dict())) for scheduler in schedulers]

    def is_kept(key: str) -> bool:
        return names is None or key in names

    held_in = [group for optimizer in optimizers for group in optimizer.param_groups]
    groups = [(group, {key: value for key, value in group.items() if is_kept(key)}) for group in held_in]
    held = (value for _, options in groups for value in options.values() if isinstance(value, Tensor))
    filled = [(tensor, tensor.detach().clone()) for tensor in held]  # schedulers fill a rate that is a tensor

    def restore() -> None:
        for scheduler, state in states:
            scheduler.load_state_dict(state)
        for group, options in groups:
            for key in filter(is_kept, group.keys() - options.keys()):
                del group[key]
            group.update(options)
        for tensor, value in filled:
            tensor.detach().copy_(value)

    return restore


def _state(state: dict[str, Any]) -> dict[str, Any]:
    """Returns a scheduler's state with containers of its own, and so for those that it steps: code may fill them."""
    found = {key: copy(value) if type(value) in (dict, list) else value for key, value in state.items()}
    if _INNER in found:
        found[_INNER] = [_state(inner) for inner in found[_INNER]]
    return found


def only_computes(scheduler: Any, module: nn.Module | None = None) -> bool:
    """Tells whether stepping a scheduler is arithmetic, and runs no code of the user's that may look further.

    Steps may fill the containers that the module has.
    """
    users = [kind for kind in type(scheduler).__mro__[:-1] if not kind.__module__.startswith("torch.optim")]
    if (users and not isinstance(scheduler, LRScheduler)) or "step" in vars(scheduler):
        return False
    if any(name in vars(kind) for kind in users for name in _NOT_OUR_OWN):
        return False
    inner = vars(scheduler).get(_INNER, [])
    is_known = all(is_arithmetic(*each) for each in _run_by(scheduler, module))
    return is_known and all(only_computes(each, module) for each in inner)


def does_more(scheduler: Any, module: nn.Module | None = None) -> str:
    """Returns file and line of what has a scheduler's step be more than arithmetic; "" where no line has."""
    run = (each for part in with_inner(scheduler) for each in _run_by(part, module))
    return next((line for each in run if (line := does_more_at(*each))), "")


def _run_by(scheduler: Any, module: nn.Module | None) -> Iterator[tuple[Any, ...]]:
    """Yields the user's functions that a scheduler's step runs, each with what else `is_arithmetic` takes."""
    users = [kind for kind in type(scheduler).__mro__[:-1] if not kind.__module__.startswith("torch.optim")]
    parts = [] if module is None or not users else [module, *module.children()]
    filled = {id(value) for part in parts for value in vars(part).values() if type(value) in (dict, list)}
    for kind in users:
        yield from ((vars(kind)[name], scheduler, filled) for name in _METHODS if name in vars(kind))
    yield from ((function,) for function in functions_of(scheduler))
