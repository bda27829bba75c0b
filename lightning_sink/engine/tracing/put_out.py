"""Numbers that a step returns: `return {"loss": loss, "accuracy": right.item()}`.

`PutOut` owns what becomes of them behind the span that returns them. The owner gets plain numbers, which it hands to
whoever is shown the output; the program gives a tensor for each; and a later span of the step gets stand-ins again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lightning_sink.engine.numbers.given import Given, given
from lightning_sink.engine.numbers.released import as_they_are
from lightning_sink.engine.private import pytree


class PutOut:
    """What the spans of one recording return.

    Args:
        again: Makes a stand-in for a number that was there before.
    """

    def __init__(self, again: Callable[[Given, Any], Any]) -> None:
        self._again = again
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

    def shown(self, output: Any) -> Any:
        """Returns what a span has returned, with stand-ins for these."""
        held = self.given(output)
        if held is output:
            return output
        return pytree.tree_map(
            lambda item, value: self._again(item, value) if type(item) is Given else value, held, output
        )
