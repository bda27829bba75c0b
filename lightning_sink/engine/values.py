"""What Python takes out of tensors in a recorded step: `loss.item()`, `if mask.all():`, `int(labels.max())`.

`Values` owns what becomes of each: of a value that stays as it is the program sees that it does; one that the batch
alone gives is asked of each batch; a number that is logged, computed with or appended is a stand-in, so that the
program computes it. Any other decides something that only this step knows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, fx

from lightning_sink.engine.guards import Uses
from lightning_sink.engine.numbers import Number
from lightning_sink.engine.origins import Origin, Origins
from lightning_sink.engine.questions import OF_BATCH, Question, question
from lightning_sink.engine.recording import Recording
from lightning_sink.engine.watch import innermost_line, user_line

_OF_STEP = "a value of a tensor"
_DECIDES = "decides what Python does (`.item()`, `if tensor:`, `float(tensor)`)"
_MOST = 1 << 53
"""The largest whole number up to which a program, which computes in float64, has all of them."""

_ITEM = torch.ops.aten._local_scalar_dense.default


class Values:
    """The values that Python takes in one recording.

    Args:
        recording: The recording.
        uses: Told of what is done with stand-ins.
        origins: What values come from.
        node: Returns what stands for a tensor in the graph.
        leaves: The batch's tensors.
        hazard: Told why the recording may not stand for other steps, and the user's line.
        paused: Keeps operations from being recorded.
    """

    def __init__(
        self,
        recording: Recording,
        uses: Uses,
        origins: Origins,
        node: Callable[[Tensor], fx.Node],
        leaves: Sequence[Tensor],
        hazard: Callable[[str, str], None],
        paused: Callable[[], AbstractContextManager[None]],
    ) -> None:
        self._recording, self._uses, self._origins, self._node = recording, uses, origins, node
        self._hazard, self._paused = hazard, paused
        self._leaves, self._known = leaves, {id(leaf) for leaf in leaves}
        self._read_at: dict[int, str] = {}

    def taken(self, func: Any, args: Any, kwargs: Any, value: Any, origin: Origin | None) -> None:
        """Takes note of a value that Python has got, and may do this or that by.

        Args:
            func: The operation that gave it.
            args: Its arguments, nodes in the place of tensors.
            kwargs: The same, by name.
            value: The value.
            origin: What its arguments come from.
        """
        where = user_line() or innermost_line()
        asked = self._question(func, args, kwargs, origin)
        if origin is None or (origin.of_batch and (asked is None or not isinstance(value, int))):
            # What is measured in a batch, a float, is another for each.
            self._hazard(f"{_OF_STEP} {_DECIDES}", where)
            return
        if asked is not None:
            self._uses.froze(f"{OF_BATCH} {_DECIDES}", (asked.name, "is"), value, asked.ask)
        self._look_at(origin, where)

    def number(self, tensor: Tensor) -> Number | None:
        """Returns the stand-in for what a tensor's `item()` gives; None where it gives the number itself."""
        if not _is_number(tensor):
            return None
        with self._paused():
            value = tensor.item()
        if isinstance(value, int) and abs(value) > _MOST:
            return None
        copy = tensor.detach().reshape(()).to(torch.float64, copy=True)  # of what it holds now
        origin = self._origins.of([copy])
        if origin is not None and not origin.of_batch:
            return None
        asked = self._question(_ITEM, (self._node(tensor),), {}, origin)
        if origin is None or asked is None:
            return Number(copy, value, self._uses, (str(self._node(copy)), _OF_STEP))
        self._look_at(origin, user_line())
        return Number(copy, value, self._uses, (asked.name, OF_BATCH), asked.ask)

    def check(self) -> None:
        """Tells of what Python took out of tensors that the step writes to: the next one finds something else."""
        for index in sorted(self._read_at.keys() & self._recording.written_inputs):
            self._hazard(f"{_OF_STEP} {_DECIDES}", self._read_at[index])

    def _question(self, func: Any, args: Any, kwargs: Any, origin: Origin | None) -> Question | None:
        """Returns what gives a value of the batch's before its step; None for another value."""
        if origin is None or not origin.of_batch or origin.is_written:
            return None
        asked = question(func, args, kwargs, self._recording.inputs, self._leaves)
        if asked is not None:
            self._recording.questions.append(asked)
        return asked

    def _look_at(self, origin: Origin, where: str) -> None:
        """Takes note of inputs that were looked at: they stay as they are, or go with the batch into a question."""
        others = {index for index in origin.inputs if id(self._recording.inputs[index]) not in self._known}
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
