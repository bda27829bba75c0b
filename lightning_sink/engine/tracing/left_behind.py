"""What a recorded step leaves in Python: stand-ins for numbers somewhere, and attributes that hold something else.

Of the first nothing stays. Of the second it is learned where steps collect, and what they carry from one to the next.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Collection, Iterable, Iterator
from types import CodeType
from typing import Any

from lightning_sink.engine.numbers.flows import TABLES
from lightning_sink.engine.numbers.guards import Uses
from lightning_sink.engine.numbers.number import Number
from lightning_sink.engine.source import line_that_sets
from lightning_sink.engine.state.collected import Watched
from lightning_sink.engine.state.referrers import put_in_places_of
from lightning_sink.engine.state.slots import Parts
from lightning_sink.engine.tracing.undo import Attributes
from lightning_sink.whose import is_pythons


def release(uses: Uses, known: Collection[Number], parts: Parts, say: Callable[[str], None]) -> None:
    """Puts plain numbers where a step keeps stand-ins, but for those of which that is known, and says so."""
    uses.close()
    if uses.kept(known):
        _release_attributes({*map(id, known)}, parts, say)
    if uses.kept(known):
        gc.collect()  # what is left of the step may hold some in cycles
    if kept := uses.kept(known):
        for words in dict.fromkeys(number.words for number in kept):
            say(f"the step keeps {words}")
        put_in_places_of(kept, [number.value for number in kept])


def _release_attributes(known: set[int], parts: Parts, say: Callable[[str], None]) -> None:
    """Does so in attributes of what belongs to the training, and in dictionaries there; elsewhere it takes a search."""
    for prefix, holder in parts.with_optimizers():
        for held, key, item, name in list(_places(holder)):
            if type(item) is not Number or id(item) in known:
                continue
            dict.__setitem__(held, key, item.value)
            where = f"{prefix}{key}" if held is vars(holder) else f"{prefix}{name}[{key!r}]"
            say(f"the step keeps {item.words} in `{where}`")


def _places(holder: Any) -> Iterator[tuple[dict[Any, Any], Any, Any, str]]:
    """Yields what attributes and dictionaries in them hold, and the attribute's name; the user's code is not asked."""
    for name, item in vars(holder).items():
        yield vars(holder), name, item, name
        if isinstance(item, dict):
            yield from ((item, key, value, name) for key, value in dict.items(item))


def lines_of(changed: Iterable[str], attributes: Attributes, codes: Iterable[CodeType]) -> dict[str, str]:
    """Returns the lines that set attributes which hold others behind a step, each where the step has one such line."""
    ran, replaced = [code for code in codes if not is_pythons(code)], attributes.replaced()
    lines = {name: line_that_sets(name.rpartition(".")[2], ran) for name in changed if name in replaced}
    return {name: line for name, line in lines.items() if line}


def learn(
    parts: Parts,
    changed: Collection[str],
    wanted: Collection[tuple[Any, Any]],
    attributes: Attributes,
    watched: Watched,
    codes: Collection[CodeType],
) -> None:
    """Takes note of the attributes in which a step has collected, and of those that it has set.

    Args:
        parts: The training, which remembers them.
        changed: Names of Python values that are others behind the step.
        wanted: What was given numbers of tensors, and may hold what it did before: attributes, by objects and names,
            and items of dictionaries.
        attributes: What the attributes held before it.
        watched: What it collected.
        codes: The code of the step.
    """
    numbers = attributes.with_other_numbers() - parts.carried.places() if changed else set()
    if changed:
        parts.collected.learn(parts.holders(), attributes.grown(), numbers, codes)
    parts.collected.leave_out([place.key for place in watched.read])
    collecting = {place.name for place in parts.collected.places}
    found = {*changed, *(place.name for place in watched.read)}
    found |= {prefix + key for prefix, holder in parts.with_optimizers() for of, key in wanted if of is holder}
    found -= collecting
    numbers |= {(id(of), key) for of, key in wanted if type(of) in TABLES}
    for name in parts.carried.learn(parts.with_optimizers(), found, numbers, codes) if found or numbers else ():
        parts.varying.count(name)
