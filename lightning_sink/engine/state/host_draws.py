"""Numbers that steps draw from Python's and numpy's own generators: `np.random.beta(a, a)`, `random.random() < 0.5`.

`HostDraws` owns what the step draws that is being recorded. A number is an input of the program, or decides before the
step; for the steps of a program the host makes the same calls (`positions.py`). Functions that were imported by their
names (`from random import random`) are not seen, nor are generators of the user's own.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from threading import get_ident
from typing import Any

import torch
from torch import Tensor

from lightning_sink.engine.numbers.guards import Host, Uses
from lightning_sink.engine.numbers.number import Number
from lightning_sink.engine.numbers.released import released
from lightning_sink.engine.numbers.result_types import is_wide
from lightning_sink.engine.private import saves_by_hooks
from lightning_sink.engine.state.attributes import NUMBERS
from lightning_sink.engine.state.positions import Call, Position, Stream, modules, random_state, stream_of, told_apart
from lightning_sink.engine.state.referrers import is_held, put_in_place_of
from lightning_sink.engine.watch import DRAWN, unwatched

_MOST = 16
"""Numbers that a step draws at most."""

_OTHERWISE = f"{DRAWN}, otherwise than by up to {_MOST} calls in a step that take numbers and give one"


class _Function:
    """Stands for a function of a generator's while a step is recorded, and calls that behind it.

    Whoever is imported meanwhile (`from random import random`) may keep one.
    """

    def __init__(self, stream: Stream, name: str, function: Any, draw: Any) -> None:
        self.stream, self.name, self.function, self.draw = stream, name, function, draw

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self.draw is None:
            return self.function(*args, **kwargs)
        return self.draw(self.stream, self.name, self.function, args, kwargs)


def _put_in(functions: list[_Function]) -> None:
    for item in functions:
        setattr(item.stream.module, item.name, item)


def _take_out(functions: list[_Function]) -> None:
    for item in functions:
        setattr(item.stream.module, item.name, item.function)
        item.draw = None


def _let_go(functions: list[_Function]) -> None:
    """Has whoever keeps one keep the function itself."""
    while functions:
        owner = [functions.pop()]
        if is_held(owner):
            put_in_place_of(owner[0], owner[0].function)


class HostDraws:
    """The process's generators, and what is drawn of them in a recorded step, whose parts begin and end in turn."""

    def __init__(self) -> None:
        self._streams: list[Stream] = []
        self._tensors = [torch.zeros((), dtype=torch.float64) for _ in range(_MOST)]
        self._inputs: list[tuple[Tensor, Host]] = []
        self._calls: dict[Stream, list[Call]] = {}
        self._part: dict[Stream, tuple[Position, int]] = {}
        self._found: Hashable = None  # how all generators were where the present part of the step began
        self._left: Hashable = None  # and where the last part ended
        self._others_draw = False

    def forget(self) -> None:
        """A step is about to run; somebody else may have drawn behind the one before it."""
        for stream in self._streams:
            stream.forget()

    # -- one recording ------------------------------------------------------------------------------------------------

    def begin(self) -> list[Tensor]:
        """A step is about to be recorded; returns the tensors that may stand for what it draws."""
        found = (stream_of(module) for module in modules())  # which may have other ones by now
        known = {stream.generator: stream for stream in self._streams}
        self._streams = [known.get(stream.generator, stream) for stream in found if stream is not None]
        self._calls = {stream: [] for stream in self._streams}
        self._inputs, self._left, self._others_draw = [], None, False
        return self._tensors

    @contextmanager
    def watched(
        self,
        uses: Uses,
        hazard: Callable[[str], None],
        is_apart: Callable[[], bool],
        paused: Callable[[], AbstractContextManager[None]],
    ) -> Iterator[None]:
        """Sees what a part of the step draws, on this thread and not apart from the step."""
        self._part = {stream: (stream.present(), len(calls)) for stream, calls in self._calls.items()}
        self._found = random_state()
        self._others_draw |= self._left is not None and self._found != self._left
        thread = get_ident()

        def draw(stream: Stream, name: str, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            if get_ident() != thread:
                return function(*args, **kwargs)
            args, kwargs = released(args), released(kwargs)
            with unwatched():
                value = function(*args, **kwargs)
            if is_apart() or saves_by_hooks() or len(self._inputs) == _MOST or not _is_known(value, args, kwargs):
                hazard(_OTHERWISE)
                return value
            with paused():
                return self._number(stream, Call(name, args, (*kwargs.items(),)), value, uses)

        functions = [
            _Function(stream, name, function, draw)
            for stream in self._calls
            for name, function in stream.functions.items()
        ]
        try:
            _put_in(functions)
            yield
        finally:
            _take_out(functions)
            _let_go(functions)
            self._left = random_state()

    def _number(self, stream: Stream, call: Call, value: Any, uses: Uses) -> Number:
        """Returns what stands for a number that was drawn."""
        calls = self._calls[stream]
        calls.append(call)
        host, tensor = partial(stream.draw, (*calls,)), self._tensors[len(self._inputs)].fill_(value)
        name = len(self._inputs), f"`{stream.module.__name__}.{call}`"
        self._inputs.append((tensor, host))
        if type(value) is float:
            return Number(tensor, value, uses, name, host, counts=True)
        uses.decide((name, "is wide"), False, lambda: is_wide(host()))
        return Number(tensor, value, uses, name, host, counts=True, whole=tensor)

    def explains(self) -> bool:
        """Tells whether the part of the step that has ended has drawn what is known, and has done nothing else."""
        part = {stream: (found, (*self._calls[stream][count:],)) for stream, (found, count) in self._part.items()}
        # A step that seeds a generator and draws may leave it as it was.
        if self._found == self._left and not any(calls for _, calls in part.values()):
            return True
        behind = [(stream.state(Position(None, found, calls)), stream) for stream, (found, calls) in part.items()]
        are_there = all(told_apart(state) == told_apart(stream.present().state) for state, stream in behind)
        return are_there and len(behind) == len(modules())

    def put_back(self) -> None:
        """Puts the generators back to where the present part of the step began, which is to be run again."""
        for stream, (position, _) in self._part.items():
            stream.set(position)

    def left(self, hazard: Callable[[str], None]) -> list[tuple[Stream, Host, str]]:
        """Returns the generators that the recorded step draws from, with what gives the state behind, and a text."""
        drawn = {stream: (*calls,) for stream, calls in self._calls.items() if calls}
        if drawn and self._others_draw:
            hazard(f"{DRAWN} between parts of the step, too")
        return [(stream, partial(stream.behind, calls), f"draws {calls}") for stream, calls in drawn.items()]

    def inputs(self) -> list[tuple[Tensor, Host]]:
        """Returns the tensors that stand for what was drawn, with what gives their values before a step."""
        return self._inputs


def _is_known(value: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Tells whether a call gave one number, and its arguments are numbers."""
    are_plain = all(item is None or isinstance(item, (int, float)) for item in (*args, *kwargs.values()))
    return are_plain and type(value) in NUMBERS and not is_wide(value)
