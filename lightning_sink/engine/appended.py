"""What one step appended to lists, for programs to append again: tensors, numbers, and containers of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor

from lightning_sink.engine.appends import Place
from lightning_sink.engine.attributes import SCALARS, fingerprint
from lightning_sink.engine.given import Given
from lightning_sink.engine.private import pytree
from lightning_sink.engine.step import Column, taken_apart


class _Item:
    """What is appended once.

    Args:
        place: Where.
        leaves: Its leaves; `Given` in the place of numbers that the step gives.
        spec: How they make up what is appended.

    Attributes:
        kinds: The types of such numbers, by their place among the leaves.
        varying: Places of what a program gives: tensors and such numbers.
    """

    def __init__(self, place: Place, leaves: list[Any], spec: Any) -> None:
        self.place, self.spec = place, spec
        self._shapes = {index: leaf.shape for index, leaf in enumerate(leaves) if isinstance(leaf, Tensor)}
        self.kinds = {index: leaf.kind for index, leaf in enumerate(leaves) if type(leaf) is Given}
        self.varying = sorted([*self._shapes, *self.kinds])
        self.constants = [None if index in self.varying else leaf for index, leaf in enumerate(leaves)]

    @property
    def key(self) -> Hashable:
        constants = tuple(map(fingerprint, self.constants))
        varying = tuple((index, self.kinds.get(index)) for index in self.varying)
        return self.place.name, id(self.place.holder), constants, self.spec, varying

    def append(self, values: Sequence[Tensor | float]) -> None:
        leaves = self.constants.copy()
        for index, value in zip(self.varying, values, strict=True):
            if index in self.kinds:
                leaves[index] = self.kinds[index](value.item() if isinstance(value, Tensor) else value)
            else:  # the program may use its memory again
                leaves[index] = cast(Tensor, value).view(self._shapes[index]).clone()
        self.place.value.append(pytree.tree_unflatten(leaves, self.spec))


class Appends:
    """What a step appends.

    Args:
        appended: What a recorded step appended, and where; in the step, and in what comes behind the owner's turn.

    Attributes:
        names: For each tensor that a program gives for it, what users call the list.
        problem: Why no program can append the same; None where one can.
    """

    def __init__(self, appended: list[list[tuple[Place, Any]]]) -> None:
        self._spans = [[_Item(place, *pytree.tree_flatten(item)) for place, item in span] for span in appended]
        self._items = [item for span in self._spans for item in span]
        self.names = [item.place.name for item in self._items for _ in item.varying]
        odd = ((item.place.name, type(value)) for item in self._items for value in item.constants)
        found = (f"the step appends a `{kind.__name__}` to `{name}`" for name, kind in odd if kind not in SCALARS)
        self.problem = next(found, None)

    def __bool__(self) -> bool:
        return bool(self._items)

    @property
    def key(self) -> Hashable:
        """Equal for steps that append the same, but for what is in the tensors."""
        return tuple(tuple(item.key for item in span) for span in self._spans)

    def append(self, values: Sequence[Tensor | float], late: bool | None = None) -> None:
        """Appends what one step gave.

        Args:
            values: All that it gave; of a number the tensor or the value.
            late: Whether to append what comes behind the owner's turn, or the rest; None for both.
        """
        given = iter(values)
        for number, span in enumerate(self._spans):
            for item in span:
                own = [next(given) for _ in item.varying]
                if late is None or late == (number > 0):
                    item.append(own)

    def append_row(self, columns: Sequence[Column], steps: int) -> None:
        """Appends what steps in a row gave."""
        are_numbers = [index in item.kinds for item in self._items for index in item.varying]
        varying = [
            column.tolist() if is_number and isinstance(column, Tensor) else taken_apart(column)
            for column, is_number in zip(columns, are_numbers, strict=True)
        ]
        for number in range(steps if self._items else 0):
            self.append([values[number] for values in varying])

    def last(self) -> list[Tensor]:
        """Returns the tensors for what the step before appended; none where somebody has taken some away."""
        counts = Counter(item.place for item in self._items)
        if any(len(place.items) < count for place, count in counts.items()):
            return []
        tails = {place: iter(place.items[-count:]) for place, count in counts.items()}
        there = [(item.place, *_with_given(next(tails[item.place]), item.kinds)) for item in self._items]
        same = [_Item(*found).key for found in there] == [item.key for item in self._items]
        return _tensors(leaf for _, leaves, _ in there for leaf in leaves) if same else []


def tensors_in(appended: Iterable[tuple[Place, Any]]) -> list[Tensor]:
    """Returns the tensors that a program gives for what was appended, in order."""
    return _tensors(pytree.tree_leaves([item for _, item in appended]))


def _tensors(leaves: Iterable[Any]) -> list[Tensor]:
    found = (leaf.tensor if type(leaf) is Given else leaf for leaf in leaves)
    return [leaf for leaf in found if isinstance(leaf, Tensor)]


def _with_given(item: Any, kinds: Mapping[int, type]) -> tuple[list[Any], Any]:
    """Returns the leaves of what was appended, with `Given` in the place of numbers of some kinds, and its form."""
    leaves, spec = pytree.tree_flatten(item)
    for index, kind in kinds.items():
        if index < len(leaves) and type(leaves[index]) is kind:
            leaves[index] = Given(torch.tensor(leaves[index], dtype=torch.float64), kind)
    return leaves, spec
