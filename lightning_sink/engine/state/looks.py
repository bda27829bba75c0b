"""What those who watch attributes know of a step while it is recorded."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import CodeType
from typing import Any, NamedTuple

from lightning_sink.engine.numbers.guards import Uses
from lightning_sink.engine.numbers.plain_uses import PlainUses


class Looks(NamedTuple):
    """One recording.

    Attributes:
        ran: Takes the step's code.
        past: Takes functions that look at all attributes at once.
        plain: Tells where a stand-in goes to nobody who needs the number itself.
        is_apart: Tells whether what runs now is run before each step, by whatever runs that.
    """

    uses: Uses
    ran: Mapping[int, CodeType]
    past: list[Any]
    plain: PlainUses
    is_apart: Callable[[], bool]
