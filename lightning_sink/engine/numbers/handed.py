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
from lightning_sink.engine.source import operation_at
from lightning_sink.engine.watch import is_user_frame

OF_TENSORS = frozenset(["add_", "sub_", "mul_", "div_", "lerp_", "addcdiv_", "addcmul_", "sub", "mul", "div", "lerp"])
"""Methods of tensors that take numbers. Of those that write, nothing else in C has one that keeps what it is given."""

_TAKE_STAND_INS = frozenset(["torch", "lightning", "pytorch_lightning", "lightning_sink"])
"""Packages whose functions do the same with a stand-in."""


class Handed:
    """The calls of one recording.

    Attributes:
        hook: The profile hook, by which `called` is called; None where there is none yet.
        expected: Functions, and names of their arguments, of which the source tells what is done with a stand-in.
        lines: Where it says that such are called, by code and number; it may be others by then.
        are_given: Whether there are stand-ins that any functions may be called with.
    """

    def __init__(self) -> None:
        self.hook: Any = None
        self.expected: set[tuple[CodeType, str]] = set()
        self.lines: set[tuple[CodeType, int]] = set()
        self.are_given = False

    @property
    def sees_calls(self) -> bool:
        """Whether nobody has put another hook in the place of this one."""
        return self.hook is not None and sys.getprofile() is self.hook

    def called(self, frame: FrameType) -> None:
        """Makes plain numbers of the arguments of a function that is about to run, where stand-ins are not expected.

        Other lines of the user's give none to the functions that they call (`plain_uses.py`). These are not looked at:
        a frame that was asked for its variables keeps them.
        """
        code, caller = frame.f_code, frame.f_back
        if not self.are_given or caller is None or _takes_stand_ins(frame):
            return
        is_operator = False
        if is_user_frame(caller):
            is_operator = not operation_at(caller).startswith(("CALL", "PRECALL"))
            hands_on = (caller.f_code, caller.f_lineno) in self.lines
            if not (is_operator or hands_on or _may_be_called_by_others(code.co_name)):
                return
        held, made = frame.f_locals, {}
        count = code.co_argcount + code.co_kwonlyargcount
        count += bool(code.co_flags & inspect.CO_VARARGS) + bool(code.co_flags & inspect.CO_VARKEYWORDS)
        for name in code.co_varnames[:count]:
            value = held.get(name)
            is_expected = (code, name) in self.expected and not is_operator
            if not is_expected and (plain := _plain(value)) is not value:
                made[name] = plain
        for name, plain in made.items():  # at the end: whoever asks for a frame's variables has them read anew
            held[name] = plain


def _takes_stand_ins(frame: FrameType) -> bool:
    return frame.f_globals.get("__name__", "").partition(".")[0] in _TAKE_STAND_INS


def _may_be_called_by_others(name: str) -> bool:
    """Tells whether code in C that a line calls may call a function of such a name: `min` asks for `__lt__`."""
    return name in OF_TENSORS or (name.startswith("__") and name.endswith("__"))


def _plain(value: Any, deep: int = 2) -> Any:
    """Returns an argument with plain numbers in the place of stand-ins for attributes; others go to all functions.

    They are looked for in tuples and dictionaries, as calls hand arguments on, in each other so often. A dictionary is
    changed, and not replaced: whoever calls may look at what the function does with it.
    """
    if type(value) is Number:
        return value if value.plain is None else value.freeze()
    if type(value) is tuple and deep:
        items = tuple(_plain(item, deep - 1) for item in value)
        return value if all(map(operator.is_, items, value)) else items
    if type(value) is dict and deep:
        for key, item in value.items():
            if (plain := _plain(item, deep - 1)) is not item:
                value[key] = plain
    return value
