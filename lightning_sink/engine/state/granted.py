"""What programs take for granted: all that is Python about a training, and must not change while they are run."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from types import CodeType, FunctionType, MappingProxyType
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from lightning_sink.engine.private import global_hooks, names_within, own_modules, own_tensors
from lightning_sink.engine.state.attributes import MOST_VALUES, are_the_same, changed_names, is_a, nested
from lightning_sink.engine.state.closures import Variables, find_functions, kept_results, outside_state
from lightning_sink.engine.state.holders import python_state, users_classes
from lightning_sink.engine.state.hyper import Hyperparameters
from lightning_sink.engine.state.slots import Parts, place_of
from lightning_sink.whose import is_users, module_of

_FEW = 1_000
"""Values outside up to which a step is looked at beforehand for a change of them; 300 microseconds."""


def _switches(device: str) -> Hashable:
    """What of torch's global settings a step may depend on that computes on such a device."""
    autocast = [(torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)) for kind in ("cpu", device)]
    deterministic = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    default = torch.get_default_dtype(), torch.get_float32_matmul_precision()
    return *autocast, deterministic, default, torch.is_grad_enabled(), torch.is_anomaly_enabled()


Glance = tuple[list[Any], list[Hashable]]
"""What a look found: objects, which are compared by identity, and values."""


def agree(one: Glance, other: Glance) -> bool:
    """Tells whether two looks found the same: nothing was put in the place of something else."""
    return one[1] == other[1] and are_the_same(one[0], other[0])


class State(NamedTuple):
    """All that programs take for granted at one moment.

    Attributes:
        training: Which modules train.
        gradients: Which parameters ask for gradients.
        python: What is Python's, by the names that users know it by.
        switches: Of torch's global settings those that a step depends on.
        hooks: Hooks and modes of the user's that are asked in every step.
        constants: The optimizers' options that are no inputs.
        varying: The names of what may change, and no program that is made then depends on it.
    """

    training: tuple[bool, ...]
    gradients: tuple[bool, ...]
    python: dict[str, Hashable]
    switches: Hashable
    hooks: tuple[Any, ...]
    constants: tuple[Any, ...]
    varying: frozenset[str]

    def knowing(self, learned: dict[str, Hashable]) -> State:
        """Returns it with values that were not looked at by then."""
        return self._replace(python={**self.python, **learned}) if learned else self


def while_recorded(looks: Sequence[State]) -> State:
    """Returns what a recorded step takes for granted: what was there before code that is none of it changed something.

    Args:
        looks: At the start of each span, at its end, and behind the step.
    """
    last = looks[-1]
    for left, found in zip(looks[1::2], looks[2::2], strict=True):
        kept = found._replace(training=left.training, gradients=left.gradients, python=left.python)
        if kept != found:
            return kept._replace(switches=last.switches, hooks=last.hooks, constants=last.constants)
    return last


def _count(looks: Iterable[Hashable]) -> int:
    return sum(_count(look) if isinstance(look, tuple) else 1 for look in looks)


class _Beside:
    """What a dictionary holds beside the numbers that steps carry in it."""

    def __init__(self, table: dict[Any, Any], carried: Collection[Any]) -> None:
        self._table, self._carried = table, carried

    def __iter__(self) -> Iterator[Any]:
        for key, value in self._table.items():
            yield key
            if key not in self._carried:
                yield value


class Granted:
    """Looks at attributes, and at the variables outside the functions that steps were seen to call."""

    def __init__(self, parts: Parts, hyper: Hyperparameters) -> None:
        self._parts, self._hyper = parts, hyper
        self._module, self._optimizers = parts.module, parts.optimizers
        self._codes: dict[int, CodeType] = {}
        self._look_outside = parts.outside(())
        self._nested: list[Iterable[Any]] = []
        self._variables = Variables()
        self._finds_outside = False
        self._functions: list[FunctionType] = []
        self._learned: dict[str, Hashable] = {}

    def learn(self, codes: Mapping[int, CodeType]) -> None:
        """Looks from now on at the functions with these codes, by identity, too."""
        new = {key: code for key, code in codes.items() if key not in self._codes}
        if new:
            known = self._outside_values()
            self._codes |= new
            self._functions += find_functions(new.values())
            classes = users_classes(holder for _, holder in self._parts.holders())
            kept = kept_results(self._functions, classes)
            self._functions += kept
            self._codes |= {id(function.__code__): function.__code__ for function in kept}
            self._look_outside = self._parts.outside(self._codes.values())
            self._learned |= {name: value for name, value in self._outside_values().items() if name not in known}

    def take_learned(self) -> dict[str, Hashable]:
        """Returns what is looked at since the last call, as it was then: to be looked at is no change of it."""
        learned, self._learned = self._learned, {}
        return learned

    def _outside_values(self) -> dict[str, Hashable]:
        return {**outside_state(self._functions, self._parts), **self._look_outside()}

    def python(self) -> dict[str, Hashable]:
        """Returns a fingerprint of the Python values, by the names that users know them by."""
        return {**python_state(self._parts), **self._outside_values()}

    def glance(self, replaced: Iterable[Tensor] = ()) -> Glance:
        """Takes a look that is cheap enough for each step: at who is held where; at values only behind the trainer.

        `replaced` are tensors in places where each step puts others, which programs look for anew.
        """
        held: list[Any] = []
        for prefix, holder in self._parts.holders():
            free = self._parts.collected.sums(holder) | self._parts.carried.names(holder)
            free |= self._parts.varying.keys(prefix)
            held += [type(value) if name in free else value for name, value in vars(holder).items()]
        held += self._variables.values()
        held += chain.from_iterable(self._nested)
        for optimizer in self._optimizers:
            counts = self._parts.optimizer_counts.names(optimizer)
            for kept in optimizer.state.values():
                if counts and isinstance(kept, dict):
                    held += [type(value) if key in counts else value for key, value in kept.items()]
                else:
                    held += kept.values() if isinstance(kept, dict) else [kept]
        if others := {id(tensor) for tensor in replaced}:
            held = [Tensor if id(item) in others else item for item in held]
        modules = [*self._module.modules()]
        held += [child for module in modules for _, child in own_modules(module)]
        tensors = self._tensors(modules)
        outside = tuple(self._look_outside().items()) if self._finds_outside else ()
        asks = [tensor.requires_grad for tensor in tensors]
        return [*held, *tensors], [outside, *map(names_within, modules), *map(place_of, tensors), *asks]

    def find_containers(self) -> None:
        """Finds what the next glances look into."""
        values: list[Any] = []
        beside: list[Iterable[Any]] = []
        for prefix, holder in self._parts.holders():
            left_out = self._parts.left_out(holder) | self._parts.collected.names(holder)
            left_out |= self._parts.varying.keys(prefix)
            carried = self._parts.carried.items(holder)
            beside += [_Beside(vars(holder)[name], items) for name, items in carried.items() if name not in left_out]
            values += [value for name, value in vars(holder).items() if name not in left_out and name not in carried]
        values += chain.from_iterable(beside)
        tensors = [*self._module.parameters(), *self._module.buffers()]
        values += [held for tensor in tensors if (held := vars(tensor))]
        known = {*map(id, (*self._parts.schedulers(), *self._parts.others)), *self._parts.collected.in_tables()}
        hold = [*nested(values, known=known), *self._outside_containers(known)]
        self._nested = [*beside, *hold, *(dict.values(content) for content in hold if isinstance(content, dict))]
        self._nested += [content.values() for content in hold if isinstance(content, MappingProxyType)]
        self._finds_outside = 0 < _count(self._look_outside().values()) <= _FEW

    def _outside_containers(self, known: Collection[int]) -> Iterable[Any]:
        """Returns what the functions of steps, and the classes of the user's, lead to."""
        self._variables = Variables(self._functions)
        variables, inside = self._variables.values(), set(self._module.modules())
        modules = [value for value in variables if is_a(value, nn.Module) and value not in inside]
        kinds = [value for value in variables if is_a(value, type) and is_users(module_of(value))]
        kinds += users_classes(holder for _, holder in self._parts.holders())
        scopes = [*self._variables.attributes, *map(vars, kinds)]
        scopes += [vars(part) for module in modules for part in module.modules()]
        found = {id(scope): scope for scope in scopes}
        for value in (*variables, *(value for scope in scopes for value in scope.values())):
            # More may be a dataset, say, that would be gone through at each step.
            found |= {id(content): content for content in nested([value], MOST_VALUES, known)}
        return found.values()

    def state(self) -> State:
        """Returns what is equal as long as the programs made now are right."""
        modules = list(self._module.modules())
        training = tuple([module.training for module in modules])
        gradients = tuple([tensor.requires_grad for tensor in self._tensors(modules)])
        switches = _switches(self._parts.device.type)
        varying = frozenset(self._parts.varying.names)
        return State(training, gradients, self.python(), switches, global_hooks(), self._hyper.constants(), varying)

    def _tensors(self, modules: Iterable[nn.Module]) -> list[Tensor]:
        groups = (group["params"] for optimizer in self._optimizers for group in optimizer.param_groups)
        return [*own_tensors(modules), *chain.from_iterable(groups)]

    def changed_in(self, state: State, before: State | None) -> list[str] | None:
        """Returns the names of what differs from the state before, as far as it has any; None if all is as it was.

        What changes and no program depends on counts as what it was.
        """
        if before is None:
            return []
        before = before._replace(varying=state.varying)
        if state == before:
            return None
        old, new, cover = before.python, state.python, self._parts.varying.cover
        changed = [name for name in changed_names(old, new) if not cover(name, old.get(name), new.get(name))]
        if not changed and state == before._replace(python=new):
            return None
        return [*changed, *dict.fromkeys(self._changed_flags(state, before))]

    def is_again(self, state: State, before: State) -> bool:
        """Tells whether all is again what programs take for granted that were made before something else was there.

        What was seen to change since then, they take for granted, too.
        """
        changed = changed_names(before.python, state.python)
        return before.varying.issuperset(changed) and self.changed_in(state, before) is None

    def _changed_flags(self, state: State, before: State) -> Iterator[str]:
        modules = dict(self._module.named_modules())
        held = (*self._module.named_parameters(), *self._module.named_buffers())
        names = {id(tensor): f"{name}." for name, tensor in held}
        tensors = [names.get(id(tensor), "a parameter's ") for tensor in self._tensors(modules.values())]
        looks = (
            ("training", [f"{name}." if name else "" for name in modules], before.training, state.training),
            ("requires_grad", tensors, before.gradients, state.gradients),
        )
        for flag, owners, old, new in looks:
            if len(owners) == len(old) == len(new):
                yield from (
                    f"{owner}{flag}" for owner, one, other in zip(owners, old, new, strict=True) if one != other
                )

    def forget(self) -> None:
        """Lets go of the functions, and of what they see."""
        self._codes.clear()
        self._functions.clear()
        self._learned.clear()
        self._nested.clear()
        self._variables = Variables()
