"""Who holds something is found, frozen or not."""

import subprocess
import sys
from collections import Counter, OrderedDict, namedtuple
from dataclasses import dataclass

import pytest

from lightning_sink.engine.state.referrers import functions_of, put_in_place_of, referrers

FROZEN = """
import gc
from lightning_sink.engine.state.referrers import functions_of, put_in_place_of

class Held:
    pass

def function():
    pass

old, new, holder = Held(), Held(), [None]
holder[0] = old
gc.freeze()
assert not [found for found in gc.get_referrers(old) if found is holder]
put_in_place_of(old, new)
assert holder == [new]

gc.freeze()
assert not [found for found in gc.get_objects() if found is function]
assert functions_of([function.__code__]) == [function]
"""


def test_holders_are_found():
    held, other = object(), object()
    inside, outside = [held], [other]
    found = referrers([held])
    assert any(holder is inside for holder in found)
    assert not any(holder is outside for holder in found)


def test_a_tuple_of_the_searchs_own_is_none():
    held = [object()]
    assert not [holder for holder in referrers([held]) if type(holder) in (tuple, list)]


def test_functions_are_found_by_their_code():
    made = [lambda: None for _ in range(3)]
    assert {*functions_of([made[0].__code__])} == {*made}
    assert not functions_of([])


@pytest.mark.narrow
def test_what_is_frozen_is_found():
    subprocess.run([sys.executable, "-c", FROZEN], check=True, timeout=120)


def test_what_a_class_holds_is_put_there_for_code_that_has_looked_it_up():
    class Registry:
        last = None

    def looked_up():
        return [Registry.last for _ in range(1000)][-1]

    Registry.last = held = [object()]
    looked_up()
    new = [1]
    put_in_place_of(held, new)
    del held
    assert looked_up() is new


class Held:
    pass


@dataclass(frozen=True, slots=True)
class InASlot:
    step: object


Pair = namedtuple("Pair", "step others")
HOLDERS = {
    "a list": (lambda held: [held], lambda kept: kept[0]),
    "a set": (lambda held: {held}, lambda kept: [*kept][0]),
    "a tuple": (lambda held: (1, held), lambda kept: kept[1]),
    "a named tuple": (lambda held: Pair(held, 2), lambda kept: kept.step),
    "a frozen set": (lambda held: frozenset([held]), lambda kept: [*kept][0]),
    "a slot": (InASlot, lambda kept: kept.step),
    "a value": (lambda held: {"a": 1, "b": held, "c": 3}, lambda kept: kept["b"]),
    "a key": (lambda held: {"a": 1, held: 2, "c": 3}, lambda kept: [*kept][1]),
    "a key's value": (lambda held: {held: held}, lambda kept: [*kept.values()][0]),
    "a counter's key": (lambda held: Counter({"a": 1, held: 2}), lambda kept: kept.most_common(1)[0][0]),
    "an ordered key": (lambda held: OrderedDict(a=1) | {held: 2}, lambda kept: next(reversed(kept))),
    "a tuple as a key": (lambda held: {(held, 1): 2}, lambda kept: [*kept][0][0]),
}


@pytest.mark.parametrize(("hold", "look"), HOLDERS.values(), ids=HOLDERS)
def test_whoever_holds_a_value_holds_the_other_one(hold, look):
    held, new = Held(), Held()
    kept = [hold(held)]
    kind, count = type(kept[0]), sys.getrefcount(new)
    put_in_place_of(held, new)
    assert look(kept[0]) is new
    assert type(kept[0]) is kind
    assert sys.getrefcount(new) > count
    assert len(referrers([held])) == 0
