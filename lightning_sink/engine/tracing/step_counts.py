"""The step counts that are kept in tensors and looked at with `.item()`: numbers that stay inputs of a program.

Optimizers have such, and modules: which of theirs are counts is known once a step has asked for one.

What Python decides by one is asked again for each later step (`count.py`).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

import torch
from torch import Tensor, fx

from lightning_sink.engine.numbers.guards import Guard, Uses
from lightning_sink.engine.numbers.number import Number
from lightning_sink.engine.state.slots import Snapshot, StatePlace
from lightning_sink.engine.tracing.asked_counts import number_of_count
from lightning_sink.engine.tracing.count import Count, added_to
from lightning_sink.engine.tracing.recording import Paused, Recording

_PARTS = itertools.count(1)
"""Numbers for the parts of an optimizer's counts that have differed."""

_Equal = tuple[float, int, int | None]
"""What counts have in common that one number stands for: their value, their optimizer, their part."""


class StepCounts:
    """Stand-ins for the step counts of one recording.

    `node` returns what stands for a tensor in the graph.
    """

    def __init__(
        self,
        before: Snapshot,
        node: Callable[[Tensor], fx.Node],
        uses: Uses,
        recording: Recording,
        paused: Paused,
    ) -> None:
        self._before, self._node, self._uses, self._recording = before, node, uses, recording
        self._paused = paused
        self._part_of = before.parts.step_counts.copy()
        self._parts: dict[_Equal, int] = {}
        self._asked: dict[StatePlace, int] = {}  # parts of those asked for, which may be so before and behind a step
        self._known: dict[_Equal, tuple[Tensor, Number]] = {}
        self._counts: list[Count] = []
        self._of_modules: list[tuple[Count, Number]] = []

    @property
    def numbers(self) -> list[Number]:
        """The stand-ins that exist."""
        return [*(number for _, number in self._known.values()), *(number for _, number in self._of_modules)]

    def deciding(self, guards: list[Guard]) -> list[Count]:
        """Returns the counts by which something was decided."""
        with self._paused():
            found = [count for count in self._counts if any(map(count.decides, guards))]
        return [*found, *(count for count, _ in self._of_modules)]

    def number(self, tensor: Tensor) -> Number | None:
        """Returns the stand-in for a count, or for what is computed of a module's; None for any other tensor."""
        kept = self._before.keeper_of(tensor)
        if kept is None:
            return self._of_module(tensor) if self._before.parts.counted and tensor.numel() == 1 else None
        keeper, place = kept
        node = self._node(tensor)
        before = added_to(node) if node.op == "placeholder" else None  # another one was made in this step
        with self._paused():
            value = float(tensor)
        # Most parameters of an optimizer have made the same number of steps, each in a tensor of its own; the first one
        # stands for all, and the program looks at each start whether they still agree. Those that have differed stay
        # apart: where chance leaves layers out, they are as many now and then.
        key = value, place[0], self._part_of.get(place)
        leader, number = self._known.get(key, (tensor, None))
        if number is None:
            self._parts[key] = self._asked.get(place) or self._part(key[2])
        part = self._asked.setdefault(place, self._parts[key])
        self._before.parts.step_counts[place] = part
        if number is not None:
            self._recording.equal.append((leader, tensor))
            return number
        held = tensor.detach().to(torch.float64, copy=True)
        name = len(self._known), "an optimizer's step count"
        count = None if before is None else Count(tensor, node, before)  # of what else it is by now only programs know
        self._counts += [] if count is None else [count]
        is_users = not type(keeper).__module__.startswith("torch.")  # whose arithmetic may fail
        number = Number(held, value, self._uses, name, count, counts=is_users)
        self._known[key] = tensor, number
        return number

    def _part(self, before: int | None) -> int:
        """Returns the part of counts that are equal, and were in one part before; of others of that they differ."""
        if before is not None and before not in self._parts.values():
            return before
        self._recording.parts_counts |= before is not None
        return next(_PARTS)

    def _of_module(self, tensor: Tensor) -> Number | None:
        node = self._node(tensor)
        found = number_of_count(node, self._recording, self._before.parts.counted)
        if found is None:
            return None
        host, count = found
        with self._paused():
            value = tensor.item()
        held = tensor.detach().reshape(()).to("cpu", copy=True)
        whole = held if isinstance(value, int) else None
        name = len(self._of_modules), "a count of steps"
        number = Number(held.to(torch.float64, copy=True), value, self._uses, name, host, counts=True, whole=whole)
        self._of_modules.append((count, number))
        return number
