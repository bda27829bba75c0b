"""What the owner does in the middle of a step, and does after it where a program runs the step.

For a program's steps to be the same, that must depend on nothing that the step goes on to change, and the step must not
compute with what comes of it. `Apart` looks after both while a step is recorded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from torch import Tensor

from lightning_sink.engine.operands import members
from lightning_sink.engine.private import WeakIdKeyDictionary, is_mutable, written_arguments
from lightning_sink.engine.state.default_generators import Generators
from lightning_sink.engine.state.slots import storages
from lightning_sink.engine.tracing.recording import Recording


class Apart:
    """Checks what is done apart from a step; tells its recording why no program may stand for it."""

    def __init__(self, recording: Recording, generators: Generators) -> None:
        self._recording, self._generators = recording, generators
        self._what: str | None = None
        self._given: frozenset[int] = frozenset()
        self._owned: frozenset[int] = frozenset()
        self._foreign: WeakIdKeyDictionary = WeakIdKeyDictionary()

    @contextmanager
    def entered(self, what: str, given: Sequence[Tensor], owned: Iterable[Tensor | None]) -> Iterator[None]:
        """Checks operations, which nobody records, until it is left.

        `given` are tensors that it gets from the step, `owned` such as belong to the training; `what` is for the user.
        """
        generated = self._generators.state()
        self._what, self._given, self._owned = what, _pointers(given), _pointers(owned)
        try:
            yield
        finally:
            self._what = None
        if self._generators.drew_since(generated):
            self._recording.hazard(f"{what} draws random numbers")

    def check(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Looks at an operation that is about to run; does nothing outside."""
        if self._what is None:
            return
        leaves = members(Tensor, (*args, *kwargs.values()))
        if _pointers(leaves) & (self._owned - self._given):
            self._recording.hazard(f"{self._what} depends on the training's state")
        if is_mutable(func) and _pointers(written_arguments(func, args, kwargs, Tensor)) & (self._given | self._owned):
            self._recording.hazard(f"{self._what} changes what it is given")

    def add(self, tensors: Iterable[Tensor], what: str, used: Callable[[], None]) -> None:
        """Takes note of tensors that no program has, and of what to say, and to do, should the step use one."""
        for tensor in tensors:
            self._foreign[tensor] = what, used

    def use(self, tensor: Tensor) -> None:
        """The step uses a tensor that it has not made."""
        if tensor in self._foreign:
            what, used = self._foreign[tensor]
            self._recording.hazard(what)
            used()


def _pointers(tensors: Iterable[Tensor | None]) -> frozenset[int]:
    return frozenset(pointer for pointer in storages(tensors) if pointer is not None)
