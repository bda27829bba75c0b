"""Python state that a step may read or write: a fingerprint of it, to compare before and after a step.

A program has every Python value of the recorded steps as a constant. So a step that changes such a value makes no
program, and a value that changes between sinks makes the programs before it stale. Looked at are the attributes of a
module, of its submodules and of the optimizers, hooks among them.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable
from functools import lru_cache
from operator import is_, itemgetter
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from lightning_sink.engine.attributes import CONTAINERS, SCALARS, TENSOR_HOLDERS, Same, fingerprint
from lightning_sink.engine.private import MODULE_HOOKS, tensor_hooks
from lightning_sink.engine.slots import Parts
from lightning_sink.engine.watch import is_library


class Seen:
    """What objects held when they were last looked at: what cannot have changed since is not looked at again.

    Of a hundred attributes of a small module, all but a few are numbers, or containers with nothing in them. It keeps
    alive what it has seen, and so lives as long as a training. Each look is to be made with the same names left out.
    """

    def __init__(self) -> None:
        self._holders: dict[int, _Held] = {}

    def attributes(
        self, prefix: str, holder: Any, left_out: Collection[str], known: Collection[int]
    ) -> dict[str, Hashable]:
        """Returns the fingerprints of what an object holds, by names that begin with `prefix`."""
        held = self._holders.get(id(holder))
        if held is None or not held.is_still(prefix, holder):
            held = self._holders[id(holder)] = _Held(prefix, holder, left_out)
        state = held.fixed.copy()
        for name, value in held.open:
            state[name] = fingerprint(value, in_slots=True, known=known)
        return state


class _Held:
    """What one object holds.

    Attributes:
        fixed: Fingerprints of what stays as it is while it is the same object, by name.
        open: Names and values of everything else.
    """

    def __init__(self, prefix: str, holder: Any, left_out: Collection[str]) -> None:
        held = {name: value for name, value in vars(holder).items() if name not in left_out}
        self.fixed: dict[str, Hashable] = {}
        self.open: list[tuple[str, Any]] = []
        self._prefix, self._holder, self._count = prefix, holder, len(vars(holder))
        self._get = itemgetter(*held) if len(held) > 1 else None  # of one name it would give no tuple
        self._values = tuple(held.values())
        self._empty: list[Any] = []
        for name, value in held.items():
            kind = type(value)
            is_empty = kind in CONTAINERS and not value and not getattr(value, "__dict__", None)
            if is_empty:
                self._empty.append(value)
            if is_empty or kind in SCALARS or isinstance(value, Tensor):
                self.fixed[prefix + name] = fingerprint(value, in_slots=True)
            else:
                self.open.append((prefix + name, value))

    def is_still(self, prefix: str, holder: Any) -> bool:
        """Tells whether it holds the same objects, and those that were empty still are."""
        held = vars(holder)
        if self._holder is not holder or self._prefix != prefix or len(held) != self._count or self._get is None:
            return False
        try:
            values = self._get(held)
        except KeyError:
            return False
        return all(map(is_, values, self._values)) and not any(self._empty)


def python_state(
    parts: Parts,
    optimizers: Collection[Optimizer] = (),
    ignore: frozenset[str] = frozenset(),
    seen: Seen | None = None,
) -> dict[str, Hashable]:
    """Returns a fingerprint of everything about a training that is no tensor.

    Args:
        parts: Whose attributes are looked at.
        optimizers: The optimizers.
        ignore: Names of the module's attributes to leave out.
        seen: What was seen in other looks at the same training; None where there are none.
    """
    state: dict[str, Hashable] = {f"{path}.__class__": Same(module) for path, module in parts.apart()}
    held = list(parts.holders())
    known = {id(holder) for _, holder in held}
    known |= {id(optimizer) for optimizer in optimizers}
    known |= {id(submodule) for _, module in parts.apart() for submodule in module.modules()}
    seen, of_module = seen or Seen(), TENSOR_HOLDERS | (ignore - MODULE_HOOKS)
    for kind in dict.fromkeys(kind for _, holder in held for kind in _users_classes(type(holder))):  # type: ignore[arg-type]
        state |= class_state(kind)
    for prefix, holder in held:
        state[f"{prefix}__class__"] = Same(holder), type(holder)
        state |= seen.attributes(prefix, holder, of_module if holder is parts.module else TENSOR_HOLDERS, known)
        parameters = holder.named_parameters(recurse=False) if isinstance(holder, nn.Module) else ()
        for name, parameter in parameters:
            if any(hooks := tensor_hooks(parameter)):
                state[f"hooks of {prefix}{name}"] = fingerprint(hooks)
            if vars(parameter):
                state[f"attributes of {prefix}{name}"] = fingerprint(vars(parameter))
    for number, optimizer in enumerate(optimizers):
        for name, value in vars(optimizer).items():
            if name not in ("state", "param_groups"):
                state[f"optimizer {number}.{name}"] = fingerprint(value)
        for index, kept in enumerate(optimizer.state.values()):
            state[f"optimizer {number} state {index}"] = fingerprint(kept, in_slots=True)
    return state


def class_state(kind: type) -> dict[str, Hashable]:
    """Returns a fingerprint of what a class of the user's holds: methods too, which users replace."""
    if is_library(kind.__module__):
        return {}
    return {
        f"{kind.__qualname__}.{name}": fingerprint(value)
        for name, value in vars(kind).items()
        if not name.startswith("__")
    }


@lru_cache(maxsize=256)
def _users_classes(kind: type) -> tuple[type, ...]:
    return tuple(base for base in kind.__mro__ if not is_library(base.__module__))
