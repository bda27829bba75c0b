"""Texts of a batch in a recorded step: names of files, which most steps have and do not look at.

A program has none of them, and serves batches with others. So each text of a list has something in its place while a
step is recorded, which does what the text does and tells of it. The lists are lists: how long they are, and what kind
of one, is what programs take for granted.

Code in C that insists on a text raises a `TypeError`, and the step is run again, with the texts. So it is where code
asks for the `type()` of anything but `self`, of which nothing else tells.
"""

from __future__ import annotations

import dis
import sys
import sysconfig
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache, partial
from operator import is_
from types import CodeType
from typing import Any

from lightning_sink.engine.state.referrers import is_held, put_in_place_of

StandIns = Callable[[Callable[[int, str, Any], Any]], tuple[Any, Callable[[], None]]]
"""Puts into a batch what a function gives for each list of texts; returns the batch, and what puts the texts back."""


_PYTHON = (sysconfig.get_path("stdlib"), "<frozen ")


class Word:
    """Stands for a text, also to `isinstance`.

    Args:
        text: The text.
        tell: Called before anything is done with it.
    """

    __slots__ = ("_tell", "_text")

    def __init__(self, text: str, tell: Callable[[], None]) -> None:
        self._text, self._tell = text, tell

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        return str

    def __getattr__(self, name: str) -> Any:
        if not hasattr(str, name):
            raise AttributeError(f"'str' object has no attribute {name!r}")
        found = getattr(_looked_at(self), name)
        return _telling(found) if callable(found) else found

    def __array__(self, *arguments: Any, **options: Any) -> Any:
        return sys.modules["numpy"].array(_looked_at(self), *arguments, **options)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return str, (_looked_at(self),)


def _looked_at(value: Any) -> Any:
    """Returns the text for what stands for one, and tells of it."""
    if type(value) is not Word:
        return value
    value._tell()
    return value._text


def _telling(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *operands, **options: function(*map(_looked_at, operands), **options)


_METHODS = ("add", "contains", "eq", "ge", "getitem", "gt", "hash", "le", "len", "lt", "mod", "mul", "ne", "rmul")
for _name in _METHODS:
    setattr(Word, f"__{_name}__", _telling(getattr(str, f"__{_name}__")))
for _function in (bool, complex, float, format, int, iter, repr, str):
    setattr(Word, f"__{_function.__name__}__", _telling(_function))
# Which of both is asked first is the other's affair, and paths are what texts are taken for, not what they say of it.
setattr(Word, "__radd__", _telling(lambda text, other: other + text))  # noqa: B010
setattr(Word, "__fspath__", _telling(str))  # noqa: B010


_KEEPS = "keeps what is in"


class _List:
    """One of a batch's lists of texts, and what stands for it.

    Args:
        number: Its number in the batch.
        place: Where it is, as users write it.
        tell: Called with its number and what is done to it.

    Attributes:
        given: What stands for it.
        is_over: Whether nobody is told any more.
    """

    def __init__(self, number: int, place: str, texts: Any, tell: Callable[[int, str], None]) -> None:
        self.number, self._place, self._texts, self._tell = number, place, texts, tell
        self.is_over = False
        self._words = [Word(text, partial(self.tell, "looks at")) for text in texts]
        self.given = type(texts)(self._words)

    def tell(self, what: str) -> None:
        """Takes note of what the step does."""
        if not self.is_over:
            self._tell(self.number, f"the step {what} `{self._place}`, texts of the batch")

    def take_back(self) -> None:
        """Takes note of what has become of it, and puts the texts where somebody keeps something of it."""
        words, texts, owner = self._words, self._texts, [self.given]
        del self.given, self._words
        if len(owner[0]) != len(words) or not all(map(is_, owner[0], words)):
            self.tell("changes")
            texts[:] = map(_looked_at, owner[0])
        if is_held(owner):
            self.tell(_KEEPS)
            put_in_place_of(owner, [texts])
        owner.clear()
        held, own = list[Word](), list[str]()
        while words:
            kept = [words.pop()]
            if is_held(kept):
                held += kept
                own.append(kept[0]._text)
        if held:
            self.tell(_KEEPS)
            put_in_place_of(held, own)


@contextmanager
def texts_watched(
    stand_ins: StandIns,
    looked_at: Callable[[int], None],
    hazard: Callable[[str], None],
    asks_for_types: Callable[[], bool],
) -> Iterator[Any]:
    """Gives the batch for a part of a step that is recorded.

    Args:
        stand_ins: Puts something in the place of its lists of texts.
        looked_at: Told the number of each that the step looks at.
        hazard: Told so in words.
        asks_for_types: Whether the step has asked for the type of something.

    Raises:
        TypeError: It has.
    """

    def tell(number: int, what: str) -> None:
        looked_at(number)
        hazard(what)

    lists: list[_List] = []

    def stand_in(number: int, place: str, texts: Any) -> Any:
        lists.append(_List(number, place, texts, tell))
        return lists[-1].given

    watched, restore = stand_ins(stand_in)
    try:
        yield watched
        if lists and asks_for_types():
            raise TypeError(f"the step may ask for the type of a {Word.__name__}")
    except Exception:  # such code, or code in C that wants a text: the step is run again, with the texts
        for each in lists:
            looked_at(each.number)
            each.is_over = True  # frames of the error keep it
        raise
    finally:
        restore()
        del watched
        for each in lists:
            each.take_back()


@lru_cache(maxsize=4096)
def asks_for_types(code: CodeType) -> bool:
    """Tells whether some code, but for Python's own, calls `type` of anything but `self`."""
    is_pythons = code.co_filename.startswith(_PYTHON) and "site-packages" not in code.co_filename
    if "type" not in code.co_names or is_pythons:
        return False
    loads = [each.argval for each in dis.get_instructions(code) if each.opname.startswith("LOAD_")]
    return any(
        name == "type" and following not in ("self", "cls")
        for name, following in zip(loads, [*loads[1:], None], strict=True)
    )
