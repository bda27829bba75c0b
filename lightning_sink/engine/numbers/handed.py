"""Functions of Python's that a recorded step calls with a stand-in for an attribute: they get the number itself.

Where the source says that a stand-in is but a number (`plain_uses.py`), it says nothing of what stands beside it: in
`x * self.n` that may be a tensor, or an object of the user's, whose method may ask for the type of what it gets.
`Handed` owns what the profile hook does then: before the first line of such a function runs, its arguments are made
plain numbers, as if they had been from the beginning.

What is written into `frame.f_locals` in a profile hook is what the function finds: up to Python 3.12 it is written back
behind the hook (`call_trampoline` in CPython's `sysmodule.c`), from 3.13 on at once (PEP 667). `test_handed.py` fails
where it is not.
"""

from __future__ import annotations

import inspect
import operator
import sys
from types import CodeType, FrameType
from typing import Any

from lightning_sink.engine.numbers.number import Number

_TAKE_STAND_INS = frozenset(["torch", "lightning", "pytorch_lightning", "lightning_sink"])
"""Packages whose functions do the same with a stand-in."""


class Handed:
    """The calls of one recording.

    Attributes:
        hook: The profile hook, by which `called` is called; None where there is none yet.
        expected: Functions, and names of their arguments, of which the source tells what is done with a stand-in.
        are_given: Whether there are stand-ins that such functions may be called with.
    """

    def __init__(self) -> None:
        self.hook: Any = None
        self.expected: set[tuple[CodeType, str]] = set()
        self.are_given = False

    @property
    def sees_calls(self) -> bool:
        """Whether nobody has put another hook in the place of this one."""
        return self.hook is not None and sys.getprofile() is self.hook

    def called(self, frame: FrameType) -> None:
        """Makes plain numbers of the arguments of a function that is about to run, where stand-ins are not expected."""
        if frame.f_globals.get("__name__", "").partition(".")[0] in _TAKE_STAND_INS:
            return
        code, held = frame.f_code, frame.f_locals
        count = code.co_argcount + code.co_kwonlyargcount
        count += bool(code.co_flags & inspect.CO_VARARGS) + bool(code.co_flags & inspect.CO_VARKEYWORDS)
        made = {}
        for name in code.co_varnames[:count]:
            value = held.get(name)
            if (code, name) not in self.expected and (plain := _plain(value)) is not value:
                made[name] = plain
        for name, plain in made.items():  # at the end: whoever asks for a frame's variables has them read anew
            held[name] = plain


def _plain(value: Any) -> Any:
    """Returns an argument with plain numbers in the place of stand-ins for attributes; others go to all functions."""
    if type(value) is Number:
        return value if value.plain is None else value.freeze()
    held = (*value,) if type(value) is tuple else (*value.values(),) if type(value) is dict else ()
    items = tuple(map(_plain, held))
    if all(map(operator.is_, items, held)):
        return value
    return items if type(value) is tuple else dict(zip(value, items, strict=True))
