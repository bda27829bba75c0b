"""Optimizer steps that a `GradScaler` leaves out where a gradient is infinite or no number.

It asks the device for each step, and no program can have the answer. In a program the optimizer makes its step in any
case, and what it wrote to is put back by further operations, where that was not to be: the same numbers in the same
places, and nobody waits. They are recorded where the step is made; a recording of one that was left out shows nothing
of it, and counts for none. `ScaledSteps` owns what was there before, while an optimizer makes such a step.

Only what tensors hold can be put back, so this is for torch's own optimizers, which do nothing else in a step; and only
for a scaler whose settings are looked at, as all that programs take for granted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.amp import GradScaler
from torch.optim import Optimizer

from lightning_sink.engine.private import step_hooks
from lightning_sink.engine.state.slots import Snapshot, storages
from lightning_sink.engine.tracing.recording import Paused, Recording


def why_not(scaler: GradScaler, optimizer: Optimizer, before: Snapshot) -> str | None:
    """Returns why a step cannot be taken back; None where it can."""
    if not any(holder is scaler for _, holder in before.parts.holders()):
        return "the scaler is not the Trainer's"
    if not type(optimizer).__module__.startswith("torch.optim"):
        return f"`{type(optimizer).__name__}` is no optimizer of torch's own"
    if step_hooks(optimizer):
        return "the optimizer has hooks"
    parameters = (parameter for group in optimizer.param_groups for parameter in group["params"])
    return "parameters are in half precision" if any(p.dtype is torch.float16 for p in parameters) else None


class ScaledSteps:
    """Makes the optimizer steps of one recording that may be left out.

    Args:
        recorded: For operations that are to be part of it; not what is done with `paused` in it.
    """

    def __init__(
        self,
        recording: Recording,
        before: Snapshot,
        recorded: AbstractContextManager[Any],
        paused: Paused,
    ) -> None:
        self._recording, self._snapshot, self._recorded, self._paused = recording, before, recorded, paused
        self._is_at_work = False
        self._before: list[tuple[Tensor, Tensor]] = []
        self._made: list[Tensor] = []

    def takes(self, scaler: GradScaler, optimizer: Optimizer) -> bool:
        """Tells whether an optimizer's steps can be taken back."""
        why = why_not(scaler, optimizer, self._snapshot)
        if why is not None:
            self._recording.hazard(f"a `GradScaler` decides whether an optimizer makes its step, and {why}")
        return why is None

    @contextmanager
    def keeping(self) -> Iterator[None]:
        """Keeps what is overwritten, until it is put back or can be forgotten."""
        outer, self._is_at_work = self._is_at_work, True
        try:
            yield
        finally:
            self._is_at_work = outer
            if not outer:
                self._before, self._made = [], []

    def run(self, is_left_out: Tensor, make: Callable[[], Any]) -> Any:
        """Makes a step unless `is_left_out` is not 0, and records that it is taken back then."""
        with self._paused():
            leaves_out = bool(is_left_out)
            slots = self._snapshot.again().tensors
        self._recording.is_no_example |= leaves_out
        with self.keeping():
            result = None if leaves_out else make()
            with self._paused():
                after = self._snapshot.again().tensors
            if any(after.get(name) is not tensor for name, tensor in slots.items()):
                self._recording.hazard("the optimizer replaces tensors in a step that a `GradScaler` may leave out")
            with torch.no_grad():
                for tensor, before in reversed(self._before):  # of views that overlap, the first has what is oldest
                    tensor.copy_(torch.where(is_left_out != 0, before, tensor))
        return result

    def about_to_write(self, written: Sequence[Tensor]) -> None:
        """Keeps what is about to be overwritten, if that was there before the step."""
        if self._is_at_work:
            new, known = {*storages(self._made)}, {id(tensor) for tensor, _ in self._before}
            for tensor, place in zip(written, storages(written), strict=True):
                if id(tensor) not in known and place is not None and place not in new:
                    with self._recorded:
                        self._before.append((tensor, tensor.clone()))

    def made(self, tensors: Sequence[Tensor], given: Sequence[Tensor]) -> None:
        """Takes note of what an operation gave, unless it lies in the memory of what it was given.

        It is held until the step ends, so that its memory is nobody else's.
        """
        if self._is_at_work:
            before = {*storages(given)}
            self._made += [item for item, place in zip(tensors, storages(tensors), strict=True) if place not in before]
