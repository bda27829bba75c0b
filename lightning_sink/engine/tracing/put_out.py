"""Numbers that a step returns: `return {"loss": loss, "accuracy": right.item()}`.

`PutOut` owns what becomes of them behind the span that returns them: the owner gets plain numbers, which it hands to
whoever is shown the output, and the program gives a tensor for each.
"""

from __future__ import annotations

from typing import Any

from lightning_sink.engine.numbers.given import given
from lightning_sink.engine.numbers.released import as_they_are


class PutOut:
    """What the spans of one recording return."""

    def __init__(self) -> None:
        self._known: list[tuple[Any, Any]] = []

    def plainly(self, output: Any) -> Any:
        """Returns what a span returns with plain numbers; where it holds stand-ins it is copied."""
        held, plain = given(output), as_they_are(output)
        if held is not output:
            self._known.append((plain, held))
        return plain

    def given(self, output: Any) -> Any:
        """Returns what a span has returned, with `Given` for numbers that the step computed."""
        return next((held for plain, held in self._known if plain is output), output)
