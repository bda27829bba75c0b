"""Texts of a batch in a recorded step: names of files, which most steps have and do not look at.

A program has none of them, and serves batches with others. So a list or tuple of texts has something in its place while
a step is recorded, that holds the same and tells whatever is done with it. Its length may be asked for.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from lightning_sink.engine.state.referrers import is_held, put_in_place_of
from lightning_sink.engine.step import Tape


class _Texts:
    """What both kinds have in common: `tell` is called with who does something, and `held` is what they stand for."""

    held: Any
    tell: Callable[[FrameType], None]

    def __reduce_ex__(self, protocol: Any) -> Any:
        self.tell(sys._getframe(1))
        return type(self.held), (self.held,)


class TextList(_Texts, list[str]):
    """Stands for a list of texts."""


class TextTuple(_Texts, tuple[str, ...]):
    """Stands for a tuple of texts."""


def _telling(name: str) -> Callable[..., Any]:
    def method(self: Any, *arguments: Any, **options: Any) -> Any:
        self.tell(sys._getframe(1))
        return getattr(self.held, name)(*arguments, **options)

    return method


def _told_and_left(self: Any, other: Any) -> Any:
    self.tell(sys._getframe(1))
    return NotImplemented


_OF_BOTH = ["add", "contains", "eq", "ge", "getitem", "gt", "iter", "le", "lt", "mul", "ne", "repr", "rmul"]
_OF_LISTS = [f"__{name}__" for name in ("delitem", "iadd", "imul", "reversed", "setitem")]
_OF_LISTS += ["append", "clear", "copy", "extend", "insert", "pop", "remove", "reverse", "sort"]
for _kind, _names in ((TextList, _OF_LISTS), (TextTuple, ["__hash__"])):
    for _name in [*(f"__{name}__" for name in _OF_BOTH), "count", "index", *_names]:
        setattr(_kind, _name, _telling(_name))
    setattr(_kind, "__radd__", _told_and_left)  # noqa: B010


@contextmanager
def texts_watched(
    batch: Any, with_stand_ins: Callable[..., Any], tape: Tape, known: Collection[str] = ()
) -> Iterator[Any]:
    """Gives a batch for a part of a step; where that is recorded, one that tells of texts which it looks at.

    Args:
        batch: The batch.
        with_stand_ins: Puts something in the place of those of which the batch's signature says nothing.
        tape: Told where the step looks at them.
        known: Modules that look at them for the owner, and find the same in all.
    """
    if not tape.records:
        yield batch
        return
    made: list[Any] = []

    def stand_in(place: str, texts: Any) -> Any:
        def tell(by: FrameType) -> None:
            if by.f_globals.get("__name__") not in known:
                tape.hazard(f"the step looks at `{place}`, texts of the batch")

        made.append((TextList if type(texts) is list else TextTuple)(texts))
        made[-1].held, made[-1].tell = texts, tell
        return made[-1]

    watched, restore = with_stand_ins(batch, stand_in)
    try:
        yield watched
    finally:
        restore()
        del watched
        while made:
            owner = [made.pop()]
            if is_held(owner):
                put_in_place_of(owner[0], owner[0].held)
