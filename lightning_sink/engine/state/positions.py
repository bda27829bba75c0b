"""Where Python's and numpy's own generators stand, before a step and behind it.

What a generator gives depends on its state alone, so the host knows a step's numbers before the step: the same calls
give them on a generator of our own that stands where the step will find the process's. Where that stands is carried
from step to step as attributes are (`carried.py`). A `Stream` is one of the process's generators.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

from lightning_sink.engine.state.ahead import Left

_MACHINERY = frozenset(["getstate", "setstate"])
"""Methods of Python's generator that the profile hook sees; not all who call them are the user (`watch.py`)."""

_PLAIN = frozenset(["seed", "ranf", "sample"])
"""Functions of numpy's that are no methods of its generator."""


class Call(NamedTuple):
    """A call of a generator's method that gives one number."""

    name: str
    args: tuple[Any, ...]
    kwargs: tuple[tuple[str, Any], ...]

    def __str__(self) -> str:
        given = [*map(repr, self.args), *(f"{key}={value!r}" for key, value in self.kwargs)]
        return f"{self.name}({', '.join(given)})"

    def of(self, generator: Any) -> Any:
        """Makes it."""
        return getattr(generator, self.name)(*self.args, **dict(self.kwargs))


@dataclass(frozen=True, eq=False)
class Position:
    """Where a generator stands: in a state, or behind some calls that another position is before.

    To take a state out of numpy's generator, or to put one into it, takes as long as seventy draws.
    """

    state: Any = None
    before: Position | None = None
    calls: tuple[Call, ...] = ()


class Stream(Left):
    """One of the process's generators; its value is its position.

    Args:
        module: What has its methods as functions.
        generator: The generator.
        own: One of the same kind.
    """

    def __init__(self, module: Any, generator: Any, own: Any) -> None:
        super().__init__()
        self.module, self.generator, self._own = module, generator, own
        self._now: Position | None = None
        self._at: Position | None = None
        self._made: list[tuple[Call, Any]] = []

    @property
    def functions(self) -> dict[str, Any]:
        """Those of the module's functions that are its methods, or call some."""
        held = ((name, getattr(self.module, name)) for name in dir(self.module) if name not in _MACHINERY)
        return {n: item for n, item in held if n in _PLAIN or getattr(item, "__self__", None) is self.generator}

    def present(self) -> Position:
        """Returns its position."""
        return Position(_state(self.generator))

    def forget(self) -> None:
        """Somebody else may have drawn since it was last looked at."""
        self._now = None

    def found(self) -> Position:
        """Returns the position that the step finds which is about to run, or to be gone through."""
        if self.is_gone_through:
            return cast(Position, self._in_row)
        self._now = self._now or self.present()
        return self._now

    def begin_row(self, follows: bool) -> None:
        """Steps in a row are about to be gone through; they may come right behind those gone through last."""
        super().begin_row(follows)
        self._in_row = Position(self.state(self._in_row))  # and nothing before it, however long the sink is

    def put(self, position: Position) -> None:
        """Brings it to a position."""
        _put(self.generator, self.state(position))

    def draw(self, calls: tuple[Call, ...]) -> Any:
        """Returns what the last of some calls gives in the step that is about to run; makes those not made before."""
        position, made = self.found(), tuple(call for call, _ in self._made)
        both = min(len(made), len(calls))
        if self._at is not position or made[:both] != calls[:both]:
            self._stand(position)
        for call in calls[len(self._made) :]:
            self._at = None  # nobody knows where it stands if this is interrupted
            self._made.append((call, call.of(self._own)))
            self._at = position
        return self._made[len(calls) - 1][1]

    def behind(self, calls: tuple[Call, ...]) -> Position:
        """Returns where these calls of that step leave it."""
        return Position(before=self.found(), calls=calls)

    def state(self, position: Position) -> Any:
        """Returns the state that it has at a position."""
        if position.before is None:
            return position.state
        self._stand(position)
        return _state(self._own)

    def _stand(self, position: Position) -> None:
        """Brings our own generator to a position."""
        at, made, self._at = self._at, tuple(call for call, _ in self._made), None
        is_there = at is position and not made
        if not is_there and (at is None or at is not position.before or made != position.calls):
            way = [position]
            while (before := way[-1].before) is not None:
                way.append(before)
            _put(self._own, way[-1].state)
            for call in (call for step in reversed(way) for call in step.calls):
                call.of(self._own)
        self._at, self._made = position, []


def modules() -> list[Any]:
    """Returns the modules whose generators a step may draw from."""
    return [random, *([sys.modules["numpy"].random] if "numpy" in sys.modules else [])]


def random_state() -> Hashable:
    """Returns the state of Python's and, where it is loaded, numpy's global generator."""
    numpy = sys.modules.get("numpy")
    return random.getstate(), told_apart(None if numpy is None else numpy.random.get_state(legacy=False))


def told_apart(state: Any) -> Hashable:
    """Returns what is equal for two states of a generator of Python's or numpy's that give the same numbers."""
    if isinstance(state, dict):
        return tuple((key, told_apart(item)) for key, item in state.items())
    tobytes = getattr(state, "tobytes", None)
    return cast(Hashable, state if tobytes is None else tobytes())


def stream_of(module: Any) -> Stream | None:
    """Returns a module's generator; None where somebody has put something else there."""
    if module is random:
        generator = getattr(random.random, "__self__", None)
        return Stream(random, generator, random.Random()) if type(generator) is random.Random else None
    generator = getattr(module.rand, "__self__", None)
    is_known = type(generator) is module.RandomState and _state(generator)["bit_generator"] == "MT19937"
    return Stream(module, generator, module.RandomState(0)) if is_known else None


def _state(generator: Any) -> Any:
    return generator.getstate() if isinstance(generator, random.Random) else generator.get_state(legacy=False)


def _put(generator: Any, state: Any) -> None:
    (generator.setstate if isinstance(generator, random.Random) else generator.set_state)(state)
