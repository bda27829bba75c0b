"""The eager engine: every step the plain way. It is the definition of what the other engines must give."""

from __future__ import annotations

from lightning_sink.engine.step import Engine, Sink, Tape


class EagerEngine(Engine):
    """Runs each step as plain training would, bit for bit."""

    name = "eager"

    def run(self, sink: Sink) -> None:
        """Runs all steps of a sink."""
        tape = Tape()
        for step in sink.steps():
            sink.run(step, tape)

    def close(self) -> None:
        """Does nothing: the engine holds nothing."""
