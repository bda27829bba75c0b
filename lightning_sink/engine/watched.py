"""An integer that tells when it is used: what a step may be called with, but no program may depend on (`batch_idx`)."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any


class Watched:
    """An integer that changes with every step and tells when it is used.

    It is no subclass of `int` on purpose: C code reads the value of such a subclass without a word. `isinstance(x,
    int)` holds all the same.

    Args:
        value: The value.
        read: Called at every use.
    """

    def __init__(self, value: int, read: Callable[[], None]) -> None:
        self._value = value
        self._read = read

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        return int

    def _reveal(self) -> int:
        self._read()
        return self._value

    def __getattr__(self, name: str) -> Any:
        return getattr(self._reveal(), name)

    def __format__(self, spec: str) -> str:
        return format(self._reveal(), spec)

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        return int, (self._reveal(),)

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Gives the plain integer to a tensor operation."""
        return func(*revealed(args), **revealed(kwargs or {}))


def revealed(value: Any) -> Any:
    """Returns a value with the plain integer in every place of a `Watched`."""
    if type(value) is Watched:
        return value._reveal()
    if type(value) in (tuple, list):
        return type(value)(revealed(item) for item in value)
    return {key: revealed(item) for key, item in value.items()} if type(value) is dict else value


def _unary(function: Callable[[Any], Any]) -> Callable[[Watched], Any]:
    return lambda self: function(self._reveal())


def _binary(function: Callable[[Any, Any], Any], reflected: bool = False) -> Callable[[Watched, Any], Any]:
    def apply(self: Watched, other: Any) -> Any:
        other = other._reveal() if type(other) is Watched else other
        return function(other, self._reveal()) if reflected else function(self._reveal(), other)

    return apply


_UNARY: dict[str, Callable[[Any], Any]] = {
    "index": operator.index,
    "int": int,
    "float": float,
    "bool": bool,
    "hash": hash,
    "repr": repr,
    "str": str,
    "neg": operator.neg,
    "pos": operator.pos,
    "abs": abs,
    "invert": operator.invert,
    "round": round,
}
_BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "truediv": operator.truediv,
    "floordiv": operator.floordiv,
    "mod": operator.mod,
    "pow": operator.pow,
    "divmod": divmod,
    "lshift": operator.lshift,
    "rshift": operator.rshift,
    "and": operator.and_,
    "or": operator.or_,
    "xor": operator.xor,
}
for _name, _one in _UNARY.items():
    setattr(Watched, f"__{_name}__", _unary(_one))
for _name in ("eq", "ne", "lt", "le", "gt", "ge"):
    setattr(Watched, f"__{_name}__", _binary(getattr(operator, _name)))
for _name, _two in _BINARY.items():
    setattr(Watched, f"__{_name}__", _binary(_two))
    setattr(Watched, f"__r{_name}__", _binary(_two, reflected=True))
