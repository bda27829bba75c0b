"""What runs compiled steps in a row, as Python calls it: the loop, its thread and its masks (`loop.cpp`).

`torch._C._aoti`, which is private (torch 2.11 to 2.15), turns tensors into what generated code takes, and back, as
Inductor's own wrapper does. `tests/engine/compiler/test_generated.py` fails with the name when an upgrade removes it.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


class NativeLoop:
    """The loop of `loop.cpp` around a compiled step: many steps in one call.

    It is made of the library that the step was compiled to (`step.cpp`), and the one that is the same for all steps.

    Attributes:
        prepare: Returns a handle of steps in a row: whole rounds of turns, of what describes each, and how many.
        is_bare: Whether steps run on plain memory, without torch, and so on any thread.
    """

    def __init__(self, step: ctypes.PyDLL, runtime: ctypes.PyDLL) -> None:
        objects, pointer = ctypes.py_object, ctypes.c_void_p
        self.prepare = self._function(runtime, "prepare", objects, ctypes.c_int64)
        self._launch = self._function(runtime, "launch", objects, objects)
        self._wait = self._function(runtime, "wait", objects)
        self._make_worker = self._function(runtime, "worker")
        self._rest = self._function(runtime, "rest", objects)
        self._masks = self._function(runtime, "masks", *[objects] * 4, ctypes.c_int64)
        self._worker: Any = None
        kernels = self._function(runtime, "kernels", returns=pointer)
        self._step = self._function(step, "bind", pointer, returns=pointer)(kernels())
        self.is_bare = bool(ctypes.c_int32.in_dll(step, "lightning_sink_is_bare").value)

    @staticmethod
    def _function(
        library: ctypes.PyDLL, name: str, *arguments: Any, returns: Any = ctypes.py_object
    ) -> Callable[..., Any]:
        function = library[f"lightning_sink_{name}"]
        function.argtypes, function.restype = arguments, returns
        return function

    def turn(
        self,
        fixed: list[Tensor | None],
        varying: list[Tensor],
        positions: list[int],
        kept: list[int],
        links: list[int],
    ) -> Any:
        """Returns those of some steps in a row that are alike (`row.Turn`) for `prepare`, which alone frees them again.

        Args:
            fixed: The inputs; None for those that differ from step to step, and those that another turn gives.
            varying: Those that differ, step after step.
            positions: Where they go.
            kept: For each output of which every step's value is wanted: its index, the address for the first, and the
                bytes of one.
            links: For each input that an earlier turn gives: its position, that turn, and the output's index.
        """
        pack = torch._C._aoti.unsafe_alloc_void_ptrs_from_tensors
        capsules = iter(pack([tensor for tensor in fixed if tensor is not None]))
        inputs = [None if tensor is None else next(capsules) for tensor in fixed]
        return self._step, inputs, pack(varying), positions, kept, links

    def launch(self, run: Any, beside: bool) -> None:
        """Runs them; `beside` the caller's thread, on one that ends with `rest`, behind those launched before.

        Where one of those fails, they are not run.
        """
        if beside and self._worker is None:
            self._worker = self._make_worker()
        self._launch(run, self._worker if beside else None)

    def rest(self) -> None:
        """Ends the thread, when what was launched on it has ended."""
        if self._worker is not None:
            self._rest(self._worker)
            self._worker = None

    def wait(self, run: Any) -> tuple[int, tuple[Tensor, ...], float, str | None]:
        """Waits for them; returns how many were run, and what the last one gave of each turn that was reached.

        Behind that the seconds that it took, and what the next one failed with.
        """
        message: str | None = "not known"
        try:
            done, outputs, seconds, message = self._wait(run)
        finally:
            if message is not None:
                self.rest()  # the thread runs nothing behind a row that failed
        return done, tuple(torch._C._aoti.alloc_tensors_by_stealing_from_void_ptrs(outputs)), seconds, message

    def draw_masks(self, state: Tensor, masks: list[Tensor], probabilities: list[float]) -> None:
        """Draws the masks of steps in a row, step after step, from a generator in this state, which moves on.

        For each mask of a step there is what is filled, `[steps, ...]`, float32, in one piece, and the probability of
        ones.
        """
        places, counts = [mask.data_ptr() for mask in masks], [mask[0].numel() for mask in masks]
        self._masks(state.data_ptr(), places, counts, probabilities, len(masks[0]))
