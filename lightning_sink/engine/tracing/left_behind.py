"""What a recorded step leaves in Python: stand-ins for numbers somewhere, and attributes that hold something else.

Of the first nothing stays. Of the second it is learned where steps collect, and what they carry from one to the next.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Collection, Iterator
from types import CodeType
from typing import Any

from lightning_sink.engine.numbers.guards import Uses
from lightning_sink.engine.numbers.number import Number
from lightning_sink.engine.state.collected import Watched
from lightning_sink.engine.state.referrers import put_in_place_of
from lightning_sink.engine.state.slots import Parts
from lightning_sink.engine.tracing.undo import Attributes


def release(uses: Uses, known: Collection[Number], parts: Parts, say: Callable[[str], None]) -> None:
    """Puts plain numbers where a step keeps stand-ins, but for those of which that is known, and says so."""
    uses.close()
    if uses.kept(known):
        _release_attributes({*map(id, known)}, parts, say)
    if uses.kept(known):
        gc.collect()  # what is left of the step may hold some in cycles
    for number in uses.kept(known):
        say(f"the step keeps {number.words}")
        put_in_place_of(number, number.value)


def _release_attributes(known: set[int], parts: Parts, say: Callable[[str], None]) -> None:
    """Does so in attributes of what belongs to the training, and in dictionaries there; elsewhere it takes a search."""
    for prefix, holder in parts.with_optimizers():
        for held, key, item, where in list(_places(prefix, holder)):
            if type(item) is Number and id(item) not in known:
                dict.__setitem__(held, key, item.value)
                say(f"the step keeps {item.words} in {where}")


def _places(prefix: str, holder: Any) -> Iterator[tuple[dict[Any, Any], Any, Any, str]]:
    """Yields what attributes and dictionaries hold, and where; a dictionary of the user's class is asked nothing."""
    for key, item in vars(holder).items():
        yield vars(holder), key, item, f"`{prefix}{key}`"
        if isinstance(item, dict):
            for inner, value in dict.items(item):
                where = f"`{prefix}{key}[{inner!r}]`"
                yield item, inner, value, f"{where} (numbers are carried from step to step in attributes only)"


def learn(
    parts: Parts, changed: Collection[str], attributes: Attributes, watched: Watched, codes: Collection[CodeType]
) -> None:
    """Takes note of the attributes in which a step has collected, and of those that it has set.

    Args:
        parts: The training, which remembers them.
        changed: Names of Python values that are others behind the step.
        attributes: What the attributes held before it.
        watched: What it collected.
        codes: The code of the step.
    """
    if changed:
        parts.collected.learn(parts.holders(), attributes.grown(), attributes.with_other_numbers(), codes)
    parts.collected.leave_out([place.key for place in watched.read])
    collecting = {place.name for place in parts.collected.places}
    found = {*changed, *(place.name for place in watched.read)} - collecting
    for name in parts.carried.learn(parts.with_optimizers(), found, codes) if found else ():
        parts.varying.count(name)
