"""One place that holds a tensor of a training: an attribute, an optimizer's state, an item of a container.

`slots.py` finds all of them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from copy import copy
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from lightning_sink.engine.state.attributes import DEEPEST_SLOTS, MOST_ABOVE_SLOTS, WITH_SLOTS, is_a


class Slot:
    """One place that holds a tensor or nothing: an attribute, a parameter's `grad` too. Subclasses are other places.

    Args:
        name: What a user calls the place.
        owner: The module or the parameter, or what else holds the tensor.
        key: Where in `owner`.
    """

    def __init__(self, name: str, owner: Any, key: Any) -> None:
        self.name, self._owner, self._key = name, owner, key

    def __repr__(self) -> str:
        return f"Slot({self.name!r})"

    @property
    def key(self) -> Any:
        """The name by which code asks for it: the attribute's."""
        return self._key

    @property
    def owner_id(self) -> int:
        """Identity of what holds the tensor."""
        return id(self._owner)

    @property
    def is_gradient(self) -> bool:
        """Whether it holds a parameter's gradient."""
        return isinstance(self._owner, Tensor)

    @property
    def is_set_unseen(self) -> bool:
        """Whether no function of Python's is called where somebody puts a tensor there."""
        return not isinstance(self._owner, nn.Module)

    @property
    def may_gather(self) -> bool:
        """Whether a backward pass may leave a gradient there, or has."""
        return self.is_gradient and (self._owner.requires_grad or self.get() is not None)

    def get(self) -> Tensor | None:
        """Returns the tensor that is there now."""
        value = getattr(self._owner, self._key, None)
        return value if isinstance(value, Tensor) else None

    def set(self, tensor: Tensor | None) -> None:
        """Puts a tensor there."""
        setattr(self._owner, self._key, tensor)


class Kept(Slot):
    """No place that anybody fills: a tensor that code keeps in a closure, and puts into places."""

    def get(self) -> Tensor | None:
        """Returns the tensor."""
        return self._owner if isinstance(self._owner, Tensor) else None


class StateSlot(Slot):
    """An entry of an optimizer's state, found anew at each look: users clear and replace the dictionaries.

    `path` is a parameter, or what else an optimizer keeps something for, and mostly a name.
    """

    def __init__(self, name: str, owner: Optimizer, *path: Any) -> None:
        super().__init__(name, owner, path[-1])
        self._within = path[:-1]

    def get(self) -> Tensor | None:
        """Returns the tensor that is there now."""
        held = self._owner.state
        for key in self._within:
            held = held.get(key, {})
        value = held.get(self._key) if isinstance(held, dict) else None
        return value if isinstance(value, Tensor) else None

    def set(self, tensor: Tensor | None) -> None:
        """Puts a tensor there."""
        held = self._owner.state
        for key in self._within:
            held = held[key]
        held[self._key] = tensor


class ItemSlot(Slot):
    """A place inside a list, dictionary or tuple that an attribute holds; users replace containers as a whole.

    Attributes:
        path: What leads from that to the tensor, through others.
        makes_anew: Of the containers on this path, whether steps put other ones there: somebody may keep the last.
    """

    def __init__(self, name: str, owner: Any, key: Any, path: tuple[Any, ...]) -> None:
        super().__init__(name, owner, key)
        self.path = path
        self.makes_anew: tuple[bool, ...] = ()

    def containers(self) -> list[Any]:
        """Returns the containers on the way to the tensor."""
        value, found = self._owner.get(self._key), list[Any]()
        for item in self.path:
            found.append(value)
            try:
                value = value[item]
            except (KeyError, IndexError, TypeError):
                break
        return found

    def get(self) -> Tensor | None:
        """Returns the tensor that is there now."""
        value = self._owner.get(self._key)
        for item in self.path:
            if type(value) not in WITH_SLOTS:
                return None
            try:
                value = value[item]
            except (KeyError, IndexError, TypeError):
                return None
        return value if isinstance(value, Tensor) else None

    def set(self, tensor: Tensor | None) -> None:
        """Puts a tensor there; a tuple is rebuilt."""
        self._owner[self._key] = _with(self._owner[self._key], self.path, tensor, self.makes_anew)


def _with(items: Any, path: tuple[Any, ...], tensor: Tensor | None, anew: tuple[bool, ...]) -> Any:
    """Returns a container with a tensor in its place: the same one, but for tuples and what is made anew."""
    if not path:
        return tensor
    first, *rest = path
    inner, is_new = _with(items[first], tuple(rest), tensor, anew[1:]), anew[:1] == (True,)
    if inner is items[first] and rest and not is_new:
        return items
    if isinstance(items, tuple):
        return (*items[:first], inner, *items[first + 1 :])
    items = copy(items) if is_new else items
    items[first] = inner
    return items


def places_in(value: Any, left_out: Collection[int], path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yields where there are tensors in a container, and in those that it holds."""
    if is_a(value, Tensor):
        yield path
    elif type(value) in WITH_SLOTS and len(path) < DEEPEST_SLOTS and id(value) not in left_out:
        for key, item in value.items() if type(value) is dict else enumerate(value):
            if len(value) <= MOST_ABOVE_SLOTS or is_a(item, Tensor):
                yield from places_in(item, left_out, (*path, key))
