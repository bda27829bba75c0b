"""What Python takes out of tensors in a recorded step: `loss.item()`, `if mask.all():`, `int(labels.max())`.

`Values` owns what becomes of each: of a number that goes to `self.log`, or where steps collect, and nowhere else, the
program gives the tensor; of a value that stays as it is the program sees that it does; a truth or a whole number that
the batch alone gives is asked of each batch, a truth that a count of steps gives of each step. Any other decides
something that only this step knows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any

import torch
from torch import Tensor, fx

from lightning_sink.engine.numbers import bound_names
from lightning_sink.engine.numbers.flows import Getter, receivers
from lightning_sink.engine.numbers.guards import Uses
from lightning_sink.engine.numbers.math_functions import CONVERTING
from lightning_sink.engine.numbers.number import Number
from lightning_sink.engine.numbers.passed_on import ADDED, RETURNED
from lightning_sink.engine.numbers.plain_uses import PlainUses
from lightning_sink.engine.numbers.result_types import is_large
from lightning_sink.engine.numbers.taken import KINDS, Taken, as_array
from lightning_sink.engine.state.collectors import ListWatch
from lightning_sink.engine.state.slots import Parts
from lightning_sink.engine.tracing.asked_counts import Asked, counts_asked, decided_by_count
from lightning_sink.engine.tracing.assumptions import Assumptions
from lightning_sink.engine.tracing.bounds import largest_in
from lightning_sink.engine.tracing.count import Count
from lightning_sink.engine.tracing.graph_writer import GraphWriter
from lightning_sink.engine.tracing.origins import Origin
from lightning_sink.engine.tracing.questions import OF_BATCH, question
from lightning_sink.engine.tracing.recording import Paused, Recording
from lightning_sink.engine.watch import innermost_line, is_user_frame, user_line

_OF_STEP = "a value of a tensor"
_SUM = torch.ops.aten.sum.default
_TAKES = torch.ops.aten._local_scalar_dense.default

_USUAL = 1 << 32
"""How large a whole number is at most that programs compute with where nothing else says how large it may be."""

_MOST_SHAPES = 3
"""Shapes of a mask that batches are asked about: batches of full size, the last one, and another loader's."""

_DECIDES = "decides what Python does (`.item()`, `if tensor:`, `float(tensor)`)"


class Values:
    """The values that Python takes in one recording.

    Args:
        parts: The training, which remembers counts whose numbers steps ask for, and how many ones masks had.
        writer: Knows what stands for a tensor.
        is_sum: Tells whether an attribute of an object is a number that steps add to.
        uses: Told of what is done with numbers that go on.
        plain: Tells where nothing but arithmetic is done with them.
        origin_of: Tells what a tensor's value comes from.
        assumptions: Takes values of which a program finds out by itself that they are others.
    """

    def __init__(
        self,
        recording: Recording,
        leaves: Sequence[Tensor],
        parts: Parts,
        writer: GraphWriter,
        is_sum: Callable[[Any, str], bool],
        uses: Uses,
        plain: PlainUses,
        origin_of: Callable[[Tensor], Origin | None],
        assumptions: Assumptions,
        paused: Paused,
    ) -> None:
        self._recording, self._leaves, self._parts, self._writer = recording, leaves, parts, writer
        self._is_sum, self._uses, self._plain, self._paused = is_sum, uses, plain, paused
        self._origin_of, self._assumptions = origin_of, assumptions
        self._takers: set[tuple[int, str]] = set()
        self._gone_on = 0
        self._read_at: dict[int, str] = {}
        self._asked: list[Asked] = []

    def goes_to(self, holder: Any, method: str) -> None:
        """Takes note of a method of an object that takes stand-ins for numbers, and decides nothing by them."""
        self._takers.add((id(holder), method))

    def number(self, tensor: Tensor, caller: FrameType) -> Number | None:
        """Returns a stand-in for a tensor's `item()`; None where it may go to who needs the number itself."""
        if not is_user_frame(caller) or not _is_number(tensor):
            return None
        getters = receivers(caller)
        is_plain = not getters or not all(map(self.receives, getters))
        if is_plain and not self._may_be_plain(tensor, caller):
            return None
        with self._paused():
            value = tensor.item()
        if is_large(value):
            return None
        self._gone_on += 1
        name = self._gone_on, _OF_STEP
        copy = tensor.detach().reshape(()).to("cpu", copy=True)  # of what it holds now
        copy = _rounded(copy) if copy.dtype is torch.bfloat16 else copy
        whole, plain = copy if isinstance(value, int) else None, self._plain if is_plain else None
        most = self._most(tensor, value) if is_plain and whole is not None else None
        return Number(copy.to(torch.float64, copy=True), value, self._uses, name, whole=whole, plain=plain, most=most)

    def taking(self, func: Any, args: Any, kwargs: Any, caller: FrameType) -> Any:
        """Returns Python's numbers of a tensor, or a stand-in for all of them where they go to lists or are returned.

        Where `float` or `int` asks for one, another function is to stand there in the next step that is recorded.
        """
        if func in CONVERTING:
            self._recording.is_no_example |= bound_names.asked(caller)
            return func(*args, **kwargs)
        if not (isinstance(args[0], Tensor) and self.hands_on(args[0], caller)):
            return func(*args, **kwargs)
        with self._paused():
            value = func(*args, **kwargs)
        self._gone_on += 1
        of = args[0].detach()  # whose memory an array has; a list is a copy
        of = of if KINDS[func] is as_array else of.clone()
        return Taken(of, value, KINDS[func], self._uses, (self._gone_on, _OF_STEP))

    def hands_on(self, tensor: Tensor, caller: FrameType) -> bool:
        """Tells whether all numbers of a tensor, asked for by a frame, go to lists or are returned."""
        if not is_user_frame(caller) or tensor.dim() == 0 or tensor.layout is not torch.strided:
            return False
        getters = receivers(caller)
        lists = (getter for getter in getters if getter.how != RETURNED)
        are_lists = all(type(getter.held) is ListWatch for getter in lists)
        return bool(getters) and are_lists and all(map(self.receives, getters))

    def _most(self, tensor: Tensor, value: float) -> int | None:
        """Returns how large a whole number is at most; where operations do not tell, the program finds that out."""
        most = largest_in(self._writer.node(tensor))
        if most is not None or abs(value) > _USUAL:
            return most
        is_usual = self._writer.node((tensor.detach() >= -_USUAL) & (tensor.detach() <= _USUAL))
        what = f"{_OF_STEP} is a whole number of which no program knows how large it is"
        takes = self._assumptions.takes(_TAKES, (is_usual,), True, what, user_line() or innermost_line())
        return _USUAL if takes else None

    def _may_be_plain(self, tensor: Tensor, caller: FrameType) -> bool:
        """Tells whether all that is done with a number is arithmetic, as far as the source says."""
        origin, is_whole = self._origin_of(tensor), not tensor.is_floating_point()
        if origin is None or (origin.of_batch and not is_whole):
            return self._plain.gives(caller)  # whoever decides by it cannot be helped
        return self._plain.keeps(caller)

    def receives(self, getter: Getter) -> bool:
        """Tells whether somebody takes a stand-in, and decides nothing by it."""
        held, how = getter.held, getter.how
        if type(held) is ListWatch:
            return how in ListWatch.receives
        return self._is_sum(getter.holder, getter.attribute) if how == ADDED else (id(held), how) in self._takers

    def taken(self, func: Any, args: Any, kwargs: Any, value: Any, origin: Origin | None) -> None:
        """Takes note of a value that Python has got of an operation, and may do this or that by.

        Nodes are in the place of tensors among the arguments, which come from `origin`.
        """
        where, asked = user_line() or innermost_line(), None
        # What is measured in a batch, a float, is another for each.
        if origin is not None and origin.of_batch and isinstance(value, int):
            asked = question(func, args, kwargs, value, where, self._recording.inputs, self._leaves)
        if origin is None or (origin.of_batch and asked is None):
            what = f"{_OF_STEP} {_DECIDES}"
            if not self._assumptions.takes(func, args, value, what, where):
                self._recording.hazard(what, where)
            return
        if asked is not None:
            self._recording.questions.append(asked)
            self._recording.freeze(f"{OF_BATCH} {_DECIDES}")
        elif isinstance(value, int):
            self._asked.append(Asked(func, (args, kwargs), value, origin, where))
            return
        self.look_at(origin, where)

    def ones(self, mask: Tensor, node: fx.Node, origin: Origin) -> int | None:
        """Returns how many ones a mask has that comes from the batch, where each other batch is asked for it.

        None where that is not to be asked, or was another number in the last step that was recorded, or masks have many
        shapes: where it keeps changing, a program for each would serve few steps.
        """
        with self._paused():
            many = int(mask.sum())
        where = user_line() or innermost_line()
        asked = question(_SUM, (node,), {}, many, where, self._recording.inputs, self._leaves)
        if asked is None:
            return None
        known = self._parts.ones.setdefault((where, asked.name), {})
        if mask.shape not in known and len(known) >= _MOST_SHAPES:
            return None
        last, known[mask.shape] = known.get(mask.shape, many), many
        if last != many:
            return None
        self._recording.questions.append(asked)
        self._recording.freeze(f"{OF_BATCH} decides how many elements a mask picks")
        self.look_at(origin, where)
        return many

    def check(self) -> list[Count]:
        """Tells of what Python took out of tensors that the step writes to: the next one finds something else.

        Returns the counts among them, by which guards decide.
        """
        written, counts = self._recording.written_inputs, list[Count]()
        for asked in self._asked:
            known = decided_by_count(asked, self._recording) if asked.origin.inputs & written else None
            if known is None:
                self._parts.counted.update(map(id, counts_asked(asked, self._recording)))
                self.look_at(asked.origin, asked.where)
                continue
            decide, count = known
            counts.append(count)
            self._recording.freeze(f"{_OF_STEP} {_DECIDES}", asked.where)
            self._uses.decide(f"{asked.func.name()}{asked.args!r}", asked.value, decide)
        for index in sorted(self._read_at.keys() & written):
            self._recording.hazard(f"{_OF_STEP} {_DECIDES}", self._read_at[index])
        return counts

    def look_at(self, origin: Origin, where: str) -> None:
        """Takes note of inputs that were looked at: they stay as they are, or go with the batch into a question."""
        others = origin.inputs - self._recording.batch
        if origin.of_batch:
            self._recording.asked |= others
        else:
            self._recording.read |= others
        for index in origin.inputs:
            self._read_at.setdefault(index, where)


def _is_number(tensor: Tensor) -> bool:
    """Tells whether a tensor holds a number that a stand-in can be computed with."""
    dtype = tensor.dtype
    return tensor.numel() == 1 and tensor.layout is torch.strided and not (dtype.is_complex or dtype is torch.bool)


def _rounded(number: Tensor) -> Tensor:
    """Returns a number of `bfloat16` as one of float32, by its bits: fused code has it as it was before rounding."""
    wide = number.float()
    bits = wide.view(torch.int32)
    even = bits + 0x7FFF + (bits >> 16 & 1)
    return torch.where(wide.isfinite(), (even & -0x10000).view(torch.float32), wide)
