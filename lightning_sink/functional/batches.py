"""Batches as arguments of a step function, and what these must look like."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor


def as_arguments(batch: Any) -> tuple[Any, ...]:
    """Returns what a step function is called with: the parts of a tuple or list, or the batch itself."""
    return tuple(batch) if isinstance(batch, (tuple, list)) and not hasattr(batch, "_fields") else (batch,)


class Signature:
    """The shapes and types that a step function's arguments must have.

    Args:
        given: For each argument a tensor, whose shape and type count, or a pair of a shape and a dtype; None in a shape
            for any length.
        function: The step function, whose parameters name the arguments.

    Raises:
        TypeError: For anything else.
    """

    def __init__(self, given: Any, function: Callable[..., Any]) -> None:
        items = [given] if isinstance(given, Tensor) or _is_pair(given) else given
        if not isinstance(items, Sequence) or not all(isinstance(item, Tensor) or _is_pair(item) for item in items):
            raise TypeError(
                "`data_sink(input_signature=...)` takes for each argument a tensor, or a pair of its shape and dtype,"
                f" as `((32, 784), torch.float32)`; got {given!r}."
            )
        self._fields = [
            (tuple(item.shape), item.dtype) if isinstance(item, Tensor) else (tuple(item[0]), item[1]) for item in items
        ]
        self._names = _names(function, len(self._fields))

    def check(self, arguments: tuple[Any, ...], place: str) -> None:
        """Compares a batch with it.

        Raises:
            ValueError: Names the argument, the batch, and what was expected.
        """
        if len(arguments) != len(self._fields):
            raise ValueError(
                f"{place} has {len(arguments)} parts, and `input_signature` names {len(self._fields)}"
                f" ({', '.join(self._names)})."
            )
        for name, (shape, dtype), value in zip(self._names, self._fields, arguments, strict=True):
            found = (tuple(value.shape), value.dtype) if isinstance(value, Tensor) else None
            if found is None or found[1] != dtype or not _fits(found[0], shape):
                got = repr(value) if found is None else _words(*found)
                raise ValueError(f"`{name}` of {place} is {got}; `input_signature` says {_words(shape, dtype)}.")


def _is_pair(item: Any) -> bool:
    return (
        isinstance(item, (tuple, list))
        and len(item) == 2
        and isinstance(item[1], torch.dtype)
        and isinstance(item[0], (tuple, list))
        and all(size is None or (isinstance(size, int) and size >= 0) for size in item[0])
    )


def _fits(found: tuple[int, ...], shape: tuple[int | None, ...]) -> bool:
    return len(found) == len(shape) and all(b is None or a == b for a, b in zip(found, shape, strict=True))


def _words(shape: tuple[int | None, ...], dtype: torch.dtype) -> str:
    return f"{dtype} of shape ({', '.join('any' if size is None else str(size) for size in shape)})"


def _names(function: Callable[..., Any], count: int) -> list[str]:
    """Returns the names of the first parameters; numbers where there are no names."""
    names: list[str] = []
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    with suppress(TypeError, ValueError):  # written in C
        parameters = inspect.signature(function).parameters.values()
        names = [parameter.name for parameter in parameters if parameter.kind in kinds]
    return [names[index] if index < len(names) else f"argument {index}" for index in range(count)]
