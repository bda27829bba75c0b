"""Places that hold the tensors of a training: where a program's inputs live and where its outputs go.

A tensor that is written in place stays in its slot and needs nothing. A tensor that a step replaces (`p.grad` after
`zero_grad`, a metric's state, a hidden state kept in an attribute) is found by looking into every slot before and
after a recorded step; the program then reads the slot before each run and fills it after.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer


class Slot:
    """One place that holds a tensor or nothing.

    Args:
        name: What a user calls the place.
        owner: The mapping or list that holds it, or the parameter whose gradient it is.
        key: Its key in `owner`; None for a gradient.
    """

    def __init__(self, name: str, owner: Any, key: Any = None) -> None:
        self.name = name
        self._owner = owner
        self._key = key

    def __repr__(self) -> str:
        return f"Slot({self.name!r})"

    @property
    def is_gradient(self) -> bool:
        """Whether it holds a parameter's gradient."""
        return self._key is None

    def get(self) -> Tensor | None:
        """Returns the tensor that is there now."""
        if self._key is None:
            return self._owner.grad  # type: ignore[no-any-return]
        try:
            value = self._owner[self._key]
        except (KeyError, IndexError):
            return None
        return value if isinstance(value, Tensor) else None

    def set(self, tensor: Tensor | None) -> None:
        """Puts a tensor there."""
        if self._key is None:
            self._owner.grad = tensor
        else:
            self._owner[self._key] = tensor


class AttributeSlot(Slot):
    """An attribute of a module: a parameter, a buffer or a plain tensor."""

    def get(self) -> Tensor | None:
        """Returns the tensor that is there now."""
        value = getattr(self._owner, self._key, None)
        return value if isinstance(value, Tensor) else None

    def set(self, tensor: Tensor | None) -> None:
        """Puts a tensor there."""
        setattr(self._owner, self._key, tensor)


class TupleSlot(Slot):
    """A place inside a tuple, which is rebuilt when the place is filled."""

    def __init__(self, name: str, owner: Any, key: Any, index: int) -> None:
        super().__init__(name, owner, key)
        self._index = index

    def get(self) -> Tensor | None:
        """Returns the tensor that is there now."""
        items = self._owner.get(self._key)
        if not isinstance(items, tuple) or len(items) <= self._index:
            return None
        value = items[self._index]
        return value if isinstance(value, Tensor) else None

    def set(self, tensor: Tensor | None) -> None:
        """Puts a tensor there."""
        items = list(self._owner[self._key])
        items[self._index] = tensor
        self._owner[self._key] = tuple(items)


def find_slots(module: nn.Module, optimizers: Iterable[Optimizer]) -> dict[str, Slot]:
    """Returns every slot of a module and its optimizers by name, filled or not, each tensor once."""
    slots = [*_module_slots(module), *_optimizer_slots(module, optimizers)]
    return {slot.name: slot for slot in slots}


def _module_slots(module: nn.Module) -> Iterator[Slot]:
    for path, submodule in module.named_modules():
        prefix = f"{path}." if path else ""
        for named in (submodule.named_parameters, submodule.named_buffers):
            for name, _ in named(recurse=False):
                yield AttributeSlot(prefix + name, submodule, name)
        attributes = vars(submodule)
        for name, value in attributes.items():
            if isinstance(value, Tensor):
                yield AttributeSlot(prefix + name, submodule, name)
            elif type(value) is tuple:
                for index, item in enumerate(value):
                    if isinstance(item, Tensor):
                        yield TupleSlot(f"{prefix}{name}[{index}]", attributes, name, index)
            elif type(value) in (list, dict):
                for key, item in value.items() if type(value) is dict else enumerate(value):
                    if isinstance(item, Tensor):
                        yield Slot(f"{prefix}{name}[{key!r}]", value, key)


def _optimizer_slots(module: nn.Module, optimizers: Iterable[Optimizer]) -> Iterator[Slot]:
    names = {parameter: name for name, parameter in module.named_parameters()}
    for number, optimizer in enumerate(optimizers):
        for group_number, group in enumerate(optimizer.param_groups):
            for index, parameter in enumerate(group["params"]):
                names.setdefault(parameter, f"optimizer {number} group {group_number} parameter {index}")
                for key in optimizer.state.get(parameter, {}):
                    name = f"optimizer {number} state {key!r} of {names[parameter]}"
                    yield Slot(name, optimizer.state[parameter], key)
    for parameter, name in names.items():
        yield Slot(f"gradient of {name}", parameter)


class Snapshot:
    """What the slots of a training hold at one moment, to compare with later or to go back to.

    Going back restores which tensor is where; what is inside the tensors is not kept here.
    """

    def __init__(self, module: nn.Module, optimizers: list[Optimizer]) -> None:
        self._module = module
        self.slots = find_slots(module, optimizers)
        self.tensors = {name: slot.get() for name, slot in self.slots.items()}
        self.names = {id(tensor): name for name, tensor in self.tensors.items() if tensor is not None}
        self._optimizers = optimizers
        self._states = [{key: dict(value) for key, value in item.state.items()} for item in optimizers]

    def again(self) -> Snapshot:
        """Returns a snapshot of the same training as it is now."""
        return Snapshot(self._module, self._optimizers)

    def is_optimizer_state(self, tensor: Tensor) -> bool:
        """Tells whether an optimizer keeps the tensor in its state, now."""
        states = (state for optimizer in self._optimizers for state in optimizer.state.values())
        return any(value is tensor for state in states for value in state.values())

    def restore(self) -> None:
        """Puts every tensor back into its slot and forgets optimizer state that was made since."""
        for optimizer, states in zip(self._optimizers, self._states, strict=True):
            for key in list(optimizer.state):
                if key in states:
                    optimizer.state[key].clear()
                    optimizer.state[key].update(states[key])
                else:
                    del optimizer.state[key]
        for name, slot in self.slots.items():
            if slot.get() is not self.tensors[name]:
                slot.set(self.tensors[name])
