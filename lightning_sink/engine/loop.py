"""Many steps in one call.

`CompiledStep` is what a compiler makes of a recording: it can be called for one step, or for several in a row that
differ in some of their inputs. `NativeStep` is one whose loop is compiled with it (`loop.cpp`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from lightning_sink.engine.private import NativeLoop
from lightning_sink.engine.recording import Recording

Outputs = tuple[Tensor, ...]
Repeated = tuple[int, Outputs, list[Tensor], Exception | None]


class CompiledStep:
    """A function that stands for a step.

    Args:
        function: Takes the inputs; writes in place what the step wrote in place, returns the outputs.
        draws: What makes the inputs behind those that are given: random draws, in the step's order.
        one_thread: Whether it runs faster on one thread.
    """

    def __init__(
        self,
        function: Callable[..., Outputs],
        draws: Sequence[Callable[[], Tensor]] = (),
        *,
        one_thread: bool = False,
    ) -> None:
        self._function = function
        self._draws = draws
        self._one_thread = one_thread

    def __call__(self, *inputs: Tensor) -> Outputs:
        """Runs one step."""
        drawn = [draw() for draw in self._draws]
        return self._on_its_threads(self._function, *inputs, *drawn)

    def _on_its_threads(self, function: Callable[..., Outputs], *arguments: Any) -> Outputs:
        if not self._one_thread:
            return function(*arguments)
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            return function(*arguments)
        finally:
            torch.set_num_threads(threads)

    def repeat(
        self, fixed: list[Tensor | None], positions: list[int], rows: list[list[Tensor]], kept: list[int]
    ) -> Repeated:
        """Runs steps in a row.

        Args:
            fixed: The inputs that are the same for each step; None for those that are not.
            positions: Which are not.
            rows: Those inputs, for each step.
            kept: Outputs of one element each, of which every step's is wanted.

        Returns:
            How many steps were run, the last one's outputs, a tensor with one value for each step for each of `kept`,
            and what the step behind them raised; None where all were run.
        """
        inputs: list[Any] = fixed.copy()
        columns: list[list[Tensor]] = [[] for _ in kept]
        outputs: Outputs = ()
        error: Exception | None = None
        done = 0
        for row in rows:
            for position, tensor in zip(positions, row, strict=True):
                inputs[position] = tensor
            try:
                outputs = self(*inputs)
            except Exception as raised:
                error = raised
                break
            done += 1
            for column, index in zip(columns, kept, strict=True):
                column.append(outputs[index].reshape(()).clone())
        return done, outputs, [torch.stack(column) for column in columns] if done else [], error


class NativeStep(CompiledStep):
    """A step with its loop in machine code.

    Args:
        function: As for `CompiledStep`.
        loop: The loop around the same code.
        draws: As for `CompiledStep`.
        options: As for `CompiledStep`.
    """

    def __init__(
        self,
        function: Callable[..., Outputs],
        loop: NativeLoop,
        draws: Sequence[Callable[[], Tensor]] = (),
        **options: bool,
    ) -> None:
        super().__init__(function, draws, **options)
        self._loop = loop
        self._layouts: dict[int, tuple[torch.dtype, int]] = {}

    def __call__(self, *inputs: Tensor) -> Outputs:
        """Runs one step."""
        outputs = super().__call__(*inputs)
        if not self._layouts:
            self._layouts = {i: (t.dtype, t.element_size()) for i, t in enumerate(outputs) if t.numel() == 1}
        return outputs

    def repeat(
        self, fixed: list[Tensor | None], positions: list[int], rows: list[list[Tensor]], kept: list[int]
    ) -> Repeated:
        """Runs steps in a row."""
        if not self._layouts:
            return super().repeat(fixed, positions, rows, kept)
        columns = [torch.empty(len(rows), dtype=self._layouts[index][0]) for index in kept]
        places = [
            number
            for index, column in zip(kept, columns, strict=True)
            for number in (index, column.data_ptr(), self._layouts[index][1])
        ]
        varying = [tensor for row in rows for tensor in (*row, *(draw() for draw in self._draws))]
        behind = range(len(fixed), len(fixed) + len(self._draws))
        inputs = [*fixed, *(None for _ in behind)]
        run: Any = self._on_its_threads
        done, outputs, message = run(self._loop, inputs, varying, [*positions, *behind], places, len(rows))
        error = RuntimeError(message) if message is not None else None
        return done, outputs, [column[:done] for column in columns], error


Compiler = Callable[[Recording], CompiledStep]
"""Makes a function of a recording."""
