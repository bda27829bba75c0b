"""Whether a recorded step failed because it was recorded, or would have failed anyway."""

from __future__ import annotations

import dis
import traceback
from types import FrameType

from lightning_sink.engine.numbers.number import Number
from lightning_sink.engine.watch import is_user_frame

_MAY_BE_OURS = (TypeError, ValueError, RuntimeError, AssertionError, AttributeError)


def may_be_ours(error: Exception) -> bool:
    """Tells whether an error may come from recording: a stand-in where a number has to be, or an operation.

    Others are the user's, such as a connection that is lost; a second try would hide them.
    """
    *through, (last, _) = traceback.walk_tb(error.__traceback__)
    if _raises_by_itself(error) and is_user_frame(last):
        complains = not isinstance(error, RuntimeError) and _has_stand_ins(last)
        if not complains:
            return False
    names = [frame.f_globals.get("__name__", "") for frame, _ in (*through, (last, 0))][1:]
    is_of_stand_in = f"'{Number.__name__}'" in str(error)  # as code in C names the type that it does not take
    is_through_us = any(name.startswith("lightning_sink.engine") for name in names)
    return isinstance(error, _MAY_BE_OURS) or is_of_stand_in or is_through_us


def _raises_by_itself(error: Exception) -> bool:
    """Tells whether it comes from a `raise` or an `assert`, and not from what an operation or code in C says."""
    last = error.__traceback__
    while last is not None and last.tb_next is not None:
        last = last.tb_next
    return last is not None and dis.opname[last.tb_frame.f_code.co_code[last.tb_lasti]] == "RAISE_VARARGS"


def _has_stand_ins(frame: FrameType) -> bool:
    """Tells whether code that raises an error has a stand-in at hand, which may be what it does not take."""
    held = [*frame.f_locals.values()]
    held += [item for value in held if type(value) in (list, tuple) for item in value]
    held += [item for value in held if type(value) is dict for item in value.values()]
    return any(type(value) is Number for value in held)
