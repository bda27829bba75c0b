"""The compiled functions of a training, each made once for all recordings with the same text."""

from __future__ import annotations

import torch

from lightning_sink.engine.loop import CompiledStep, Compiler
from lightning_sink.engine.recording import Recording
from lightning_sink.engine.watch import Hazard

_MOST_FUNCTIONS = 32
"""Compiled code is never given back, and memory must not grow with the training."""

_TOO_MANY = Hazard(f"{_MOST_FUNCTIONS} programs are compiled already: shapes or attributes keep changing")


class Functions:
    """Compiles recordings.

    Args:
        compiler: Makes a function of a recording.
    """

    def __init__(self, compiler: Compiler) -> None:
        self._compiler = compiler
        self._made: dict[str, CompiledStep] = {}

    def get(self, recording: Recording) -> CompiledStep | Hazard:
        """Returns the function of a recording, or why there is none."""
        known = self._made.get(recording.text)
        if known is not None:
            return known
        if len(self._made) >= _MOST_FUNCTIONS:
            return _TOO_MANY
        generator = torch.get_rng_state()
        try:
            function = self._made[recording.text] = self._compiler(recording)
        except Exception as error:
            first = str(error).partition("\n")[0]
            return Hazard(f"compiling it failed: {type(error).__name__}: {first}"[:500])
        finally:
            torch.set_rng_state(generator)
        return function

    def clear(self) -> None:
        """Lets go of every function."""
        self._made.clear()
