"""Where the number goes that a call in the user's code gives.

`self.log("loss", loss.item())` takes a number out of a tensor and does nothing but pass it on. `receivers` finds out,
for the call that a frame is at, who gets its result, as the source has it (`passed_on.py`): through arithmetic, in
containers, by way of local variables, and of functions that return it to the frames behind. Where it may go anywhere
else, or the source cannot be read, it finds nothing. Positions within a line are known from Python 3.11 on; before that
it finds nothing either.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterable
from itertools import islice
from types import CodeType, FrameType, FunctionType, MethodType
from typing import Any, NamedTuple

from lightning_sink.engine.held import held_by
from lightning_sink.engine.numbers.computed_with import Operands, is_computed_with, is_returned
from lightning_sink.engine.numbers.passed_on import Receiver, Returned, Source, path_of, source_of
from lightning_sink.engine.watch import is_user_frame

_PAUSES = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR
"""Flags of code that gives what it returns to nobody who calls it."""

_COMPREHENSIONS = frozenset(["<dictcomp>", "<listcomp>"])
"""Frames of their own, up to Python 3.11."""


class Getter(NamedTuple):
    """A receiver that was found.

    Attributes:
        holder: The object that has the attribute, or the receiver itself.
        attribute: The attribute that is the receiver, "" where the object is.
        how: The method that is called with the number, or `ADDED`.
    """

    holder: Any
    attribute: str
    how: str


def receivers(frame: FrameType) -> list[Getter]:
    """Returns who gets what a frame's instruction gives; none where that is not certain."""
    try:
        return _getters(frame, Returned(None), None)
    except RecursionError:  # an expression as long as generated ones are
        return []


def others(frame: FrameType, by: CodeType | None = None) -> list[Getter] | None:
    """Returns who gets what a frame's instruction gives, beside what compares it or computes with it.

    None where it goes anywhere else, or that is not certain. If there is a code, the instruction has to be a call of
    its function, which gives it.
    """
    source, value = _value_at([frame])
    if source is None or value is None or (by is not None and not _is_call_of(value, [frame], by)):
        return None
    caller, code = frame.f_back, frame.f_code
    if is_returned(source, value) and caller is not None and is_user_frame(caller) and not code.co_flags & _PAUSES:
        return others(caller, code)
    try:
        found = Operands.of(source).others(value, frame.f_locals)
        if found is None:  # what stands beside it may be anything that makes anything of it
            return None if is_computed_with(source, value) else receivers(frame) or None
        return _got([frame], found)
    except RecursionError:  # as above
        return None


def reads(frame: FrameType, attribute: str) -> bool:
    """Tells whether a frame is where the source names an attribute."""
    value = _value_at([frame])[1]
    return isinstance(value, ast.Attribute) and value.attr == attribute


def _value_at(frames: list[FrameType]) -> tuple[Source | None, ast.expr | None]:
    """Returns what the last of some frames of one file is at."""
    source, span = instruction_at(frames)
    return source, None if source is None else source.value(span)


def instruction_at(frames: list[FrameType]) -> tuple[Source | None, Any]:
    """Returns the source of some frames of one file, and where in it the last one's instruction stands."""
    positions = getattr(frames[-1].f_code, "co_positions", None)
    if positions is None:
        return None, None
    source = source_of(tuple(each.f_code for each in frames), frames[-1].f_code.co_filename)
    return source, next(islice(positions(), frames[-1].f_lasti // 2, None))


def _getters(frame: FrameType, given: Returned, by: CodeType | None) -> list[Getter]:
    """Returns who gets a number that the frame's call gives, as it is or in something else.

    The code is that of the function that gives it; None for a method of C's.
    """
    frames = [frame]
    while frames[0].f_code.co_name in _COMPREHENSIONS and frames[0].f_back is not None:
        frames.insert(0, frames[0].f_back)  # whose code tells what is done with it
    source, value = _value_at(frames)
    if source is None or value is None or (by is not None and not _is_call_of(value, frames, by)):
        return []
    return _got(frames, source.receivers(value, given.place)) or []


def _got(frames: list[FrameType], receivers: Iterable[Receiver | Returned]) -> list[Getter] | None:
    """Returns who gets a number that some receivers are given; None where that is not certain of one of them."""
    found: list[Getter] = []
    for receiver in receivers:
        if isinstance(receiver, Receiver):
            found.append(_getter(frames, receiver))
            continue
        caller, code = frames[0].f_back, frames[0].f_code
        follows = caller is not None and is_user_frame(caller) and not code.co_flags & _PAUSES
        getters = _getters(caller, receiver, code) if follows and caller is not None else []
        if not getters:
            return None
        found += getters
    return found


def _is_call_of(call: ast.expr, frames: list[FrameType], code: CodeType) -> bool:
    """Tells whether a call is one of the function with this code, and not of another one that calls it in turn."""
    path = path_of(call.func) if isinstance(call, ast.Call) else ()
    if not path:
        return False
    known = (scope for frame in reversed(frames) for scope in (frame.f_locals, frame.f_globals))
    called = next((scope[path[0]] for scope in known if path[0] in scope), None)
    for name in path[1:]:
        holder, called = called, attribute_of(called, name)
        if called is None:
            called = inspect.getattr_static(type(holder), name, None)
    return getattr(called, "__code__", None) is code and isinstance(called, (FunctionType, MethodType))


def is_only_added_to(name: str, codes: Iterable[CodeType]) -> bool:
    """Tells whether some code adds to attributes of a name, by `+=`, and none does anything else with them."""
    using = [(code, source_of((code,), code.co_filename)) for code in codes if name in code.co_names]
    return bool(using) and all(source is not None and source.only_adds(code, name) for code, source in using)


def attribute_of(holder: Any, name: str) -> Any:
    """Returns what an object has under a name, without running code; None where it has nothing."""
    held = held_by(holder)
    modules = held.get("_modules")
    return held.get(name, modules.get(name) if type(modules) is dict else None)


def _getter(frames: list[FrameType], receiver: Receiver) -> Getter:
    first, *path = receiver.path
    holder = next((frame.f_locals[first] for frame in reversed(frames) if first in frame.f_locals), None)
    for name in path[:-1]:
        holder = attribute_of(holder, name)
    return Getter(holder, path[-1] if path else "", receiver.how)
