"""What programs take for granted: all that is Python about a training, and must not change while they are run."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Mapping
from dataclasses import dataclass, field
from types import CodeType, FunctionType
from typing import Any

import torch
from torch.optim import Optimizer

from lightning_sink.engine.attributes import TENSOR_HOLDERS, nested
from lightning_sink.engine.closures import find_functions, kept_results, outside_state
from lightning_sink.engine.holders import Seen, python_state, users_classes
from lightning_sink.engine.private import global_hooks, own_tensors
from lightning_sink.engine.slots import Parts, place_of

Outside = Callable[[Collection[CodeType]], Callable[[], dict[str, Hashable]]]


def _switches(device: str) -> Hashable:
    """What of torch's global settings a step may depend on that computes on such a device."""
    autocast = [(torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)) for kind in ("cpu", device)]
    deterministic = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    default = torch.get_default_dtype(), torch.get_float32_matmul_precision()
    return *autocast, deterministic, default, torch.is_grad_enabled(), torch.is_anomaly_enabled()


@dataclass
class Glance:
    """What a look found: the same again where nothing was put in the place of something else.

    Attributes:
        held: Objects, compared by identity.
        marks: Numbers.
    """

    held: list[Any] = field(default_factory=list)
    marks: list[int] = field(default_factory=list)

    def agrees(self, other: Glance) -> bool:
        """Tells whether another look found the same."""
        if len(self.held) != len(other.held) or self.marks != other.marks:
            return False
        return all(a is b for a, b in zip(self.held, other.held, strict=True))


class Granted:
    """Looks at attributes, and at the variables outside the functions that steps were seen to call.

    Args:
        parts: Whose attributes are looked at.
        optimizers: The optimizers.
        ignore: Attributes of the module that say nothing about a step.
        outside: Takes code; returns what looks at all that it reaches in a way that only the owner knows, and gives a
            fingerprint.
    """

    def __init__(
        self,
        parts: Parts,
        optimizers: list[Optimizer],
        ignore: frozenset[str],
        outside: Outside = lambda codes: dict,
    ) -> None:
        self._parts = parts
        self._module = parts.module
        self._optimizers = optimizers
        self._ignore = ignore
        self._outside = outside
        self._codes: dict[int, CodeType] = {}
        self._look_outside = outside(())
        self._nested: list[Any] = []
        self._functions: list[FunctionType] = []
        self._seen = Seen()

    def learn(self, codes: Mapping[int, CodeType]) -> None:
        """Looks from now on at the functions with these codes, by identity, too."""
        new = {key: code for key, code in codes.items() if key not in self._codes}
        if new:
            self._codes |= new
            self._functions += find_functions(new.values())
            classes = users_classes(holder for _, holder in self._parts.holders())
            kept = kept_results(self._functions, classes)
            self._functions += kept
            self._codes |= {id(function.__code__): function.__code__ for function in kept}
            self._look_outside = self._outside(self._codes.values())

    def python(self) -> dict[str, Hashable]:
        """Returns a fingerprint of the Python values, by the names that users know them by."""
        state = python_state(self._parts, self._optimizers, self._ignore, self._seen)
        return {**state, **outside_state(self._functions, self._module, self._optimizers), **self._look_outside()}

    def glance(self) -> Glance:
        """Takes a look that is cheap enough for each step: at what attributes hold, not at what is in that."""
        held = [value for _, holder in self._parts.holders() for value in vars(holder).values()]
        for content in self._nested:
            held += content.values() if isinstance(content, dict) else content
        for kept in (kept for optimizer in self._optimizers for kept in optimizer.state.values()):
            held += kept.values() if isinstance(kept, dict) else [kept]
        tensors = [*self._module.parameters(), *self._module.buffers()]
        for optimizer in self._optimizers:
            tensors += [parameter for group in optimizer.param_groups for parameter in group["params"]]
        pointers = map(place_of, tensors)
        return Glance([*held, *tensors], [*pointers, *(tensor.requires_grad for tensor in tensors)])

    def find_containers(self) -> None:
        """Finds what the next glances look into."""
        values: list[Any] = []
        for _, holder in self._parts.holders():
            left_out = TENSOR_HOLDERS | self._parts.lists.names(holder)
            values += [value for name, value in vars(holder).items() if name not in left_out]
        tensors = [*self._module.parameters(), *self._module.buffers()]
        values += [held for tensor in tensors if (held := vars(tensor))]
        self._nested = [content for value in values for content in nested(value)]

    def state(self) -> Hashable:
        """Returns something that is equal as long as the programs made now are right."""
        modules = list(self._module.modules())
        groups = (group["params"] for optimizer in self._optimizers for group in optimizer.param_groups)
        tensors = (*own_tensors(modules), *(parameter for group in groups for parameter in group))
        training = tuple([module.training for module in modules])
        gradients = tuple([tensor.requires_grad for tensor in tensors])
        return training, gradients, tuple(self.python().items()), _switches(self._parts.device.type), global_hooks()

    def forget(self) -> None:
        """Lets go of the functions, and of what was seen."""
        self._seen = Seen()
        self._codes.clear()
        self._functions.clear()
