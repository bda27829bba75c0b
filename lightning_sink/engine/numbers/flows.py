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
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from types import CodeType, FrameType, FunctionType, MethodType
from typing import Any, NamedTuple

from lightning_sink.engine.numbers.passed_on import RETURNED, PassedOn, Receiver, Returned
from lightning_sink.engine.source import Source, instruction_at, path_of, source_of
from lightning_sink.engine.watch import callers_in_step, is_user_frame
from lightning_sink.held import ABSENT, attribute_of, found_behind

_PAUSES = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR

TABLES = frozenset([dict, defaultdict, Counter])
KEYS = frozenset([int, float, bool, str, type(None)])
"""Dictionaries, and keys of theirs, that ask nobody's code for what they are."""

_COMPREHENSIONS = frozenset(["<dictcomp>", "<listcomp>"])
"""Frames of their own, up to Python 3.11."""


class Getter(NamedTuple):
    """A receiver that was found.

    Attributes:
        holder: The object that has the attribute, or the receiver itself.
        attribute: The attribute that is the receiver, "" where the object is.
        how: The method that is called with the number, `ADDED`, or `RETURNED` by the code that is the holder.
        item: Where the receiver is in that, if that is a dictionary.
    """

    holder: Any
    attribute: str
    how: str
    item: Any = ABSENT

    @property
    def held(self) -> Any:
        """What is there, by now."""
        held = attribute_of(self.holder, self.attribute) if self.attribute else self.holder
        if self.item is ABSENT:
            return held
        return held.get(self.item) if type(held) in TABLES and type(self.item) in KEYS else None


def receivers(frame: FrameType) -> list[Getter]:
    """Returns who gets what a frame's instruction gives; none where that is not certain."""
    try:
        return _getters(frame, Returned(None), None)
    except RecursionError:  # an expression as long as generated ones are
        return []


def value_at(frames: list[FrameType]) -> tuple[Source | None, ast.expr | None]:
    """Returns what the last of some frames of one file is at: a call, an attribute, arithmetic."""
    source, span = instruction_at(frames)
    return source, None if source is None else source.values.get(span)


def is_of(value: ast.expr, scopes: Iterable[Mapping[str, Any]], code: CodeType) -> bool:
    """Tells whether a call is one of the function with this code, or an attribute its property.

    And not of another one that calls it in turn, or keeps what it gives.
    """
    scopes, called = [*scopes], value.func if isinstance(value, ast.Call) else value
    path = path_of(called)
    found = found_behind(path, scopes) if path else _found_above(called, scopes[0])
    if isinstance(value, ast.Attribute):
        found = found.fget if type(found) is property else None
    return isinstance(found, (FunctionType, MethodType)) and found.__code__ is code


def _found_above(value: ast.expr, variables: Mapping[str, Any]) -> Any:
    """Returns what a method's `super().name` is, given its variables, the object first; None for anything else."""
    asks = isinstance(value, ast.Attribute) and isinstance(value.value, ast.Call) and not value.value.args
    if not asks or path_of(value.value.func) != ("super",):  # type: ignore[attr-defined]
        return None
    line, of = type(next(iter(variables.values()), None)).__mro__, variables.get("__class__")
    above = line[line.index(of) + 1 :] if of in line else ()
    return next((vars(base)[value.attr] for base in above if value.attr in vars(base)), None)  # type: ignore[attr-defined]


def _with_comprehensions(frame: FrameType) -> list[FrameType]:
    """Returns a frame, and those around it whose code tells what is done with what it gives."""
    frames = [frame]
    while frames[0].f_code.co_name in _COMPREHENSIONS and frames[0].f_back is not None:
        frames.insert(0, frames[0].f_back)
    return frames


def _getters(frame: FrameType, given: Returned, by: CodeType | None) -> list[Getter]:
    """Returns who gets a number that the frame's call gives, as it is or in something else.

    The code is that of the function that gives it; None for a method of C's.
    """
    frames = _with_comprehensions(frame)
    source, value = value_at(frames)
    if source is None or value is None or (by is not None and not is_of(value, scopes_of(frames), by)):
        return []
    return got(frames, PassedOn.of(source).receivers(value, given.place))


def scopes_of(frames: list[FrameType]) -> list[Mapping[str, Any]]:
    """Returns the variables that the last of some frames sees."""
    return [scope for frame in reversed(frames) for scope in (frame.f_locals, frame.f_globals)]


def got(frames: list[FrameType], receivers: Iterable[Receiver | Returned]) -> list[Getter]:
    """Returns who gets a number that some receivers are given; none where that is not certain of one of them."""
    found: list[Getter] = []
    for receiver in receivers:
        if isinstance(receiver, Receiver):
            found.append(getter(receiver, scopes_of(frames)))
            continue
        caller, code = caller_of(frames[0]), frames[0].f_code
        if caller is not None:
            getters = _getters(caller, receiver, code)
        else:
            is_the_owners = not any(callers_in_step(frames[0])) and not gives_later(code)
            getters = [Getter(code, "", RETURNED)] if is_the_owners else []
        if not getters:
            return []
        found += getters
    return found


def caller_of(frame: FrameType) -> FrameType | None:
    """Returns the user's frame that gets what one returns; None where that is another one's, or nobody's who calls."""
    caller = frame.f_back
    return caller if caller is not None and is_user_frame(caller) and not gives_later(frame.f_code) else None


def gives_later(code: CodeType) -> bool:
    """Tells whether some code gives what it returns to nobody who calls it: a generator's."""
    return bool(code.co_flags & _PAUSES)


def is_only_added_to(name: str, codes: Iterable[CodeType]) -> bool:
    """Tells whether some code adds to attributes of a name, by `+=`, and none does anything else with them."""
    using = [(code, source_of((code,), code.co_filename)) for code in codes if name in code.co_names]
    return bool(using) and all(
        source is not None and PassedOn.of(source).only_adds(code, name) for code, source in using
    )


def getter(receiver: Receiver, scopes: Iterable[Mapping[str, Any]]) -> Getter:
    """Returns the receiver that is found behind a name."""
    scopes, (first, *path) = [*scopes], receiver.path
    holder, item = _named(first, scopes), receiver.item
    for name in path[:-1]:
        holder = attribute_of(holder, name)
    there = ABSENT if item is None else item.value if isinstance(item, ast.Constant) else _named(item.id, scopes)
    return Getter(holder, path[-1] if path else "", receiver.how, there)


def _named(name: str, scopes: Iterable[Mapping[str, Any]]) -> Any:
    return next((scope[name] for scope in scopes if name in scope), None)
