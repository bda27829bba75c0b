"""Whether all that is done with a number is arithmetic, as far as the source tells: who may get a stand-in.

A stand-in is a number to Python's operators, to torch and to `math`, and to nobody who asks for its type or keeps it.
So an attribute has one only where the line that reads it does nothing else with it: adds, multiplies, compares,
decides, logs it, collects it, puts it into an attribute that steps set, or into a variable of which the same is true,
hands it to a function that does no more, or returns it to such a line. Of what is computed of a stand-in it is asked
again. What stands beside it need not be known: an operator of Python's gets the number itself (`handed.py`), and those
in C ask the stand-in. Positions within a line are known from Python 3.11 on; before that nothing is certain.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from functools import partial
from types import FrameType
from typing import Any

from lightning_sink.engine.numbers.flows import Getter, caller_of, is_of, scopes_of, value_at
from lightning_sink.engine.numbers.handed import Handed
from lightning_sink.engine.numbers.source_uses import SourceUses, Way
from lightning_sink.engine.source import Source, instruction_at


class PlainUses:
    """Who may get a stand-in, in one recording.

    Args:
        carries: Tells whether an attribute of an object, or an item of a dictionary, may be one in a recorded step.
        receives: Tells whether somebody takes one and decides nothing by it.
        handed: Told of functions that do nothing else with one, either.

    Attributes:
        wanted: Attributes and items of dictionaries into which one would be put, if they might hold one.
    """

    def __init__(self, carries: Callable[[Any, Any], bool], receives: Callable[[Getter], bool], handed: Handed) -> None:
        self.carries, self.receives, self.handed = carries, receives, handed
        self.wanted: list[tuple[Any, Any]] = []

    def reads(self, frame: FrameType, attribute: str) -> bool:
        """Tells whether a frame reads an attribute, and uses it as a number and as nothing else."""
        source, node = value_at([frame])
        is_named = isinstance(node, ast.Attribute) and node.attr == attribute
        is_asked_for = isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "getattr"
        return (is_named or is_asked_for) and self._has(frame, source, node)

    def gives(self, frame: FrameType) -> bool:
        """Tells whether what a frame's instruction gives is used so."""
        source, span = instruction_at([frame])
        node = None if source is None else source.values.get(span) or source.augmented.get(span)
        return self._has(frame, source, node)

    def keeps(self, frame: FrameType) -> bool:
        """Tells whether what a frame's call gives is used so, decides nothing, and goes to an attribute."""
        (source, node), way = value_at([frame]), Way(follows=True)
        return self._has(frame, source, node, way) and way.is_kept and not way.decides

    def _has(self, frame: FrameType, source: Source | None, node: ast.AST | None, way: Way | None = None) -> bool:
        if source is None or node is None or not self.handed.sees_calls:
            return False
        way = way or Way()
        uses = SourceUses(
            self, source, frame.f_code, scopes_of([frame]), partial(self._is_returned, frame, way), way, frame
        )
        try:
            found = uses.is_plain(node)
        except RecursionError:  # an expression as long as generated ones are
            return False
        if found:
            self.handed.are_given = True
            self.handed.expected |= uses.handed_to
            self.handed.lines |= uses.handing
        return found

    def _is_returned(self, frame: FrameType, way: Way) -> bool:
        """Tells whether the line that calls a frame's function, or asks for its property, uses what it returns so."""
        caller = caller_of(frame)
        if caller is None:
            return False
        source, value = value_at([caller])
        is_its_call = value is not None and is_of(value, scopes_of([caller]), frame.f_code)
        return is_its_call and self._has(caller, source, value, way)
