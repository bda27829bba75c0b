"""Functions of Python's that a recorded step calls with a stand-in for an attribute.

Where the source says that a stand-in is but a number (`plain_uses.py`), it says nothing of what stands beside it: in
`x * self.n` that may be a tensor, or an object of the user's, whose method may ask for the type of what it gets.
`Handed` sees such a call before the first line of the function runs, and ends the recording.
"""

from __future__ import annotations

import inspect
from types import CodeType, FrameType
from typing import Any

from lightning_sink.engine.numbers.number import Number
from lightning_sink.engine.watch import is_user_frame

_TAKE_NUMBERS = frozenset(["torch", "lightning", "pytorch_lightning", "lightning_sink"])
"""Packages whose functions do the same with a stand-in."""


class GivenAway(Exception):
    """A stand-in goes where only a number may; the step is run again without."""


class Handed:
    """The calls of one recording.

    Args:
        unfit: Code of the user's that is to get no stand-ins any more; what is found is added.

    Attributes:
        expected: Functions and names of their arguments, of which the source tells what is done with a stand-in.
    """

    def __init__(self, unfit: set[CodeType]) -> None:
        self.unfit = unfit
        self.expected: set[tuple[CodeType, str]] = set()
        self._found: GivenAway | None = None

    def begin(self) -> None:
        """A part of the step begins."""
        self._found = None

    def called(self, frame: FrameType) -> None:
        """Looks at the arguments of a function that is about to run.

        Raises:
            GivenAway: One of them is a stand-in for an attribute that is not expected there.
        """
        if frame.f_globals.get("__name__", "").partition(".")[0] in _TAKE_NUMBERS:
            return
        code, held = frame.f_code, frame.f_locals
        count = code.co_argcount + code.co_kwonlyargcount
        count += bool(code.co_flags & inspect.CO_VARARGS) + bool(code.co_flags & inspect.CO_VARKEYWORDS)
        for name in code.co_varnames[:count]:
            number = _stand_in(held.get(name))
            if number is not None and (code, name) not in self.expected:
                self.give_away(f"{number.words} is handed to `{code.co_name}()`", frame.f_back)

    def give_away(self, what: str, frame: FrameType | None) -> None:
        """Ends the recording; the innermost code of the user's is to get no stand-ins any more."""
        while frame is not None and not is_user_frame(frame):
            frame = frame.f_back
        if frame is not None:
            self.unfit.add(frame.f_code)
        self._found = GivenAway(what)
        raise self._found

    def check(self) -> None:
        """Raises what was raised, if code of the user's has kept it to itself."""
        if self._found is not None:
            raise self._found


def _stand_in(value: Any) -> Number | None:
    """Returns the stand-in for an attribute that an argument is, or holds: others go to all functions."""
    held = value if type(value) is tuple else value.values() if type(value) is dict else (value,)
    return next((item for item in held if type(item) is Number and item.plain is not None), None)
