"""A batch seen as a flat list of tensors and a signature of everything else.

Two batches with equal signatures have the same structure, the same shapes, dtypes, layouts and devices, one tensor
twice in the same places, and equal values in every place that holds no tensor; a step that was compiled for one of them
is right for the other. Lists of texts at which no step looks may be left out (`listed_texts.py`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable, Iterator, Mapping, Sequence
from math import copysign
from types import FunctionType, MethodType, ModuleType
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from lightning_sink.data.listed_texts import Looked, Path, are_texts, parts_of, texts_of, with_texts

Signature = tuple[Hashable, ...]

_NO_RECORDS = (type, nn.Module, ModuleType, FunctionType, MethodType)

_DEEPEST = 4
"""Objects inside of objects that are looked into."""


def flatten(batch: Any, looked: Looked | None = None) -> tuple[list[Tensor], Signature]:
    """Returns the tensors of a batch in a fixed order, and its signature.

    Goes through tuples, lists, mappings, named tuples, and the attributes of other objects. Anything else that is no
    tensor is compared by value if it is hashable and by identity if not. Of lists of texts at which no step has
    `looked` only the length is; of all of them what they hold, where that is not said.
    """
    kind: type[Any] = type(batch)
    if (kind is tuple or kind is list) and (signature := _signature_of_tensors(kind, batch)) is not None:
        return list(batch), signature if len({*map(id, batch)}) == len(batch) else (*signature, _repeated(batch))
    leaves: list[Tensor] = []
    found: list[Hashable] = []
    _walk(batch, leaves, found, looked=looked)
    if len({*map(id, leaves)}) < len(leaves):
        found.append(_repeated(leaves))
    return leaves, tuple(found)


def _repeated(leaves: Sequence[Tensor]) -> Hashable:
    """Returns where the same tensors are, which a step may ask for (`if x is y:`), and draw for once."""
    places = {id(leaf): place for place, leaf in reversed([*enumerate(leaves)])}
    return tuple(places[id(leaf)] for leaf in leaves)


def _signature_of_tensors(kind: type[Any], batch: Sequence[Any]) -> Signature | None:
    """Returns the signature of what most loaders give, in a third of the time of the general case; None for others."""
    signature = cast(list[Hashable], [kind])
    try:
        for item in batch:
            if type(item) is not Tensor or item.is_neg() or item.is_conj() or item.__dict__:
                return None
            signature.append((item.shape, item.dtype, item.stride(), item.device, item.requires_grad))
    except RuntimeError:  # one has no shape, or no strides
        return None
    return tuple(signature)


def values_in(batch: Any, looked: Looked | None = None) -> Iterator[tuple[str, Hashable]]:
    """Yields what in a batch is compared by value or identity, with its place as users write it: "batch['name'][0]".

    `looked` as for `flatten`.
    """
    texts = {} if looked is None else texts_of(batch, looked)
    return _values_in(with_texts(batch, dict.fromkeys(texts, ())) if texts else batch, "batch", _DEEPEST, inside=False)


def _values_in(item: Any, place: str, depth: int, inside: bool) -> Iterator[tuple[str, Hashable]]:
    if isinstance(item, Tensor):
        children = [] if inside else [(f"{place}.{name}", child) for name, child in item.__dict__.items()]
        depth, inside = min(depth, 1), True
    elif isinstance(item, (tuple, list)):
        children = [(f"{place}[{number}]", child) for number, child in enumerate(item)]
    elif isinstance(item, Mapping):
        children = [(f"{place}[{key!r}]", child) for key, child in item.items()]
    elif depth and (attributes := _attributes(item)):
        children, depth = [(f"{place}.{name}", child) for name, child in attributes.items()], depth - 1
    else:
        yield place, _by_value(item)
        return
    for where, child in children:
        yield from _values_in(child, where, depth, inside)


def containers_in(item: Any, depth: int = _DEEPEST) -> Iterator[tuple[Any, list[Any]]]:
    """Yields what in a batch holds other things and may be given others, with these: lists, dicts, attributes.

    Runs no code of the user's: a step may have left anything in its batch.
    """
    if isinstance(item, (Tensor, *_NO_RECORDS)):
        return
    if isinstance(item, (tuple, list)):
        children = list(item)
    elif isinstance(item, dict):
        children = list(dict.values(item))
    elif depth and (attributes := _own(item)) is not None:
        children, depth = list(attributes.values()), depth - 1
    else:
        return
    if type(item) is not tuple:
        yield item, children
    for child in children:
        yield from containers_in(child, depth)


def nbytes(batch: Any) -> int:
    """Returns the bytes of a batch's tensors; 0 for what holds none."""
    kind = type(batch)
    if kind is Tensor:
        return int(batch.nbytes) if batch.layout is torch.strided else 0
    if kind is tuple or kind is list:
        total = 0
        for item in batch:  # a third of the time of `sum(map(...))`
            total += item.nbytes if type(item) is Tensor and item.layout is torch.strided else nbytes(item)
        return total
    if isinstance(batch, Mapping):
        return sum(map(nbytes, batch.values()))
    return sum(leaf.nbytes for leaf in flatten(batch)[0] if leaf.layout is torch.strided)


def _walk(
    item: Any,
    leaves: list[Tensor],
    signature: list[Hashable],
    depth: int = _DEEPEST,
    inside: bool = False,
    looked: Looked | None = None,
    path: Path = (),
) -> None:
    children: list[Any] | None = None
    if isinstance(item, Tensor):
        leaves.append(item)
        signature.append(_look_of(item))
        if item.__dict__ and not inside:  # attributes of the user's; those of tensors among them are left alone
            signature.append(tuple(item.__dict__))
            children, depth, inside = list(item.__dict__.values()), min(depth, 1), True
    elif looked is not None and are_texts(item) and not looked.at(path):
        signature.append((type(item), len(item), str))
        return
    elif isinstance(item, (tuple, list)):
        signature.append((type(item), len(item)))
        children = list(item)
    elif isinstance(item, Mapping):
        signature.append((type(item), tuple(item), tuple(map(type, item))))
        children = list(item.values())
    elif depth and (attributes := _attributes(item)):
        signature.append((type(item), tuple(attributes)))
        children, depth = list(attributes.values()), depth - 1
    else:
        signature.append((type(item), _by_value(item)))
    if looked is not None and (parts := [*parts_of(item, path)]):
        for place, part in parts:
            _walk(part, leaves, signature, depth, inside, looked, place)
        return
    for child in children or ():
        _walk(child, leaves, signature, depth, inside)


def _look_of(tensor: Tensor) -> Hashable:
    if tensor.is_nested and tensor.layout is torch.strided:
        return _Same(tensor)  # it has neither a shape nor strides
    if tensor.layout is not torch.strided and not tensor.is_nested:
        return tensor.shape, tensor.dtype, tensor.layout, tensor.device, tensor.requires_grad
    look = (tensor.shape, tensor.dtype, tensor.stride(), tensor.device, tensor.requires_grad)
    # One that only says that it is conjugated or negated is another: its memory holds something else.
    return (*look, tensor.is_conj(), tensor.is_neg()) if tensor.is_conj() or tensor.is_neg() else look


def _by_value(item: Any) -> Hashable:
    if not isinstance(item, Hashable):
        return _Same(item)
    if isinstance(item, np.generic):
        return item.dtype, item.tobytes()  # the same bytes may be seconds or days
    if isinstance(item, (float, complex)):  # 0.0 equals -0.0
        return item, copysign(1.0, item.real), copysign(1.0, item.imag)
    return item


def _attributes(item: Any) -> dict[str, Any]:
    """Returns the attributes of a dataclass or of a batch of the user's own; nothing for what is more than that."""
    if isinstance(item, _NO_RECORDS):
        return {}
    fields = dataclasses.fields(item) if dataclasses.is_dataclass(item) else ()
    return {**{field.name: getattr(item, field.name) for field in fields}, **(_own(item) or {})}


def _own(item: Any) -> dict[str, Any] | None:
    """Returns an object's dictionary without asking `__getattr__`, which may know any name, or fail."""
    try:
        held = object.__getattribute__(item, "__dict__")
    except AttributeError:
        return None
    return held if type(held) is dict else None


class _Same:
    """Equal while it is the same object; holds it, so that no later one takes its identity."""

    def __init__(self, item: Any) -> None:
        self._item = item

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and self._item is other._item

    def __hash__(self) -> int:
        return id(self._item)
