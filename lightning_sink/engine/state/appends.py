"""What one step collected in lists and numbers (`collected.py`), for programs to do the same."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from itertools import chain, islice, repeat
from typing import Any, cast

import torch
from torch import Tensor

from lightning_sink.engine.numbers.given import Given, tensors_of
from lightning_sink.engine.numbers.taken import Several
from lightning_sink.engine.private import pytree
from lightning_sink.engine.state.attributes import SCALARS, fingerprint
from lightning_sink.engine.state.collected import Place
from lightning_sink.engine.step import Column, taken_apart


class _Item:
    """What is appended or added once: a tensor, a number, or lists, tuples and dictionaries of these and others.

    Attributes:
        is_several: Whether the items in it are appended.
        varying: What a program gives for it: tensors, and `Given`, by their place among its leaves.
    """

    def __init__(self, place: Place, item: Any) -> None:
        self.is_several = isinstance(item, Several)
        leaves, self.spec = pytree.tree_flatten(item.items if isinstance(item, Several) else item)
        self.place = place
        self.constants = [None if isinstance(leaf, (Tensor, Given)) else leaf for leaf in leaves]
        self.varying = {index: leaf for index, leaf in enumerate(leaves) if isinstance(leaf, (Tensor, Given))}

    @property
    def key(self) -> Hashable:
        constants = tuple(map(fingerprint, self.constants))
        varying = tuple((index, getattr(leaf, "kind", Tensor)) for index, leaf in self.varying.items())
        return self.place.name, id(self.place.holder), constants, self.spec, varying, self.is_several

    @property
    def count(self) -> int:
        """How many items are appended."""
        return tensors_of(self.varying.values())[0].shape[0] if self.is_several else 1

    def like(self, values: Sequence[Any]) -> Any:
        """Returns the like of it, made of the tensors and numbers that a step gave."""
        leaves = self.constants.copy()
        for (index, like), value in zip(self.varying.items(), values, strict=True):
            if isinstance(like, Given) and like.is_number:
                leaves[index] = like.kind(value)
                continue
            shape = like.tensor.shape if isinstance(like, Given) else like.shape
            own = value.view(shape).clone()  # the program may use a tensor's memory again
            leaves[index] = like.kind(own) if isinstance(like, Given) else own
        return pytree.tree_unflatten(leaves, self.spec)

    def row(self, columns: Sequence[Sequence[Any]], steps: int) -> Iterable[Any]:
        """Returns the like of it for each of some steps in a row."""
        if self.spec.is_leaf() and not self.varying:
            return repeat(self.constants[0], steps)
        if self.spec.is_leaf() and isinstance(only := self.varying[0], Given) and only.is_number:
            return map(only.kind, columns[0])
        return (self.like([column[number] for column in columns]) for number in range(steps))

    def again(self, items: list[Any]) -> _Item | None:
        """Returns what was taken, if it was the like of these: `Given` where there is what it stands for; else None."""
        if self.is_several:
            of = cast(Given, self.varying[0])
            found = _tensor_like(items, of)
            return None if found is None else _Item(self.place, Several(Given(found, of.kind)))
        try:
            leaves = self.spec.flatten_up_to(items[0])
        except ValueError:
            return None
        for index, like in self.varying.items():
            if not isinstance(like, Given):
                continue
            if not like.is_number:
                found = _tensor_like(leaves[index], like)
            elif type(leaves[index]) is like.kind:
                found = torch.tensor(leaves[index], dtype=like.tensor.dtype)
            else:
                found = None
            if found is not None:
                leaves[index] = Given(found, like.kind)
        return _Item(self.place, pytree.tree_unflatten(leaves, self.spec))


def _tensor_like(values: Any, like: Given) -> Tensor | None:
    """Returns what a program gives for such an array or list; None where it gives nothing of that kind."""
    try:
        found = [torch.as_tensor(value, dtype=like.tensor.dtype, device="cpu") for value in values]
        return torch.stack(found) if found else like.tensor.new_empty(like.tensor.shape, device="cpu")
    except (TypeError, ValueError, RuntimeError):  # somebody has put something else there
        return None


class Appends:
    """What a step appends to lists and adds to numbers.

    Args:
        taken: What each part of a recorded step collected, and where; the last one comes behind the owner's turn.

    Attributes:
        tensors: What a program gives for it, in order.
        names: For each of these, what users call the attribute.
        problem: Why no program can do the same; None where one can.
    """

    def __init__(self, taken: list[list[tuple[Place, Any]]]) -> None:
        self._spans = [[_Item(place, item) for place, item in span] for span in taken]
        self._items = [item for span in self._spans for item in span]
        self._varying = [leaf for item in self._items for leaf in item.varying.values()]
        self.tensors = tensors_of(self._varying)
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

    def append(self, tensors: Sequence[Tensor], late: bool = False) -> None:
        """Does what one step does, given all tensors that it gave.

        `late`: of what comes behind the owner's turn, or else of the rest.
        """
        pairs = zip(self._varying, tensors, strict=True)
        given = iter([tensor.item() if _is_number(like) else tensor for like, tensor in pairs])
        for number, span in enumerate(self._spans):
            for item in span:
                own = [*islice(given, len(item.varying))]
                if late == (0 < number == len(self._spans) - 1):
                    item.place.take(item.like(own) if item.is_several else [item.like(own)])

    def append_row(self, columns: Sequence[Column], steps: int) -> None:
        """Does what steps in a row do."""
        pairs = zip(self._varying, columns, strict=True)
        given = iter([_numbers(column) if _is_number(like) else taken_apart(column) for like, column in pairs])
        rows: dict[Place, list[Iterable[Any]]] = {}
        several = {item.place for item in self._items if item.is_several}
        for item in self._items:
            row = item.row([*islice(given, len(item.varying))], steps)
            is_one = item.place in several and not item.is_several
            rows.setdefault(item.place, []).append(([each] for each in row) if is_one else row)
        for place, of_place in rows.items():
            in_order = chain.from_iterable(zip(*of_place, strict=True))
            place.take(chain.from_iterable(in_order) if place in several else in_order)

    def last(self) -> list[Tensor | None]:
        """Returns the tensors for what the step before appended; none where somebody has taken some away.

        What it added is lost in the sum, and of numbers in the place of others the last one is there: None.
        """
        counts = Counter[Place]()
        for item in self._items:
            if not (item.place.is_sum or item.place.is_last):
                counts[item.place] += item.count
        if any(not place.is_there or len(place.value) < count for place, count in counts.items()):
            return []
        tails = {place: iter(place.value[-count:]) for place, count in counts.items()}
        found: list[Tensor | None] = []
        for item in self._items:
            has_none = item.place.is_sum or item.place.is_last
            if has_none:
                found += [None] * len(item.varying)
                continue
            there = item.again([*islice(tails[item.place], item.count)])
            if there is None or there.key != item.key:
                return []
            found += tensors_of(there.varying.values())
        return found


def _is_number(like: Any) -> bool:
    return isinstance(like, Given) and like.is_number


def _numbers(column: Column) -> list[float]:
    """Returns the numbers in tensors, brought to the host at once."""
    numbers: list[float] = (column if isinstance(column, Tensor) else torch.stack(column)).tolist()
    return numbers
