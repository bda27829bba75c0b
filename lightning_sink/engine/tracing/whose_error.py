"""Whether a recorded step failed because it was recorded, or would have failed anyway."""

from __future__ import annotations

import dis
import traceback
from types import FrameType
from typing import Any

from lightning_sink.engine.numbers.number import Number
from lightning_sink.engine.watch import is_user_frame
from lightning_sink.whose import is_users, module_of

_MAY_BE_OURS = (TypeError, ValueError, RuntimeError, AssertionError, AttributeError)

_DEEPEST, _MOST = 3, 1_000
"""Containers and objects in each other, and values in one, that are looked into for a stand-in."""


def may_be_ours(error: Exception) -> bool:
    """Tells whether an error may come from recording: a stand-in where a number has to be, or an operation.

    Others are the user's, such as a connection that is lost; a second try would hide them.
    """
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    # Code that refuses to be recorded raises an error of Python's.
    if is_users(module_of(type(error))) and is_raised_by_user(error):
        is_steps_own = frames[-1] is next(filter(is_user_frame, frames))
        if is_steps_own or not _has_stand_ins(frames[-1]):
            return False
    names = [frame.f_globals.get("__name__", "") for frame in frames][1:]
    # As code in C names the type that it does not take; `sqlite3` of Python 3.10 has no name for it.
    is_of_stand_in = any(text in str(error) for text in (f"'{Number.__name__}'", "unsupported type"))
    is_through_us = any(name.startswith("lightning_sink.engine") for name in names)
    return isinstance(error, _MAY_BE_OURS) or is_of_stand_in or is_through_us


def is_raised_by_user(error: Exception) -> bool:
    """Tells whether it comes from a `raise` or an `assert` of the user's, and not from an operation or code in C."""
    last = error.__traceback__
    while last is not None and last.tb_next is not None:
        last = last.tb_next
    if last is None or not is_user_frame(last.tb_frame):
        return False
    return dis.opname[last.tb_frame.f_code.co_code[last.tb_lasti]] == "RAISE_VARARGS"


def _has_stand_ins(frame: FrameType) -> bool:
    """Tells whether code that raises an error has a stand-in at hand, which may be what it does not take."""
    return any(_holds_stand_in(value, _DEEPEST) for value in frame.f_locals.values())


def _holds_stand_in(value: Any, deep: int) -> bool:
    if type(value) is Number:
        return True
    if type(value) in (list, tuple):
        held = value
    else:
        held = [*(value if type(value) is dict else getattr(value, "__dict__", {})).values()]
    return deep > 0 and any(_holds_stand_in(item, deep - 1) for item in held[:_MOST])
