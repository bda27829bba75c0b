"""Inputs of programs that are read from a place, whatever tensor is there.

A tensor that no step replaces stays for a program what it was: the step may have it from elsewhere. Where programs of
one text were made of steps between which somebody had put other tensors into an attribute (a mask for each epoch), the
same input was what is there each time, and the code that ran names that attribute, it is read from there.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from types import CodeType
from weakref import ref

from torch import Tensor

from lightning_sink.engine.programs.binding import Binding
from lightning_sink.engine.state.slot import Slot
from lightning_sink.engine.tracing.recording import Recording
from lightning_sink.names import names_in
from lightning_sink.whose import is_pythons

_TIMES = 2
"""Replacements behind which an input was what had been put into its place."""


class Followed:
    """What inputs were when programs were made; there are no more texts than compiled functions."""

    def __init__(self) -> None:
        self._last: dict[str, list[tuple[str, ref[Tensor]] | None]] = {}
        self._times: dict[str, dict[int, int]] = {}

    def learn(self, recording: Recording, bindings: Sequence[Binding], codes: Iterable[CodeType]) -> frozenset[int]:
        """Takes the inputs of a program that is made, and the code that ran; returns those that places give."""
        names = frozenset[str]().union(*(names_in(code) for code in codes if not is_pythons(code)))
        kept = recording.written_inputs | recording.read | recording.asked | {count.input for count in recording.counts}
        present = [None if i in kept else _replaceable(binding, names) for i, binding in enumerate(bindings)]
        last, times = self._last.get(recording.text, []), self._times.setdefault(recording.text, {})
        for number, (now, then) in enumerate(zip(present, last, strict=False)):
            if now is None or then is None or now[0] != then[0]:
                times.pop(number, None)
            elif now[1]() is not then[1]():
                times[number] = times.get(number, 0) + 1
        self._last[recording.text] = present
        return frozenset(number for number, many in times.items() if many >= _TIMES)


def _replaceable(binding: Binding, names: frozenset[str]) -> tuple[str, ref[Tensor]] | None:
    """Returns place and tensor of an input that is in one attribute of such a name, and gathers no gradient."""
    tensor, home = binding.tensor, binding.home
    if tensor is None or home is None or binding.twins or tensor.requires_grad:
        return None
    return (home.name, ref(tensor)) if type(home) is Slot and home.key in names else None
