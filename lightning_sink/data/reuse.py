"""Loaders that fill the same memory, or list, again for a later batch: found out, and what they give is copied.

Plain training has used a batch before the next one is fetched, so a loader may keep one set of buffers, or a few, in
turn or one for each length of its batches. Read ahead, batches would be overwritten before they are trained.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from itertools import accumulate, pairwise
from operator import is_
from typing import Any

import torch
from torch import Tensor

from lightning_sink.data.batch import containers_in, flatten
from lightning_sink.data.containers import is_plain, taken_apart


@dataclass
class _Leaf:
    """A tensor of a batch that was looked at.

    Attributes:
        span: Where it lies.
        look: What another of the same memory has in common with it.
        content: What its memory held behind its step; before it, as long as that has not ended.
        written: Whether the step changed that.
    """

    tensor: Tensor
    span: tuple[int, int]
    look: Hashable
    content: Tensor
    written: bool = False

    def holds_another(self) -> bool:
        """Tells whether its memory holds something else by now."""
        return not torch.equal(_content(self.tensor), self.content)


class Reuse:
    """Looks at the first batches, while they are trained one by one, and at none later.

    How far apart two batches lie that share memory says nothing of the next two: where buffers belong to lengths, that
    is as the data has it. So there is no distance at which a loader that fills memory again is safe.

    Args:
        batches: How many to look at. They are kept until then, with copies of what they held: memory that nobody holds
            may well come again.
        most_bytes: Most bytes to keep; where batches are larger, fewer are looked at.

    Attributes:
        seen: How many batches have been looked at.
        found: Whether memory, or a container, held something else when it came again.
        written: Whether a batch was another when it had been trained: its step writes to it, and what it writes is read
            where the batch comes again.
        ended: Whether all that will be looked at have been.
    """

    def __init__(self, batches: int, most_bytes: int) -> None:
        self.seen, self.found, self.written = 0, False, False
        self._most, self._room = batches, most_bytes
        self._kept: list[list[_Leaf]] = []
        self._containers: dict[int, tuple[Any, list[Any]]] = {}  # with what they held
        self._last: Any = None
        self.ended = False

    def trained(self) -> None:
        """Looks at the last batch once more, before the next one is fetched."""
        for leaf in self._kept[-1] if self._kept else ():
            content = _content(leaf.tensor)
            leaf.written, leaf.content = leaf.written or not torch.equal(content, leaf.content), content
            self.written = self.written or leaf.written
        if self._has_others(self._last):
            self.written = True

    def note(self, batch: Any) -> None:
        """Looks at a batch that has just been fetched, and at what is left of those before."""
        if self.ended:
            return
        leaves = [leaf.detach() for leaf in flatten(batch)[0] if _has_numbers(leaf)]
        size = sum(leaf.nbytes for leaf in leaves)
        self._room -= 2 * size
        self.seen += 1
        self.found = self._is_filled_again(leaves) | self._has_others(batch)
        self._last = batch
        # One batch may be trained, and one fetched, beside what has room.
        is_last = self.seen >= self._most or self._room <= -2 * size
        if is_last and not self.found:  # it may fill memory for batches to come
            self.found = any(leaf.holds_another() for earlier in self._kept for leaf in earlier)
        self._kept.append([_Leaf(leaf, _span(leaf), _look(leaf), _content(leaf)) for leaf in leaves])
        if is_last or self.found:
            self.ended, self._last = True, None
            self._kept.clear()
            self._containers.clear()

    def _is_filled_again(self, leaves: list[Tensor]) -> bool:
        """Compares what earlier batches have in this one's memory with what was there."""
        touches, looks = _touching(leaves), {_look(leaf) for leaf in leaves}
        for number, earlier in enumerate(self._kept):
            for leaf in earlier:
                if touches(leaf.span) and (leaf.written or leaf.holds_another()):
                    return True
            # What is in this batch, too, is kept with it: a tensor that all batches share is compared once for each.
            self._kept[number] = [leaf for leaf in earlier if leaf.look not in looks]
        return False

    def _has_others(self, batch: Any) -> bool:
        """Tells whether a container of a batch holds something else than when it was looked at; looks at all again."""
        found = False
        for container, held in containers_in(batch):
            before = self._containers.get(id(container), (container, held))[1]
            found = found or len(before) != len(held) or not all(map(is_, before, held))
            self._containers[id(container)] = container, held
        return found


def copied(batch: Any) -> Any | None:
    """Returns a copy of a batch that a step cannot tell from it, in memory of its own; None where there is none."""
    apart = taken_apart(batch, is_plain)
    if apart is None:
        return None
    tensors, rebuild = apart
    copies = {id(tensor): tensor.clone() for tensor in tensors}
    if any(copies[id(tensor)].stride() != tensor.stride() for tensor in tensors):
        return None  # numbers that do not lie side by side
    spans = sorted(map(_span, filter(_has_numbers, {id(tensor): tensor for tensor in tensors}.values())))
    if any(end > start for (_, end), (start, _) in pairwise(spans)):
        return None  # views of one another
    return rebuild([copies[id(tensor)] for tensor in tensors])


def _look(tensor: Tensor) -> Hashable:
    return tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype


def _has_numbers(tensor: Tensor) -> bool:
    """Tells whether a tensor has numbers in memory of its own."""
    if tensor.layout is not torch.strided or tensor.is_quantized or tensor.is_nested:
        return False
    return bool(tensor.numel() and tensor.data_ptr())


def _content(tensor: Tensor) -> Tensor:
    """A copy of a tensor's memory, as words of eight bytes; where others lie between, of its own numbers."""
    start, end = _span(tensor)
    if end - start > tensor.nbytes:  # others may lie between its numbers
        tensor = tensor.contiguous()
        start, end = _span(tensor)
    begin = tensor.storage_offset() * tensor.element_size()
    lead = min(-begin % 8, end - start)
    count, trail = divmod(end - start - lead, 8)
    storage = tensor.untyped_storage()
    words = torch.empty(0, dtype=torch.int64, device=tensor.device)
    words.set_(storage, (begin + lead) // 8, (count,), (1,))
    around = torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(storage, begin, (end - start,), (1,))
    return torch.cat([words, around[:lead], around[end - start - trail :]])


def _touching(tensors: list[Tensor]) -> Callable[[tuple[int, int]], bool]:
    """Returns what tells whether a span touches that of one of some tensors, which may be views of one another."""
    spans = sorted(map(_span, tensors))
    starts, furthest = [start for start, _ in spans], list(accumulate((end for _, end in spans), max))

    def touches(span: tuple[int, int]) -> bool:
        before = bisect_left(starts, span[1])
        return before > 0 and furthest[before - 1] > span[0]

    return touches


def _span(tensor: Tensor) -> tuple[int, int]:
    """The addresses of a tensor's first number and behind its last."""
    start = tensor.data_ptr()
    numbers = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True)) + 1
    return start, start + numbers * tensor.element_size()
