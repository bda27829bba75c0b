"""The compiled functions of a training, each made once for all recordings with the same text."""

from __future__ import annotations

from lightning_sink.engine.compiler.loop import CompiledStep, Compiler
from lightning_sink.engine.failures import RefusedError, in_short
from lightning_sink.engine.state.default_generators import Generators
from lightning_sink.engine.tracing.recording import Recording
from lightning_sink.engine.waits import may_wait
from lightning_sink.engine.watch import Hazard

_MOST_FUNCTIONS = 32
"""Compiled code is never given back, and memory must not grow with the training."""

_TOO_MANY = Hazard(
    f"{_MOST_FUNCTIONS} programs are compiled already: shapes, attributes or values in batches keep changing",
    way_out="hold in tensors what changes, and pad batches to few shapes",
)


class Functions:
    """Compiles recordings, and leaves the generators where they are."""

    def __init__(self, compiler: Compiler, generators: Generators) -> None:
        self._compiler, self._generators = compiler, generators
        self._made: dict[str, CompiledStep] = {}

    def get(self, recording: Recording) -> CompiledStep | Hazard:
        """Returns the function of a recording, or why there is none."""
        known = self._made.get(recording.text)
        if known is not None:
            return known
        if len(self._made) >= _MOST_FUNCTIONS:
            return _TOO_MANY
        generated = self._generators.state()
        try:
            with may_wait():
                function = self._made[recording.text] = self._compiler(recording)
        except RefusedError as refused:
            return refused.hazard
        except Exception as error:
            way_out = 'write the operation in another way that it names (`engine="traced"` runs it uncompiled)'
            return Hazard(f"compiling it failed: {in_short(error)}"[:500], way_out=way_out)
        finally:
            self._generators.restore(generated)
        return function

    def clear(self) -> None:
        """Lets go of every function."""
        self._made.clear()
