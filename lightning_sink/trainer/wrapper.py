"""An object that is a datamodule in all that anybody looks at, and carries the options of the queue beside it.

Its class is derived from the datamodule's class, made when it is needed, and its `__dict__` is the datamodule's: hooks,
attributes, hyperparameters, the `trainer` and the name under which state is saved are found where they always are, and
nothing is defined here that Lightning could take for a hook. What the wrapper owns lies in slots outside of that
`__dict__`, so two wrappers of one datamodule share its state but not their options.

Only `self is datamodule` tells the two apart, and `type(self)`; `self.__class__` is the datamodule's class.
"""

from __future__ import annotations

import copy
from abc import ABCMeta
from types import MemberDescriptorType
from typing import Any, cast

from lightning.pytorch import LightningDataModule

from lightning_sink.data.options import QueueOptions


class Wrapped:
    """What the class of each wrapper has in front of the datamodule's class; `_class_for` adds the rest.

    Each name here hides the datamodule's own, so there are no more than are needed.
    """

    __slots__ = ()

    _sink_inner: LightningDataModule
    _sink_options: QueueOptions

    def __init_subclass__(cls, **options: Any) -> None:
        """Keeps from the datamodule's class that it is derived from: it may keep a list of such classes."""

    @property
    def queue_options(self) -> QueueOptions:
        """The options."""
        return self._sink_options

    def __repr__(self) -> str:
        changed = self._sink_options.changed()
        return f"SinkDataModule({type(self._sink_inner).__name__}{', ' if changed else ''}{changed})"

    # The class is not to be found by its name, so that a copy in another process makes its own.
    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        return wrap, (self._sink_inner, self._sink_options)

    def __copy__(self) -> Wrapped:
        return wrap(copy.copy(self._sink_inner), self._sink_options)

    def __deepcopy__(self, memo: dict[int, Any]) -> Wrapped:
        inner = copy.deepcopy(self._sink_inner, memo)
        # The datamodule may hold its wrapper, as the method of a loader that a hook has made; that was copied just now.
        copied = memo.get(id(self))
        return wrap(inner, self._sink_options) if copied is None else cast(Wrapped, copied)


def wrap(datamodule: LightningDataModule, options: QueueOptions) -> Wrapped:
    """Returns a wrapper of a datamodule, with options of its own."""
    wrapper: object = object.__new__(_class_for(type(datamodule)))
    # Past a `__setattr__` of the datamodule's class, which is not to see what is not its own.
    object.__setattr__(wrapper, "__dict__", datamodule.__dict__)
    object.__setattr__(wrapper, "_sink_inner", datamodule)
    object.__setattr__(wrapper, "_sink_options", options)
    return cast(Wrapped, wrapper)


def _class_for(kind: type[Any]) -> type[Any]:
    """Returns the class of the wrappers of datamodules of class `kind`.

    A class that is still in use is found among the subclasses; keeping it anywhere else would keep `kind` from being
    freed, too.
    """
    found: type[Any]
    for found in type.__subclasses__(kind):
        if found.__bases__[0] is Wrapped:
            return found
    names: dict[str, Any] = {
        "__slots__": ("_sink_inner", "_sink_options"),
        "__module__": kind.__module__,
        # Lightning saves state under the name in `__class__`. This one is what hides a class from the command line, for
        # which a name that two classes have is ambiguous.
        "__qualname__": f"_class_for.<locals>.{kind.__qualname__}",
        "__doc__": kind.__doc__,
        "__class__": property(lambda self: kind),
        "__new__": lambda cls, *args, **kwargs: kind(*args, **kwargs),  # `type(self)(...)` makes what it ever made
    }
    for base in reversed(kind.__mro__):
        slots = {name: item for name, item in vars(base).items() if isinstance(item, MemberDescriptorType)}
        names |= {name: _forwarded(item) for name, item in slots.items()}
    # What a metaclass does when a class is defined (to list it, say) has been done for `kind`. Only abstract classes
    # keep something for each class.
    meta: Any = ABCMeta if issubclass(type(kind), ABCMeta) else type
    return cast(type[Any], meta.__new__(type(kind), kind.__name__, (Wrapped, kind), names))


def _forwarded(slot: MemberDescriptorType) -> property:
    """Returns the attribute that stands for a slot of the datamodule's class, which is not in the `__dict__`."""
    return property(
        lambda self: slot.__get__(self._sink_inner),
        lambda self, value: slot.__set__(self._sink_inner, value),
        lambda self: slot.__delete__(self._sink_inner),
    )
