"""Numbers that optimizers keep in Python for each parameter: `state["step"] += 1`.

Most keep the same number for all. A program has one input for all that are the same, and works out on the host what the
step leaves, as for attributes (`carried.py`). `OptimizerCounts` knows the numbers that steps were seen to set, and
which of them are the same; a `Shared` is one number, with the parameters that it is kept for.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from lightning_sink.engine.numbers.guards import Host, Uses
from lightning_sink.engine.numbers.number import Number
from lightning_sink.engine.numbers.released import as_they_are
from lightning_sink.engine.numbers.result_types import exactly
from lightning_sink.engine.state.ahead import Left
from lightning_sink.engine.state.attributes import NUMBERS
from lightning_sink.engine.watch import CHANGES

_NONE = frozenset[Any]()

_MOST = 16
"""Different numbers under one key."""

_TOO_LARGE = 1 << 63
"""Whole numbers from here on are in no tensor."""


class Shared(Left):
    """One number that an optimizer keeps for some of its parameters, or all.

    Attributes:
        optimizer: The optimizer.
        key: Where the number is in each parameter's state.
        parameters: Those that it is kept for.
        name, words: What users call it; in text.
        tensor: What stands for it in programs.
    """

    def __init__(self, optimizer: Optimizer, number: int, key: Any, parameters: Sequence[Any]) -> None:
        super().__init__()
        self.optimizer, self.key, self.parameters = optimizer, key, parameters
        self.name = f"optimizer {number} state {key!r}"
        self.words = f"`{self.name}`"
        self.tensor = torch.zeros((), dtype=torch.float64)

    def places(self) -> list[dict[Any, Any]]:
        """Returns the states that have it; users replace these."""
        states = map(self.optimizer.state.get, self.parameters)
        return [state for state in states if isinstance(state, dict) and self.key in state]

    def values(self) -> list[Any]:
        """Returns what they have."""
        return [state[self.key] for state in self.places()]

    def present(self) -> Any:
        """Returns what it is."""
        return self.values()[0]

    def put(self, value: Any) -> None:
        """Sets it for all."""
        for state in self.places():
            state[self.key] = value

    def stand_in(self, uses: Uses) -> Number:
        """Returns what stands for it in a recorded step."""
        return Number(self.tensor, self.present(), uses, (id(self), self.words), self.found, counts=True)


class OptimizerCounts:
    """The numbers that steps were seen to set."""

    def __init__(self) -> None:
        self._keys: list[tuple[Optimizer, int, Any]] = []
        self._layout: list[Any] = []
        self._parted: dict[tuple[int, Any, int], int] = {}  # by optimizer, key and parameter: which of them it has had
        self._all: list[Shared] = []
        # Of the recorded step: those that it found, with their values as far as it has not set them, and what it left.
        self._recorded: list[Shared] = []
        self._found: dict[int, Any] = {}
        self._left: list[tuple[Shared, Host, str]] = []

    def _look(self) -> list[Shared]:
        """Returns them as they are now: the same objects as long as the same parameters have the same number."""
        found = [(*of, same) for of in self._keys for same in self._alike(*of)]
        layout = [(id(optimizer), key, [*map(id, same)]) for optimizer, _, key, same in found]
        if layout != self._layout:
            self._layout, self._all = layout, [Shared(*each) for each in found]
            places = [(id(shared.optimizer), shared.key, [*map(id, shared.parameters)]) for shared in self._all]
            self._parted = {(of, key, each): number for number, (of, key, same) in enumerate(places) for each in same}
        return self._all

    def _alike(self, optimizer: Optimizer, number: int, key: Any) -> Collection[list[Any]]:
        """Returns the parameters that have the same number under a key, together; none where one has something else.

        Those that had different ones stay apart: of two heads that take turns, the counts are equal now and then.
        """
        found = defaultdict[Any, list[Any]](list)
        for parameter, state in optimizer.state.items():
            if isinstance(state, dict) and key in state:
                before = self._parted.get((id(optimizer), key, id(parameter)))
                if isinstance(state[key], int) and abs(state[key]) >= _TOO_LARGE:
                    return []
                found[before, type(state[key]), exactly(state[key])].append(parameter)
        are_numbers = {kind for _, kind, _ in found} <= NUMBERS and len(found) <= _MOST
        return found.values() if are_numbers else []

    def names(self, optimizer: Optimizer) -> frozenset[Any]:
        """Returns where an optimizer's are in each of its states."""
        if not self._keys:  # as in most trainings
            return _NONE
        return frozenset(shared.key for shared in self._look() if shared.optimizer is optimizer)

    def learn(self, optimizers: Sequence[Optimizer], before: Sequence[Mapping[Any, Any]]) -> None:
        """Takes note of the numbers that a step has set, of which `before` has what they were."""
        known = {(id(optimizer), key) for optimizer, _, key in self._keys}
        for number, (optimizer, states) in enumerate(zip(optimizers, before, strict=True)):
            held = [(state, states[of]) for of, state in optimizer.state.items() if of in states]
            pairs = [(now, was) for now, was in held if isinstance(now, dict) and isinstance(was, dict)]
            keys = dict.fromkeys(key for now, was in pairs for key in now if _is_set(now[key], was.get(key)))
            self._keys += [(optimizer, number, key) for key in keys if (id(optimizer), key) not in known]

    def state(self) -> dict[str, Hashable]:
        """Returns what programs take for granted of them: which are the same, and of which type."""
        return {
            f"{shared.name} {number}": (type(shared.present()), *map(id, shared.parameters))
            for number, shared in enumerate(self._look())
        }

    # -- one recording ------------------------------------------------------------------------------------------------

    def begin(self) -> list[Tensor]:
        """Looks at them before a step is recorded; returns the tensors that stand for them."""
        self._recorded, self._left = self._look(), []
        self._found = {id(shared): shared.present() for shared in self._recorded}
        for shared in self._recorded:
            shared.tensor.fill_(shared.present())
        return [shared.tensor for shared in self._recorded]

    @contextmanager
    def lifted(self, uses: Uses) -> Iterator[None]:
        """Puts stand-ins in their places while a part of the step is recorded."""
        for shared in [shared for shared in self._recorded if id(shared) in self._found]:
            if {*map(exactly, shared.values())} != {exactly(self._found[id(shared)])}:
                self._tells(shared, "which others set in its midst", uses)
        free = [(shared, shared.stand_in(uses)) for shared in self._recorded if id(shared) in self._found]
        spent = [
            (shared, state) for shared in self._recorded if id(shared) not in self._found for state in shared.places()
        ]
        gone = [(shared, state, self._spent(shared, state[shared.key], uses)) for shared, state in spent]
        for shared, number in free:
            shared.put(number)
        for shared, state, number in gone:
            state[shared.key] = number
        try:
            yield
        finally:
            for shared, number in free:
                self._take(shared, number, uses)
            for shared, state, number in gone:
                left = state.get(shared.key)
                if left is not number:
                    self._tells(shared, "in more than one part", uses)
                if shared.key in state:
                    state[shared.key] = as_they_are(left)

    @staticmethod
    def _spent(shared: Shared, value: Any, uses: Uses) -> Any:
        """Returns what stands for one behind the part that has set it: a program has what the step found."""
        what = f"{shared.words} is asked for in a later part of the step than the one that sets it"

        def tensor() -> Tensor:
            uses.leak(what)
            return torch.tensor(float(value), dtype=torch.float64)

        return Number(tensor, value, uses, (id(shared), what, value)) if type(value) in NUMBERS else value

    def _take(self, shared: Shared, number: Number, uses: Uses) -> None:
        """Takes what a part of the step leaves, and puts the plain numbers there."""
        found = shared.values()
        for state in shared.places():
            state[shared.key] = as_they_are(state[shared.key])
        if all(value is number for value in found):
            return
        texts = {repr(value.key) if type(value) is Number else repr(exactly(value)) for value in found}
        value, plain = found[0], as_they_are(found[0])
        host = value.host if type(value) is Number else lambda: plain
        if len(texts) != 1 or host is None or type(plain) is not type(number.value):
            self._tells(shared, "to what the host does not know", uses)
        else:
            del self._found[id(shared)]
            self._left.append((shared, host, f"{shared.words} {self._recorded.index(shared)} = {texts.pop()}"))

    def _tells(self, shared: Shared, what: str, uses: Uses) -> None:
        """Reports what no program does with it."""
        self._found.pop(id(shared), None)
        uses.leak(f"{CHANGES}: {shared.words}, {what}")

    def set_by_step(self) -> list[tuple[Shared, Host, str]]:
        """Returns what the recorded step sets, with what gives it in later steps, and a text."""
        return self._left

    def inputs(self) -> list[tuple[Tensor, Host]]:
        """Returns the tensors that stand for such numbers, with what gives their values before a step."""
        return [(shared.tensor, shared.found) for shared in self._recorded]


def _is_set(now: Any, was: Any) -> bool:
    return type(now) in NUMBERS and type(was) is type(now) and now != was
